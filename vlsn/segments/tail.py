"""The tail: the current segment while frames are placed in it.

Frames are placed under the log latch; the writer's thread then writes them in order, and syncs.  A frame never spans
two segments.  A frame's ``synced`` field tells how far *this* segment was known synced when the frame was built, so
that a later open can tell an unsynced end from damage.

    offset 4096        4096+88           …            end
      |frame BLOCK 1-3 |frame BLOCK 4-4 |  zeros  …   |
      prev = 0          prev = 88         ^ tail.offset

``frames`` keeps what a failed write could take with it: every frame that is not synced, and those that
reach into the page in which the next write begins (see ``replacer``): of 4 KiB, or of the kernel's pages where
those are larger.  A segment's header page is one of its own only where pages have 4 KiB: of a larger first page that
a failed write destroys the header goes too, and the next open says so (``Damaged``).
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
"""Bytes that a failed write may take with it: the kernel writes whole pages, or the file system's blocks."""
_PADDING = [bytes(size) for size in range(8)]
_JOIN_FROM = 48
"""Buffers from which one copy costs less than the writer's scatter list."""


class Frame(NamedTuple):
    """A frame as it was placed; ``first`` and ``last`` are a block's VLSNs, 0 of a local record."""

    offset: int
    kind: FrameKind
    payload: Buffer
    first: int
    last: int
    end: int
    """The offset behind it and its padding."""
    dropped: bool = False
    """Rolled back: not to be written again, though a failed write may take the place where it lies."""

    @property
    def bytes(self) -> int:
        return self.end - self.offset


@dataclass(slots=True)
class Tail:
    """The place of the next frame of one segment. ``crc`` runs over the bytes written so far, the header page included;
    None when only reading would tell it (a segment that was opened again)."""

    header: SegmentHeader
    file: File
    offset: int = FIRST_FRAME
    synced: int = 0
    """0 until the header page is synced, as part of the log, with the first frames."""
    last_frame: int = 0
    first_vlsn: Vlsn = NULL_VLSN
    last_vlsn: Vlsn = NULL_VLSN
    entries: int = 0
    offsets: array[int] = field(default_factory=lambda: array("I"))
    crc: int | None = 0
    frames: list[Frame] = field(default_factory=list)
    carried: int = 0
    """Bytes of those of ``frames`` that a replacement would write again."""
    number: int = field(init=False)
    size: int = field(init=False)
    """Bytes of the segment: where its last frame ends at most."""
    start: Lsn = field(init=False)
    """The LSN of its first byte."""

    def __post_init__(self) -> None:
        self.number, self.size = self.header.number, self.header.size
        self.start = lsn(self.number, 0)

    @property
    def unsynced(self) -> int:
        """Bytes of frames that are not synced."""
        return self.offset - max(self.synced, FIRST_FRAME)

    def set_synced(self, offset: int) -> None:
        """Notes that everything below ``offset`` (a frame's end) is synced."""
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
        """Drops blocks after ``vlsn``, which are being rolled back. A replacement must not bring them back, and the
        checksum counts them, with flag bytes that change."""
        self.keep([frame._replace(dropped=True) if frame.last > vlsn else frame for frame in self.frames])
        self.crc = None

    def keep(self, frames: list[Frame]) -> None:
        self.frames = frames
        self.carried = sum([frame.bytes for frame in frames if not frame.dropped])


@dataclass(slots=True)
class Chunk:
    """Bytes for one place of one segment: one write, one sync."""

    tail: Tail
    offset: int
    buffers: list[Buffer] = field(default_factory=list)
    allocate: bool = False
    """The standby was taken before all of it was zeroed: reserve the rest first."""

    def place(self, kind: FrameKind, payload: Buffer, first: int = 0, last: int = 0) -> Lsn:
        """Puts a frame at the tail's end and returns its place.  The caller has checked that it fits."""
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
        """Writes on the writer's thread: durable on return if ``sync``. Any ``OSError`` means that the file is not to
        be trusted."""
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
    """The load of one write: chunks in log order, and the callbacks for when they are written."""

    chunks: list[Chunk]
    sync: bool = False
    """True where it is synced, too; a group that spans segments always is."""
    submissions: int = 0
    entries: int = 0
    """The entries of the submissions."""
    firsts: list[int] = field(default_factory=list)
    lasts: list[int] = field(default_factory=list)
    lsns: list[int] = field(default_factory=list)
    clocks: list[int] = field(default_factory=list)
    """When each block was sealed."""
    txn_end: Vlsn = NULL_VLSN
    """The last COMMIT of a transaction in it, 0 for none."""
    bytes: int = 0
    sealed_tails: list[Tail] = field(default_factory=list)
    """Segments that this group's first frames in the next one complete."""
    records: list[Record] = field(default_factory=list)
    after: list[Callable[[], None]] = field(default_factory=list)
    """Calls to make on the owner's thread, in order, once all is synced."""
    chunks_done: int = 0

    def write(self) -> None:
        """Writes on the writer's thread. A chunk of the next segment is written only after the one before it is synced:
        its header page names that end."""
        sync = self.sync or len(self.chunks) > 1
        for chunk in self.chunks:
            if chunk.buffers:
                chunk.write(sync=sync)
            elif sync and chunk.offset > chunk.tail.synced:
                chunk.tail.file.sync()
            self.chunks_done += 1


@dataclass(slots=True)
class Record:
    """A local record of a group, and where it lies: a replacement moves it."""

    lsn: Lsn
    done: Callable[[Lsn], None]

    def tell(self) -> None:
        self.done(self.lsn)
