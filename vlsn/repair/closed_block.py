"""Reads a block of a log that is not open, for a peer that has lost its copy.

    whole frames of the segment that holds it, damaged ones passed over ─► the visible block, its checksum right

A block's name is its term and first VLSN, and no two blocks ever had the same name. A peer that knows the name of a
block gets the block of that name. A peer without the name gets the block only if ``state``, or the header of a later
block, says that the block is durable. A durable block is never rolled back, whatever a recovery may still do to the end
of this log. The functions block, and run on the keeper's thread (the log's background thread).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from itertools import zip_longest

from vlsn.errors import BadBody, NotFound
from vlsn.format import block as block_format
from vlsn.format.frame import FRAME_BYTES
from vlsn.format.segment import FIRST_FRAME
from vlsn.ids import Vlsn
from vlsn.seams import Disk, Stores
from vlsn.segments.directory import SegmentInfo, survey
from vlsn.segments.reader import SegmentFile
from vlsn.segments.visible_blocks import whole_frames
from vlsn.verify.segment_chain import read_stated


def block_of_closed(disk: Disk, stores: Stores, directory: str, term: int, first: int) -> bytes:
    """Reads and verifies the visible block named (``term``, ``first``). If ``term`` is 0, returns the block that begins
    at VLSN ``first``, if that block is durable. Raises ``NotFound`` if the log does not have the block."""
    durable = read_stated(stores, directory).dtvlsn
    found: bytes | None = None
    for block in _blocks_from(disk, directory, first):
        header = block_format.decode_header(block)
        if header.name == (term, first):
            return block
        durable = max(durable, header.dtvlsn)
        if header.first_vlsn == first and not term:
            found, last = block, header.last_vlsn
        if found is not None and last <= durable:
            return found
    if found is None:
        raise NotFound(f"block ({term}, {first}) is not in what can be read of this damaged log")
    raise NotFound(f"VLSN {first} is not durable as far as this node's damaged log says")


def _blocks_from(disk: Disk, directory: str, first: int) -> Iterator[bytes]:
    """Yields the undamaged visible blocks in order, from about VLSN ``first`` on."""
    segments = [segment for segment in survey(disk, directory) if segment.active]
    for segment, following in zip_longest(segments, segments[1:]):
        if following is None or _begins(following) > first:
            yield from _blocks_of(disk, directory, segment)


def _begins(segment: SegmentInfo) -> Vlsn:
    return Vlsn(segment.head.prev_last_vlsn + 1)


def _blocks_of(disk: Disk, directory: str, info: SegmentInfo) -> Iterator[bytes]:
    with closing(SegmentFile(disk, directory, info.number)) as segment:
        for buf, base, found in whole_frames(segment, FIRST_FRAME, info.live_end or info.size):
            visible = found.visible()
            starts = (visible.offsets - base + FRAME_BYTES).tolist()
            for start, length in zip(starts, visible.headers["length"].tolist(), strict=True):
                block = buf[start : start + length]
                try:
                    block_format.decode(block)
                except BadBody:
                    continue
                yield block
