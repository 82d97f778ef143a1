"""The blocks of one segment by column: headers, checks and digests of all of them at once.

What ``vlsn.format.block.decode_header`` asks of one header is asked here of every one, column by column; the
bodies are held to their crc.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from repl.audit.digest import U64, Digests
from repl.audit.frames import Bools, Frames
from vlsn.format import scan
from vlsn.format.block import BLOCK_BYTES, KIND_COLUMN, NUMBER_MAX, SUPPORTED, VERSION, BlockFlag, EntryKind
from vlsn.format.columns import layouts
from vlsn.format.frame import OVERMARKED, FrameKind
from vlsn.limits import BATCH_ENTRIES_MAX
from vlsn.seams import Buffer

I64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Blocks:
    """The BLOCK frames of a segment whose own crc is right; ``offsets`` and ``ends`` are their frames'.  ``whole``:
    the block inside is right too."""

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


def read_blocks(buf: Buffer, frames: Frames, base: int = 0) -> Blocks:
    """Reads the blocks in ``buf``, which begins at file offset ``base``, as for ``read_frames``."""
    mine = frames.good & (frames.headers["kind"] == FrameKind.BLOCK)
    offsets, envelopes = frames.offsets[mine], frames.headers[mine]
    headers = scan.block_headers(buf, base, offsets) if frames.heads is None else frames.heads[mine]
    first, count = headers["first_vlsn"], headers["count"].astype(np.uint64)
    sums = frames.sums
    whole = (sums.header[mine] == headers["header_crc"]) & (sums.body[mine] == headers["body_crc"])
    whole &= envelopes["length"].astype(np.int64) == headers["body_bytes"].astype(np.int64) + BLOCK_BYTES
    return Blocks(
        offsets,
        scan.frame_ends(offsets, envelopes),
        headers,
        first,
        first + count - np.uint64(1),
        envelopes["flag"] == OVERMARKED,
        whole & sound(headers),
        sums.digests[mine],
    )


def sound(headers: scan.Headers) -> Bools:
    """Fields that can be together, and lengths that add up."""
    flags, kind, count = headers["flags"], headers["kind"], headers["count"]
    right: Bools = (headers["version"] == VERSION) & (headers["zero"] == 0) & (flags & ~np.uint8(SUPPORTED) == 0)
    right &= (kind == KIND_COLUMN) == (flags & np.uint8(BlockFlag.KINDS) != 0)
    right &= (kind == KIND_COLUMN) | (kind < len(EntryKind))
    right &= (count >= 1) & (count <= BATCH_ENTRIES_MAX) & (headers["submissions"] <= count)
    right &= (flags & np.uint8(BlockFlag.PRODUCERS) == 0) | (headers["submissions"] > 0)
    right &= (headers["term"] >= 1) & (headers["term"] <= NUMBER_MAX) & (headers["clock_us"] <= NUMBER_MAX)
    right &= (headers["dtvlsn"] < headers["first_vlsn"]) & (headers["first_vlsn"] <= NUMBER_MAX - BATCH_ENTRIES_MAX)
    right &= (flags & np.uint8(BlockFlag.KEYS) != 0) == (headers["key_bytes"] != 0)
    right &= layouts(headers).end == headers["body_bytes"].astype(np.int64) + BLOCK_BYTES
    return right
