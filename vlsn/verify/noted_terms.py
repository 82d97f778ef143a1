"""Compares the terms in ``state`` and in the node file with those of the log's visible blocks.

state   term 3 from 7 to 40          VLSNs 7 to 40 of the visible blocks, and only these, are of term 3
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest

from vlsn.recover.recovery import NODE_FILE_NAME, STATE_NAME
from vlsn.verify.inspection import Fault, Rule

Run = tuple[int, int, int]
"""A run of consecutive blocks of one term: the term, the first and the last VLSN."""


def _first_difference(noted: Sequence[Run], found: Sequence[Run], upto: int) -> tuple[int, Run, Run] | None:
    """Returns the first VLSN up to ``upto`` at which the runs differ, and the run that each list has there. Returns
    None if the lists are equal, or share no VLSN."""
    if not noted or not found:
        return None
    first, last = max(found[0][1], noted[0][1]), min(found[-1][2], noted[-1][2], upto)
    for said, real in zip_longest(_between(noted, first, last), _between(found, first, last)):
        said, real = said or (0, last + 1, last), real or (0, last + 1, last)
        if said != real:
            return min(said[1], real[1]) if said[:2] != real[:2] else min(said[2], real[2]) + 1, said, real
    return None


def check_noted(noted: Sequence[Run], found: Sequence[Run], upto: int) -> Iterator[Fault]:
    """Compares the terms in ``state``, up to VLSN ``upto``, with the terms of the log."""
    differ = _first_difference(noted, found, upto)
    if differ is not None:
        vlsn, said, real = differ
        detail = f"state notes term {said[0]} from VLSN {said[1]} to {said[2]}, the log has term {real[0]}"
        detail = f"{detail} from {real[1]} to {real[2]}"
        yield Fault(Rule.STATE, 0, detail, vlsn, {"noted": list(said), "there": list(real)}, STATE_NAME)


def check_term(term: int, highest: int) -> Iterator[Fault]:
    """Compares the node file's term with the log's ``highest`` term."""
    if term < highest:
        detail = f"its term is {term}, the log has blocks of term {highest}"
        yield Fault(Rule.NODE_FILE, 0, detail, 0, {"term": term, "highest": highest}, NODE_FILE_NAME)


def _between(runs: Sequence[Run], first: int, last: int) -> list[Run]:
    """Returns the runs from ``first`` to ``last``, with adjoining runs of one term joined."""
    found: list[Run] = []
    for term, low, high in runs:
        low, high = max(low, first), min(high, last)
        if low > high:
            continue
        if found and found[-1][0] == term and found[-1][2] + 1 == low:
            found[-1] = (term, found[-1][1], high)
        else:
            found.append((term, low, high))
    return found
