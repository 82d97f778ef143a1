"""Rollback periods: which frames a ROLLBACK_START abandons.

    LSN   100  200  300  400 START(200–301)  500          200 and 300; never 400 or 500, whatever the record says

A record knows nothing that lies behind it: one whose end lies past itself abandons what lies before it, and no more.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from vlsn.ids import Lsn
from vlsn.records import RollbackStart

Mask = npt.NDArray[np.bool_]
Lsns = npt.NDArray[np.int64]
Started = tuple[Lsn, RollbackStart]
"""Where a record lies, and what it says."""


def inside(lsns: Lsns, at: Lsn, record: RollbackStart) -> Mask:
    """Which of ``lsns`` the record that lies at ``at`` abandons."""
    covered: Mask = (lsns >= record.first_lsn) & (lsns < end_of(at, record))
    return covered


def end_of(at: Lsn, record: RollbackStart) -> Lsn:
    """Before which LSN the period ends."""
    return Lsn(min(record.end_lsn, at))


def contradictions(started: Sequence[Started]) -> list[tuple[Lsn, str]]:
    """What is wrong with the records of one log among themselves, and which says so.  A later period begins behind an
    earlier one, or holds it whole: what is abandoned already is abandoned by nobody else."""
    found = [
        (at, f"its period ends at {record.end_lsn:#x}, past the record itself")
        for at, record in started
        if record.end_lsn > at
    ]
    periods: list[Started] = []
    """Those that no later one holds, ascending, as far as they do not cross."""
    for at, record in sorted(started, key=lambda one: one[0]):
        while periods and record.first_lsn <= periods[-1][1].first_lsn and end_of(at, record) >= end_of(*periods[-1]):
            periods.pop()
        if periods and record.first_lsn < end_of(*periods[-1]):
            found.append((at, f"its period crosses the one of the rollback at {periods[-1][0]:#x}"))
        else:
            periods.append((at, record))
    return found
