"""Figures of a destination for status and metrics: its incoming rate, and its oldest message.

    appended since the last look   VLSN 5 001 … 9 000, 2.0 s
    looked at, by column           5 001 … 5 640          160 messages    ─►  500 a second

The path of an append does not compute the figures. Instead, a timer samples up to ``SAMPLE_BYTES`` of the newest blocks
in memory. Entries that are not sampled are assumed to have the same rate.
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
"""The most bytes of blocks that one sample reads for one destination; a single block may be larger."""
SAMPLED_ROWS: Final = 100_000
"""The most entries that one tick samples for all destinations together. Destinations that are not sampled within this
limit are sampled at the next tick."""
PERIOD_S: Final = 2.0
"""Seconds between two samples of one destination."""
WINDOWS: Final = 16
"""The most windows (groups of blocks) that one search for the first unacknowledged message reads."""


@dataclass(slots=True)
class Incoming:
    """The messages appended per second for one destination: exact if few were appended, otherwise from a sample."""

    per_s: float = 0.0
    since_s: float = 0.0
    to: int = 0
    """The VLSN up to which appended entries were sampled."""

    def is_due(self, now: float) -> bool:
        return now - self.since_s >= PERIOD_S

    def look(self, now: float, ring: Ring, wanted: MessageFilter) -> int:
        """Samples the entries that were appended since the last sample. Returns the number of entries that it has
        read."""
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
    """The first unacknowledged message of a destination; ``vlsn`` is 0 if there is no such message."""

    vlsn: int = 0
    time_us: int = 0
    looked_to: int = 0
    """The search for the oldest message reached this VLSN: all earlier messages are acknowledged."""
