"""Inspects one segment: finds every frame (``frames``), and all faults of the segment.

Opening a log (``torn_tail``) stops at the first bad frame, but an inspection continues after a bad frame. The whole
segment is in memory. Only offline tools use this module, for segments that cannot be checked by a sidecar
(``by_sidecar``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from vlsn.errors import BadBody, BadTransaction
from vlsn.format import block as block_format
from vlsn.format.block import BLOCK_BYTES
from vlsn.format.block_heads import heads_good
from vlsn.format.checksum import crc
from vlsn.format.columns import KEYS, PRODUCERS, TXNS
from vlsn.format.frame import FRAME_BYTES, OVERMARKED, FrameKind
from vlsn.format.rows import Rows
from vlsn.format.scan import Headers, Offsets
from vlsn.seams import Disk
from vlsn.verify.frames import Sums, read_frames
from vlsn.verify.segment_chain import Link, Stated, read_segment
from vlsn.verify.submissions import ROW, Submissions, submissions_of

Mask = npt.NDArray[np.bool_]
Bytes = bytes | bytearray
"""Bytes in memory, but not a memoryview, since slices of a memoryview cost more."""

_FEW_ENTRIES = 64
"""The most entries of a block for which the check by column is used; it would cost more for a larger block."""
_FEW_RUN = 1024
_RUN_BLOCKS = 8192
"""The number of headers that are checked together, so that they fit the processor's cache."""


class Rule(StrEnum):
    """The rule that a finding violates. Findings between copies, or in a client's history, have rules of their own
    (``repl/audit/rules.py``). A rule's name means the same in ``verify`` and in the audit."""

    FRAME_HEADER = "frame-header"
    """There is no frame where one must be."""
    FRAME_CRC = "frame-crc"
    UNREADABLE = "unreadable"
    """The disk cannot read some bytes of the file."""
    BLOCK_HEADER = "block-header"
    BLOCK_BODY = "block-body"
    TRANSACTION = "transaction"
    """A block contains an incomplete transaction."""
    CONTIGUITY = "contiguity"
    TERM_ORDER = "term-order"
    OVERMARK = "overmark"
    """A frame has the flag of a rollback although no record explains it, or has no flag although a record requires
    it."""
    RECORD = "record"
    """A local record cannot be read, or is not where ``state`` points."""
    SEGMENT_HEADER = "segment-header"
    GAP = "gap"
    """A segment is missing that other segments refer to."""
    SIDECAR = "sidecar"
    DTVLSN = "dtvlsn"
    """A DTVLSN (durable end) decreases, or is past the log's end at its place."""
    OVERMARKED_DURABLE = "overmarked-durable"
    """A rollback abandoned blocks that the log had stated to be durable."""
    PRODUCER_SEQUENCE = "producer-sequence"
    """A producer's sequences do not rise by one, so a submission is duplicate or missing."""
    SHORTER = "shorter-than-claimed"
    """A copy ends before a VLSN that it has stated to be durable, or that another copy states to be durable on a
    majority."""
    NAME_REUSED = "name-reused"
    """Two blocks have the same term and VLSN but different bytes, or two segments have the same number."""
    INDEX = "index"
    STATE = "state"
    NODE_FILE = "node-file"
    PAGE = "page"
    """A page file of a destination cannot be read back, or is missing."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of a segment, at ``offset``. ``vlsn`` is 0 if it cannot be read from the bad frame itself."""

    rule: Rule
    offset: int
    detail: str
    vlsn: int = 0
    more: Mapping[str, Any] = field(default_factory=dict)
    """Further facts, which depend on the rule."""
    file: str = ""
    """The file with the fault; empty for the segment that is inspected."""
    there: int = 0
    """The VLSN that was found in place of ``vlsn``; 0 if the rule is not about VLSNs."""


@dataclass(slots=True)
class Inspected:
    """The result of inspecting one segment: columns of all frames that were located, including bad ones, and columns of
    the blocks whose headers can be read."""

    offsets: Offsets
    headers: Headers
    bad: Mask
    gaps: list[tuple[int, int]]
    end: int
    """The end of the segment's log: the stated end, or the place where zeros or a torn tail begin."""
    torn: bool
    faults: list[Fault] = field(default_factory=list)
    block_offsets: Offsets = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    firsts: Offsets = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    lasts: Offsets = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    terms: Offsets = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    dtvlsns: Offsets = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    clocks: Offsets = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    marked: Mask = field(default_factory=lambda: np.zeros(0, dtype=np.bool_))
    lost: Offsets = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """The ascending offsets at which a block may be missing."""
    records: list[tuple[int, FrameKind, bytes]] = field(default_factory=list)
    """The offset, kind and payload of each good local record."""
    submissions: Submissions = field(default_factory=lambda: np.zeros(0, dtype=ROW))
    """The submissions of producers, including those in blocks that a rollback abandoned."""
    by_sidecar: bool = False
    """True if the sidecar has proved the segment right, so that the frames were not checked one by one."""


def inspect(buf: Bytes, *, size: int, salt: int, end: int | None, name: str, stated: int = 0) -> Inspected:
    """Inspects a segment. The first ``size`` bytes of ``buf`` are the file from offset 0 on. ``end`` is the end of its
    log, or None for the last segment. ``stated`` is the end up to which the last segment was synced, by statements
    outside of it. Raises ``WrongVersion``, which names the file."""
    frames = read_frames(buf, size=size, salt=salt, end=end, name=name, stated=stated)
    end = frames.end if end is None else end
    found = Inspected(frames.offsets, frames.headers, ~frames.good, frames.gaps, end, frames.torn)
    is_block = found.headers["kind"] == FrameKind.BLOCK
    _check_frames(found)
    _check_blocks(buf, found, is_block, frames.heads[is_block], frames.sums.only(is_block))
    found.records = frames.records(buf)
    return found


# Finding the faults.


def inspected(disk: Disk, link: Link, stated: Stated, buf: bytearray) -> tuple[Inspected, int]:
    """Inspects a segment of a chain. On return, ``buf`` has the segment's bytes; the number of bytes is returned,
    too."""
    size, lost = read_segment(disk, link, buf)
    found = inspect(
        buf, size=size, salt=link.salt, end=link.end, name=link.info.path, stated=stated.offset_in(link.number)
    )
    for start, end in lost:
        # Unreadable bytes are reported in addition to other faults at the same place. The report only says that the
        # bytes cannot be read, and not whether they were synced.
        if start not in [gap for gap, _ in found.gaps]:
            found.gaps.append((start, end))
        found.faults.insert(0, Fault(Rule.UNREADABLE, start, f"the disk cannot read {end - start} bytes"))
    return found, size


def _check_frames(found: Inspected) -> None:
    for offset in found.offsets[found.bad].tolist():
        found.faults.append(Fault(Rule.FRAME_CRC, offset, "the frame's bytes do not match its checksum"))
    for start, end in found.gaps:
        found.faults.append(Fault(Rule.FRAME_HEADER, start, f"no valid frame in {end - start} bytes that were synced"))
    ahead = found.headers["synced"] > found.offsets
    for offset in found.offsets[ahead & ~found.bad].tolist():
        found.faults.append(Fault(Rule.FRAME_HEADER, offset, "the frame says that it was synced before it was written"))


def _check_blocks(buf: Bytes, found: Inspected, is_block: Mask, headers: Headers, sums: Sums) -> None:
    offsets, bad = found.offsets[is_block], found.bad[is_block]
    lengths = found.headers["length"][is_block].astype(np.int64)
    readable, wrong = np.empty(len(offsets), dtype=np.bool_), np.empty(len(offsets), dtype=np.bool_)
    submissions: list[Submissions] = []
    firsts, counts, terms, dtvlsns, clocks = np.empty((5, len(offsets)), dtype=np.int64)
    for low in range(0, len(offsets), _RUN_BLOCKS):
        run = slice(low, low + _RUN_BLOCKS)
        heads = headers[run]
        good = heads_good(heads) & fills_frame(heads, lengths[run]) & (sums.header[run] == heads["header_crc"])
        right = good & (sums.body[run] == heads["body_crc"])
        wrong[run] = ~right | _columns_bad(buf, offsets[run], heads, skip=bad[run] | ~right)
        readable[run] = good
        named = good & ~wrong[run] & ~bad[run] & (heads["flags"] & PRODUCERS != 0)
        if named.any():
            submissions.append(submissions_of(buf, offsets[run][named], heads[named]))
        firsts[run], counts[run] = heads["first_vlsn"], heads["count"]
        terms[run], dtvlsns[run], clocks[run] = heads["term"], heads["dtvlsn"], heads["clock_us"]
    for index in np.flatnonzero(wrong & ~bad).tolist():
        found.faults.append(_block_fault(buf, int(offsets[index]), int(lengths[index])))
    _name_bad_blocks(found, offsets[bad & readable], firsts[bad & readable])
    if submissions:
        found.submissions = np.concatenate(submissions)
    found.block_offsets = offsets[readable]
    found.firsts = firsts[readable]
    found.lasts = found.firsts + counts[readable] - 1
    found.terms, found.dtvlsns, found.clocks = terms[readable], dtvlsns[readable], clocks[readable]
    found.marked = found.headers["flag"][is_block][readable] == OVERMARKED
    found.bad[is_block] |= ~readable
    lost = found.bad.copy()
    lost[is_block] = ~readable
    gaps = np.array([start for start, _ in found.gaps], dtype=np.int64)
    found.lost = np.sort(np.concatenate((found.offsets[lost], gaps)))


def fills_frame(heads: Headers, lengths: Offsets) -> Mask:
    """Marks the blocks whose size matches the length of their frame."""
    filled: Mask = heads["body_bytes"].astype(np.int64) + BLOCK_BYTES == lengths
    return filled


def _columns_bad(buf: Bytes, offsets: Offsets, heads: Headers, *, skip: Mask) -> Mask:
    """Marks the blocks with correct checksums but wrong columns. Blocks of few entries, and blocks of one plain entry
    (usual in a quiet log), are checked by column."""
    wrong = np.zeros(len(offsets), dtype=np.bool_)
    plain = (heads["flags"] == 0) & (heads["count"] == 1) & ~skip
    starts = offsets[plain] + FRAME_BYTES + BLOCK_BYTES
    words = np.frombuffer(buf, dtype="<u8", count=len(buf) // 8)[starts >> 3]
    wrong[plain] = words != heads["value_bytes"][plain].astype(np.uint64) << np.uint64(32)
    view = memoryview(buf)
    few = (heads["flags"] & ~np.uint8(KEYS) == 0) & (heads["count"] <= _FEW_ENTRIES) & ~plain & ~skip
    for low in range(0, int(np.count_nonzero(few)), _FEW_RUN):
        run = np.flatnonzero(few)[low : low + _FEW_RUN]
        wrong[run] = _few_columns_bad(Rows(buf, offsets[run] + FRAME_BYTES, heads[run]))
    for index in np.flatnonzero(~plain & ~few & ~skip).tolist():
        at = int(offsets[index]) + FRAME_BYTES
        try:
            block_format.check_body(view[at:], block_format.decode_header(view, at))
        except BadBody:
            wrong[index] = True
    return wrong


def _few_columns_bad(rows: Rows) -> Mask:
    """Checks many blocks at once, in the way in which ``check_body`` checks one. The blocks must have correct
    checksums, and no columns except keys and values."""
    headers, lay = rows.headers, rows.layouts
    bad: Mask = ~rows.rising()
    words = np.frombuffer(rows.buf, "<u4", len(rows.buf) // 4)
    keyed, even = rows.has(KEYS), rows.count & 1 == 0
    for columns, has in (lay.value_offsets, even), (lay.key_offsets, even & keyed):
        padding = rows.at[has] + columns[has] + 4 * (rows.count[has] + 1)
        bad[has] |= words[padding >> 2] != 0
    if keyed.any():
        ends = (rows.at + lay.keys + headers["key_bytes"])[keyed]
        longs = np.frombuffer(rows.buf, "<u8", len(rows.buf) // 8)
        odd = (ends & 7).astype(np.uint64)
        behind = longs[np.minimum(ends >> 3, len(longs) - 1)] >> (odd << np.uint64(3))
        bad[keyed] |= (odd != 0) & (behind != 0)
    return bad


def _block_fault(buf: Bytes, offset: int, length: int) -> Fault:
    """Finds the fault of a block whose frame has a correct checksum."""
    block = buf[offset + FRAME_BYTES : offset + FRAME_BYTES + length]
    try:
        header = block_format.decode_header(block)
    except BadBody as error:
        return Fault(Rule.BLOCK_HEADER, offset, str(error))
    try:
        block_format.decode(block)
    except BadTransaction as error:
        return Fault(Rule.TRANSACTION, offset, str(error), int(header.first_vlsn))
    except BadBody as error:
        rule = Rule.TRANSACTION if _has_bad_transaction(block, header) else Rule.BLOCK_BODY
        return Fault(rule, offset, str(error), int(header.first_vlsn))
    return Fault(Rule.BLOCK_HEADER, offset, "the block's header cannot be", int(header.first_vlsn))


def _has_bad_transaction(block: Bytes, header: block_format.BlockHeader) -> bool:
    """Returns whether the only fault of a block's body is in its transactions or in the kinds of their entries."""
    if not header.flags & TXNS or crc(block[BLOCK_BYTES : BLOCK_BYTES + header.body_bytes]) != header.body_crc:
        return False
    try:
        block_format.check_kinds_and_transactions(block, header, header.layout)
    except BadBody:
        return True
    return False


def _name_bad_blocks(found: Inspected, offsets: Offsets, firsts: Offsets) -> None:
    """Sets the VLSN of each bad frame in which the block's header is valid by the header's own checksum."""
    if not len(offsets):
        return
    known = dict(zip(offsets.tolist(), firsts.tolist(), strict=True))
    found.faults = [replace(fault, vlsn=known.get(fault.offset, fault.vlsn)) for fault in found.faults]
