"""The search for a time: finds the first entry at which the highest block time so far reaches that time.

    VLSNs    1–400    401–790   791–1200       12:00 → a block of 401–790, the first that was sealed then or later
    bound    10:02     13:40     10:09         14:00 → 1201: behind the end

The clocks of masters differ, so block times are not ordered along the log, but their running maximum is. The running
maximum reaches a time in the first block with that time or a later one. This block is in the first step of the time
index (``vlsn.index.time_index``) whose bound is not below the time. A search reads one step, or a few if bounds are too
high. Each step without such a block gets a lower bound.

The caller asks for one ``part`` after another and reports each as ``looked`` at, on the owner's thread. The reads run
on other threads.
"""

from __future__ import annotations

from vlsn.errors import Damaged
from vlsn.ids import Vlsn
from vlsn.index.index import VlsnIndex
from vlsn.limits import MIB
from vlsn.segments.reader import TimeRun

LOOK_BYTES = MIB
"""The most bytes of blocks that one read of a search looks at (a larger block is read whole)."""


class TimeSearch:
    """Searches ``first`` … ``last`` (the first VLSN of a block and the last VLSN of a block, durable) for
    ``time_us``."""

    def __init__(self, index: VlsnIndex, time_us: int, first: Vlsn, last: Vlsn) -> None:
        self._index = index
        self._epoch = index.epoch
        self.time_us = time_us
        self._at = first
        self._last = last
        self._found = False
        self.reads = 0

    @property
    def result(self) -> Vlsn:
        """The VLSN found, once ``part`` returns None. It is the VLSN after ``last`` if no block was sealed at that time
        or later."""
        return self._at if self._found else Vlsn(self._last + 1)

    def part(self) -> tuple[Vlsn, Vlsn] | None:
        """Returns the first and the last VLSN of the part to look at next, or None if the search is over."""
        if self._found or self._at > self._last:
            return None
        step = self._index.step_reaching(self.time_us, self._at)
        if step is None or step[0] > self._last:
            return None
        self._at = max(step[0], self._at)
        return self._at, min(step[1], self._last)

    def looked(self, run: TimeRun) -> None:
        """Takes the result of reading the part from its first VLSN on. Raises ``Damaged`` if no block could be read."""
        self.reads += 1
        if run.found:
            self._at, self._found = max(self._at, run.found), True
            return
        if run.next_vlsn <= self._at:
            raise Damaged(f"VLSN {self._at} is durable, but cannot be read here", vlsn=self._at)
        if self._epoch == self._index.epoch:
            self._index.lower_bound(self._at, Vlsn(run.next_vlsn - 1), run.clock_us)
        self._at = run.next_vlsn
