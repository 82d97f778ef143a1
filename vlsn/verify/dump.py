"""The dump of a log directory: one row for each frame, in the order of the files.

    {"file": "00000001.vlog", "offset": 4096, "lsn": 4294971392, "kind": "BLOCK", "term": 1,
     "first": 1, "last": 2, "count": 2, "overmarked": false, "damaged": false,
     "bytes": 83, "entries": "DATA", "dtvlsn": 0, "time": 1700000000000000, "detail": ""}

In the rows of local records, such as a checkpoint's, the term and the VLSNs are 0, and ``detail`` describes the record.
Synced bytes that contain no valid frame make one damaged row of kind ``UNREADABLE``, with the VLSN that should be there
and count 0. In the row of a damaged frame, ``detail`` names the fault. Without ``all``, there are rows for visible
blocks and for damage. With ``all``, there are also rows for blocks that a rollback abandoned, for local records, and
for a torn tail (kind ``TORN_TAIL``, which is no damage).

Only one segment is in memory at a time. Rows are made one by one, and only for the frames that the caller wants.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import assert_never

import msgspec
import numpy as np
import numpy.typing as npt

from vlsn.errors import BadBody
from vlsn.format import scan
from vlsn.format.block import BLOCK_BYTES, KIND_COLUMN, EntryKind
from vlsn.format.frame import FRAME_BYTES, OVERMARKED, FrameKind
from vlsn.format.records import CheckpointEnd, CheckpointStart, RollbackEnd, RollbackStart, decode_record
from vlsn.ids import Lsn, lsn, lsn_file, lsn_offset
from vlsn.recover.versions import check_versions
from vlsn.seams import Disk, Stores
from vlsn.segments.directory import LOCK_NAME
from vlsn.verify.inspection import Inspected, inspected
from vlsn.verify.segment_chain import Chain, Link, Stated, log_chain, read_stated

UNREADABLE = "UNREADABLE"
TORN_TAIL = "TORN_TAIL"
ROW_KINDS = (*(kind.name for kind in FrameKind), UNREADABLE, TORN_TAIL)
_BLOCK = int(FrameKind.BLOCK)
_UNREADABLE, _TORN_TAIL = 0, 255  # values that no kind of frame has


class DumpRow(msgspec.Struct, frozen=True, gc=False):
    """The row of one frame. The fields of a row, in this order, become the JSON object."""

    file: str
    offset: int
    lsn: Lsn
    kind: str
    term: int
    first: int
    last: int
    count: int
    overmarked: bool
    damaged: bool
    bytes: int
    """The bytes of the frame's payload. For an unreadable place or a torn tail, all bytes of that place."""
    entries: str
    """The kinds of a block's entries, joined by ``+``; "" for a row that is not a block."""
    dtvlsn: int
    """The DTVLSN (durable end) that a block's header, or a checkpoint, states."""
    time: int
    """The time at which a block was sealed, in µs since the epoch."""
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpFilter:
    """The conditions on the rows of a dump. A row must meet all conditions. Bounds are inclusive. A row without VLSNs
    is treated as having the last VLSN before it."""

    from_vlsn: int = 1
    to_vlsn: int | None = None
    from_lsn: int = 0
    to_lsn: int | None = None
    kinds: frozenset[str] = frozenset()
    """The wanted kinds, as names of ``ROW_KINDS``. Local records and torn tails are included if they are named here,
    even without ``all``."""
    entries: frozenset[EntryKind] = frozenset()
    """The wanted kinds of entries: blocks that have such an entry are included besides the rows of ``kinds``. If
    ``kinds`` and ``entries`` are both empty, all rows are included."""
    term: int | None = None
    all: bool = False


def dump_rows(
    disk: Disk, stores: Stores, directory: str, wanted: DumpFilter | None = None, *, reverse: bool = False
) -> Iterator[DumpRow]:
    """Yields the rows that ``wanted`` selects, in log order, or from the log's end on (``reverse``). If a node is
    running, its directory is locked, and the dump ends at the stated synced end. Raises ``FileNotFoundError`` or
    ``WrongVersion``."""
    wanted = wanted or DumpFilter()
    check_versions(disk, directory)
    live = disk.is_locked(f"{directory}/{LOCK_NAME}")
    stated = read_stated(stores, directory, live=live)
    chain = log_chain(disk, directory, live=live, stated=stated.ends)
    buf = bytearray()
    positions = range(len(chain.links))
    for position in reversed(positions) if reverse else positions:
        if not _may_hold(chain, position, wanted):
            continue
        try:
            frames = _frames(disk, chain, position, stated, buf)
        except FileNotFoundError:
            if live:
                continue  # the segment was cleaned away after it was listed
            raise
        chosen = frames.chosen(wanted)
        for index in (chosen[::-1] if reverse else chosen).tolist():
            row = frames.row(buf, index)
            if row.kind in wanted.kinds or not wanted.entries or wanted.entries & _entries(row):
                yield row


def _entries(row: DumpRow) -> set[EntryKind]:
    return {EntryKind[name] for name in row.entries.split("+") if name}


def _may_hold(chain: Chain, position: int, wanted: DumpFilter) -> bool:
    """Returns whether ``wanted`` may select any frame of the segment, as far as headers show."""
    link = chain.links[position]
    if lsn(link.number + 1, 0) <= wanted.from_lsn or (
        wanted.to_lsn is not None and lsn(link.number, 0) > wanted.to_lsn
    ):
        return False
    if wanted.all or link.last:
        return True
    # ``following`` is the last VLSN that the log had when the next segment was begun. No visible block in the present
    # segment has a higher VLSN.
    following = chain.links[position + 1].prev_last_vlsn
    return not 0 < following < wanted.from_vlsn


def _frames(disk: Disk, chain: Chain, position: int, stated: Stated, buf: bytearray) -> _Frames:
    """Locates the frames of one segment. On return, ``buf`` has the segment's bytes."""
    link = chain.links[position]
    before = link.prev_last_vlsn or _last_vlsn_before(disk, chain, position, stated, buf)
    found, size = inspected(disk, link, stated, buf)
    heads = scan.block_headers(buf, 0, found.block_offsets)
    return _Frames(link, found, heads, before, _used(buf, found.end, size) if found.torn else 0)


def _last_vlsn_before(disk: Disk, chain: Chain, position: int, stated: Stated, buf: bytearray) -> int:
    """Finds the last VLSN before a segment whose header page is lost, from the segments before it."""
    for link in reversed(chain.links[:position]):
        found, _ = inspected(disk, link, stated, buf)
        visible = found.lasts[~found.marked]
        if len(visible) or link.prev_last_vlsn:
            return int(visible[-1]) if len(visible) else link.prev_last_vlsn
    return 0


def _used(buf: bytearray, start: int, end: int) -> int:
    """Counts the bytes from ``start`` to the last non-zero byte before ``end``."""
    zero_from_end = np.frombuffer(memoryview(buf)[start:end], dtype=np.uint8)[::-1] != 0
    return end - start - int(zero_from_end.argmax()) if zero_from_end.any() else 0


class _Frames:
    """All frames, unreadable places and the torn tail (of ``torn`` bytes) in one segment, as columns ordered by offset.
    ``before`` is the last VLSN before the segment."""

    def __init__(self, link: Link, found: Inspected, heads: scan.Headers, before: int, torn: int) -> None:
        self.link = link
        places = [(start, end, _UNREADABLE) for start, end in found.gaps]
        if torn:
            places.append((found.end, found.end + torn, _TORN_TAIL))
        offsets = np.concatenate((found.offsets, np.array([at for at, _, _ in places], dtype=np.int64)))
        order = np.argsort(offsets, kind="stable")
        self.offsets = offsets[order]
        self.kinds = np.concatenate((found.headers["kind"], np.array([kind for *_, kind in places], np.uint8)))[order]
        lengths = np.array([end - at for at, end, _ in places], dtype=np.int64)
        self.bytes = np.concatenate((found.headers["length"].astype(np.int64), lengths))[order]
        flags = np.concatenate((found.headers["flag"], np.zeros(len(places), np.uint8)))[order]
        self.marked = flags == OVERMARKED
        self.faults = {fault.offset: fault.detail for fault in reversed(found.faults)}
        self.records = {offset: (kind, payload) for offset, kind, payload in found.records}
        self.damaged = np.isin(self.offsets, np.array(sorted(self.faults), dtype=np.int64))
        self.damaged |= self.kinds == _UNREADABLE
        self.damaged &= self.kinds != _TORN_TAIL
        self.heads = heads
        self.head_of = np.full(len(offsets), -1, dtype=np.int64)
        self.head_of[np.searchsorted(self.offsets, found.block_offsets)] = np.arange(len(found.block_offsets))
        self._number_vlsns(found, before)

    def _number_vlsns(self, found: Inspected, before: int) -> None:
        """Sets the first VLSN, the last VLSN and the term of each frame. If a frame's VLSNs cannot be read, sets the
        VLSN that should be there."""
        known = self.head_of >= 0
        self.first, self.last = np.zeros(len(known), np.int64), np.zeros(len(known), np.int64)
        self.term = np.zeros(len(known), np.int64)
        self.first[known], self.last[known] = found.firsts, found.lasts
        self.term[known] = found.terms
        self.visible = known & ~self.marked
        newest = np.maximum.accumulate(np.where(self.visible, np.arange(len(known)), -1))
        self.near = np.where(newest >= 0, self.last[newest], before)
        """The last visible VLSN at or before each row."""
        lost = (self.kinds == _UNREADABLE) | ((self.kinds == _BLOCK) & ~known)
        self.damaged |= lost
        self.first[lost] = self.last[lost] = self.near[lost] + 1

    def chosen(self, wanted: DumpFilter) -> npt.NDArray[np.int64]:
        """Returns the indices of the rows that ``wanted`` selects, without regard to the kinds of entries."""
        low = np.where(self.last > 0, self.last, self.near)
        high = np.where(self.first > 0, self.first, self.near)
        good = low >= wanted.from_vlsn
        if wanted.to_vlsn is not None:
            good &= high <= wanted.to_vlsn
        if wanted.kinds or wanted.entries:
            named_too = _BLOCK if wanted.entries else -1
            good &= np.isin(
                self.kinds, [code for code in range(256) if _name(code) in wanted.kinds or code == named_too]
            )
        if not wanted.all:
            named = np.bool_(bool(wanted.kinds)) & (self.kinds != _BLOCK)
            good &= self.damaged | self.visible | named
        if wanted.term is not None:
            good &= self.term == wanted.term
        return np.flatnonzero(good & self._between(wanted))

    def _between(self, wanted: DumpFilter) -> npt.NDArray[np.bool_]:
        lsns = self.offsets + lsn(self.link.number, 0)
        return (lsns >= wanted.from_lsn) & (lsns <= (wanted.to_lsn if wanted.to_lsn is not None else lsns))

    def row(self, buf: bytearray, index: int) -> DumpRow:
        """Makes the dump's row for frame ``index``. ``buf`` must have the segment's bytes."""
        link, offset = self.link, int(self.offsets[index])
        head = self.heads[self.head_of[index]] if self.head_of[index] >= 0 else None
        return DumpRow(
            file=link.name,
            offset=offset,
            lsn=lsn(link.number, offset),
            kind=_name(int(self.kinds[index])),
            term=int(self.term[index]),
            first=int(self.first[index]),
            last=int(self.last[index]),
            count=int(head["count"]) if head is not None else 0,
            overmarked=bool(self.marked[index]),
            damaged=bool(self.damaged[index]),
            bytes=int(self.bytes[index]),
            entries=_entry_kinds(buf, offset, int(head["count"]), int(head["kind"])) if head is not None else "",
            dtvlsn=int(head["dtvlsn"]) if head is not None else self._recorded_dtvlsn(offset),
            time=int(head["clock_us"]) if head is not None else 0,
            detail=self._detail(index, offset),
        )

    def _recorded_dtvlsn(self, offset: int) -> int:
        if offset not in self.records:
            return 0
        try:
            record = decode_record(*self.records[offset])
        except BadBody:
            return 0
        return record.dtvlsn if isinstance(record, CheckpointStart | CheckpointEnd) else 0

    def _detail(self, index: int, offset: int) -> str:
        if self.kinds[index] == _TORN_TAIL:
            return "bytes that were perhaps never synced; the next open keeps them aside"
        if offset in self.faults:
            return self.faults[offset]
        return _said(*self.records[offset]) if offset in self.records else ""


def _name(code: int) -> str:
    if code in (_UNREADABLE, _TORN_TAIL):
        return UNREADABLE if code == _UNREADABLE else TORN_TAIL
    return FrameKind(code).name if code <= max(FrameKind) else ""


def _entry_kinds(buf: bytearray, offset: int, count: int, kind: int) -> str:
    """Names the kinds of a block's entries, in the order of ``EntryKind``."""
    if kind != KIND_COLUMN:
        return EntryKind(kind).name
    start = offset + FRAME_BYTES + BLOCK_BYTES
    column = np.frombuffer(buf, dtype=np.uint8, count=max(min(count, len(buf) - start), 0), offset=min(start, len(buf)))
    return "+".join(EntryKind(each).name for each in np.unique(column).tolist() if each <= max(EntryKind))


def _said(kind: FrameKind, payload: bytes) -> str:
    """Describes the content of a local record in words."""
    try:
        record = decode_record(kind, payload)
    except BadBody as error:
        return str(error)
    match record:
        case CheckpointStart():
            return f"id {record.id}, VLSN {record.first_vlsn} to {record.last_vlsn}, durable {record.dtvlsn}"
        case CheckpointEnd():
            clean = ", clean stop" if record.clean else ""
            span = f"VLSN {record.first_vlsn} to {record.last_vlsn}, durable {record.dtvlsn}"
            return f"id {record.id}, {span}, began at {place(record.start_lsn)}{clean}"
        case RollbackStart():
            frames = f"frames from {place(record.first_lsn)} to {place(record.end_lsn)}"
            return f"back to VLSN {record.matchpoint}, abandons up to VLSN {record.last_vlsn}: {frames}"
        case RollbackEnd():
            return f"of the rollback at {place(record.start_lsn)}"
        case _:
            assert_never(record)


def place(at: int) -> str:
    """Formats an LSN for people: ``2:4096`` is offset 4096 of segment 2."""
    return f"{lsn_file(Lsn(at))}:{lsn_offset(Lsn(at))}"
