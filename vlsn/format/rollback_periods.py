"""Rollback periods: which frames a ROLLBACK_START abandons.

    LSN   100  200  300  400 START(200–301)  500          200 and 300; never 400 or 500, whatever the record says

A record knows nothing that lies behind it: one whose end lies past itself abandons what lies before it, and no more.
Which blocks are visible is anybody's guess where periods cross, or where a ROLLBACK_END speaks of a START that is not
there: an open refuses such a log.
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
"""A record and its place."""
Ended = tuple[Lsn, RollbackEnd]


def inside(lsns: Lsns, at: Lsn, record: RollbackStart) -> Mask:
    """Marks the ``lsns`` that the record at ``at`` abandons."""
    covered: Mask = (lsns >= record.first_lsn) & (lsns < end_of(at, record))
    return covered


def end_of(at: Lsn, record: RollbackStart) -> Lsn:
    """Returns the LSN before which the period ends."""
    return Lsn(min(record.end_lsn, at))


def contradictions(started: Sequence[Started]) -> list[tuple[Lsn, str]]:
    """Lists what contradicts itself among the records of one log, and the record that does."""
    past = [
        (at, f"its period ends at {record.end_lsn:#x}, past the record itself")
        for at, record in started
        if record.end_lsn > at
    ]
    return past + crossings(started)


def crossings(started: Sequence[Started]) -> list[tuple[Lsn, str]]:
    """Lists the records whose periods cross earlier ones. A later period lies behind an earlier one, before it where
    nothing was logged between them, or around all of it. No part of an abandoned period is abandoned again."""
    found: list[tuple[Lsn, str]] = []
    periods: list[Started] = []
    """Those that no later one holds, ascending, as far as they do not cross."""
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
    """Lists the ends whose starts are not there, though they would lie at or behind ``first``, where reading began."""
    known = {at for at, _ in started}
    return [
        (at, f"it ends the rollback at {record.start_lsn:#x}, where none begins")
        for at, record in ended
        if record.start_lsn >= first and record.start_lsn not in known
    ]
