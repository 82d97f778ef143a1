"""Reads the visible blocks of a piece of one copy: checked, in columns, with every VLSN of the piece.

A visible block is one that was not rolled back. The checksum of a block's frame, or of the whole segment in the sidecar
(index file), covers every byte. Headers must match their own checksums, offsets must rise, and each block must begin at
the VLSN after the block before. Rolled-back blocks and local records are skipped, even damaged ones. The only error is
a missing VLSN. The error is raised at the missing VLSN, after all entries before it were read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from repl.audit.source import Source
from repl.spark.layout import Extent, Piece
from repl.spark.physical import proven_frames
from vlsn.errors import Damaged
from vlsn.format import scan
from vlsn.format.block import BLOCK_BYTES
from vlsn.format.block_heads import heads_good
from vlsn.format.frame import FRAME_BYTES, padded
from vlsn.format.rows import I64, Rows
from vlsn.format.segment import FIRST_FRAME
from vlsn.limits import MIB
from vlsn.seams import Buffer

WINDOW_BYTES: Final = 4 * MIB
"""The bytes of a segment that are decoded together by column; at least one block."""


def read_piece(source: Source, piece: Piece) -> Iterator[tuple[Rows, int]]:
    """Yields the blocks with the piece's VLSNs, in order, each with the VLSN after the block. The buffer with the
    blocks' bytes is reused for the next segment. Raises ``Damaged``, and the errors of the source."""
    at = piece.first
    into = bytearray(max((extent.end - extent.start for extent in piece.extents), default=0))
    for extent in piece.extents:
        if at > piece.last:
            return
        buf = source.read(extent.part, extent.start, extent.end, into)
        offsets = _block_offsets(buf, extent, source)
        heads = scan.block_headers(buf, extent.start, offsets)
        right = heads_good(heads) & (scan.header_crcs(heads) == heads["header_crc"])
        offsets, heads = offsets[right], heads[right]
        firsts = heads["first_vlsn"].astype(np.int64)
        lasts = firsts + heads["count"].astype(np.int64) - 1
        low, high = int(np.searchsorted(lasts, at)), int(np.searchsorted(firsts, piece.last, side="right"))
        while low < high:
            end = min(max(low + 1, int(np.searchsorted(offsets, offsets[low] + WINDOW_BYTES))), high)
            follows = np.flatnonzero(firsts[low + 1 : end] != lasts[low : end - 1] + 1)
            good = low + int(follows[0]) + 1 if len(follows) else end
            if not firsts[low] <= at <= lasts[low]:
                raise _lost(source, extent, at)
            rows = _rows(buf, offsets[low:good] - extent.start + FRAME_BYTES, heads[low:good])
            rising = rows.rising()
            if not rising.all():
                good = low + int(rising.argmin())
                rows = rows.only(slice(0, good - low))
            if good > low:
                at = int(lasts[good - 1]) + 1
                yield rows, at
            if good < end and at <= piece.last:
                raise _lost(source, extent, at)
            low = good
    if at <= piece.last:
        raise _lost(source, piece.extents[-1] if piece.extents else None, at)


def _rows(buf: Buffer, places: I64, heads: NDArray[np.void]) -> Rows:
    """Returns the rows of the blocks that begin at ``places`` in ``buf``. The rows refer only to the bytes of these
    blocks."""
    base = int(places[0])
    end = int(places[-1]) + padded(BLOCK_BYTES + int(heads["body_bytes"][-1]))
    return Rows(memoryview(buf)[base:end], places - base, heads)


def _block_offsets(buf: Buffer, extent: Extent, source: Source) -> I64:
    """Finds the visible blocks whose frames are complete, by file offset."""
    part = extent.part
    if extent.start == 0 and extent.end == part.end:
        sidecar = source.sidecar(part)
        found = proven_frames(buf, part, sidecar) if sidecar is not None else None
        if found is not None:
            return found.visible().offsets
    begin, end = max(extent.start, FIRST_FRAME), extent.start + (len(buf) & ~7)
    if end <= begin:
        return np.empty(0, np.int64)
    view = memoryview(buf)[: end - extent.start]
    found = scan.walk(view, base=extent.start, start=begin, end=end, salt=part.salt)
    if found.end == end and scan.check_crcs(view, extent.start, found) is None:
        return _fitting(view, extent.start, found)
    every = [_fitting(view, extent.start, walk) for walk in scan.islands(view, extent.start, begin, part.salt)]
    return np.concatenate(every) if every else np.empty(0, np.int64)


def _fitting(buf: Buffer, base: int, found: scan.Walk) -> I64:
    """Selects the visible blocks that exactly fill their frames."""
    blocks = found.visible()
    heads = scan.block_headers(buf, base, blocks.offsets)
    fits = blocks.headers["length"].astype(np.int64) == heads["body_bytes"].astype(np.int64) + BLOCK_BYTES
    offsets: I64 = blocks.offsets[fits]
    return offsets


def _lost(source: Source, extent: Extent | None, vlsn: int) -> Damaged:
    name = extent.part.file if extent is not None else ""
    return Damaged(f"{source.text}/{name}: VLSN {vlsn} cannot be read; verify that copy", file=name, vlsn=vlsn)
