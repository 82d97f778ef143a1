"""Claims of what is durable: they never fall, never lie past the log's end, and are never given up.

    VLSN     11  12  13  14 │ ROLLBACK_START(matchpoint 11)        block 14 says: durable up to 12
    DTVLSN    9   9  11  12 │                                      12 is overmarked though durable

A DTVLSN is true for ever, whoever said it: blocks that were rolled back count, too.  Blocks that stay follow on one
another with DTVLSNs that do not fall, since a master knows what the log says that it leads with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import numpy as np

from repl.audit.blocks import Blocks
from repl.audit.findings import FINDINGS_MAX, Finding
from repl.audit.segment_audit import Claims, SegmentAudit
from vlsn.format.records import CheckpointEnd, CheckpointStart, RollbackEnd, RollbackStart
from vlsn.format.segment import segment_name
from vlsn.ids import U32_MAX, Lsn, lsn_file, lsn_offset
from vlsn.verify.inspection import Rule

Record = CheckpointStart | CheckpointEnd | RollbackStart | RollbackEnd
Placed = tuple[int, Record]
"""A local record, and the offset that it lies at."""
Name = Callable[..., Finding]


def claims_of(blocks: Blocks, visible: Blocks, records: Sequence[Placed]) -> Claims:
    """Sums up what a segment's whole ``blocks`` and its records say."""
    whole = blocks.only(blocks.whole)
    stated = [(at, record.dtvlsn) for at, record in records if isinstance(record, CheckpointStart | CheckpointEnd)]
    offsets = np.concatenate((whole.offsets, np.array([at for at, _ in stated], np.int64)))
    said = np.concatenate((whole.headers["dtvlsn"].astype(np.int64), np.array([said for _, said in stated], np.int64)))
    starts = [0, *(at for at, record in records if isinstance(record, RollbackStart)), U32_MAX]
    shown = visible.headers["dtvlsn"]
    return Claims(
        first=int(shown[0]) if len(shown) else 0,
        highest=int(shown.max()) if len(shown) else 0,
        between=tuple(int(said[(low < offsets) & (offsets < high)].max(initial=0)) for low, high in pairwise(starts)),
    )


def check_within(
    blocks: Blocks, visible: Blocks, records: Sequence[Placed], before: int, name: Name
) -> Iterator[Finding]:
    """Checks one segment whose log begins behind VLSN ``before``; damaged places were passed over."""
    said = visible.headers["dtvlsn"]
    highest = np.maximum.accumulate(said)
    for row in np.flatnonzero(said[1:] < highest[:-1]).tolist()[:FINDINGS_MAX]:
        yield name(
            Rule.DTVLSN,
            int(visible.offsets[row + 1]),
            int(visible.first[row + 1]),
            f"it says durable up to VLSN {said[row + 1]}, a block before it said {highest[row]}",
            more={"dtvlsn": int(said[row + 1]), "before": int(highest[row])},
        )
    if not blocks.whole.all():
        return
    for at, record in records:
        if isinstance(record, CheckpointStart | CheckpointEnd):
            row = int(np.searchsorted(blocks.offsets, at))
            end = max(before, int(blocks.last[:row].max(initial=0)))
            if record.dtvlsn > end:
                yield name(
                    Rule.DTVLSN,
                    at,
                    end + 1,
                    f"a checkpoint says durable up to VLSN {record.dtvlsn}, and the log ends at {end} there",
                    more={"dtvlsn": record.dtvlsn, "end": end},
                )


def check_claims(source: str, segments: Sequence[SegmentAudit], shown: int = 0) -> tuple[int, list[Finding]]:
    """Checks a source's segments with one another, by rising number. Returns with the findings what must be there.
    ``shown`` is what was said to be durable before the first of them."""
    findings: list[Finding] = []
    said = shown
    for segment in segments:
        claims = segment.claims
        if segment.first is not None and claims.first < shown:
            findings.append(
                Finding(
                    rule=Rule.DTVLSN,
                    source=source,
                    file=segment.file,
                    offset=segment.first.offset,
                    vlsn=segment.first.vlsn,
                    detail=f"it says durable up to VLSN {claims.first}, a block before it said {shown}",
                    more={"dtvlsn": claims.first, "before": shown},
                )
            )
        shown = max(shown, claims.highest)
        starts = [(at, record) for at, record in segment.rollbacks if isinstance(record, RollbackStart)]
        for (at, record), before in zip(starts, claims.between[:-1], strict=True):
            said = max(said, before)
            if record.matchpoint < said:
                findings.append(_given_up(source, segment.file, at, record, said))
                said = record.matchpoint  # named once
        said = max(said, claims.between[-1])
    return said, findings


def _given_up(source: str, file: str, at: int, record: RollbackStart, durable: int) -> Finding:
    begun = Lsn(record.first_lsn)
    return Finding(
        rule=Rule.OVERMARKED_DURABLE,
        source=source,
        file=segment_name(lsn_file(begun)),
        offset=lsn_offset(begun),
        vlsn=record.matchpoint + 1,
        detail=f"the rollback at {file} offset {at} went back to VLSN {record.matchpoint}; {durable} was durable",
        more={"durable": durable, "matchpoint": record.matchpoint, "rollback_file": file, "rollback_offset": at},
    )
