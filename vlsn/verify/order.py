"""The order of a log's visible blocks: VLSNs follow on, terms do not fall, within a segment and from each to the next.

Segments come from the last to the first; of what lies behind the one at hand only its first visible block and the
header after it are kept:

    00000002.vlog   prev_last_vlsn 8     5 6 7 8 │ after = VLSN 9     8 + 1 = 9
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from vlsn.format.scan import Offsets
from vlsn.format.segment import SegmentHeader, segment_name
from vlsn.verify.inspection import Inspected, Mask, Rule
from vlsn.verify.rollbacks import Add
from vlsn.verify.segment_chain import Link


@dataclass(slots=True)
class Visible:
    """The visible blocks of one segment, by column."""

    places: Offsets
    firsts: Offsets
    lasts: Offsets
    terms: Offsets
    dtvlsns: Offsets

    def __len__(self) -> int:
        return len(self.places)


def falling_terms(terms: Offsets) -> Iterator[tuple[int, int, int, str]]:
    """Yields where terms of a segment's visible blocks fall: the row at fault, its term, the one before, and what is to
    be said. Blocks that stand out of a term, fewer than what follows, are at fault themselves."""
    if not (terms[1:] < terms[:-1]).any():
        return
    starts = [0, *(np.flatnonzero(terms[1:] != terms[:-1]) + 1).tolist()]
    ends = [*starts[1:], len(terms)]
    for run in (np.flatnonzero(np.diff(terms[starts].astype(np.int64)) < 0) + 1).tolist():
        before, at, end = starts[run - 1], starts[run], ends[run]
        term, high = int(terms[at]), int(terms[before])
        if before and terms[before - 1] <= term and at - before <= end - at:
            yield before, high, int(terms[before - 1]), f"term {high} stands between {terms[before - 1]} and {term}"
        else:
            yield at, term, high, f"term {term} follows on term {high}"


def visible_of(found: Inspected, hidden: Mask) -> Visible:
    """Returns the visible blocks; copies nothing where all of them are."""
    columns = (found.block_offsets, found.firsts, found.lasts, found.terms, found.dtvlsns)
    if not hidden.any():
        return Visible(*columns)
    shown = ~hidden
    return Visible(*(column[shown] for column in columns))


@dataclass(slots=True)
class _After:
    """The first visible block of what was verified so far; ``lost``: something before it may be missing."""

    first: int
    term: int
    file: str
    offset: int
    lost: bool


class Order:
    def __init__(self, add: Add) -> None:
        self._add = add
        self._after: _After | None = None
        self._next_header: SegmentHeader | None = None
        self.missing: list[str] = []
        """Segments between the one at hand and the one checked before."""
        self.odd_terms: set[int] = set()
        """Those of blocks before or behind which terms fall."""

    def check(self, link: Link, found: Inspected, visible: Visible) -> None:
        lost = found.lost
        if len(visible):
            self._check_within(link, visible, lost)
        self._check_seam(link, found, visible, lost)
        if len(visible):
            place = int(visible.places[0])
            self._after = _After(
                int(visible.firsts[0]), int(visible.terms[0]), link.name, place, bool((lost < place).any())
            )
        elif self._after is not None:
            self._after.lost |= len(lost) > 0
        self._next_header = link.header

    def _check_within(self, link: Link, visible: Visible, lost: Offsets) -> None:
        places, firsts, lasts, terms = visible.places, visible.firsts, visible.lasts, visible.terms
        wrong = firsts[1:] != lasts[:-1] + 1
        if len(lost):
            before = np.searchsorted(lost, places)
            wrong = np.where(before[1:] > before[:-1], firsts[1:] <= lasts[:-1], wrong)
        for index in (np.flatnonzero(wrong) + 1).tolist():
            self._out_of_order(link.name, int(places[index]), int(firsts[index]), int(lasts[index - 1]))
        for row, odd, others, detail in falling_terms(terms):
            self.odd_terms |= {odd, others}
            self._add(Rule.TERM_ORDER, link.name, int(places[row]), int(firsts[row]), detail)

    def _check_seam(self, link: Link, found: Inspected, visible: Visible, lost: Offsets) -> None:
        """Checks the seam from this segment's last block to the next header and the first block behind it."""
        last = int(visible.lasts[-1]) if len(visible) else link.prev_last_vlsn
        for name in self.missing:
            self._add(Rule.GAP, name, 0, last + 1, "the segment is missing")
        after, header = self._after, self._next_header
        lost_here = bool(self.missing) or bool((lost > visible.places[-1]).any() if len(visible) else len(lost))
        if after is not None and len(visible):
            excused = lost_here or after.lost
            if after.first <= last or (after.first != last + 1 and not excused):
                self._out_of_order(after.file, after.offset, after.first, last)
            if after.term < visible.terms[-1]:
                self.odd_terms |= {after.term, int(visible.terms[-1])}
                detail = f"term {after.term} follows on term {visible.terms[-1]}"
                self._add(Rule.TERM_ORDER, after.file, after.offset, after.first, detail)
        if after is not None:
            after.lost |= bool(self.missing)
        if header is not None and header.prev_number == link.number and len(found.lasts) and not lost_here:
            said, real = header.prev_last_vlsn, int(found.lasts[-1])
            if said != real and not found.marked[-1]:
                name = segment_name(header.number)
                detail = f"the header says that segment {link.number} ends with VLSN {said}, it ends with {real}"
                self._add(Rule.SEGMENT_HEADER, name, 0, real, detail)

    def _out_of_order(self, file: str, offset: int, first: int, last: int) -> None:
        self._add(Rule.CONTIGUITY, file, offset, last + 1, f"VLSN {first} follows on {last}")
