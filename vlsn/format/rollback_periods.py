"""Rollback periods: which frames a ROLLBACK_START abandons.

    LSN   100  200  300  400 START(200–301)  500          200 and 300; never 400 or 500, whatever the record says

A record cannot know anything after itself. So a record whose end is past itself abandons only what is before it. If
periods cross, or a ROLLBACK_END names a START that does not exist, it is unclear which blocks are visible. Such a log
cannot be opened.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from vlsn.format.records import RollbackEnd, RollbackStart
from vlsn.ids import Lsn

Mask = npt.NDArray[np.bool_]
Lsns = npt.NDArray[np.int64]
Started = tuple[Lsn, RollbackStart]
"""A rollback record and its LSN."""
Ended = tuple[Lsn, RollbackEnd]


def inside(lsns: Lsns, at: Lsn, record: RollbackStart) -> Mask:
    """Marks the ``lsns`` that the record at ``at`` abandons."""
    covered: Mask = (lsns >= record.first_lsn) & (lsns < end_of(at, record))
    return covered


def end_of(at: Lsn, record: RollbackStart) -> Lsn:
    """Returns the LSN before which the period ends."""
    return Lsn(min(record.end_lsn, at))


def contradictions(started: Sequence[Started]) -> list[tuple[Lsn, str]]:
    """Lists the records of one log that contradict themselves or others, each with the contradiction."""
    past = [
        (at, f"its period ends at {record.end_lsn:#x}, past the record itself")
        for at, record in started
        if record.end_lsn > at
    ]
    return past + crossings(started)


def crossings(started: Sequence[Started]) -> list[tuple[Lsn, str]]:
    """Lists the records whose periods cross earlier ones. A later period must be after an earlier one, around the whole
    of it, or before it if nothing was logged between. No part of an abandoned period is abandoned again."""
    found: list[tuple[Lsn, str]] = []
    periods: list[Started] = []
    """The periods that no later one contains, ascending, without those that cross others."""
    for at, record in sorted(started, key=lambda one: one[0]):
        begin, end = record.first_lsn, end_of(at, record)
        first = bisect_right(periods, begin, key=lambda one: end_of(*one))
        behind = first
        while behind < len(periods) and periods[behind][1].first_lsn >= begin and end_of(*periods[behind]) <= end:
            behind += 1
        del periods[first:behind]
        if first < len(periods) and periods[first][1].first_lsn < end:
            found.append((at, f"its period crosses the one of the rollback at {periods[first][0]:#x}"))
        else:
            periods.insert(first, (at, record))
    return found


def unstarted(started: Sequence[Started], ended: Sequence[Ended], first: Lsn) -> list[tuple[Lsn, str]]:
    """Lists the ends whose starts are missing, though the starts would be at or after ``first``, where reading
    began."""
    known = {at for at, _ in started}
    return [
        (at, f"it ends the rollback at {record.start_lsn:#x}, where none begins")
        for at, record in ended
        if record.start_lsn >= first and record.start_lsn not in known
    ]
