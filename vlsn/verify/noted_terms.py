"""The terms that ``state`` notes, against those of the log's visible blocks.

state   term 3 from 7 to 40          the visible blocks of 7 to 40, and no others, are of term 3
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

Run = tuple[int, int, int]
"""Term, first and last VLSN."""


def first_difference(noted: Sequence[Run], found: Sequence[Run], upto: int) -> tuple[int, Run, Run] | None:
    """Returns the first VLSN up to ``upto`` at which they are not the same, and both runs there. None where they are,
    or share no VLSN."""
    if not noted or not found:
        return None
    first, last = max(found[0][1], noted[0][1]), min(found[-1][2], noted[-1][2], upto)
    for said, real in zip_longest(_between(noted, first, last), _between(found, first, last)):
        said, real = said or (0, last + 1, last), real or (0, last + 1, last)
        if said != real:
            return min(said[1], real[1]) if said[:2] != real[:2] else min(said[2], real[2]) + 1, said, real
    return None


def told(said: Run, real: Run) -> str:
    """Returns that difference in words."""
    detail = f"state notes term {said[0]} from VLSN {said[1]} to {said[2]}, the log has term {real[0]}"
    return f"{detail} from {real[1]} to {real[2]}"


def _between(runs: Sequence[Run], first: int, last: int) -> list[Run]:
    """Returns what lies from ``first`` to ``last``, runs of one term joined."""
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
