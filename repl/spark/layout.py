"""Finds the positions of VLSNs in one copy of the log.

    segments   00000007 │ 00000008 │ 00000009          positions count through all of them
    position   0 ───────┼──────────┼────────── total
    probe      finds the first whole, visible block from a position on: its position and its first VLSN

A visible block is one that was not rolled back. A probe finds the first visible block at or after a position.

1. The VLSNs of visible blocks rise with their positions. So a binary search finds a VLSN in some twenty probes of 64
   KiB, and one probe finds where to cut the log. Segment headers do not help, because a later rollback may change their
   VLSNs.
2. The log is cut only at the beginning of a block; the block's first VLSN shows which VLSNs each piece must have. A
   task that finds different VLSNs raises an error, so a wrong probe never loses an entry.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from repl.audit.plan import Part, Survey
from repl.audit.source import Source
from repl.spark.group_of import Group
from vlsn.errors import BadBody
from vlsn.format import scan
from vlsn.format.block import check_body, decode_header
from vlsn.format.block_heads import heads_good
from vlsn.format.frame import FRAME_BYTES
from vlsn.format.own_entries import founding_of, own_entries
from vlsn.format.segment import FIRST_FRAME
from vlsn.limits import BODY_BYTES_MAX, KIB, MIB
from vlsn.seams import Buffer

PROBE_BYTES: Final = 64 * KIB
"""The bytes that a probe reads at first. If the bytes contain no complete frame, the probe then reads four times as
many."""
PROBE_BYTES_MAX: Final = 2 * (BODY_BYTES_MAX + MIB)
"""The most bytes of a probe, enough for the longest frame."""
NEAR_BYTES: Final = 256 * KIB
"""A binary search ends at this distance, because reading a little too much costs less than more probes."""


@dataclass(frozen=True, slots=True)
class Extent:
    """Bytes ``start`` to ``end`` (exclusive) of a segment. ``start`` and ``end`` are boundaries of frames (the
    envelopes of blocks)."""

    part: Part
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of the log: ``extents`` contain all visible blocks with VLSN ``first`` to ``last`` (inclusive), in
    order."""

    first: int
    last: int
    extents: tuple[Extent, ...]


@dataclass(frozen=True, slots=True)
class _Block:
    position: int
    first_vlsn: int


class Layout:
    """One surveyed copy. ``first`` is the copy's first visible VLSN and ``end`` its last durable VLSN; both are 0 for a
    copy without entries. ``group`` is the copy's group."""

    def __init__(self, source: Source, survey: Survey) -> None:
        self.source = source
        self.survey = survey
        self.end = min(survey.dtvlsn, survey.last)
        self.first = survey.first if 0 < survey.first <= self.end else 0
        self.end = self.end if self.first else 0
        self._parts = survey.parts
        self.group = Group(survey.group, survey.founding or self._founding())
        self._starts = list(accumulate((part.end for part in survey.parts), initial=0))
        self.total = self._starts.pop()

    def _founding(self) -> str:
        """Reads the name of this copy's log from the log's first entry. Returns "" if the copy no longer has this
        entry."""
        if self.first != 1:
            return ""
        part = self._parts[0]
        buf = self.source.read(part, 0, min(PROBE_BYTES, part.end))
        found, _ = first_block(buf, 0, part.salt)
        if found is None:
            return ""
        block = memoryview(buf)[found[0] + FRAME_BYTES :]
        try:
            header = decode_header(block)
            check_body(block, header)
        except BadBody:
            return ""
        return founding_of(own_entries(block, header).entries)

    def holds(self, first: int, last: int) -> bool:
        """Returns whether this copy has these VLSNs and itself knows them to be durable. Entries after the copy's
        durable end may differ from those of other copies."""
        return 0 < self.first <= first and last <= self.end

    def bytes_of(self, first: int, last: int) -> int:
        """Returns the approximate number of bytes of these VLSNs."""
        return self._end_of(last) - self._start_of(first)

    def pieces(self, first: int, last: int, target_bytes: int) -> list[Piece]:
        """Divides VLSN ``first`` to ``last`` into pieces of about ``target_bytes``, at segment boundaries where
        possible."""
        assert self.holds(first, last)
        low = self._start_of(first)
        high = self._end_of(last)
        cuts = [_Block(low, first)]
        for position in self._cuts(low, high, target_bytes):
            block = self._probe(position)
            if (
                block is not None
                and cuts[-1].position < block.position < high
                and cuts[-1].first_vlsn < block.first_vlsn
            ):
                if block.first_vlsn > last:
                    break
                cuts.append(block)
        ends = [*cuts[1:], _Block(high, last + 1)]
        return [
            Piece(cut.first_vlsn, end.first_vlsn - 1, tuple(self._extents(cut.position, end.position)))
            for cut, end in zip(cuts, ends, strict=True)
        ]

    def cut(self, first: int, last: int, target_bytes: int) -> int:
        """Returns the VLSN at which to cut the log about ``target_bytes`` after ``first``: the first VLSN of a
        block, or ``last`` + 1 if the log is shorter."""
        low, bound = self._search(first, min(NEAR_BYTES, target_bytes // 8))
        block = self._probe(low + target_bytes) if low + target_bytes < self.total else None
        if block is not None and block.first_vlsn <= first:
            block = self._probe(bound)  # one block is larger than all requested bytes
        return min(block.first_vlsn, last + 1) if block is not None and block.first_vlsn > first else last + 1

    def holding(self, vlsn: int) -> Piece:
        """Returns the piece that contains one VLSN. The VLSN must not be above the copy's last VLSN, but need not be
        durable."""
        low, high = self._search(vlsn)
        return Piece(vlsn, vlsn, tuple(self._extents(low, high)))

    def _cuts(self, low: int, high: int, target: int) -> Iterator[int]:
        """Yields the positions to cut at. A segment larger than 1.5 targets is cut inside. Smaller segments are
        joined, and cut only at their boundaries."""
        gathered = 0
        for start, part in zip(self._starts, self._parts, strict=True):
            begin, end = max(start, low), min(start + part.end, high)
            if end <= begin:
                continue
            if gathered and gathered + (end - begin) > target + target // 2:
                yield begin
                gathered = 0
            count = max(1, round((end - begin) / target))
            for index in range(1, count):
                yield begin + (end - begin) * index // count
                gathered = 0
            gathered += (end - begin) // count

    def _extents(self, low: int, high: int) -> Iterator[Extent]:
        for start, part in zip(self._starts, self._parts, strict=True):
            begin, end = max(start, low) - start, min(start + part.end, high) - start
            if end > begin:
                yield Extent(part, begin, end)

    def _start_of(self, vlsn: int) -> int:
        """Finds the beginning of a frame that is at or before the block with ``vlsn``."""
        if vlsn <= self.first:
            return 0
        return self._search(vlsn)[0]

    def _end_of(self, vlsn: int) -> int:
        """Finds the beginning of a frame after the block with ``vlsn``, or the end of the log."""
        if vlsn >= self.end:
            return self.total  # the rest also has entries that are not known to be durable; a task skips such entries
        return self._search(vlsn)[1]

    def _search(self, vlsn: int, near: int = NEAR_BYTES) -> tuple[int, int]:
        low, high, bound = 0, self.total, self.total
        while high - low > near:
            middle = (low + high) // 2
            block = self._probe(middle)
            if block is None or block.first_vlsn > vlsn:
                high = middle
                bound = bound if block is None else min(bound, block.position)
            else:
                low = block.position
                if low >= high:
                    break
        return low, bound

    def _probe(self, position: int) -> _Block | None:
        """Finds the first visible block that begins at or after ``position``. Returns None if there is none."""
        index = max(bisect_right(self._starts, position) - 1, 0)
        offset = position - self._starts[index]
        for start, part in zip(self._starts[index:], self._parts[index:], strict=True):
            found = self._probe_part(part, offset)
            if found is not None:
                at, first = found
                return _Block(start if at == FIRST_FRAME else start + at, first)
            offset = 0
        return None

    def _probe_part(self, part: Part, offset: int) -> tuple[int, int] | None:
        at, size = max(offset + 7 & ~7, FIRST_FRAME), PROBE_BYTES
        while at < part.end:
            stop = min(at + size, part.end)
            buf = self.source.read(part, at, stop)
            found, resume = first_block(buf, at, part.salt)
            if found is not None:
                return found
            if len(buf) < stop - at or (stop == part.end and resume is None):
                return None
            if resume is not None:
                at, size = resume, PROBE_BYTES
            elif size < PROBE_BYTES_MAX:
                size *= 4
            else:
                at += size // 2
        return None


def first_block(buf: Buffer, base: int, salt: int) -> tuple[tuple[int, int] | None, int | None]:
    """Finds the first visible block whose frame is complete in ``buf``, which begins at file offset ``base``. Returns
    the block's offset and first VLSN. If ``buf`` has no such block, returns the offset at which to continue, after the
    last complete frame; None if no frame is complete."""
    at = scan.find_frame_after(buf, base, base, salt)
    if at is None:
        return None, None
    walk = scan.walk(buf, base=base, start=at, end=base + (len(buf) & ~7), salt=salt)
    blocks = walk.visible()
    heads = scan.block_headers(buf, base, blocks.offsets)
    good = heads_good(heads) & (scan.header_crcs(heads) == heads["header_crc"])
    if good.any():
        index = int(good.argmax())
        return (int(blocks.offsets[index]), int(heads["first_vlsn"][index])), None
    return None, max(walk.end, at + 8)
