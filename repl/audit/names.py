"""Names of blocks: (term, first VLSN) is one content for ever, on every node, rolled back or not.

Two masters in one term, or a master that seals again what it had sealed before, show here even where nothing was
acknowledged.  What is visible and compared is left to ``difference``; here it is held against what was rolled back, and
what lies above the common DTVLSN against itself:

    n1   … 40 │ 41 42           (term 3) above what is compared: the ranges' digests differ, so names are looked at
    n2   … 40 │ 41 ✗42 42'      42 was rolled back in n2: held against all others of its name
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from repl.audit.blocks import read_blocks
from repl.audit.difference import Located, difference
from repl.audit.digest import DIGEST_BYTES, RANGE_BITS, Checksums, Place, Share, summed
from repl.audit.findings import Finding
from repl.audit.frames import read_frames
from repl.audit.plan import Bounds, Part, Survey
from repl.audit.segment_audit import SegmentAudit
from repl.audit.source import Source
from vlsn.format.block import BLOCK_BYTES
from vlsn.verify.inspection import Rule

NAME_RANGES_MAX: Final = 512
"""Ranges that are looked into; of more the newest."""


@dataclass(frozen=True, slots=True)
class NameTask:
    """A range to look into, and where each source keeps its blocks, visible or not."""

    range: int
    bounds: Bounds
    checksums: Checksums
    places: tuple[tuple[Part, Place], ...]


_NUMBERS = ("first", "term", "place", "offset", "last", "size")
_ROW = np.dtype([*((name, "<u8") for name in _NUMBERS), ("digest", f"S{DIGEST_BYTES}"), ("compared", "?")])


def ranges_of(others: Sequence[Sequence[Share]], hidden: Sequence[Sequence[Place]]) -> list[int]:
    """Returns the ranges, ascending, in which a name may be there twice: where something was rolled back in one copy,
    or what lies above the compared is not the same in all that have any. At most ``NAME_RANGES_MAX``."""
    above = [summed(each) for each in others]
    wanted = {at for at in set().union(*above) if len({copy[at] for copy in above if at in copy}) > 1}
    wanted |= {place.range for places in hidden for place in places}
    return sorted(wanted)[-NAME_RANGES_MAX:]


def places_of(
    at: int, surveys: Sequence[Survey], audited: Sequence[Sequence[SegmentAudit]]
) -> tuple[tuple[Part, Place], ...]:
    """Finds where the blocks of a range lie in every source, overmarked ones too, one place a segment."""
    found: list[tuple[Part, Place]] = []
    for survey, segments in zip(surveys, audited, strict=True):
        parts = {part.number: part for part in survey.parts}
        for segment in segments:
            places = [place for place in (*segment.places, *segment.hidden) if place.range == at]
            if places:
                start, end = min(place.start for place in places), max(place.end for place in places)
                found.append((parts[segment.number], Place(at, segment.number, start, end)))
    return tuple(found)


def reused(task: NameTask, sources: Sequence[Source]) -> list[Finding]:
    """Returns one finding for each block whose name has other content elsewhere, at the first such VLSN."""
    pieces = [np.empty(0, _ROW)]
    for index, (part, place) in enumerate(task.places):
        pieces.append(_rows(sources[part.source], part, place, index, task))
    rows = np.sort(np.concatenate(pieces), order=["first", "term", "digest"])
    same = (rows["first"][1:] == rows["first"][:-1]) & (rows["term"][1:] == rows["term"][:-1])
    for row in np.flatnonzero(same & (rows["digest"][1:] != rows["digest"][:-1])).tolist():
        first, term = rows["first"][row], rows["term"][row]
        named = rows[(rows["first"] == first) & (rows["term"] == term)]
        digests, counts = np.unique(named["digest"], return_counts=True)
        model = named[named["digest"] == digests[counts.argmax()]][0]
        odd = named[(named["digest"] != model["digest"]) & ~(named["compared"] & model["compared"])]
        if len(odd):
            return [
                difference(_located(model, task), _located(other, task), sources, Rule.NAME_REUSED) for other in odd
            ]
    return []


def _rows(source: Source, part: Part, place: Place, index: int, task: NameTask) -> NDArray[np.void]:
    buf = source.read(part, place.start, place.end)
    frames = read_frames(buf, replace(part, end=place.end, stated=place.end), place.start, task.checksums)
    blocks = read_blocks(buf, frames, base=place.start)
    blocks = blocks.only(blocks.whole & (blocks.first >> np.uint64(RANGE_BITS) == task.range))
    rows = np.empty(len(blocks), _ROW)
    rows["first"], rows["last"], rows["term"] = blocks.first, blocks.last, blocks.headers["term"]
    rows["digest"], rows["offset"], rows["place"] = blocks.digests, blocks.offsets, index
    rows["size"] = blocks.headers["body_bytes"].astype(np.uint64) + np.uint64(BLOCK_BYTES)
    inside = (blocks.first >= task.bounds.first) & (blocks.last <= task.bounds.last)
    rows["compared"] = ~blocks.overmarked & inside
    return rows


def _located(row: np.void, task: NameTask) -> Located:
    part = task.places[int(row["place"])][0]
    offset, size, first, last = (int(row[name]) for name in ("offset", "size", "first", "last"))
    return Located(part.source, part, offset, size, first, last, bytes(row["digest"]))
