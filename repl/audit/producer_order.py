"""Producers' submissions in a copy: of each the sequences rise by one (``vlsn.verify.submissions``).

A segment's result is what its producers were last heard to say, of the ``PRODUCERS_KEPT`` heard of last; handles are
compared within a segment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from repl.audit.blocks import Blocks
from repl.audit.findings import Finding
from repl.audit.segment_audit import Heard, SegmentAudit
from vlsn.format.block import BlockFlag
from vlsn.seams import Buffer
from vlsn.verify.inspection import Rule
from vlsn.verify.submissions import (
    PRODUCERS_KEPT,
    ROW,
    Submissions,
    by_producer,
    ends_of,
    is_handle,
    said_of,
    submissions_of,
    wrong_pairs,
)

Name = Callable[..., Finding]


def submissions_in(buf: Buffer, visible: Blocks, base: int = 0) -> Submissions:
    """Returns the submissions that name a producer or a handle, in log order; ``buf`` begins at offset ``base``."""
    blocks = visible.only(visible.headers["flags"] & np.uint8(BlockFlag.PRODUCERS) != 0)
    return submissions_of(buf, blocks.offsets, blocks.headers, base)


def check_submissions(rows: Submissions, name: Name) -> tuple[Heard, list[Finding]]:
    """Checks one segment's submissions. Returns with the findings what is to be compared with other segments."""
    handles = is_handle(rows)
    findings = [_finding(name, *pair) for pair in wrong_pairs(by_producer(rows[handles]), anew=False)]
    named = by_producer(rows[~handles])
    findings += [_finding(name, *pair) for pair in wrong_pairs(named)]
    starts, lasts = ends_of(named)
    if len(starts) > PRODUCERS_KEPT:
        newest = np.sort(np.argsort(named["first"][lasts])[-PRODUCERS_KEPT:])
        starts, lasts = starts[newest], lasts[newest]
    return Heard(named[starts].tobytes(), named[lasts].tobytes()), findings


def check_producers(source: str, segments: Sequence[SegmentAudit]) -> Iterator[Finding]:
    """Checks the producers of a source's segments, by rising number, with one another."""
    known = np.empty(0, ROW)
    for segment in segments:
        first, last = np.frombuffer(segment.heard.first, ROW), np.frombuffer(segment.heard.last, ROW)
        for before, after in wrong_pairs(by_producer(np.concatenate((known, first)))):
            place: dict[str, Any] = {"offset": int(after["offset"]), "vlsn": int(after["first"])}
            detail, more = said_of(before, after)
            yield Finding(
                rule=Rule.PRODUCER_SEQUENCE, source=source, file=segment.file, detail=detail, more=more, **place
            )
        known = np.concatenate((known[~np.isin(known["producer"], last["producer"])], last))
        if len(known) > PRODUCERS_KEPT:
            known = known[np.argsort(known["first"])[-PRODUCERS_KEPT:]]


def _finding(name: Name, before: np.void, after: np.void) -> Finding:
    detail, more = said_of(before, after)
    return name(Rule.PRODUCER_SEQUENCE, int(after["offset"]), int(after["first"]), detail, more=more)
