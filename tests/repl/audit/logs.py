"""Copies of one log, written to directories from the formats alone: the same blocks, each node's own frames.

story = blocks(["a", "b"], ["c"])                     what was replicated
copy = Copy(path, "n1").add(*story)                   rolls by itself
copy.checkpoint(dtvlsn=3).write()
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from vlsn.format.block import decode_header
from vlsn.format.frame import FLAG_AT, OVERMARKED, FrameKind, build_header, padded
from vlsn.format.records import CheckpointEnd, CheckpointStart, RollbackEnd, RollbackStart
from vlsn.format.seal import seal
from vlsn.format.segment import FIRST_FRAME, SegmentHeader, SegmentState, segment_name, sidecar_name
from vlsn.format.sidecar import Sidecar, content_crc
from vlsn.format.submission import Values
from vlsn.ids import Lsn, lsn, lsn_file, lsn_offset

CLOCK_US = 1_700_000_000_000_000
BACKLOG = 2
"""A block's DTVLSN lies this many blocks behind it."""


def blocks(
    *values: Sequence[str | bytes],
    first_vlsn: int = 1,
    term: int = 1,
    keys: Sequence[bytes | None] | None = None,
    durable: int = 1 << 62,
) -> list[bytes]:
    """One block each; ``keys`` go round over the entries, no block says more than ``durable``."""
    sealed: list[bytes] = []
    lasts = [first_vlsn - 1] * BACKLOG
    for group in values:
        data = [value.encode() if isinstance(value, str) else value for value in group]
        named = [keys[(first_vlsn + n) % len(keys)] for n in range(len(data))] if keys else None
        (block,) = seal(
            [Values(data, named)],
            term=term,
            first_vlsn=first_vlsn,
            dtvlsn=min(durable, lasts[-BACKLOG]),
            clock_us=CLOCK_US + first_vlsn,
        )
        sealed.append(block.data)
        lasts.append(block.last_vlsn)
        first_vlsn = block.last_vlsn + 1
    return sealed


def numbered(
    count: int, entries: int = 1, size: int = 0, *, first_vlsn: int = 1, term: int = 1, durable: int = 1 << 62
) -> list[bytes]:
    """Returns ``count`` blocks of ``entries`` values ``value N``, filled up to ``size`` bytes."""
    vlsns = range(first_vlsn, first_vlsn + count * entries)
    values = [b"value %d" % vlsn + b"." * (size - len(b"value %d" % vlsn)) for vlsn in vlsns]
    groups = (values[at : at + entries] for at in range(0, len(values), entries))
    return blocks(*groups, first_vlsn=first_vlsn, term=term, durable=durable)


@dataclass
class _Segment:
    header: SegmentHeader
    data: bytearray = field(default_factory=bytearray)
    offsets: list[int] = field(default_factory=list)
    first: int = 0
    last: int = 0

    @property
    def end(self) -> int:
        return FIRST_FRAME + len(self.data)


class Copy:
    """One node's copy of a log."""

    def __init__(self, path: Path, node: str, *, segment_bytes: int = 64 << 10, group: str = "g") -> None:
        self.path = path
        self.segment_bytes = segment_bytes
        self.places: dict[int, Lsn] = {}
        """The last place of the block that begins at a VLSN."""
        self.last = 0
        self._named = {"group": group, "node": node, "incarnation": sum(node.encode())}
        self._segments: list[_Segment] = []
        self._roll()

    @property
    def ends(self) -> dict[int, int]:
        """The ends of each segment's frames."""
        return {segment.header.number: segment.end for segment in self._segments}

    def add(self, *sealed: bytes) -> Copy:
        for block in sealed:
            header = decode_header(block)
            self.places[header.first_vlsn] = self.frame(FrameKind.BLOCK, block)
            segment = self._segments[-1]
            segment.first = segment.first or header.first_vlsn
            segment.last = self.last = header.last_vlsn
        return self

    def frame(self, kind: FrameKind, payload: bytes) -> Lsn:
        if self._segments[-1].end + 24 + padded(len(payload)) > self.segment_bytes:
            self._roll()
        segment = self._segments[-1]
        at, prev = segment.end, segment.end - segment.offsets[-1] if segment.offsets else 0
        synced = segment.offsets[-1] if segment.offsets else 0
        segment.data += build_header(kind, payload, offset=at, prev=prev, synced=synced, salt=segment.header.salt)
        segment.data += payload + bytes(-len(payload) % 8)
        segment.offsets.append(at)
        return lsn(segment.header.number, at)

    def checkpoint(self, dtvlsn: int) -> Copy:
        first = min(self.places)
        start = self.frame(FrameKind.CHECKPOINT_START, CheckpointStart(1, first, self.last, dtvlsn, CLOCK_US).encode())
        end = CheckpointEnd(1, start, 1, first, self.last, dtvlsn, CLOCK_US)
        self.frame(FrameKind.CHECKPOINT_END, end.encode())
        return self

    def rollback(self, matchpoint: int, *, flags: bool = True, end: bool = True) -> Copy:
        """Overmarks all blocks after ``matchpoint``, as a node does; or leaves out a part of it."""
        gone = [self.places.pop(first) for first in sorted(self.places) if first > matchpoint]
        matchpoint_lsn = max((at for at in self.places.values()), default=Lsn(0))
        record = RollbackStart(matchpoint, matchpoint_lsn, gone[0], Lsn(gone[-1] + 1), self.last, CLOCK_US)
        start = self.frame(FrameKind.ROLLBACK_START, record.encode())
        for at in gone if flags else ():
            segment = next(one for one in self._segments if one.header.number == lsn_file(at))
            segment.data[lsn_offset(at) - FIRST_FRAME + FLAG_AT] = OVERMARKED
        if end:
            self.frame(FrameKind.ROLLBACK_END, RollbackEnd(start, CLOCK_US).encode())
        self.last = matchpoint
        return self

    def roll(self) -> Copy:
        self._roll()
        return self

    def write(self, *, sidecars: bool = True) -> Copy:
        self.path.mkdir(parents=True, exist_ok=True)
        for segment in self._segments:
            self._write(segment, sidecars=sidecars and segment is not self._segments[-1])
        return self

    def _write(self, segment: _Segment, *, sidecars: bool) -> None:
        head = segment.header.encode()
        with open(self.path / segment_name(segment.header.number), "wb") as file:
            file.write(head)
            file.write(segment.data)
            file.truncate(self.segment_bytes)
        flagged = any(segment.data[at - FIRST_FRAME + FLAG_AT] for at in segment.offsets)
        if sidecars and segment.offsets and not flagged:
            self._write_sidecar(segment, head)

    def flip(self, vlsn: int, at: int, bit: int = 0x10) -> tuple[str, int]:
        """Flips a bit at byte ``at`` of the frame of the block at ``vlsn``, and returns file and offset."""
        place = self.places[vlsn]
        return self.flip_at(lsn_file(place), lsn_offset(place) + at, bit), lsn_offset(place)

    def flip_at(self, number: int, offset: int, bit: int = 0x10) -> str:
        with open(self.path / segment_name(number), "r+b") as file:
            file.seek(offset)
            (byte,) = file.read(1)
            file.seek(offset)
            file.write(bytes([byte ^ bit]))
        return segment_name(number)

    def _write_sidecar(self, segment: _Segment, head: bytes) -> None:
        offsets = np.array(segment.offsets, np.uint32)
        entries = segment.last - segment.first + 1 if segment.first else 0
        sidecar = Sidecar(
            number=segment.header.number,
            salt=segment.header.salt,
            first_vlsn=segment.first,
            last_vlsn=segment.last,
            end=segment.end,
            entries=entries,
            crc=content_crc(head + segment.data, offsets),
            offsets=offsets,
        )
        (self.path / sidecar_name(segment.header.number)).write_bytes(sidecar.encode())

    def _roll(self) -> None:
        before = self._segments[-1] if self._segments else None
        number = before.header.number + 1 if before else 1
        header = SegmentHeader(
            **self._named,  # type: ignore[arg-type]
            number=number,
            salt=(0x9E3779B1 * number ^ sum(str(self.path).encode())) & 0xFFFF_FFFF,
            state=SegmentState.ACTIVE,
            size=self.segment_bytes,
            created_us=CLOCK_US,
            prev_number=before.header.number if before else 0,
            prev_end=before.end if before else 0,
            prev_last_vlsn=self.last,
        )
        self._segments.append(_Segment(header))


STORY = numbered(400, 5, 60)
"""VLSN 1 to 2 000, some 190 KiB: three segments of 64 KiB and a rest."""


def three(path: Path) -> list[Copy]:
    """Writes three copies of ``STORY``, each in segments of another size."""
    sizes = {"n1": 64 << 10, "n2": 96 << 10, "n3": 1 << 20}
    return [Copy(path / node, node, segment_bytes=size).add(*STORY).write() for node, size in sizes.items()]
