"""Checks one segment: every frame (a block's envelope) and every block. The check also collects the facts that checks
of the neighbouring segments need.

    frames ─► crc, padding ─► blocks ─► header crc, body crc, lengths ─► visible ─► follow on, terms ─► digests

Nothing is reported twice: a damaged frame is one finding, which covers the missing VLSNs at that frame. The finding's
VLSN comes from the block header if the header is intact. If the header is damaged, the finding has the VLSN that is due
at that place.

Module ``joints`` receives the results of all segments, and checks that each segment continues the one before. It also
checks that overmarks (flags on rolled-back frames) have rollback records, which may be in another segment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from hashlib import sha256
from itertools import islice
from typing import Final

import numpy as np

from repl.audit.blocks import Blocks, frames_of, read_blocks
from repl.audit.derived import check_index
from repl.audit.digest import RANGE_BITS, Checksums, Place, Share, shares_of
from repl.audit.findings import FINDINGS_MAX, finding_of
from repl.audit.members import GroupAt, group_at
from repl.audit.plan import Bounds, Indexed, Part
from repl.audit.profile import SAMPLES_MAX, profile_of, sampled
from repl.audit.segment_audit import Marks, SegmentAudit
from vlsn.errors import BadBody
from vlsn.format.block import KIND_COLUMN, EntryKind, check_kinds_and_transactions, decode_header, entries
from vlsn.format.columns import PRODUCERS, TXNS
from vlsn.format.frame import FRAME_BYTES, OVERMARKED
from vlsn.format.records import GroupEntry
from vlsn.format.segment import sidecar_name
from vlsn.format.sidecar import Sidecar, content_crc
from vlsn.seams import Buffer
from vlsn.verify.facts import Facts, Visible, facts_of, read_records
from vlsn.verify.frames import Frames
from vlsn.verify.inspection import Fault, Rule
from vlsn.verify.submissions import Submissions, submissions_of

_GROUPS: Final = frozenset({int(EntryKind.GROUP)})


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
    """Audits one segment. ``buf`` is the segment's file from the first byte, ``sidecar`` the bytes of its sidecar
    (index file), ``indexed`` the mappings of the directory's index for this segment. The profile has at most
    ``samples`` buckets of time. ``plain`` has the frames and blocks that were read window by window; in that case
    ``fill`` reads further spans of the segment into ``buf``."""
    frames, blocks = plain or _read(buf, part, checksums)
    visible = blocks.only(blocks.visible)
    bad = sorted({*frames.damage, *blocks.offsets[~blocks.whole].tolist()})
    inside = (visible.first >= bounds.first) & (visible.last <= bounds.last)
    compared = visible.only(inside & (visible.last > bounds.after))
    past = visible.only(visible.last <= bounds.past)
    above = visible.only(visible.first > bounds.last)
    records, unread = read_records(frames.records(buf))
    facts = facts_of(
        part.number,
        part.file,
        prev_number=part.prev_number,
        before=part.prev_last_vlsn,
        blocks=_columns(blocks.only(blocks.whole)),
        visible=_columns(visible),
        lost=np.array(bad, np.int64),
        records=records,
        submissions=_submissions(buf, visible),
    )
    damage = [*(_damage(offset, frames, blocks) for offset in bad[:FINDINGS_MAX]), *unread]
    faults = [
        *(replace(each, vlsn=_vlsn_at(each.offset, buf, part, visible)) for each in damage),
        *islice(_transactions(buf, visible), FINDINGS_MAX),
        *facts.faults,
        *facts.repeated,
        *(_sidecar(buf, frames, visible, sidecar, part) if part.readable else ()),
    ]
    if plain is not None:
        fill([(int(visible.offsets[row]), int(visible.ends[row])) for row in sampled(visible)])
    told = {"faults": (), "repeated": ()}  # empty, because the findings already report faults of this kind
    return SegmentAudit(
        **{name: told.get(name, getattr(facts, name)) for name in Facts.__slots__},
        source=part.source,
        dtvlsn=max([facts.claims.highest, *(getattr(record, "dtvlsn", 0) for _, record in records)]),
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
        marks=tuple(_marks(blocks, [at for at, _ in facts.rollbacks])),
        pointed=tuple(check_index(blocks, frames.damage, frames.end, indexed)) if indexed is not None else (),
        groups=tuple(_groups(buf, visible)),
        others=tuple(_ranges(above)),
        hidden=tuple(_places(part.number, blocks.only(blocks.whole & blocks.overmarked))),
        findings=tuple(finding_of(source, part.file, each) for each in faults),
        profile=profile_of(buf, blocks, visible, sidecar_bytes=len(sidecar or b""), samples=samples),
    )


def _read(buf: Buffer, part: Part, checksums: Checksums) -> tuple[Frames, Blocks]:
    frames = frames_of(buf, part, checksums=checksums)
    return frames, read_blocks(frames, checksums)


def _vlsn_at(offset: int, buf: Buffer, part: Part, visible: Blocks) -> int:
    """Returns the first VLSN of the block at ``offset`` if the block's header is intact; otherwise the VLSN due
    there."""
    try:
        return int(decode_header(memoryview(buf), offset + FRAME_BYTES).first_vlsn)
    except BadBody:
        before = int(np.searchsorted(visible.offsets, offset))
        return (int(visible.last[before - 1]) if before else part.prev_last_vlsn) + 1


def _damage(offset: int, frames: Frames, blocks: Blocks) -> Fault:
    row = int(np.searchsorted(frames.offsets, offset))
    if row == len(frames.offsets) or frames.offsets[row] != offset:
        return Fault(Rule.FRAME_HEADER, offset, "no frame where one had been synced")
    if not frames.good[row]:
        return Fault(Rule.FRAME_CRC, offset, "the frame's crc, or its padding, is wrong")
    block = int(np.searchsorted(blocks.offsets, offset))
    if frames.sums.header[row] != blocks.headers["header_crc"][block]:
        return Fault(Rule.BLOCK_HEADER, offset, "the block header's crc is wrong inside a right frame")
    if frames.sums.body[row] != blocks.headers["body_crc"][block]:
        return Fault(Rule.BLOCK_BODY, offset, "the block body's crc is wrong inside a right frame")
    return Fault(Rule.BLOCK_HEADER, offset, "the block header's fields cannot be together")


def _transactions(buf: Buffer, visible: Blocks) -> Iterator[Fault]:
    """Checks that no block contains only a part of a transaction."""
    for row in np.flatnonzero(visible.headers["flags"] & np.uint8(TXNS)).tolist():
        block = memoryview(buf)[int(visible.offsets[row]) + FRAME_BYTES :]
        try:
            header = decode_header(block)
            check_kinds_and_transactions(block, header, header.layout)
        except BadBody as error:
            yield Fault(Rule.TRANSACTION, int(visible.offsets[row]), str(error), int(visible.first[row]))


def _submissions(buf: Buffer, visible: Blocks) -> Submissions:
    blocks = visible.only(visible.headers["flags"] & np.uint8(PRODUCERS) != 0)
    return submissions_of(buf, blocks.offsets, blocks.headers)


def _columns(blocks: Blocks) -> Visible:
    names = ("term", "dtvlsn")
    headers = (blocks.headers[name].astype(np.int64) for name in names)
    return Visible(blocks.offsets, blocks.first.astype(np.int64), blocks.last.astype(np.int64), *headers)


def _sidecar(buf: Buffer, frames: Frames, visible: Blocks, data: bytes | None, part: Part) -> Iterator[Fault]:
    """Checks the sidecar (index file) against the segment. A damaged segment is a finding already, so its sidecar is
    not checked."""
    if data is None or frames.damage or not len(frames.offsets):
        return
    vlsn = int(visible.first[0]) if len(visible) else part.prev_last_vlsn + 1
    file = sidecar_name(part.number)
    try:
        sidecar = Sidecar.decode(data)
    except BadBody as error:
        yield Fault(Rule.SIDECAR, 0, str(error), vlsn, file=file)
        return
    offsets = sidecar.offsets
    fault = ""
    if (sidecar.number, sidecar.salt, sidecar.end) != (part.number, part.salt, frames.end):
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
        yield Fault(Rule.SIDECAR, 0, fault, vlsn, file=file)


def _content(buf: Buffer, frames: Frames, sidecar: Sidecar) -> int:
    if frames.content is not None:
        return frames.content
    return content_crc(memoryview(buf)[: sidecar.end], sidecar.offsets)


def _groups(buf: Buffer, visible: Blocks) -> Iterator[GroupAt]:
    """Yields the segment's GROUP entries. Parses only the few blocks that hold the log's own entries."""
    kinds, flags = visible.headers["kind"], visible.headers["flags"]
    own = (kinds == EntryKind.GROUP) | ((kinds == KIND_COLUMN) & (flags & np.uint8(TXNS) == 0))
    view = memoryview(buf)
    for at in visible.offsets[own].tolist():
        block = view[at + FRAME_BYTES :]
        try:
            for entry in entries(block, decode_header(block), kinds=_GROUPS):
                yield group_at(int(entry.vlsn), GroupEntry.decode(entry.value))
        except BadBody:
            continue  # invalid columns with right checksums: the comparison of the copies reports this block


def _places(number: int, visible: Blocks) -> Iterator[Place]:
    """Assigns the blocks to ranges of VLSNs. A block that continues into the next range is in the places of both
    ranges."""
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
