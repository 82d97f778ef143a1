"""The lags of consumers. A lag is the number of durable VLSNs from the consumer's next DATA entry on, and the age of
that entry.

    position 41       VLSN 41 COMMIT · 42 COMMIT · 43 DATA, sealed 8 s ago · 44 COMMIT        lag 2 VLSNs, 8 s
    position 45       VLSN 45 COMMIT, of the position itself                                  lag 0

A COMMIT entry alone is no lag; otherwise no consumer would ever be up to date. So the log is read from each position to
the next DATA entry. Positions in the same part of the log share one read. Without sharing, each of many consumers at
the end of the log would read all consumers' COMMITs.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass

from repl.api import ConsumerAt
from repl.read.reads import Reads
from vlsn.errors import VlsnLogError
from vlsn.ids import Vlsn
from vlsn.seams import Clock
from vlsn.state.consumers import Placed, is_of_another_group, key_of, position_of, positions_in
from vlsn.write.local_log import LocalLog

LOOK_S = 1.0
LOOKS_MAX = 64
"""The most positions for which one round reads the log. The next rounds read for the other positions."""
SHARED_MAX = 16
"""The most stretches of the log, each read for one position, that are kept for other positions."""


@dataclass(slots=True)
class _Looked:
    """A stretch of the log that was read, from ``since`` on. The only DATA entry before ``upto`` is at ``vlsn`` (0:
    there is none), and was sealed at ``time_us``."""

    since: int
    upto: int
    vlsn: int = 0
    time_us: int = 0

    def covers(self, next_vlsn: int) -> bool:
        """Returns whether this stretch shows the next DATA entry at or after ``next_vlsn``, as far as the log was
        read."""
        return self.since <= next_vlsn <= (self.vlsn or self.upto)


class ConsumerLags:
    """The lags of consumers on one node. ``run`` reads the log periodically; ``told`` returns the last results."""

    def __init__(self, log: LocalLog, reads: Reads, clock: Clock) -> None:
        self._log = log
        self._reads = reads
        self._clock = clock
        self._looked: dict[str, _Looked] = {}
        self._shared: deque[_Looked] = deque(maxlen=SHARED_MAX)
        """The stretches of the log that were read last, for any position."""

    async def run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            with self._log.latch:
                self._log.care.consumer_holds.place(self._log.view.dtvlsn)
            await self.look()

    def positions(self) -> dict[str, Placed]:
        """Returns the positions that are durable here, by name."""
        small = self._log.view.history.small
        return positions_in(small.as_of(self._reads.durable)) if small else {}

    def position(self, name: str, durable: Vlsn) -> Placed | None:
        """Returns one position as of VLSN ``durable``. The cost does not depend on the number of positions."""
        return position_of(self._log.view.history.small.at(key_of(name), durable))

    async def look(self) -> None:
        """Reads the log for at most ``LOOKS_MAX`` positions that have moved or have new entries after them."""
        positions = self.positions()
        for name in [name for name in self._looked if name not in positions]:
            del self._looked[name]
        durable = self._reads.durable
        due = [name for name, placed in positions.items() if self._is_due(name, placed, durable)]
        for name in due[:LOOKS_MAX]:
            await self._look(name, positions[name].position.next)

    async def told_of(self, name: str) -> ConsumerAt | None:
        """Returns one position with its present lag. If the lag is old, reads the log first."""
        durable = self._reads.durable
        placed = self.position(name, durable)
        if placed is None:
            return None
        if self._is_due(name, placed, durable):
            await self._look(name, placed.position.next)
        return self._told(name, placed, durable)

    def told(self) -> list[ConsumerAt]:
        """Returns all positions by name, with their lags as last read."""
        durable = self._reads.durable
        return [self._told(name, placed, durable) for name, placed in self.positions().items()]

    def _is_due(self, name: str, placed: Placed, durable: Vlsn) -> bool:
        if is_of_another_group(name):
            return False
        looked = self._looked.get(name)
        if looked is None or not looked.covers(placed.position.next):
            return placed.position.next <= durable
        return not looked.vlsn and looked.upto <= durable

    async def _look(self, name: str, next_vlsn: int) -> None:
        looked = self._looked.get(name)
        if looked is None or not looked.covers(next_vlsn):
            looked = next((each for each in self._shared if each.covers(next_vlsn)), None)
            if looked is None:
                looked = _Looked(next_vlsn, next_vlsn)
                self._shared.append(looked)
            self._looked[name] = looked
        if looked.vlsn or looked.upto > self._reads.durable:
            return
        try:
            page = await self._reads.page(looked.upto, limit=1, bytes_max=1, all_kinds=False)
        except (VlsnLogError, OSError):
            return  # the entries were cleaned away or are damaged; a reader gets the error
        if page.entries and not looked.vlsn:
            looked.vlsn, looked.time_us = page.entries[0].vlsn, page.entries[0].time
        looked.upto = max(looked.upto, page.next_vlsn)

    def _told(self, name: str, placed: Placed, durable: Vlsn) -> ConsumerAt:
        position = placed.position
        term, lag_vlsns, lag_s = position.term, None, None
        if not is_of_another_group(name):
            term = self._reads.term_before(position.next)
            lag_vlsns, lag_s = self._lag(self._looked.get(name), position.next, durable)
        return ConsumerAt(name, position.next, term, placed.at, lag_vlsns, lag_s, position.by)

    def _lag(self, looked: _Looked | None, next_vlsn: int, durable: Vlsn) -> tuple[int, float | None]:
        if looked is not None and not looked.covers(next_vlsn):
            looked = None
        if looked is not None and looked.vlsn:
            seconds = max(0.0, (self._clock.wall_us() - looked.time_us) / 1e6)
            return max(0, durable - looked.vlsn + 1), round(seconds, 3)
        # The stretch that was read has no DATA entry; later entries may be DATA.
        upto = max(next_vlsn, looked.upto if looked is not None else 0)
        behind = max(0, durable - upto + 1)
        return behind, None if behind else 0.0
