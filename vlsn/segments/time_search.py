"""The search for a time. Each block has the time at which it was sealed. The search finds the first block with the
searched time or a later one.

    VLSNs    1–400    401–790   791–1200       12:00 → a block of 401–790, the first that was sealed then or later
    bound    10:02     13:40     10:09         14:00 → 1201: after the end

The clocks of masters differ, so the times of blocks do not always rise along the log. The time index
(``vlsn.index.time_index``) divides the log into steps, and has a bound for the times in each step. A search reads the
first step whose bound is not below the searched time. If no block of the step has the searched time or a later one, the
step's bound was too high. The search then lowers the bound, and reads the next step whose bound is not below the
searched time.

The caller gets one ``part`` of the log after another, reads it on any thread, and passes the result to ``looked``.
``part`` and ``looked`` are called on the owner's thread.
"""

from __future__ import annotations

from vlsn.errors import Damaged
from vlsn.ids import Vlsn
from vlsn.index.index import VlsnIndex
from vlsn.limits import MIB
from vlsn.segments.reader import TimeRun

LOOK_BYTES = MIB
"""The most bytes of blocks that one read of a search covers. A larger block is read as a whole."""


class TimeSearch:
    """Searches VLSNs ``first`` to ``last``, which are durable, for ``time_us``. ``first`` is the first VLSN of a block,
    and ``last`` is the last VLSN of a block."""

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
        """The VLSN found, once ``part`` has returned None. If no block was sealed at ``time_us`` or later, the result
        is the VLSN after ``last``."""
        return self._at if self._found else Vlsn(self._last + 1)

    def part(self) -> tuple[Vlsn, Vlsn] | None:
        """Returns the first and the last VLSN of the part to read next, or None if the search is finished."""
        if self._found or self._at > self._last:
            return None
        step = self._index.step_reaching(self.time_us, self._at)
        if step is None or step[0] > self._last:
            return None
        self._at = max(step[0], self._at)
        return self._at, min(step[1], self._last)

    def looked(self, run: TimeRun) -> None:
        """Uses ``run``, the result of reading the current part from its first VLSN on. Raises ``Damaged`` if no block
        could be read."""
        self.reads += 1
        if run.found:
            self._at, self._found = max(self._at, run.found), True
            return
        if run.next_vlsn <= self._at:
            raise Damaged(f"VLSN {self._at} is durable, but cannot be read here", vlsn=self._at)
        if self._epoch == self._index.epoch:
            self._index.lower_bound(self._at, Vlsn(run.next_vlsn - 1), run.clock_us)
        self._at = run.next_vlsn
