"""Producers' submissions in a copy: of each the sequences rise by one, so that none is logged twice.

    A/0 A/1 B/0 A/2       right                 A/0 A/1 A/1       A/1 is there twice
    A/5 A/6 │ A/7         right: what came before was cleaned away

A producer that was forgotten may begin anew, with sequence 0: at the earliest once ``PRODUCERS_MIN`` others were heard
of, so that many VLSNs later.  A transaction that is named by its handle is there once.  A segment's result is what its
producers were last heard to say, of the ``PRODUCERS_KEPT`` heard of last; handles are compared within a segment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from repl.audit.blocks import Blocks
from repl.audit.digest import U64
from repl.audit.findings import FINDINGS_MAX, Finding
from repl.audit.rules import AuditRule
from repl.audit.segment_audit import Heard, SegmentAudit
from vlsn.format.block import BlockFlag
from vlsn.format.columns import layouts
from vlsn.format.frame import FRAME_BYTES
from vlsn.format.producer_columns import HANDLE_SEQUENCE
from vlsn.limits import PRODUCERS_MIN
from vlsn.seams import Buffer

PRODUCERS_KEPT: Final = 4_096
"""Producers of a segment that are compared with the segments behind it."""
ROW: Final = np.dtype([("producer", "<u8"), ("sequence", "<u8"), ("first", "<u8"), ("last", "<u8"), ("offset", "<u8")])
Rows = NDArray[np.void]
Name = Callable[..., Finding]


def submissions_of(buf: Buffer, visible: Blocks, base: int = 0) -> Rows:
    """Returns the submissions that name a producer or a handle, in log order; ``buf`` begins at offset ``base``."""
    blocks = visible.only(visible.headers["flags"] & np.uint8(BlockFlag.PRODUCERS) != 0)
    headers = blocks.headers
    counts = headers["submissions"].astype(np.int64)
    begins = np.cumsum(counts) - counts
    number = np.arange(int(counts.sum())) - np.repeat(begins, counts)
    at = blocks.offsets - base + FRAME_BYTES + layouts(headers).producers
    longs, ints = np.frombuffer(buf, "<u8", len(buf) // 8), np.frombuffer(buf, "<u4", len(buf) // 4)
    rows = np.empty(len(number), ROW)
    if not len(number):
        return rows
    rows["producer"] = longs[np.repeat(at >> 3, counts) + number]
    rows["sequence"] = longs[np.repeat((at >> 3) + counts, counts) + number]
    entries = ints[np.repeat((at + 16 * counts) >> 2, counts) + number].astype(np.int64)
    before = np.cumsum(entries) - entries
    firsts = before + np.repeat(blocks.first.astype(np.int64) - before[begins], counts)
    rows["first"], rows["last"] = firsts, firsts + entries - 1
    rows["offset"] = np.repeat(blocks.offsets, counts)
    named: Rows = rows[rows["producer"] != 0]
    return named


def check_submissions(rows: Rows, name: Name) -> tuple[Heard, list[Finding]]:
    """Checks one segment's submissions. Returns with the findings what is to be compared with other segments."""
    handles = rows["sequence"] == HANDLE_SEQUENCE
    findings = [_finding(name, *pair) for pair in _wrong(_by_producer(rows[handles]), anew=False)]
    named = _by_producer(rows[~handles])
    findings += [_finding(name, *pair) for pair in _wrong(named)]
    starts = np.flatnonzero(np.diff(named["producer"], prepend=np.uint64(0)) != 0)
    lasts = np.append(starts[1:], len(named)) - 1 if len(starts) else starts
    if len(starts) > PRODUCERS_KEPT:
        newest = np.sort(np.argsort(named["first"][lasts])[-PRODUCERS_KEPT:])
        starts, lasts = starts[newest], lasts[newest]
    return Heard(named[starts].tobytes(), named[lasts].tobytes()), findings


def check_producers(source: str, segments: Sequence[SegmentAudit]) -> Iterator[Finding]:
    """Checks the producers of a source's segments, by rising number, with one another."""
    known = np.empty(0, ROW)
    for segment in segments:
        first, last = np.frombuffer(segment.heard.first, ROW), np.frombuffer(segment.heard.last, ROW)
        for before, after in _wrong(_by_producer(np.concatenate((known, first)))):
            place: dict[str, Any] = {"offset": int(after["offset"]), "vlsn": int(after["first"])}
            said = _said(before, after)
            yield Finding(rule=AuditRule.PRODUCER_SEQUENCE, source=source, file=segment.file, **said, **place)
        known = np.concatenate((known[~np.isin(known["producer"], last["producer"])], last))
        if len(known) > PRODUCERS_KEPT:
            known = known[np.argsort(known["first"])[-PRODUCERS_KEPT:]]


def _by_producer(rows: Rows) -> Rows:
    sorted_rows: Rows = rows[np.argsort(rows["producer"], kind="stable")]
    return sorted_rows


def _wrong(rows: Rows, *, anew: bool = True) -> Iterator[tuple[np.void, np.void]]:
    """Yields a submission and the next one of its producer, where that cannot follow on it. ``rows`` lie by producer;
    ``anew``: one that was forgotten may begin again."""
    away: U64 = rows["first"][1:] - rows["last"][:-1]
    right = rows["sequence"][1:] == rows["sequence"][:-1] + np.uint64(1)
    if anew:
        right |= (rows["sequence"][1:] == 0) & (away > PRODUCERS_MIN)
    wrong = (rows["producer"][1:] == rows["producer"][:-1]) & ~right
    for row in np.flatnonzero(wrong).tolist()[:FINDINGS_MAX]:
        yield rows[row], rows[row + 1]


def _finding(name: Name, before: np.void, after: np.void) -> Finding:
    said = _said(before, after)
    return name(
        AuditRule.PRODUCER_SEQUENCE, int(after["offset"]), int(after["first"]), said["detail"], more=said["more"]
    )


def _said(before: np.void, after: np.void) -> dict[str, Any]:
    producer, sequence, expected = f"{int(after['producer']):016x}", int(after["sequence"]), int(before["sequence"]) + 1
    more = {
        "producer": producer,
        "sequence": sequence,
        "before": int(before["sequence"]),
        "before_vlsn": int(before["first"]),
    }
    if sequence == HANDLE_SEQUENCE:
        return {"detail": f"transaction {producer} is at VLSN {before['first']} already", "more": more}
    what = "is there already" if sequence < expected else "does not follow on"
    detail = f"sequence {sequence} of producer {producer} {what}: VLSN {before['first']} is sequence {expected - 1}"
    return {"detail": detail, "more": more}
