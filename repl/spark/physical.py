"""Turns a segment's entries into Arrow record batches with one row for each entry. No Python code runs for each entry
or block.

``durable`` in a row means that a majority is known to have synced the entry. The entry is at or below the source's
durable end (DTVLSN), and was not rolled back. A durable entry is never rolled back, so ``durable`` stays true in later
reads. Damaged frames (envelopes of blocks) come last, one row each: their position, their VLSN if the header is intact,
and no value. If the checksum in a sidecar (a segment's index file) proves the segment unchanged, its frames are not
checked one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from repl.arrow.batches import keys_column, values_column
from repl.audit.blocks import frames_of, read_blocks
from repl.audit.plan import Part
from repl.audit.source import Source
from vlsn.errors import BadBody
from vlsn.format import scan
from vlsn.format.block import BLOCK_BYTES, EntryKind, decode_header
from vlsn.format.block_heads import heads_good
from vlsn.format.checksum import crc
from vlsn.format.frame import FRAME_BYTES, FrameKind, padded
from vlsn.format.rows import Rows
from vlsn.format.sidecar import Sidecar
from vlsn.ids import lsn
from vlsn.seams import Buffer
from vlsn.verify.frames import Bools

SCHEMA: Final = pa.schema(
    [
        ("node", pa.string()),
        ("segment", pa.int32()),
        ("lsn", pa.int64()),
        ("vlsn", pa.int64()),
        ("term", pa.int64()),
        ("time", pa.int64()),
        ("kind", pa.string()),
        ("txn", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("overmarked", pa.bool_()),
        ("damaged", pa.bool_()),
        ("durable", pa.bool_()),
    ]
)
BATCH_BYTES: Final = 4 << 20
"""The bytes of a segment that one batch covers. A batch has at least one block."""
_KINDS: Final = pa.array([kind.name for kind in EntryKind])


def log_batches(source: Source, parts: Sequence[Part] | None = None, node: str = "", durable: int = 0) -> Iterator[Any]:
    """Yields the entries of some segments of a source, or of all. ``node`` is the source's name, ``durable`` its
    durable end (DTVLSN). One segment at a time is in memory, in one buffer that is reused, because new memory costs
    more than all other steps. Raises ``Unreadable``."""
    if parts is None:
        survey = source.survey(0)
        parts, node, durable = survey.parts, survey.node, survey.dtvlsn
    into = bytearray(max((part.end for part in parts), default=0))
    for part in parts:
        buf = source.read(part, 0, part.end, into)
        yield from segment_batches(buf, part, node, durable=durable, sidecar=source.sidecar(part))


def segment_batches(
    buf: Buffer, part: Part, node: str, *, durable: int, sidecar: bytes | None = None, batch_bytes: int = BATCH_BYTES
) -> Iterator[Any]:
    """Yields batches of one segment. ``buf`` is the segment's file from the first byte to ``part.end``. The batches
    keep no reference to ``buf``."""
    placed, bad = _placed(buf, part, sidecar)
    low = 0
    while low < len(placed.offsets):
        high = max(low + 1, int(np.searchsorted(placed.offsets, placed.offsets[low] + batch_bytes)))
        some = placed.only(slice(low, high))
        window = _window(buf, some, bad)
        if window is not None:
            yield _batch(*window, part, node, durable)
        low = high
    if bad:
        yield _damaged(buf, sorted(bad), part, node)


@dataclass(frozen=True, slots=True)
class _Placed:
    """The frames of intact blocks, by column. ``lengths`` are the lengths of the frames' payloads."""

    offsets: scan.Offsets
    lengths: NDArray[np.int64]
    overmarked: Bools

    def only(self, which: Bools | slice) -> _Placed:
        return _Placed(self.offsets[which], self.lengths[which], self.overmarked[which])


def _placed(buf: Buffer, part: Part, sidecar: bytes | None) -> tuple[_Placed, set[int]]:
    """Returns the intact blocks, and the offsets of damaged frames."""
    frames = proven_frames(buf, part, sidecar) if sidecar is not None else None
    if frames is not None:
        frames = frames.only(frames.headers["kind"] == FrameKind.BLOCK)
        lengths = frames.headers["length"].astype(np.int64)
        return _Placed(frames.offsets, lengths, np.zeros(len(frames), np.bool_)), set()
    found = frames_of(buf, part)
    blocks = read_blocks(found)
    bad = {*found.damage, *blocks.offsets[~blocks.whole].tolist()}
    blocks = blocks.only(blocks.whole)
    return _Placed(blocks.offsets, blocks.headers["body_bytes"].astype(np.int64) + BLOCK_BYTES, blocks.overmarked), bad


def proven_frames(buf: Buffer, part: Part, data: bytes) -> scan.Walk | None:
    """Finds the frames of a segment if the checksum in its sidecar proves the segment unchanged. Returns None if the
    checksum does not match, or if the sidecar belongs to another segment, which the audit reports."""
    try:
        sidecar = Sidecar.decode(data)
    except BadBody:
        return None
    if (sidecar.number, sidecar.salt, sidecar.end) != (part.number, part.salt, part.end) or len(buf) < part.end:
        return None
    offsets = sidecar.offsets.astype(np.int64)
    found = scan.at_offsets(buf, base=0, offsets=offsets, end=part.end, salt=part.salt)
    if len(found) != len(offsets) or found.end != part.end or found.headers["flag"].any():
        return None
    return found if crc(memoryview(buf)[: part.end]) == sidecar.crc else None


def _window(buf: Buffer, some: _Placed, bad: set[int]) -> tuple[_Placed, Rows] | None:
    """Returns the blocks that can be decoded, and their rows, or None. Adds the offsets of the other blocks to
    ``bad``."""
    headers = scan.block_headers(buf, 0, some.offsets)
    right = heads_good(headers) & (headers["body_bytes"].astype(np.int64) + BLOCK_BYTES == some.lengths)
    if right.all():
        base = int(some.offsets[0])
        end = int(some.offsets[-1]) + FRAME_BYTES + padded(int(some.lengths[-1]))
        rows = Rows(memoryview(buf)[base:end], some.offsets - base + FRAME_BYTES, headers)
        right = rows.rising()
        if right.all():
            return some, rows
    bad.update(some.offsets[~right].tolist())
    return _window(buf, some.only(right), bad) if right.any() else None


def _batch(some: _Placed, rows: Rows, part: Part, node: str, durable: int) -> Any:
    count, vlsns, overmarked = rows.rows, rows.vlsns(), rows.spread(some.overmarked)
    every = slice(None)
    columns = [
        pa.repeat(pa.scalar(node, pa.string()), count),
        pa.repeat(pa.scalar(part.number, pa.int32()), count),
        pa.array(rows.spread(some.offsets + lsn(part.number, 0))),
        pa.array(vlsns),
        pa.array(rows.column("term")),
        pa.array(rows.column("clock_us")),
        _kinds(rows),
        pa.array(rows.txns()),
        keys_column(rows, every, count),
        values_column(rows, every),
        pa.array(overmarked),
        pa.array(np.zeros(count, np.bool_)),
        pa.array((vlsns <= durable) & ~overmarked),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _kinds(rows: Rows) -> Any:
    if not rows.headers["kind"].any():
        return pa.repeat(_KINDS[0], rows.rows)
    kinds = rows.kinds()
    return _KINDS.take(pa.array(kinds, mask=kinds >= len(_KINDS)))


def _damaged(buf: Buffer, offsets: list[int], part: Part, node: str) -> Any:
    rows = []
    for offset in offsets:
        row = {
            "node": node,
            "segment": part.number,
            "lsn": lsn(part.number, offset),
            "overmarked": False,
            "damaged": True,
            "durable": False,
        }
        try:
            header = decode_header(memoryview(buf), offset + FRAME_BYTES)
            row |= {"vlsn": header.first_vlsn, "term": header.term, "time": header.clock_us}
        except BadBody:
            pass  # a header that cannot be trusted gives no VLSN
        rows.append(row)
    return pa.RecordBatch.from_pylist(rows, schema=SCHEMA)
