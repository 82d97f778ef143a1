"""The search for a time: the first entry at which the highest block time so far is at or past it.

    VLSNs    1–400    401–790   791–1200       12:00 → a block of 401–790, the first that was sealed then or later
    bound    10:02     13:40     10:09         14:00 → 1201: behind the end

Clocks of masters differ: block times are no order of the log, their running maximum is.  It passes a time in the first
block that bears that time or a later one, which lies in the first step of the time index (``vlsn.index.time_index``)
whose bound is not below it.  One step is read, a few where bounds are too high; each step read for nothing lowers its
bound.

Its owner asks for ``part`` after ``part`` and notes each as ``looked`` at, on the owner's thread; the reads run
elsewhere.
"""

from __future__ import annotations

from vlsn.errors import Damaged
from vlsn.ids import Vlsn
from vlsn.index.index import VlsnIndex
from vlsn.limits import MIB
from vlsn.segments.reader import TimeRun

LOOK_BYTES = MIB
"""Bytes of blocks that one read of a search looks at, at most (a larger block is read whole)."""


class TimeSearch:
    """Searches ``first`` … ``last`` (a block's first and a block's last, durable) for ``time_us``."""

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
        """The VLSN that was found, once ``part`` is None; the one after the last where none was sealed so late."""
        return self._at if self._found else Vlsn(self._last + 1)

    def part(self) -> tuple[Vlsn, Vlsn] | None:
        """Returns first and last VLSN of the part to look at next; None when the search is over."""
        if self._found or self._at > self._last:
            return None
        step = self._index.step_reaching(self.time_us, self._at)
        if step is None or step[0] > self._last:
            return None
        self._at = max(step[0], self._at)
        return self._at, min(step[1], self._last)

    def looked(self, run: TimeRun) -> None:
        """Takes what a read of the part gave, from its first VLSN on. Raises ``Damaged`` where that was nothing."""
        self.reads += 1
        if run.found:
            self._at, self._found = max(self._at, run.found), True
            return
        if run.next_vlsn <= self._at:
            raise Damaged(f"VLSN {self._at} is durable, but cannot be read here", vlsn=self._at)
        if self._epoch == self._index.epoch:
            self._index.lower_bound(self._at, Vlsn(run.next_vlsn - 1), run.clock_us)
        self._at = run.next_vlsn
