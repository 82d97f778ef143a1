"""Checks a stopped node's derived files against its segments: the VLSN index, the times and ``state``.

    index   12 → 00000002.vlog:8192      a visible block that begins with VLSN 12 must lie there
    state   term 3 from 7 to 40          the visible blocks of 7 to 40, and no others, are of term 3

Three differences are normal. An index may end earlier than the log. An index may point past a segment's end, at damage,
or into segments that the next opening of the log reads again. After a rollback, an index is cut only when the next
entry is logged.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from repl.audit.blocks import Blocks
from repl.audit.findings import FINDINGS_MAX, Finding, finding_of
from repl.audit.plan import Indexed, Noted
from repl.audit.segment_audit import Pointed, SegmentAudit, rollbacks_of
from vlsn.format.rollback_periods import end_of
from vlsn.ids import lsn
from vlsn.recover.recovery import INDEX_NAME
from vlsn.verify.inspection import Rule
from vlsn.verify.noted_terms import check_noted, check_term


def check_index(blocks: Blocks, damage: Sequence[int], end: int, indexed: Indexed) -> Iterator[Pointed]:
    """Checks the index's mappings into one segment. ``end`` is the offset at which the segment's log ends."""
    vlsns, offsets = indexed.vlsns, indexed.offsets
    inside = (offsets < end) & ~np.isin(offsets, np.array(damage, np.int64))
    inside &= ~np.isin(offsets, blocks.offsets[~blocks.whole])
    vlsns, offsets = vlsns[inside], offsets[inside]
    there, overmarked = np.zeros(len(vlsns), np.bool_), np.zeros(len(vlsns), np.bool_)
    if len(blocks):
        at = np.minimum(np.searchsorted(blocks.offsets, offsets), len(blocks) - 1)
        there = (blocks.offsets[at] == offsets) & (blocks.first[at].astype(np.int64) == vlsns)
        overmarked = there & blocks.overmarked[at]
    for row in np.flatnonzero(~there | overmarked).tolist()[:FINDINGS_MAX]:
        detail = "the index points at no visible block that begins with this VLSN"
        yield Pointed(int(offsets[row]), int(vlsns[row]), bool(overmarked[row]), detail)
    if indexed.times is not None:
        first, last = blocks.first.astype(np.int64), blocks.last.astype(np.int64)
        late = indexed.times.passed(first, last, blocks.headers["clock_us"].astype(np.int64)) & blocks.visible
        for row in np.flatnonzero(late).tolist()[:FINDINGS_MAX]:
            detail = "it was sealed later than the time index says of its step"
            yield Pointed(int(blocks.offsets[row]), int(first[row]), False, detail)


def check_pointed(source: str, segments: Sequence[SegmentAudit]) -> Iterator[Finding]:
    """Reports a source's wrong index mappings, after the source's rollbacks were found."""
    starts, _, last = rollbacks_of(segments)
    due = [(record.first_lsn, end_of(at, record)) for at, record in starts.items() if at > last]
    for segment in segments:
        for pointed in segment.pointed:
            place = lsn(segment.number, pointed.offset)
            if not (pointed.overmarked and any(low <= place < high for low, high in due)):
                points = {"points_at": segment.file, "points_offset": pointed.offset}
                yield Finding(
                    rule=Rule.INDEX,
                    source=source,
                    file=INDEX_NAME,
                    offset=0,
                    vlsn=pointed.vlsn,
                    detail=pointed.detail,
                    more={**points, "overmarked": pointed.overmarked},
                )


def check_notes(source: str, stated: Noted, segments: Sequence[SegmentAudit], *, ordered: bool) -> Iterator[Finding]:
    """Compares the terms in ``state`` and in the node file with the terms in the log. The terms in ``state`` are
    compared only if no block is lost and the log is ``ordered``."""
    runs = [run for segment in segments for run in segment.terms]
    faults = [] if stated.term is None else [*check_term(stated.term, max((run[0] for run in runs), default=0))]
    if ordered and not any(segment.damaged for segment in segments):
        faults += check_noted(stated.terms, runs, stated.upto)
    for fault in faults:
        yield finding_of(source, fault.file, fault)
