"""Holds what a copy says to be durable against its log (``vlsn.verify.durable_claims``)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice

import numpy as np

from repl.audit.blocks import Blocks
from repl.audit.findings import FINDINGS_MAX, Finding
from repl.audit.segment_audit import SegmentAudit
from vlsn.verify.durable_claims import ClaimingSegment, Claims, Placed, ahead, claims_of, falls, starts_in, together

Name = Callable[..., Finding]


def segment_claims(blocks: Blocks, visible: Blocks, records: Sequence[Placed]) -> Claims:
    """Sums up what a segment's whole ``blocks`` and its records say."""
    whole = blocks.only(blocks.whole)
    return claims_of(whole.offsets, _dtvlsns(whole), _dtvlsns(visible), records)


def check_within(
    blocks: Blocks, visible: Blocks, records: Sequence[Placed], before: int, name: Name, *, damaged: bool
) -> Iterator[Finding]:
    """Checks one segment whose log begins behind VLSN ``before``; damaged places were passed over."""
    fallen = falls(visible.offsets, visible.first.astype(np.int64), _dtvlsns(visible))
    lasts = blocks.last.astype(np.int64)
    stated = ahead(blocks.offsets, lasts, records, before) if not damaged else iter(())
    for each in (*islice(fallen, FINDINGS_MAX), *stated):
        yield name(each.rule, each.offset, each.vlsn, each.detail, more=each.more)


def check_claims(source: str, segments: Sequence[SegmentAudit], shown: int = 0) -> tuple[int, list[Finding]]:
    """Checks a source's segments with one another, by rising number. Returns with the findings what must be there.
    ``shown`` is what was said to be durable before the first of them."""
    said, unheld = together(map(_claiming, segments), shown)
    return said, [Finding(source=source, **each._asdict()) for each in unheld]


def _claiming(segment: SegmentAudit) -> ClaimingSegment:
    offset, vlsn = (segment.first.offset, segment.first.vlsn) if segment.first is not None else (0, 0)
    return ClaimingSegment(segment.file, offset, vlsn, segment.claims, starts_in(segment.rollbacks))


def _dtvlsns(blocks: Blocks) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return blocks.headers["dtvlsn"].astype(np.int64)
