"""Rollback periods. The period of a rollback is the frames that its record ROLLBACK_START abandons.

    LSN   100  200  300  400 START(200–301)  500          the period is 200 and 300; never 400 or 500

A record cannot abandon later frames. So if the end in a record is past the record itself, only the frames before the
record are abandoned. If periods cross, or a ROLLBACK_END names a START that does not exist, it is unclear which blocks
are visible. A log with contradictory rollback records cannot be opened.
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
    """Marks the ``lsns`` that ``record``, which is at LSN ``at``, abandons."""
    covered: Mask = (lsns >= record.first_lsn) & (lsns < end_of(at, record))
    return covered


def end_of(at: Lsn, record: RollbackStart) -> Lsn:
    """Returns the LSN before which the period of ``record`` ends."""
    return Lsn(min(record.end_lsn, at))


def contradictions(started: Sequence[Started]) -> list[tuple[Lsn, str]]:
    """Lists the rollback records of one log that contradict themselves or other records, each with the
    contradiction."""
    past = [
        (at, f"its period ends at {record.end_lsn:#x}, past the record itself")
        for at, record in started
        if record.end_lsn > at
    ]
    return past + crossings(started)


def crossings(started: Sequence[Started]) -> list[tuple[Lsn, str]]:
    """Lists the records whose periods cross the period of an earlier record. A later period must be after an earlier
    one, contain all of it, or be before it if nothing was logged between the two. No part of an abandoned period is
    abandoned again."""
    found: list[tuple[Lsn, str]] = []
    periods: list[Started] = []
    """The periods that no later period contains, ascending. Periods that cross others are left out."""
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
    """Lists the ROLLBACK_END records whose ROLLBACK_START is missing. Only starts at or after ``first`` can be missing,
    since reading began at ``first``."""
    known = {at for at, _ in started}
    return [
        (at, f"it ends the rollback at {record.start_lsn:#x}, where none begins")
        for at, record in ended
        if record.start_lsn >= first and record.start_lsn not in known
    ]
