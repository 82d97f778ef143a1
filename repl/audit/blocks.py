"""The blocks of one segment, in columns. The headers, checks and digests of all blocks are computed at once.

Headers are checked column by column, with the rules of ``vlsn.format.block.decode_header``. The bodies of blocks are
checked by their crc.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from repl.audit.digest import DIGEST_BYTES, U64, Checksums, Digests, block_digests, compared_bytes
from repl.audit.plan import Part
from repl.audit.source import Source
from vlsn.format import scan
from vlsn.format.block import BLOCK_BYTES
from vlsn.format.block_heads import heads_good
from vlsn.format.frame import OVERMARKED, FrameKind
from vlsn.seams import Buffer
from vlsn.verify.frames import Bools, Frames, read_frames

I64 = NDArray[np.int64]
ROW: Final = np.dtype(
    [
        *(("first", "<u8"), ("term", "<u8"), ("digest", f"S{DIGEST_BYTES}"), ("last", "<u8"), ("visible", "?")),
        *(("source", "<i8"), ("place", "<i8"), ("offset", "<i8"), ("size", "<i8")),
    ]
)
"""The columns of one block of one copy. The block has ``size`` bytes, after the header of the frame at ``offset``."""
Rows = NDArray[np.void]


@dataclass(frozen=True, slots=True)
class Blocks:
    """The BLOCK frames (a frame is a block's envelope in a segment) whose frame crc is right. ``offsets`` and ``ends``
    are the bounds of the frames. ``whole`` marks the frames whose block is right too."""

    offsets: scan.Offsets
    ends: scan.Offsets
    headers: scan.Headers
    first: U64
    last: U64
    overmarked: Bools
    whole: Bools
    digests: Digests

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def visible(self) -> Bools:
        return self.whole & ~self.overmarked

    def only(self, which: Bools) -> Blocks:
        return Blocks(*(getattr(self, field.name)[which] for field in fields(self)))

    def rows(self, source: int, place: int) -> Rows:
        """Returns one ``ROW`` for each block. Each row contains ``source`` and ``place``, two indexes of the caller."""
        rows = np.empty(len(self), ROW)
        rows["first"], rows["last"], rows["term"] = self.first, self.last, self.headers["term"]
        rows["digest"], rows["offset"], rows["visible"] = self.digests, self.offsets, self.visible
        rows["size"] = self.headers["body_bytes"].astype(np.int64) + BLOCK_BYTES
        rows["source"], rows["place"] = source, place
        return rows


def frames_of(buf: Buffer, part: Part, base: int = 0, checksums: Checksums | None = None) -> Frames:
    """Reads the frames in ``buf``, which holds the segment's file from offset ``base`` to ``part.end``, or to the
    file's end if that is earlier. Without ``checksums``, no bytes for the digests are computed."""
    return read_frames(
        buf,
        size=len(buf),
        salt=part.salt,
        end=part.end if part.stated == part.end else None,
        name=part.file,
        stated=part.stated,
        base=base,
        compared=partial(compared_bytes, checksums),
    )


def read_blocks(frames: Frames, checksums: Checksums | None = None) -> Blocks:
    """Returns the blocks in ``frames``, with their digests."""
    mine = frames.good & (frames.headers["kind"] == FrameKind.BLOCK)
    offsets, envelopes, headers = frames.offsets[mine], frames.headers[mine], frames.heads[mine]
    first, count = headers["first_vlsn"], headers["count"].astype(np.uint64)
    sums = frames.sums.only(mine)
    whole = (sums.header == headers["header_crc"]) & (sums.body == headers["body_crc"])
    whole &= envelopes["length"].astype(np.int64) == headers["body_bytes"].astype(np.int64) + BLOCK_BYTES
    return Blocks(
        offsets,
        scan.frame_ends(offsets, envelopes),
        headers,
        first,
        first + count - np.uint64(1),
        envelopes["flag"] == OVERMARKED,
        whole & heads_good(headers),
        block_digests(checksums, frames.sums.payload, frames.compared)[mine],
    )


def blocks_at(
    source: Source, part: Part, start: int, end: int, checksums: Checksums | None = None
) -> tuple[Buffer, Blocks]:
    """Reads bytes ``start`` to ``end`` of a segment; the range must begin and end at frames, or begin at byte 0.
    Returns the bytes and the blocks in them. Raises ``Unreadable``."""
    buf = source.read(part, start, end)
    if start:
        part = replace(part, end=end, stated=end)
    return buf, read_blocks(frames_of(buf, part, start, checksums), checksums)
