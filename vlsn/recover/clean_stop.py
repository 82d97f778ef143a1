"""Finds the end of a log that was stopped cleanly, so that the next frames are written to the same segment.

After a crash, a new segment is begun. The bytes that the crash has left after the log's end stay in the old segment.
"""

from __future__ import annotations

from vlsn.format import scan
from vlsn.format.block import decode_header as decode_block
from vlsn.format.frame import FRAME_BYTES, OVERMARKED, FrameKind, decode_header, padded
from vlsn.format.records import CheckpointEnd
from vlsn.format.segment import FIRST_FRAME, SegmentState
from vlsn.recover.torn_tail import Found
from vlsn.seams import Disk, File
from vlsn.segments.directory import SegmentInfo
from vlsn.segments.tail import PAGE_BYTES, Frame, Tail


def resumed(disk: Disk, segment: SegmentInfo, found: Found) -> Tail | None:
    """Returns the log's last segment as the one to write to. Returns None if the log's last frame is not the
    CHECKPOINT_END of a clean stop."""
    header = segment.head
    assert segment.number == found.number
    if found.cut is not None or found.last_kind != FrameKind.CHECKPOINT_END or header.state is not SegmentState.ACTIVE:
        return None
    at, _, payload = found.records[-1]
    if not CheckpointEnd.decode(payload).clean:
        return None
    assert at == found.last_frame
    file = disk.open(segment.path, write=True)
    frames = _last_page(file, found, header.salt)
    if frames is None:
        file.close()
        return None
    tail = Tail(header, file, offset=found.end, synced=found.end, last_frame=at, crc=None)
    tail.keep(frames)
    return tail


def _last_page(file: File, found: Found, salt: int) -> list[Frame] | None:
    """Reads the frames that reach into the 4 KiB page in which the log continues. Returns None if one of the frames is
    damaged. The frames may be before the position from which this opening reads the log."""
    base = found.last_page_from
    while base > max(found.end - found.end % PAGE_BYTES, FIRST_FRAME):
        last = decode_header(file.read(base, FRAME_BYTES), 0, offset=base, salt=salt)
        if last is None or not 0 < last.prev <= base - FIRST_FRAME:
            return None
        base -= last.prev
    buf = file.read(base, found.end - base)
    walk = scan.walk(buf, base=base, start=base, end=found.end, salt=salt)
    if walk.end != found.end or scan.check_crcs(buf, base, walk) is not None:
        return None
    frames = []
    for offset, header in zip(walk.offsets.tolist(), walk.headers, strict=True):
        begin = offset - base + FRAME_BYTES
        payload = buf[begin : begin + int(header["length"])]
        end = offset + FRAME_BYTES + padded(len(payload))
        kind = FrameKind(int(header["kind"]))
        if kind is not FrameKind.BLOCK:
            frames.append(Frame(offset, kind, payload, 0, 0, end))
        else:
            span = decode_block(payload)
            dropped = bool(header["flag"] == OVERMARKED)
            frames.append(Frame(offset, kind, payload, span.first_vlsn, span.last_vlsn, end, dropped))
    return frames
