"""The tail: the current segment while frames are placed in it.

The log latch is held by whoever places; the writer's thread then writes what was placed, in order, and
syncs.  A frame never spans two segments, and a frame's ``synced`` field tells how far *this* segment was
known synced when the frame was built, so that a later open can tell an unsynced end from damage.

    offset 4096        4096+88           …            end
      |frame BLOCK 1-3 |frame BLOCK 4-4 |  zeros  …   |
      prev = 0          prev = 88         ^ tail.offset
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass, field

from vlsn.checksum import crc
from vlsn.frame import FRAME_BYTES, FrameKind, build_header
from vlsn.ids import NULL_VLSN, Lsn, Vlsn, lsn
from vlsn.seams import Buffer, File
from vlsn.segment import FIRST_FRAME, SegmentHeader

_PADDING = [bytes(size) for size in range(8)]
_JOIN_FROM = 48
"""From this many buffers on, one copy costs less than the writer's scatter list."""


@dataclass(slots=True)
class Tail:
    """Where the next frame of one segment goes.  ``crc`` runs over the bytes written so far, the header page
    included; None when it cannot be known without reading (a segment that was opened again)."""

    header: SegmentHeader
    file: File
    offset: int = FIRST_FRAME
    synced: int = 0
    last_frame: int = 0
    first_vlsn: Vlsn = NULL_VLSN
    last_vlsn: Vlsn = NULL_VLSN
    entries: int = 0
    offsets: array[int] = field(default_factory=lambda: array("I"))
    crc: int | None = 0

    @property
    def number(self) -> int:
        return self.header.number

    @property
    def remaining(self) -> int:
        return self.header.size - self.offset


@dataclass(slots=True)
class Chunk:
    """Bytes for one place of one segment: one write, one sync."""

    tail: Tail
    offset: int
    buffers: list[Buffer] = field(default_factory=list)
    allocate: bool = False
    """The standby was taken before all of it was zeroed: reserve the rest first."""

    def place(self, kind: FrameKind, payload: Buffer) -> Lsn:
        """Puts a frame at the tail's end and returns where.  The caller has checked that it fits."""
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
        assert tail.offset <= tail.header.size
        return lsn(tail.header.number, at)

    def write(self) -> None:
        """On the writer's thread: durable on return.  Any ``OSError`` means that the file is not to be trusted."""
        if self.allocate:
            self.tail.file.allocate(self.tail.header.size)
        buffers = self.buffers
        if len(buffers) >= _JOIN_FROM:
            buffers = [b"".join(buffers)]
        self.tail.file.write(self.offset, buffers)
        self.tail.file.sync()
        value = self.tail.crc
        if value is not None:
            for buffer in buffers:
                value = crc(buffer, value)
            self.tail.crc = value


@dataclass(slots=True)
class Group:
    """What the writer takes at once: chunks in log order, and what to tell whom when they are synced."""

    chunks: list[Chunk]
    firsts: list[int] = field(default_factory=list)
    lasts: list[int] = field(default_factory=list)
    lsns: list[int] = field(default_factory=list)
    bytes: int = 0
    sealed_tails: list[Tail] = field(default_factory=list)
    """Segments that this group's first frames in the next one complete."""
    after: list[Callable[[], None]] = field(default_factory=list)
    """Called at home, in order, once all is synced."""

    @property
    def last_vlsn(self) -> Vlsn:
        return Vlsn(self.lasts[-1]) if self.lasts else NULL_VLSN

    def write(self) -> None:
        """On the writer's thread.  A chunk of the next segment is written only after the one before it is
        synced: its header page names that end."""
        for chunk in self.chunks:
            if chunk.buffers:
                chunk.write()
