"""The tail: the current segment, into which frames are placed.

Frames are placed under the log's latch. Later the writer's thread writes and syncs the frames in order. A frame never
spans two segments. The ``synced`` field of a frame states up to which offset *this* segment was synced when the frame
was built. By the ``synced`` fields, a later opening of the log distinguishes an unsynced end from damage.

    offset 4096        4096+88           …            end
      |frame BLOCK 1-3 |frame BLOCK 4-4 |  zeros  …   |
      prev = 0          prev = 88         ^ tail.offset

``frames`` has the frames that a failed write could destroy (see ``replacer``). A failed write could destroy all
unsynced frames, and the frames that reach into the page in which the next write begins. A page has 4 KiB, or the size
of the kernel's pages if that is larger. With larger pages, the header of a segment shares its page with frames. If a
failed write destroys that page, the header is lost, too, and the next opening of the log raises ``Damaged``.
"""

from __future__ import annotations

import mmap
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from vlsn.format.checksum import crc
from vlsn.format.frame import FRAME_BYTES, FrameKind, build_header
from vlsn.format.segment import FIRST_FRAME, SegmentHeader
from vlsn.ids import NULL_VLSN, Lsn, Vlsn, lsn
from vlsn.seams import Buffer, File

PAGE_BYTES = max(4096, mmap.PAGESIZE)
"""A failed write may destroy this many bytes around the written bytes, since the kernel writes whole pages, or blocks
of the file system."""
_PADDING = [bytes(size) for size in range(8)]
_JOIN_FROM = 48
"""From this number of buffers on, copying them into one costs less than a scatter write."""


class Frame(NamedTuple):
    """A frame as it was placed. ``first`` and ``last`` are the VLSNs of a block, or 0 for a local record."""

    offset: int
    kind: FrameKind
    payload: Buffer
    first: int
    last: int
    end: int
    """The offset after the frame and the padding after it."""
    dropped: bool = False
    """True for a frame that was rolled back. Such a frame must not be written again, even if a failed write destroys
    it."""

    @property
    def bytes(self) -> int:
        return self.end - self.offset


@dataclass(slots=True)
class Tail:
    """The current segment, and the position of its next frame. ``crc`` is the checksum of the bytes written so far,
    including the header page. ``crc`` is None if the segment was opened again, since the whole segment would have to be
    read to compute it."""

    header: SegmentHeader
    file: File
    offset: int = FIRST_FRAME
    synced: int = 0
    """The offset up to which the segment is synced. ``synced`` is 0 until the header page is synced together with the
    first frames."""
    last_frame: int = 0
    first_vlsn: Vlsn = NULL_VLSN
    last_vlsn: Vlsn = NULL_VLSN
    entries: int = 0
    offsets: array[int] = field(default_factory=lambda: array("I"))
    crc: int | None = 0
    frames: list[Frame] = field(default_factory=list)
    carried: int = 0
    """How many bytes of ``frames`` a replacement after a failed write would write again."""
    number: int = field(init=False)
    size: int = field(init=False)
    """The size of the segment. No frame may end after it."""
    start: Lsn = field(init=False)
    """The LSN of the segment's first byte."""

    def __post_init__(self) -> None:
        self.number, self.size = self.header.number, self.header.size
        self.start = lsn(self.number, 0)

    @property
    def unsynced(self) -> int:
        """The number of bytes in frames that are not synced."""
        return self.offset - max(self.synced, FIRST_FRAME)

    def set_synced(self, offset: int) -> None:
        """Records that everything below ``offset`` (the end of a frame) is synced."""
        self.synced = offset
        page = offset - offset % PAGE_BYTES
        gone = 0
        for frame in self.frames:
            if frame.end > page:
                break
            gone += 1
            if not frame.dropped:
                self.carried -= frame.end - frame.offset
        if gone:
            del self.frames[:gone]

    def forget_after(self, vlsn: Vlsn) -> None:
        """Marks the blocks after ``vlsn``, which are being rolled back, as dropped. A replacement must not write
        dropped blocks again. The running checksum becomes unknown, since it includes the blocks' flags, which
        change."""
        self.keep([frame._replace(dropped=True) if frame.last > vlsn else frame for frame in self.frames])
        self.crc = None

    def keep(self, frames: list[Frame]) -> None:
        self.frames = frames
        self.carried = sum([frame.bytes for frame in frames if not frame.dropped])


@dataclass(slots=True)
class Chunk:
    """The bytes for one place in one segment, which are written together and synced together."""

    tail: Tail
    offset: int
    buffers: list[Buffer] = field(default_factory=list)
    allocate: bool = False
    """True if the segment came into use before all of it was zeroed, so that the rest has to be reserved first."""

    def place(self, kind: FrameKind, payload: Buffer, first: int = 0, last: int = 0) -> Lsn:
        """Appends a frame to the current segment and returns the frame's LSN. The caller has checked that the frame
        fits."""
        tail = self.tail
        at = tail.offset
        size = len(payload)
        prev = at - tail.last_frame if tail.last_frame else 0
        header = build_header(kind, payload, offset=at, prev=prev, synced=tail.synced, salt=tail.header.salt)
        pad = -size & 7
        if pad:
            self.buffers += (header, payload, _PADDING[pad])
        else:
            self.buffers += (header, payload)
        tail.last_frame = at
        tail.offset = at + FRAME_BYTES + size + pad
        tail.offsets.append(at)
        tail.frames.append(Frame(at, kind, payload, first, last, tail.offset))
        tail.carried += tail.offset - at
        assert tail.offset <= tail.size
        return Lsn(tail.start + at)

    def write(self, *, sync: bool) -> None:
        """Writes the bytes on the writer's thread. With ``sync``, the bytes are durable on return. After any
        ``OSError`` the file must not be trusted."""
        if self.allocate:
            self.tail.file.allocate(self.tail.size)
        buffers = self.joined()
        self.tail.file.write(self.offset, buffers)
        if sync:
            self.tail.file.sync()
        self.count_crc(buffers)

    def joined(self) -> list[Buffer]:
        return [b"".join(self.buffers)] if len(self.buffers) >= _JOIN_FROM else self.buffers

    def count_crc(self, buffers: list[Buffer]) -> None:
        value = self.tail.crc
        if value is not None:
            for buffer in buffers:
                value = crc(buffer, value)
            self.tail.crc = value


@dataclass(slots=True)
class Group:
    """The content of one write: chunks in log order, and the functions to call afterwards."""

    chunks: list[Chunk]
    sync: bool = False
    """True if the group is also synced. A group that spans several segments is always synced."""
    submissions: int = 0
    entries: int = 0
    """The number of entries in the submissions."""
    firsts: list[int] = field(default_factory=list)
    lasts: list[int] = field(default_factory=list)
    lsns: list[int] = field(default_factory=list)
    clocks: list[int] = field(default_factory=list)
    """The time at which each block was sealed."""
    txn_end: Vlsn = NULL_VLSN
    """The last COMMIT of a transaction in the group, 0 for none."""
    bytes: int = 0
    sealed_tails: list[Tail] = field(default_factory=list)
    """The segments that the log leaves: the group continues in the next segment."""
    records: list[Record] = field(default_factory=list)
    after: list[Callable[[], None]] = field(default_factory=list)
    """The functions to call on the owner's thread, in order, once the group is synced."""
    chunks_done: int = 0

    def write(self) -> None:
        """Writes the group on the writer's thread. A chunk in a new segment is written only after the chunk before it
        is synced, since the header page of the new segment states the end of the old one."""
        sync = self.sync or len(self.chunks) > 1
        for chunk in self.chunks:
            if chunk.buffers:
                chunk.write(sync=sync)
            elif sync and chunk.offset > chunk.tail.synced:
                chunk.tail.file.sync()
            self.chunks_done += 1


@dataclass(slots=True)
class Record:
    """A local record (checkpoint, rollback) in a group, and its LSN, which a replacement after a failed write may
    change."""

    lsn: Lsn
    done: Callable[[Lsn], None]

    def tell(self) -> None:
        self.done(self.lsn)
