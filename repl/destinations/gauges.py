"""Figures of a destination, for status and metrics: how much comes, how long its first message has waited.

    appended since the last look   VLSN 5 001 … 9 000, 2.0 s
    looked at, by column           5 001 … 5 640          160 messages    ─►  500 a second

Nothing of it is on the path of an append: the newest blocks are looked at a few times a minute, in memory, as far as
``SAMPLE_BYTES``, and the rest is taken to be like them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from vlsn.format.messages import MessageFilter
from vlsn.format.rows import EntryRows
from vlsn.ids import Vlsn
from vlsn.write.ring import Ring

SAMPLE_BYTES: Final = 65_536
"""Bytes of blocks, or one block that is larger, that are looked at for one destination."""
SAMPLED_ROWS: Final = 100_000
"""Entries that are looked at in one go, for all destinations; the others are looked at the next time."""
PERIOD_S: Final = 2.0
"""Seconds between two looks for one destination."""
WINDOWS: Final = 16
"""Windows of the log that are read in one go to find the first message that is not acknowledged."""


@dataclass(slots=True)
class Incoming:
    """Messages appended a second, of late: exact while little comes, else by a sample."""

    per_s: float = 0.0
    since_s: float = 0.0
    to: int = 0
    """The VLSN up to which was looked."""

    def is_due(self, now: float) -> bool:
        return now - self.since_s >= PERIOD_S

    def look(self, now: float, ring: Ring, wanted: MessageFilter) -> int:
        """Looks at the entries since the last look; returns how many entries were looked at."""
        span, before, last = now - self.since_s, self.to, int(ring.last_vlsn)
        begun, self.since_s, self.to = self.since_s > 0.0, now, last
        at = max(before + 1, int(ring.first_vlsn))
        position = ring.position_of(Vlsn(at)) if at <= last else None
        if not begun or position is None:
            self.per_s = 0.0
            return 0
        rows = EntryRows.joined(ring.take(position, end=ring.end, bytes_max=SAMPLE_BYTES))
        fresh = wanted.mask(rows)[max(at - int(rows.first_vlsn), 0) :]
        self.per_s = float(np.count_nonzero(fresh)) * (last - before) / len(fresh) / span
        return int(rows.rows)


@dataclass(slots=True)
class Oldest:
    """The first message that is not acknowledged; none where ``vlsn`` is 0."""

    vlsn: int = 0
    time_us: int = 0
    looked_to: int = 0
    """No message before it is unacknowledged."""
