"""Mends damaged blocks in place: finds the damaged bytes, and replaces them with blocks from other members.

    1  the damage is a run of bytes between two undamaged frames (or up to the log's end):       [start, end)
    2  peers' blocks that follow the block before the damage, in frames as they were, must fill the damage exactly; what
       can still be read of the old frame or block header must agree with these blocks
    3  the segment is replaced by a copy with those frames in place                        (``mended_copy``)

Peers can provide only blocks, so only blocks are mended. A checkpoint's record is mended, too, since nothing depends on
that record. A rollback's record, a segment's header page and a block abandoned by a rollback exist only on one node. A
log that has lost such a record, header page or abandoned block is restored as a whole.

A place that the disk cannot read is treated like rotten bytes. Reads continue past an unreadable place
(``bad_sectors``), and the mended copy is written elsewhere on the disk. In a log that cannot be opened, an unreadable
place stays as it is, since its content is not known.

The segment is in memory from the damage on. The functions block, and nothing may write to the segment meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from vlsn.errors import BadBody, Damaged, IntegrityFault
from vlsn.format import block as block_format
from vlsn.format import scan
from vlsn.format.block import BlockHeader
from vlsn.format.frame import FRAME_BYTES, FrameHeader, FrameKind, build_header, decode_header, padded
from vlsn.format.records import CheckpointEnd, CheckpointStart, RollbackStart
from vlsn.format.scan import Stop, Walk
from vlsn.format.segment import FIRST_FRAME, segment_name
from vlsn.ids import Vlsn, lsn_offset
from vlsn.recover.identity import NODE_FILE_NAME
from vlsn.seams import Disk, Stores
from vlsn.segments.directory import SegmentInfo, check_size, stated_synced_end, survey
from vlsn.segments.reader import SegmentFile
from vlsn.segments.visible_blocks import whole_frames
from vlsn.segments.window import WINDOW_BYTES_MAX
from vlsn.state import node_file
from vlsn.verify.segment_chain import read_stated

_RECORD_OF = {
    FRAME_BYTES + CheckpointStart.LAYOUT.size: FrameKind.CHECKPOINT_START,
    FRAME_BYTES + CheckpointEnd.LAYOUT.size: FrameKind.CHECKPOINT_END,
}
"""The kinds of local records by the sizes of their frames. No block and no rollback's record has the size of a
checkpoint's record."""


@dataclass(frozen=True, slots=True)
class Wound:
    """Damage: the bytes ``start`` to ``end`` (exclusive) of segment ``number`` that are not valid frames."""

    number: int
    start: int
    end: int
    salt: int
    prev: int
    """The distance back to the previous frame, or 0 if the damage is at the beginning of the segment."""
    synced: int
    """The end up to which the segment was synced, as the frame before the damage states it. The frames after the damage
    state at least this end."""
    first: Vlsn
    """The first VLSN that a block at the start of the damage would have."""
    following: Vlsn
    """The first VLSN after the damage: that of the next visible block or rollback, in any segment. 0 if there is
    none."""
    follows_on: bool
    """True if nothing else is damaged between this damage and the next visible block, so that the filling must end just
    before the next visible block."""
    term_before: int
    """The term of the visible block before the damage. ``term_behind`` is the term of the visible block after the
    damage. 0 if there is no such block: in this segment or, for a log that is closed, in any segment."""
    term_behind: int
    old: FrameHeader | None
    """The header of the frame that began at ``start``, if it can still be read."""
    data: bytes
    around: bool
    """True if bytes that the disk cannot read are treated as rot, in this damage and elsewhere in the segment."""
    log_end: int
    """The offset at which the log in this segment ends. All bytes after the log's end are unused."""

    @property
    def bytes(self) -> int:
        return self.end - self.start

    @property
    def name(self) -> str:
        return segment_name(self.number)


def check_window(disk: Disk, directory: str, number: int, at: int, end: int, size: int = WINDOW_BYTES_MAX) -> int:
    """Checks about ``size`` bytes of frames, from the frame at ``at`` on and never past ``end``. Returns the offset at
    which to continue. Raises ``Damaged``, which names the place."""
    with closing(SegmentFile(disk, directory, number, around=True)) as segment:
        buf, found = segment.window(at, end, size)
        bad = scan.check_crcs(buf, at, found)
        if bad is None and len(found) and (found.reason in (Stop.END, Stop.SHORT) and found.end <= end):
            return found.end
        place = int(found.offsets[bad]) if bad is not None else found.end
        raise Damaged(f"{segment.name} at {place}: no valid frame", file=segment.name, offset=place)


def drop_from_cache(disk: Disk, directory: str, number: int) -> None:
    """Drops the segment from the page cache, so that the next read is from the medium. Raises ``Damaged`` if the
    segment is not a file."""
    with closing(SegmentFile(disk, directory, number, around=True)) as segment:
        segment.file.drop_cache()


def find_wound(
    disk: Disk, directory: str, number: int, end: int, *, around: bool = True, filled: Sequence[Filling] = ()
) -> Wound | None:
    """Finds the first damage in a segment whose log ends at ``end``, leaving out the ``filled`` damage. Returns None if
    every frame is valid. With ``around``, a place that the disk cannot read is damage; without ``around``, such a place
    raises ``OSError``. Raises ``Damaged`` if the header page is not valid."""
    with closing(_Filled(disk, directory, number, around, filled)) as segment:
        at, last = FIRST_FRAME, _Last(Vlsn(segment.header.prev_last_vlsn + 1))
        while at < end:
            buf, found = segment.window(at, end, WINDOW_BYTES_MAX)
            bad = scan.check_crcs(buf, at, found)
            good = found if bad is None else found.before(bad)
            last.note(buf, at, good)
            if bad is not None or not len(found) or found.reason in (Stop.BAD, Stop.ZEROS):
                wound = _wound(segment, good.end if len(good) else at, end, last, around)
                return _followed(disk, directory, wound)
            at = found.end
        return None


def place_between(
    disk: Disk, directory: str, number: int, start: int, stop: int, end: int, *, filled: Sequence[Filling] = ()
) -> Wound:
    """Returns bytes ``start`` to ``stop`` (exclusive) of a segment whose log ends at ``end`` as a wound, whatever the
    bytes contain, so that other frames can replace the frames there. ``filled`` must have all damage before ``start``.
    Raises ``Damaged`` if ``filled`` misses some damage, or if the header page is not valid."""
    with closing(_Filled(disk, directory, number, True, filled)) as segment:
        at, last = FIRST_FRAME, _Last(Vlsn(segment.header.prev_last_vlsn + 1))
        while at < start:
            buf, found = segment.window(at, start, WINDOW_BYTES_MAX)
            if not len(found) or scan.check_crcs(buf, at, found) is not None:
                text = f"{segment.name}: no whole frames from {at} to {start}"
                raise Damaged(text, file=segment.name, offset=at)
            last.note(buf, at, found)
            at = found.end
        return _followed(disk, directory, _wound(segment, start, end, last, True, stop))


class _Filled(SegmentFile):
    """A view of a segment in which some of its damage is already filled."""

    def __init__(self, disk: Disk, directory: str, number: int, around: bool, filled: Sequence[Filling]) -> None:
        super().__init__(disk, directory, number, around=around)
        self._filled = filled

    def read(self, at: int, size: int) -> bytes:
        if not self._filled:
            return super().read(at, size)
        piece = bytearray(super().read(at, size))
        for filling in self._filled:
            filling.lay(piece, at)
        return bytes(piece)


@dataclass(slots=True)
class _Last:
    """The last visible frame and the last visible block before a place in a segment."""

    next_vlsn: Vlsn
    term: int = 0
    offset: int = 0
    synced: int = 0

    def note(self, buf: bytes, base: int, found: Walk) -> None:
        if not len(found):
            return
        self.offset = int(found.offsets[-1])
        self.synced = int(found.headers["synced"][-1])
        blocks = found.offsets[_visible(found)]
        if len(blocks):
            head = scan.block_headers(buf, base, blocks[-1:])[0]
            self.next_vlsn = Vlsn(int(head["first_vlsn"]) + int(head["count"]))
            self.term = int(head["term"])
        self._note_rollback(buf, base, found)

    def _note_rollback(self, buf: bytes, base: int, found: Walk) -> None:
        """Applies a rollback record to the known last block. The blocks that the rollback abandoned may be in earlier
        segments. If the abandoned blocks are in earlier segments, the header of this segment states the last VLSN of
        those segments."""
        starts = found.offsets[found.headers["kind"] == FrameKind.ROLLBACK_START]
        blocks = found.offsets[_visible(found)]
        if not len(starts) or (len(blocks) and blocks[-1] > starts[-1]):
            return
        at = int(starts[-1]) - base + FRAME_BYTES
        try:
            record = RollbackStart.decode(buf[at : at + RollbackStart.LAYOUT.size])
        except BadBody:
            return  # an invalid record is reported by the verification of its segment
        if self.next_vlsn != record.matchpoint + 1:
            self.next_vlsn, self.term = Vlsn(record.matchpoint + 1), 0


def _visible(found: Walk) -> npt.NDArray[np.bool_]:
    visible: npt.NDArray[np.bool_] = (found.headers["kind"] == FrameKind.BLOCK) & (found.headers["flag"] == 0)
    return visible


def _next_of(buf: bytes, base: int, found: Walk) -> tuple[Vlsn, int] | None:
    """Returns the first VLSN and the term of the first visible block in ``found``. If a rollback comes before that
    block, the log continues after the rollback's matchpoint, with an unknown term (0)."""
    for index in np.flatnonzero(_visible(found) | (found.headers["kind"] == FrameKind.ROLLBACK_START)).tolist():
        if found.headers["kind"][index] == FrameKind.BLOCK:
            head = scan.block_headers(buf, base, found.offsets[index : index + 1])[0]
            return Vlsn(int(head["first_vlsn"])), int(head["term"])
        at = int(found.offsets[index]) - base + FRAME_BYTES
        try:
            return Vlsn(RollbackStart.decode(buf[at : at + RollbackStart.LAYOUT.size]).matchpoint + 1), 0
        except BadBody:
            continue  # an invalid record is reported by the verification of its segment
    return None


def _followed(disk: Disk, directory: str, wound: Wound) -> Wound:
    """Adds the VLSN with which the log continues in later segments, if the log does not continue in the wound's own
    segment. Lost blocks from the added VLSN on were abandoned by a rollback, so they are not written again."""
    if wound.following:
        return wound
    for info in survey(disk, directory, around=wound.around):
        if info.number <= wound.number or not info.active:
            continue
        with closing(SegmentFile(disk, directory, info.number, around=wound.around)) as segment:
            for buf, base, found in whole_frames(segment, FIRST_FRAME, min(info.live_end or info.size, info.size)):
                if (behind := _next_of(buf, base, found)) is not None:
                    return replace(wound, following=behind[0])
    return wound


def _wound(segment: SegmentFile, start: int, end: int, last: _Last, around: bool, stop: int = 0) -> Wound:
    """Returns the damage from ``start`` on, up to the next valid frame, or up to ``stop`` if ``stop`` is set."""
    salt = segment.header.salt
    rest = segment.read(start, end - start)
    after = scan.find_frame_after(rest, start, max(stop, start + 8), salt)
    stop = stop or (after if after is not None else end)
    following, term, follows_on = Vlsn(0), 0, False
    if after is not None:
        for number, walk in enumerate(scan.islands(rest, start, after, salt)):
            if (behind := _next_of(rest, start, walk)) is not None:
                following, term = behind
                follows_on = number == 0 and after == stop and term > 0
                break
    return Wound(
        number=segment.number,
        start=start,
        end=stop,
        salt=salt,
        prev=start - last.offset if last.offset else 0,
        synced=last.synced,
        first=last.next_vlsn,
        following=following,
        follows_on=follows_on,
        term_before=last.term,
        term_behind=term,
        old=decode_header(rest, 0, offset=start, salt=salt),
        data=rest[: stop - start],
        around=around,
        log_end=end,
    )


class Filling:
    """The frames that replace the damaged bytes. The frames are made from peers' blocks, added one after the other."""

    def __init__(self, wound: Wound, *, term_max: int, believed: bool = True) -> None:
        """Begins to fill ``wound``. A block of a later term than ``term_max`` (the term in the node file) is refused,
        since this node never wrote such a block. With ``believed``, the readable part of the old block must agree with
        the new block."""
        self.wound = wound
        self._believed = believed
        self._term_max = term_max
        self.next_vlsn = wound.first
        self._term_before = wound.term_before
        self.frames: list[bytes] = []
        self._at = wound.start
        self._prev = wound.prev

    @property
    def whole(self) -> bool:
        return self._at == self.wound.end

    @property
    def data(self) -> bytes:
        """The bytes that replace the damaged bytes, once enough blocks were added."""
        return b"".join(self.frames)

    def lay(self, piece: bytearray, base: int) -> None:
        """Copies the part of ``data`` that overlaps ``piece`` into ``piece``. ``piece`` begins at offset ``base`` of
        the segment."""
        start = self.wound.start
        low, high = max(base, start), min(base + len(piece), self.wound.end)
        if low < high:
            piece[low - base : high - base] = self.data[low - start : high - start]

    @property
    def term(self) -> int:
        """The term of the next block to add, taken from the remains of the old block or from its neighbours. 0 if the
        term is not known. Terms never fall along a log, so between two blocks of one term each block has that term."""
        old = self._old
        if old is not None:
            return old.term
        return self._term_before if self._term_before == self.wound.term_behind else 0

    def add(self, block: bytes) -> None:
        """Verifies and adds a peer's block whose first VLSN is ``next_vlsn``. Raises ``BadBody`` if the block does not
        fit the damage. Raises ``IntegrityFault`` if the remains of the old block contradict the new block."""
        wound = self.wound
        header = block_format.decode(block)
        if header.first_vlsn != self.next_vlsn or len(block) != header.size:
            raise BadBody(f"block {header.name} of {len(block)} bytes where VLSN {self.next_vlsn} begins")
        if header.term > self._term_max:
            raise BadBody(f"block {header.name}, but this node's stored term is {self._term_max}")
        if not self._term_before <= header.term <= (wound.term_behind or header.term):
            raise BadBody(
                f"block {header.name}, but its neighbours are of terms {self._term_before} and {wound.term_behind}: "
                "terms never fall along a log"
            )
        size = FRAME_BYTES + padded(len(block))
        if self._at + size > wound.end or (wound.following and header.last_vlsn >= wound.following):
            raise BadBody(
                f"block {header.name} takes {size} bytes, the damage in {wound.name} {wound.end - self._at}: "
                "more than blocks was lost"
            )
        self._check_old(block)
        if wound.follows_on and self._at + size == wound.end and header.last_vlsn + 1 != wound.following:
            raise BadBody(f"the blocks for the damage in {wound.name} end before VLSN {wound.following}")
        self._place(FrameKind.BLOCK, block)
        self._term_before = header.term
        self.next_vlsn = Vlsn(header.last_vlsn + 1)

    def add_record(self) -> bool:
        """Adds a checkpoint's record, if no other frame can have been in this place. Returns whether a record was
        added. The record states no more than is known. Only the opening of a log reads records of checkpoints, and it
        does not need them."""
        wound, left = self.wound, self.wound.end - self._at
        old = wound.old if self._at == wound.start else None
        if old is not None and old.size <= left and _RECORD_OF.get(old.size) == old.kind:
            kind = old.kind
        elif wound.following == self.next_vlsn and left in _RECORD_OF:
            kind = _RECORD_OF[left]
        else:
            return False
        last = int(self.next_vlsn) - 1
        first = 1 if last else 0
        if kind == FrameKind.CHECKPOINT_START:
            record = CheckpointStart(id=0, first_vlsn=first, last_vlsn=last, dtvlsn=0, clock_us=0).encode()
        else:
            record = CheckpointEnd(
                id=0, start_lsn=0, flags=0, first_vlsn=first, last_vlsn=last, dtvlsn=0, clock_us=0
            ).encode()
        self._place(FrameKind(kind), record)
        return True

    def _place(self, kind: FrameKind, payload: bytes) -> None:
        wound = self.wound
        old = wound.old if self._at == wound.start else None
        synced = old.synced if old is not None and old.synced <= self._at else wound.synced
        size = FRAME_BYTES + padded(len(payload))
        head = build_header(kind, payload, offset=self._at, prev=self._prev, synced=synced, salt=wound.salt)
        self.frames.append((head + payload).ljust(size, b"\0"))
        self._at, self._prev = self._at + size, size

    @property
    def _old(self) -> BlockHeader | None:
        """The header of the block that was here before the damage, if that header's own checksum is still right."""
        try:
            return block_format.decode_header(self.wound.data, self._at - self.wound.start + FRAME_BYTES)
        except BadBody:
            return None

    def _check_old(self, block: bytes) -> None:
        mine = self._old if self._believed else None
        if mine is None:
            return
        theirs = block_format.decode_header(block)
        if mine.name != theirs.name:
            raise BadBody(f"block {mine.name} was here, the peer has {theirs.name}")
        if mine != theirs:
            raise IntegrityFault(
                f"block {mine.name}: body checksum {mine.body_crc:08x} here, {theirs.body_crc:08x} at the peer"
            )


def find_wound_of_closed(disk: Disk, stores: Stores, directory: str, number: int) -> tuple[Wound | None, int]:
    """Returns the first damage of segment ``number`` in a log that cannot be opened, and the log's stored term. The
    last segment is searched only up to the end that ``state`` and the frames state to be synced. Raises ``Damaged`` if
    a header page or the node file is damaged. Also raises ``Damaged`` if the file of the last segment was cut short,
    since the end of its log is then unknown."""
    stated = read_stated(stores, directory)
    segments = survey(disk, directory)
    term = node_file.read(disk, f"{directory}/{NODE_FILE_NAME}").term
    for segment in segments:
        if segment.number == number and segment.active:
            if segment.live_end is None:
                check_size([segment])
            end = segment.live_end or lsn_offset(stated_synced_end(disk, segments, stated=stated.ends))
            wound = find_wound(disk, directory, number, end, around=False)
            return (_between(disk, directory, segments, wound) if wound is not None else None), term
    return None, term


def _between(disk: Disk, directory: str, segments: Sequence[SegmentInfo], wound: Wound) -> Wound:
    """Adds the terms of the visible blocks before and after the wound, whichever segments have these blocks."""
    active = [segment for segment in segments if segment.active]
    before = [segment for segment in active if segment.number < wound.number]
    behind = [segment for segment in active if segment.number > wound.number]
    low = wound.term_before or next(filter(None, (_terms(disk, directory, each)[1] for each in reversed(before))), 0)
    high = wound.term_behind or next(filter(None, (_terms(disk, directory, each)[0] for each in behind)), 0)
    return replace(wound, term_before=low, term_behind=high)


def _terms(disk: Disk, directory: str, info: SegmentInfo) -> tuple[int, int]:
    """Returns the terms of a segment's first and last readable visible blocks, or zeros if there are none."""
    first = last = 0
    with closing(SegmentFile(disk, directory, info.number)) as segment:
        for buf, base, found in whole_frames(segment, FIRST_FRAME, info.live_end or info.size):
            blocks = found.offsets[_visible(found)]
            if len(blocks):
                terms = scan.block_headers(buf, base, blocks)["term"]
                first, last = first or int(terms[0]), int(terms[-1])
        return first, last
