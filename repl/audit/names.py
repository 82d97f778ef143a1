"""Checks the names of blocks. A block's name is its term and its first VLSN. All blocks with one name must have the
same content, on every node, always, even if they were rolled back.

Checking names finds two masters in one term, or a master that seals a second block under a name that it has used, even
if nothing was acknowledged. Module ``difference`` compares visible blocks with each other. This module compares visible
blocks with rolled-back blocks, and compares the blocks above the common durable end (DTVLSN) with each other:

    n1   … 40 │ 41 42           (term 3) above the compared VLSNs: the ranges' digests differ, so names are checked
    n2   … 40 │ 41 ✗42 42'      42 was rolled back in n2: it is compared with all other blocks of its name
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from repl.audit.difference import RangeTask, difference, inside, rows_of
from repl.audit.digest import Place, Share, summed
from repl.audit.findings import Finding
from repl.audit.majority import most
from repl.audit.plan import Part, Survey
from repl.audit.segment_audit import SegmentAudit
from repl.audit.source import Source
from vlsn.verify.inspection import Rule

NAME_RANGES_MAX: Final = 512
"""The most ranges that are searched for reused names. If there are more, the newest ones are searched."""


def ranges_of(others: Sequence[Sequence[Share]], hidden: Sequence[Sequence[Place]]) -> list[int]:
    """Returns, ascending, the ranges in which two blocks may have the same name, at most ``NAME_RANGES_MAX``. Either a
    copy has rolled-back blocks there, or the copies' blocks above the compared VLSNs differ."""
    above = [summed(each) for each in others]
    wanted = {at for at in set().union(*above) if len({copy[at] for copy in above if at in copy}) > 1}
    wanted |= {place.range for places in hidden for place in places}
    return sorted(wanted)[-NAME_RANGES_MAX:]


def places_of(
    at: int, surveys: Sequence[Survey], audited: Sequence[Sequence[SegmentAudit]]
) -> tuple[tuple[Part, Place], ...]:
    """Finds the places of a range's blocks in every source, also of rolled-back blocks; one place for each segment."""
    found: list[tuple[Part, Place]] = []
    for survey, segments in zip(surveys, audited, strict=True):
        parts = {part.number: part for part in survey.parts}
        for segment in segments:
            places = [place for place in (*segment.places, *segment.hidden) if place.range == at]
            if places:
                start, end = min(place.start for place in places), max(place.end for place in places)
                found.append((parts[segment.number], Place(at, segment.number, start, end)))
    return tuple(found)


def reused(task: RangeTask, sources: Sequence[Source]) -> list[Finding]:
    """Returns one finding for each block whose name has other content elsewhere. The finding has the first VLSN that
    differs."""
    rows = np.sort(rows_of(task, sources), order=["first", "term", "digest"])
    same = (rows["first"][1:] == rows["first"][:-1]) & (rows["term"][1:] == rows["term"][:-1])
    for row in np.flatnonzero(same & (rows["digest"][1:] != rows["digest"][:-1])).tolist():
        named = rows[(rows["first"] == rows["first"][row]) & (rows["term"] == rows["term"][row])]
        model = named[named["digest"] == most(named["digest"])[0]][0]
        compared = named["visible"] & inside(named, task)  # module ``difference`` compares these
        odd = named[(named["digest"] != model["digest"]) & ~(compared & model["visible"] & inside(model, task))]
        if len(odd):
            return [difference(task, model, other, sources, Rule.NAME_REUSED) for other in odd]
    return []
