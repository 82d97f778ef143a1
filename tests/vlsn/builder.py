"""A builder of log directories, byte by byte, from the formats alone.

It writes a log's bytes, or those that a fault would have left, without the write path; a test names each frame and its
place.

    log = LogBuilder(disk, "d")
    log.block(b"a", b"b").checkpoint().roll().block(b"c")
    log.write()
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from vlsn.format import block as block_format
from vlsn.format.block import EntryKind
from vlsn.format.frame import FLAG_AT, OVERMARKED, FrameKind, build_header, padded
from vlsn.format.records import CheckpointEnd, CheckpointFlag, CheckpointStart, RollbackEnd, RollbackStart
from vlsn.format.segment import FIRST_FRAME, SegmentHeader, SegmentState, segment_name, sidecar_name
from vlsn.format.sidecar import Sidecar, content_crc
from vlsn.ids import Lsn, lsn
from vlsn.seams import Disk

SEGMENT_BYTES = 64 * 1024


@dataclass
class Placed:
    """One frame as the builder put it."""

    lsn: Lsn
    kind: FrameKind
    payload: bytes
    size: int
    first: int = 0
    last: int = 0
    term: int = 0
    overmarked: bool = False

    @property
    def offset(self) -> int:
        return self.lsn & 0xFFFF_FFFF

    @property
    def number(self) -> int:
        return self.lsn >> 32


@dataclass
class Piece:
    """One segment under construction; ``data`` is what the file will hold."""

    header: SegmentHeader
    data: bytearray
    end: int = FIRST_FRAME
    synced: int = 0
    frames: list[Placed] = field(default_factory=list)

    @property
    def name(self) -> str:
        return segment_name(self.header.number)


class LogBuilder:
    """Builds segments in memory, ``write`` puts them on the disk."""

    def __init__(self, disk: Disk, directory: str, *, segment_bytes: int = SEGMENT_BYTES, first_vlsn: int = 1) -> None:
        self.disk = disk
        self.directory = directory
        self.segment_bytes = segment_bytes
        self.term = 1
        self.next_vlsn = first_vlsn
        self.dtvlsn = 0
        self.pieces: list[Piece] = []
        self.roll()

    # Steps of a log.

    @property
    def piece(self) -> Piece:
        return self.pieces[-1]

    @property
    def frames(self) -> list[Placed]:
        return [frame for piece in self.pieces for frame in piece.frames]

    def visible(self) -> list[Placed]:
        return [each for each in self.frames if each.kind == FrameKind.BLOCK and not each.overmarked]

    def roll(self, number: int | None = None) -> LogBuilder:
        """Returns the next segment; the one before is synced to its end."""
        old = self.pieces[-1] if self.pieces else None
        number = number or (old.header.number + 1 if old else 1)
        header = SegmentHeader(
            group="g",
            node="n1",
            incarnation=7,
            number=number,
            salt=(0x5A17_0000 ^ number * 0x9E37_79B1) & 0xFFFF_FFFF,
            state=SegmentState.ACTIVE,
            size=self.segment_bytes,
            created_us=number,
            prev_number=old.header.number if old else 0,
            prev_end=old.end if old else 0,
            prev_last_vlsn=self.next_vlsn - 1,
        )
        self.pieces.append(Piece(header, bytearray(header.encode().ljust(self.segment_bytes, b"\0"))))
        return self

    def synced(self) -> LogBuilder:
        """Frames from now on state that all before them was synced."""
        self.piece.synced = self.piece.end
        return self

    def frame(self, kind: FrameKind, payload: bytes) -> Placed:
        size = 24 + padded(len(payload))
        if self.piece.end + size > self.segment_bytes:
            self.roll()
        piece = self.piece
        prev = piece.end - piece.frames[-1].offset if piece.frames else 0
        head = build_header(kind, payload, offset=piece.end, prev=prev, synced=piece.synced, salt=piece.header.salt)
        piece.data[piece.end : piece.end + size] = (head + payload).ljust(size, b"\0")
        placed = Placed(lsn(piece.header.number, piece.end), kind, payload, size)
        piece.frames.append(placed)
        piece.end += size
        return placed

    def block(
        self,
        *values: bytes,
        keys: list[bytes] | None = None,
        kind: EntryKind = EntryKind.DATA,
        clock_us: int | None = None,
    ) -> LogBuilder:
        values = values or (b"value %d" % self.next_vlsn,)
        data = block_format.build(
            term=self.term,
            first_vlsn=self.next_vlsn,
            dtvlsn=min(self.dtvlsn, self.next_vlsn - 1),
            clock_us=1_000_000 + self.next_vlsn if clock_us is None else clock_us,
            kind=kind,
            columns=block_format.columns_of(values, keys),
            submissions=1,
        )
        placed = self.frame(FrameKind.BLOCK, data)
        placed.first, placed.last, placed.term = self.next_vlsn, self.next_vlsn + len(values) - 1, self.term
        self.next_vlsn += len(values)
        return self

    def blocks(self, count: int) -> LogBuilder:
        for _ in range(count):
            self.block()
        return self

    def checkpoint(self, *, clean: bool = False) -> LogBuilder:
        first, last = (self.visible()[0].first, self.visible()[-1].last) if self.visible() else (0, 0)
        number = len(self.frames) + 1
        start = self.frame(FrameKind.CHECKPOINT_START, CheckpointStart(number, first, last, 0, 1).encode())
        self.synced()
        flags = CheckpointFlag.CLEAN if clean else 0
        end = CheckpointEnd(number, start.lsn, flags, first, last, 0, 1)
        self.frame(FrameKind.CHECKPOINT_END, end.encode())
        return self

    def rollback(
        self, matchpoint: int, *, flags: bool = True, complete: bool = True, says: Mapping[str, int] | None = None
    ) -> LogBuilder:
        """Overmarks every visible block after ``matchpoint``; ``flags`` and ``complete`` leave steps out, ``says``
        changes fields of its record."""
        gone = [each for each in self.visible() if each.first > matchpoint]
        kept = next((each for each in reversed(self.visible()) if each.last <= matchpoint), None)
        self.synced()
        record = RollbackStart(
            matchpoint,
            kept.lsn if kept else 0,
            gone[0].lsn,
            lsn(self.piece.header.number, self.piece.end),
            gone[-1].last,
            1,
        )
        record = replace(record, **(says or {}))
        start = self.frame(FrameKind.ROLLBACK_START, record.encode())
        for each in gone:
            each.overmarked = True
            if flags:
                self.overmark(each)
        if complete:
            self.synced()
            self.frame(FrameKind.ROLLBACK_END, RollbackEnd(start.lsn, 1).encode())
        self.next_vlsn = matchpoint + 1
        self.term += 1
        return self

    # Faults.

    def piece_of(self, number: int) -> Piece:
        return next(each for each in self.pieces if each.header.number == number)

    def overmark(self, frame: Placed, flag: int = OVERMARKED) -> None:
        self.piece_of(frame.number).data[frame.offset + FLAG_AT] = flag

    def flip(self, frame: Placed, at: int, bit: int = 0x01) -> None:
        """One bit at byte ``at`` of a frame."""
        self.piece_of(frame.number).data[frame.offset + at] ^= bit

    def zero(self, frame: Placed) -> None:
        self.piece_of(frame.number).data[frame.offset : frame.offset + frame.size] = bytes(frame.size)

    # On the disk.

    def sidecar(self, piece: Piece) -> Sidecar:
        blocks = [each for each in piece.frames if each.kind == FrameKind.BLOCK and not each.overmarked]
        first, last = (blocks[0].first, blocks[-1].last) if blocks else (0, 0)
        offsets = np.array([each.offset for each in piece.frames], dtype=np.uint32)
        content = content_crc(bytes(piece.data[: piece.end]), offsets)
        entries = last - first + 1 if blocks else 0
        return Sidecar(piece.header.number, piece.header.salt, first, last, piece.end, entries, content, offsets)

    def write(self, *, sidecars: bool = False) -> LogBuilder:
        """Returns every segment, and a sidecar for all but the last, as of the bytes now."""
        if not self.disk.exists(self.directory):
            self.disk.make_directory(self.directory)
        for piece in self.pieces:
            self.put(piece.name, bytes(piece.data))
            if sidecars and piece is not self.pieces[-1]:
                self.put(sidecar_name(piece.header.number), self.sidecar(piece).encode())
        return self

    def put(self, name: str, data: bytes) -> None:
        path = f"{self.directory}/{name}"
        if self.disk.exists(path):
            self.disk.remove(path)
        file = self.disk.open(path, write=True, create=True)
        file.write(0, [data])
        file.sync()
        file.close()
