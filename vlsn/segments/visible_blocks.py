"""Reads the visible blocks of a part of the log, by column, to rebuild the VLSN index.

    segment 3   │good 1–10│good, overmarked│rotten│good 21–30│      →  (1, 10, lsn), (21, 30, lsn)

The log is read in windows of 1 MiB, so that memory does not grow with the log. A damaged frame is skipped, and the
search continues after it. The damage is not reported here: later readers of the damaged block report it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import NamedTuple

import numpy as np

from vlsn.errors import BadBody, Damaged
from vlsn.format import block as block_format
from vlsn.format import scan
from vlsn.format.block import BLOCK_BYTES
from vlsn.format.frame import FRAME_BYTES, MAGIC, FrameKind, decode_header
from vlsn.format.scan import Walk
from vlsn.format.segment import FIRST_FRAME
from vlsn.ids import Lsn, lsn_file, lsn_offset
from vlsn.limits import MIB
from vlsn.seams import Disk
from vlsn.segments.directory import SegmentInfo
from vlsn.segments.reader import SegmentFile

WINDOW_BYTES = MIB


class Columns(NamedTuple):
    """Columns: the first VLSN, the last VLSN and the LSN of each block, all ascending, and the time at which the block
    was sealed."""

    firsts: list[int]
    lasts: list[int]
    lsns: list[int]
    clocks: list[int]


def visible_blocks(
    disk: Disk, directory: str, segments: Sequence[SegmentInfo], *, start: Lsn, end: Lsn
) -> Iterator[Columns]:
    """Yields the visible blocks of ``segments`` (ascending), one window at a time. The blocks are those in the frames
    from ``start`` (0: the first frame) to ``end`` (exclusive), all of which are synced."""
    last = 0
    for info in segments:
        if not info.active or not lsn_file(start) <= info.number <= lsn_file(end):
            continue
        begin = lsn_offset(start) if info.number == lsn_file(start) else FIRST_FRAME
        stop = min(info.live_end or info.size, info.size)
        if info.number == lsn_file(end):
            stop = min(stop, lsn_offset(end))  # ``end`` may be after the end of the log in this segment
        try:
            segment = SegmentFile(disk, directory, info.number)
        except Damaged:
            continue  # the header has rotted after the segments were listed
        try:
            for buf, base, found in whole_frames(segment, begin, stop):
                columns = _visible(buf, base, found, info.number, last)
                if columns.firsts:
                    last = columns.lasts[-1]
                    yield columns
        finally:
            segment.close()


def first_damage(
    disk: Disk, directory: str, segments: Sequence[SegmentInfo], *, start: Lsn, end: Lsn, what: str, vlsn: int
) -> Damaged | None:
    """Finds the first damaged frame from ``start`` to ``end``. ``what`` is a part of the error's text: why the log
    should continue. ``vlsn`` is the VLSN from which on it should continue."""
    for info in segments:
        if not info.active or not lsn_file(start) <= info.number <= lsn_file(end):
            continue
        at = lsn_offset(start) if info.number == lsn_file(start) else FIRST_FRAME
        stop = min(info.live_end or info.size, info.size)
        if info.number == lsn_file(end):
            stop = min(stop, lsn_offset(end))
        with closing(SegmentFile(disk, directory, info.number)) as segment:
            for _, base, found in whole_frames(segment, at, stop):
                if base != at:
                    break
                at = found.end
        if at < stop:
            text = f"{segment.name} is damaged at {at}: {what}"
            return Damaged(text, file=segment.name, offset=at, vlsn=vlsn)
    return None


def is_block_at(disk: Disk, directory: str, vlsn: int, at: Lsn) -> bool:
    """Returns whether a visible block that begins with ``vlsn`` is at LSN ``at``, as far as the headers show."""
    try:
        segment = SegmentFile(disk, directory, lsn_file(at))
    except Damaged:
        return False
    try:
        buf = segment.file.read(lsn_offset(at), FRAME_BYTES + BLOCK_BYTES)
        frame = decode_header(buf, 0, offset=lsn_offset(at), salt=segment.header.salt)
        if frame is None or frame.kind != FrameKind.BLOCK or frame.overmarked:
            return False
        return block_format.decode_header(buf, FRAME_BYTES).first_vlsn == vlsn
    except BadBody:
        return False
    finally:
        segment.close()


def whole_frames(segment: SegmentFile, at: int, end: int) -> Iterator[tuple[bytes, int, Walk]]:
    """Yields runs of valid frames with correct checksums, each with the buffer of its bytes and the buffer's offset."""
    while at < end:
        buf, found = segment.window(at, end, WINDOW_BYTES)
        bad = scan.check_crcs(buf, at, found)
        good = found if bad is None else found.before(bad)
        if len(good):
            yield buf, at, good
        at = good.end
        if bad is not None or not len(found):
            at = _next_header(segment, at + 8, end)


def _next_header(segment: SegmentFile, at: int, end: int) -> int:
    """Finds the next place that may be the header of a frame. A checksum then shows whether the place found is the
    header of a frame."""
    while at < end:
        buf = segment.read(at, min(WINDOW_BYTES + FRAME_BYTES, end - at))
        halves = np.frombuffer(buf, dtype="<u2", count=len(buf) // 8 * 4)[::4]
        for position in (np.flatnonzero(halves == MAGIC) * 8).tolist():
            if decode_header(buf, position, offset=at + position, salt=segment.header.salt) is not None:
                return at + int(position)
        at += WINDOW_BYTES
    return end


def _visible(buf: bytes, base: int, found: Walk, number: int, last: int) -> Columns:
    chosen = found.visible()
    heads = scan.block_headers(buf, base, chosen.offsets)
    firsts = heads["first_vlsn"].astype(np.int64)
    lasts = firsts + heads["count"] - 1
    before = np.maximum.accumulate(np.concatenate(([last], lasts)))[:-1]
    rising = firsts > before
    lsns = chosen.offsets + (number << 32)
    clocks = heads["clock_us"].astype(np.int64)
    return Columns(*(column[rising].tolist() for column in (firsts, lasts, lsns, clocks)))
