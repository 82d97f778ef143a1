"""One segment, checked: every frame and block, and what its neighbours need to know of it.

    frames ─► crc, padding ─► blocks ─► header crc, body crc, lengths ─► visible ─► follow on, terms ─► digests

Nothing is said twice: a damaged frame is one finding, and a gap in the VLSNs where one lies is its own.  Its
VLSN comes from its block header where that is whole, else it is the one due there.

What joins this segment to the one before, and overmarks to rollback records that may lie in another segment,
is left to ``joints``, which sees every segment's result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from itertools import islice
from typing import Any

import numpy as np

from repl.audit.blocks import Blocks, read_blocks
from repl.audit.claims import check_within, segment_claims
from repl.audit.derived import Indexed, check_index, term_runs
from repl.audit.digest import RANGE_BITS, U64, Checksums, Place, Share, shares_of
from repl.audit.findings import FINDINGS_MAX, Finding
from repl.audit.frames import Frames, read_frames
from repl.audit.group_entries import groups_in
from repl.audit.plan import Bounds, Part
from repl.audit.producer_order import check_submissions, submissions_in
from repl.audit.profile import SAMPLES_MAX, profile_of, sampled
from repl.audit.segment_audit import Edge, Marks, SegmentAudit
from vlsn.errors import BadBody
from vlsn.format.block import check_kinds_and_transactions, decode_header
from vlsn.format.columns import TXNS
from vlsn.format.frame import FRAME_BYTES, OVERMARKED, FrameKind
from vlsn.format.records import CheckpointEnd, CheckpointStart, RollbackEnd, RollbackStart
from vlsn.format.segment import sidecar_name
from vlsn.format.sidecar import Sidecar, content_crc
from vlsn.seams import Buffer
from vlsn.verify.inspection import Rule
from vlsn.verify.order import falling_terms


def check_segment(
    buf: Buffer,
    part: Part,
    source: str,
    bounds: Bounds,
    sidecar: bytes | None,
    indexed: Indexed | None = None,
    samples: int = SAMPLES_MAX,
    plain: tuple[Frames, Blocks] | None = None,
    checksums: Checksums = Checksums.SHA256,
    fill: Callable[[list[tuple[int, int]]], None] = lambda _: None,
) -> SegmentAudit:
    """Audits one segment; ``buf`` is its file from the first byte, ``sidecar`` the bytes of its sidecar, ``indexed``
    what its directory's index says of it. ``samples``: buckets of time that its profile has at most. ``plain`` is what
    was read of it window by window: then ``fill`` brings other spans of it into ``buf``."""
    frames, blocks = plain or _read(buf, part, checksums)
    visible = blocks.only(blocks.visible)
    place = _Namer(buf, part, source, visible)
    bad = sorted({*frames.damage, *blocks.offsets[~blocks.whole].tolist()})
    inside = (visible.first >= bounds.first) & (visible.last <= bounds.last)
    compared = visible.only(inside & (visible.last > bounds.after))
    past = visible.only(visible.last <= bounds.past)
    above = visible.only(visible.first > bounds.last)
    records = list(_records(buf, frames, place))
    known = [record for record in records if not isinstance(record, Finding)]
    heard, repeated = check_submissions(submissions_in(buf, visible), place)
    findings = [
        *(_damage(offset, frames, blocks, place) for offset in bad[:FINDINGS_MAX]),
        *_order(visible, bad, place),
        *_transactions(buf, visible, place),
        *(record for record in records if isinstance(record, Finding)),
        *check_within(blocks, visible, known, part.prev_last_vlsn, place, damaged=bool(bad)),
        *repeated,
        *(_sidecar(buf, frames, visible, sidecar, place) if part.readable else ()),
    ]
    if plain is not None:
        fill([(int(visible.offsets[row]), int(visible.ends[row])) for row in sampled(visible)])
    rollbacks = [(at, record) for at, record in known if isinstance(record, RollbackStart | RollbackEnd)]
    first, last = _edges(visible, bad)
    return SegmentAudit(
        source=part.source,
        number=part.number,
        file=part.file,
        prev_number=part.prev_number,
        first=first,
        last=last,
        damaged=bool(bad),
        dtvlsn=max([_highest(visible.headers["dtvlsn"]), *(getattr(record, "dtvlsn", 0) for _, record in known)]),
        blocks=len(visible.offsets),
        entries=int(visible.headers["count"].sum(dtype=np.uint64)),
        end=frames.end,
        torn=frames.torn,
        salt=part.salt,
        digests=tuple(_ranges(compared)),
        compared=_digest(visible.only(visible.last <= max(bounds.last, bounds.past))),
        past=_digest(past),
        past_ranges=tuple(_ranges(past)),
        places=tuple(_places(part.number, visible)),
        marks=tuple(_marks(blocks, [at for at, _ in rollbacks])),
        rollbacks=tuple(rollbacks),
        claims=segment_claims(blocks, visible, known),
        heard=heard,
        terms=term_runs(visible),
        pointed=tuple(check_index(blocks, frames.damage, frames.end, indexed)) if indexed is not None else (),
        groups=tuple(groups_in(buf, visible)),
        others=tuple(_ranges(above)),
        hidden=tuple(_places(part.number, blocks.only(blocks.whole & blocks.overmarked))),
        findings=tuple(findings),
        profile=profile_of(buf, blocks, visible, sidecar_bytes=len(sidecar or b""), samples=samples),
    )


def _read(buf: Buffer, part: Part, checksums: Checksums) -> tuple[Frames, Blocks]:
    frames = read_frames(buf, part, checksums=checksums)
    return frames, read_blocks(buf, frames)


class _Namer:
    """Makes findings of one segment, and knows which VLSN is due at an offset."""

    def __init__(self, buf: Buffer, part: Part, source: str, visible: Blocks) -> None:
        self._buf = buf
        self.part = part
        self._source = source
        self._visible = visible

    def __call__(
        self, rule: str, offset: int, vlsn: int, detail: str, file: str = "", more: Mapping[str, Any] | None = None
    ) -> Finding:
        file = file or self.part.file
        more = more or {}
        return Finding(rule=rule, source=self._source, file=file, offset=offset, vlsn=vlsn, detail=detail, more=more)

    def vlsn_at(self, offset: int) -> int:
        """Returns the first VLSN of the block at ``offset``, if its header is right; else the one due there."""
        try:
            return int(decode_header(memoryview(self._buf), offset + FRAME_BYTES).first_vlsn)
        except BadBody:
            before = int(np.searchsorted(self._visible.offsets, offset))
            return (int(self._visible.last[before - 1]) if before else self.part.prev_last_vlsn) + 1


def _damage(offset: int, frames: Frames, blocks: Blocks, place: _Namer) -> Finding:
    vlsn = place.vlsn_at(offset)
    row = int(np.searchsorted(frames.offsets, offset))
    if row == len(frames.offsets) or frames.offsets[row] != offset:
        return place(Rule.FRAME_HEADER, offset, vlsn, "no frame where one had been synced")
    if not frames.good[row]:
        return place(Rule.FRAME_CRC, offset, vlsn, "the frame's crc, or its padding, is wrong")
    block = int(np.searchsorted(blocks.offsets, offset))
    if frames.sums.header[row] != blocks.headers["header_crc"][block]:
        return place(Rule.BLOCK_HEADER, offset, vlsn, "the block header's crc is wrong inside a right frame")
    if frames.sums.body[row] != blocks.headers["body_crc"][block]:
        return place(Rule.BLOCK_BODY, offset, vlsn, "the block body's crc is wrong inside a right frame")
    return place(Rule.BLOCK_HEADER, offset, vlsn, "the block header's fields cannot be together")


def _transactions(buf: Buffer, visible: Blocks, place: _Namer) -> Iterator[Finding]:
    """Checks that each transaction is whole in its block."""
    wrong = 0
    for row in np.flatnonzero(visible.headers["flags"] & np.uint8(TXNS)).tolist():
        block = memoryview(buf)[int(visible.offsets[row]) + FRAME_BYTES :]
        try:
            header = decode_header(block)
            check_kinds_and_transactions(block, header, header.layout)
        except BadBody as error:
            yield place(Rule.TRANSACTION, int(visible.offsets[row]), int(visible.first[row]), str(error))
            wrong += 1
            if wrong == FINDINGS_MAX:
                return


def _order(visible: Blocks, bad: list[int], place: _Namer) -> Iterator[Finding]:
    """Checks that visible blocks follow on exactly, and terms never fall."""
    due = visible.last[:-1] + np.uint64(1)
    for row in np.flatnonzero(visible.first[1:] != due).tolist()[:FINDINGS_MAX]:
        before, at, vlsn = int(due[row]), int(visible.offsets[row + 1]), int(visible.first[row + 1])
        explained = vlsn > before and any(visible.offsets[row] < offset < at for offset in bad)
        if not explained:
            yield place(Rule.CONTIGUITY, at, min(vlsn, before), f"VLSN {vlsn} follows on {before - 1}")
    for row, term, before, detail in islice(falling_terms(visible.headers["term"]), FINDINGS_MAX):
        more = {"term": term, "before": before}
        yield place(Rule.TERM_ORDER, int(visible.offsets[row]), int(visible.first[row]), detail, more=more)


Record = CheckpointStart | CheckpointEnd | RollbackStart | RollbackEnd
_RECORDS: Mapping[int, type[Record]] = {
    FrameKind.CHECKPOINT_START: CheckpointStart,
    FrameKind.CHECKPOINT_END: CheckpointEnd,
    FrameKind.ROLLBACK_START: RollbackStart,
    FrameKind.ROLLBACK_END: RollbackEnd,
}


def _records(buf: Buffer, frames: Frames, place: _Namer) -> Iterator[tuple[int, Record] | Finding]:
    view = memoryview(buf)
    for row in np.flatnonzero(frames.good & (frames.headers["kind"] != FrameKind.BLOCK)).tolist():
        offset, header = int(frames.offsets[row]), frames.headers[row]
        start = offset + FRAME_BYTES
        kind = _RECORDS[int(header["kind"])]
        try:
            yield offset, kind.decode(view[start : start + int(header["length"])])
        except BadBody as error:
            yield place(Rule.RECORD, offset, place.vlsn_at(offset), str(error))


def _sidecar(buf: Buffer, frames: Frames, visible: Blocks, data: bytes | None, place: _Namer) -> Iterator[Finding]:
    """Checks the sidecar against the segment; a damaged segment has been named already."""
    if data is None or frames.damage or not len(frames.offsets):
        return
    number = place.part.number
    vlsn = int(visible.first[0]) if len(visible) else place.part.prev_last_vlsn + 1
    try:
        sidecar = Sidecar.decode(data)
    except BadBody as error:
        yield place(Rule.SIDECAR, 0, vlsn, str(error), file=sidecar_name(number))
        return
    offsets = sidecar.offsets
    fault = ""
    if (sidecar.number, sidecar.salt, sidecar.end) != (number, place.part.salt, frames.end):
        fault = "it is another segment's, or one that ends elsewhere"
    elif len(offsets) != len(frames.offsets) or (offsets != frames.offsets).any():
        fault = "its frames are not where the segment's are"
    elif _content(buf, frames, sidecar) != sidecar.crc:
        fault = "its checksum is not the segment's"
    elif (frames.headers["flag"] == OVERMARKED).any():
        fault = "an overmarked segment keeps none"
    elif len(visible.offsets) and (sidecar.first_vlsn, sidecar.last_vlsn) != (visible.first[0], visible.last[-1]):
        fault = "its VLSNs are not the segment's"
    if fault:
        yield place(Rule.SIDECAR, 0, vlsn, fault, file=sidecar_name(number))


def _content(buf: Buffer, frames: Frames, sidecar: Sidecar) -> int:
    if frames.content is not None:
        return frames.content
    return content_crc(memoryview(buf)[: sidecar.end], sidecar.offsets)


def _edges(visible: Blocks, bad: list[int]) -> tuple[Edge | None, Edge | None]:
    if not len(visible.offsets):
        return None, None
    start, end = int(visible.offsets[0]), int(visible.offsets[-1])
    terms = visible.headers["term"]
    return (
        Edge(int(visible.first[0]), int(terms[0]), start, any(offset < start for offset in bad)),
        Edge(int(visible.last[-1]), int(terms[-1]), end, any(offset > end for offset in bad)),
    )


def _places(number: int, visible: Blocks) -> Iterator[Place]:
    """Places the blocks in ranges; one that goes on into the next range is in the places of both."""
    firsts, lasts = visible.first >> np.uint64(RANGE_BITS), visible.last >> np.uint64(RANGE_BITS)
    for key in np.union1d(firsts, lasts).tolist():
        rows = np.flatnonzero((firsts == key) | (lasts == key))
        yield Place(key, number, int(visible.offsets[rows].min()), int(visible.ends[rows].max()))


def _marks(blocks: Blocks, records: list[int]) -> Iterator[Marks]:
    flags = blocks.overmarked
    if not len(flags):
        return
    changes = (np.flatnonzero(flags[1:] != flags[:-1]) + 1).tolist()
    starts = sorted({0, *changes, *np.searchsorted(blocks.offsets, records).tolist()} - {len(flags)})
    for low, high in zip(starts, [*starts[1:], len(flags)], strict=True):
        start, last = int(blocks.offsets[low]), int(blocks.offsets[high - 1])
        yield Marks(start, last, bool(flags[low]), int(blocks.first[low]), int(blocks.last[high - 1]))


def _ranges(blocks: Blocks) -> list[Share]:
    return shares_of(blocks.first, blocks.headers["count"].astype(np.uint64), blocks.digests)


def _digest(blocks: Blocks) -> bytes:
    return sha256(blocks.digests.tobytes()).digest()


def _highest(column: U64) -> int:
    return int(column.max()) if len(column) else 0
