"""The examination of segments at an open: which frames are the log, and where a cut or damage is.

    bad frame at X, nothing later says that X had been synced   ->  an unsynced tail: cut at X
    bad frame at X, something later says so                     ->  damage, never cut away

What says so: the ``synced`` field of a later frame of that segment, the end that the next segment's header
names, the checkpoint and the idle end in ``state``.  Later frames are looked for at every 8 bytes, whatever
the bad frame's length says; zeros with such a frame behind them are a bad frame.  Before anything is read
here it was synced and dropped from the page cache, so what reads back is what the medium has.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from vlsn import scan
from vlsn.block import BLOCK_BYTES, decode_header
from vlsn.directory import SegmentInfo
from vlsn.errors import BadBody, Damaged
from vlsn.frame import FRAME_BYTES, FrameKind
from vlsn.ids import Lsn, lsn, lsn_file, lsn_offset
from vlsn.seams import Disk
from vlsn.segment import FIRST_FRAME, segment_name

Column = npt.NDArray[np.int64]
_CUT_NAME = re.compile(r"(\d{8})\.cut-(\d{1,10})(?:\.\d{1,6})?\Z")


@dataclass(slots=True)
class Found:
    """The frames of one segment from where it was read, by column; ``raw`` is kept for local records and for
    blocks of other kinds than data only."""

    number: int
    start: int
    end: int
    """Where its good frames end: the live end, or the cut."""
    offsets: Column
    headers: npt.NDArray[np.void]
    blocks: npt.NDArray[np.void]
    """Block headers of the BLOCK frames, in order."""
    block_offsets: Column
    payloads: dict[int, bytes] = field(default_factory=dict)
    """Payload by frame offset, of local records and of blocks that may hold GROUP entries."""
    cut: Cut | None = None


@dataclass(frozen=True, slots=True)
class Cut:
    """An unsynced tail: bytes from ``offset`` that are not the log.  (``floor_term``, ``floor_vlsn``) is the end
    of the last block in them whose header can be read, (0, 0) when there is none."""

    number: int
    offset: int
    data: bytes
    floor_term: int
    floor_vlsn: int


def sync_and_forget(disk: Disk, directory: str, segments: Sequence[SegmentInfo]) -> None:
    """What the page cache knows goes to the medium, and out of the cache."""
    for segment in segments:
        file = disk.open(segment.path, write=True)
        try:
            file.sync()
            file.drop_cache()
        finally:
            file.close()
    disk.sync_directory(directory)


def examine(disk: Disk, segment: SegmentInfo, *, start: int, last: bool, stated: Sequence[Lsn]) -> Found:
    """Reads one ACTIVE segment from ``start`` (a frame's offset) on.  ``last``: no ACTIVE segment follows.
    Raises ``Damaged``."""
    header = segment.header
    assert header is not None
    limit = min(segment.live_end or segment.size, segment.size)
    file = disk.open(segment.path)
    try:
        buf = file.read(start, segment.size - start if last else max(limit - start, 0))
    finally:
        file.close()
    base = start
    end = base + len(buf) if last else limit
    if end > base + len(buf):
        raise Damaged(
            f"{segment.name} ends at {base + len(buf)}, before its log does at {end}",
            file=segment.name,
            offset=base + len(buf),
        )
    walk = scan.walk(buf, base=base, start=start, end=end, salt=header.salt)
    bad = scan.check_crcs(buf, base, walk)
    stop = walk.end if bad is None else int(walk.offsets[bad])
    offsets = walk.offsets if bad is None else walk.offsets[:bad]
    headers = walk.headers if bad is None else walk.headers[:bad]
    found = _columns(buf, base, segment.number, start, stop, offsets, headers)
    if stop == limit and not last:
        return found
    rest = buf[stop - base :]
    if last and not any(rest[:FRAME_BYTES]) and not np.frombuffer(rest, dtype=np.uint8).any():
        return found
    synced = _stated_synced(buf, base, stop, header.salt, segment, stated)
    if not last:
        synced = max(synced, limit)
    if synced > stop:
        raise Damaged(
            f"{segment.name} is damaged at offset {stop}: up to {synced} it had been synced",
            file=segment.name,
            offset=stop,
            vlsn=int(found.blocks["first_vlsn"][-1] + found.blocks["count"][-1]) if len(found.blocks) else 0,
        )
    found.cut = cut_of(segment.number, stop, rest)
    return found


def cut_of(number: int, offset: int, rest: bytes) -> Cut:
    """The cut that leaves ``rest`` out; zeros at its end are not kept."""
    view = np.frombuffer(rest, dtype=np.uint8)
    used = np.flatnonzero(view)
    data = rest[: int(used[-1]) + 1] if len(used) else b""
    term, vlsn = _last_readable_block(rest)
    return Cut(number, offset, data, term, vlsn)


def untaken(disk: Disk, segment: SegmentInfo, *, stated: Sequence[Lsn]) -> Cut | None:
    """What a segment without a good ACTIVE header holds: None for an unused standby, the cut when its frames
    were never synced.  Header and first frames go out in one sync, so a header that did not get there is damage
    only if something says that the segment had been synced.  Raises ``Damaged``."""
    file = disk.open(segment.path)
    try:
        buf = file.read(0, segment.size)
    finally:
        file.close()
    salt = scan.salt_of(buf, 0, FIRST_FRAME) if len(buf) > FIRST_FRAME else None
    if salt is None:
        return None
    synced = max((int(walk.headers["synced"].max()) for walk in scan.islands(buf, 0, FIRST_FRAME, salt)), default=0)
    if synced >= FIRST_FRAME or any(lsn_file(at) >= segment.number for at in stated):
        raise Damaged(f"{segment.name}: its header is damaged ({segment.fault})", file=segment.name, offset=0)
    return cut_of(segment.number, FIRST_FRAME, buf[FIRST_FRAME:])


def _columns(
    buf: bytes, base: int, number: int, start: int, stop: int, offsets: Column, headers: npt.NDArray[np.void]
) -> Found:
    is_block = headers["kind"] == FrameKind.BLOCK
    block_offsets = offsets[is_block]
    blocks = scan.block_headers(buf, base, block_offsets)
    found = Found(number, start, stop, offsets, headers, blocks, block_offsets)
    keep = ~is_block
    keep[is_block] = blocks["kind"] != 0
    for index in np.flatnonzero(keep).tolist():
        at = int(offsets[index])
        begin = at - base + FRAME_BYTES
        found.payloads[at] = buf[begin : begin + int(headers["length"][index])]
    return found


def _stated_synced(buf: bytes, base: int, stop: int, salt: int, segment: SegmentInfo, stated: Sequence[Lsn]) -> int:
    """The highest offset of this segment that anything later says was synced."""
    best = 0
    for at in stated:
        if lsn_file(at) == segment.number:
            best = max(best, lsn_offset(at))
        elif at > lsn(segment.number, stop):
            best = max(best, stop + 1)
    for walk in scan.islands(buf, base, stop + 8, salt):
        if len(walk):
            best = max(best, int(walk.headers["synced"].max()))
    return best


def _last_readable_block(rest: bytes) -> tuple[int, int]:
    """Term and last VLSN of the last block header, readable by its own crc, at any 8-aligned place."""
    best = (0, 0)
    view = memoryview(rest)
    # A block lies 24 bytes behind its frame's start, so it is 8-aligned too; its first byte is its version.
    words = np.frombuffer(rest, dtype=np.uint8)[::8]
    for position in (np.flatnonzero(words == 1) * 8).tolist():
        if len(rest) - position < BLOCK_BYTES:
            break
        try:
            header = decode_header(view, position)
        except BadBody:
            continue
        best = (int(header.term), int(header.last_vlsn))
    return best


def cut_name(number: int, offset: int) -> str:
    return f"{segment_name(number)[:-5]}.cut-{offset}"


def parse_cut_name(name: str) -> tuple[int, int] | None:
    """Segment number and offset of a file that ``cut_name`` names, also with a free number behind it, else None."""
    found = _CUT_NAME.match(name)
    return (int(found[1]), int(found[2])) if found is not None else None


__all__ = ["Cut", "Found", "cut_name", "cut_of", "examine", "parse_cut_name", "sync_and_forget", "untaken"]
