"""A segment's entries as Arrow record batches, a row an entry, without a Python step an entry or a block.

Offsets columns of many blocks are gathered at once, as places in the segment's bytes; the values are then one
binary array over those bytes, of which every other element is a value and the rest is what lies between:

    bytes    … |hdr|offsets| a | bc |  | hdr |offsets| d |      offsets  s0 e0 s1 e1 s2 e2 s3 e3
    elements                 v0  v1 v2      gap        v3        take 0, 2, 4, 6

Damaged frames come last, a row each: where, the VLSN if the header still tells it, and no value.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from repl.audit.blocks import I64, Blocks, layouts, read_blocks
from repl.audit.frames import Bools, read_frames
from repl.audit.plan import Part
from vlsn.block import BlockFlag, EntryKind, decode_header
from vlsn.errors import BadBody
from vlsn.frame import FRAME_BYTES
from vlsn.ids import lsn
from vlsn.seams import Buffer

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
    ]
)
BATCH_BYTES: Final = 4 << 20
"""Of the segment; a batch holds at least one block."""
_KINDS: Final = pa.array([kind.name for kind in EntryKind])


def segment_batches(buf: Buffer, part: Part, node: str, *, batch_bytes: int = BATCH_BYTES) -> Iterator[Any]:
    """``buf`` is the segment's file from its first byte to ``part.end``."""
    frames = read_frames(buf, part)
    blocks = read_blocks(buf, frames)
    bad = {*frames.damage, *blocks.offsets[~blocks.whole].tolist()}
    blocks = blocks.only(blocks.whole)
    low = 0
    while low < len(blocks):
        high = max(low + 1, int(np.searchsorted(blocks.offsets, blocks.offsets[low] + batch_bytes)))
        some = blocks.only(slice(low, high))
        sound = _Window(buf, some).sound
        bad.update(some.offsets[~sound].tolist())
        if sound.any():
            yield _batch(_Window(buf, some.only(sound)), part, node)
        low = high
    if bad:
        yield _damaged(buf, sorted(bad), part, node)


class _Window:
    """Consecutive blocks and the bytes that they lie in; positions count from the first byte of the first."""

    def __init__(self, buf: Buffer, blocks: Blocks) -> None:
        base = int(blocks.offsets[0])
        self.bytes = np.frombuffer(buf, np.uint8)[base : int(blocks.ends[-1])]
        self.blocks = blocks
        self.count: I64 = blocks.headers["count"].astype(np.int64)
        self.at: I64 = blocks.offsets - base + FRAME_BYTES
        self.layouts = layouts(blocks.headers)
        self.rows = int(self.count.sum())

    @property
    def sound(self) -> Bools:
        """For each block whether its offsets rise from 0 to the length of what they point into."""
        headers = self.blocks.headers
        values = self._rise(self.layouts.value_offsets, headers["value_bytes"], np.ones(len(headers), np.bool_))
        keyed = headers["flags"] & np.uint8(BlockFlag.KEYS) != 0
        return values & self._rise(self.layouts.key_offsets, headers["key_bytes"], keyed)

    def column(self, name: str) -> I64:
        """A header's field, for every entry of its block."""
        return np.repeat(self.blocks.headers[name].astype(np.int64), self.count)

    def repeated(self, column: NDArray[Any]) -> NDArray[Any]:
        return np.repeat(column, self.count)

    def numbers(self) -> I64:
        """For every entry, which of its block it is, from 0."""
        starts = np.cumsum(self.count) - self.count
        return np.arange(self.rows, dtype=np.int64) - np.repeat(starts, self.count)

    def body(self, flag: int, columns: I64, dtype: str, absent: I64) -> NDArray[Any]:
        """A column that lies in the bodies of the blocks with ``flag``; ``absent`` for the entries of the others."""
        has = self.blocks.headers["flags"] & np.uint8(flag) != 0
        if not has.any():
            return absent
        width = np.dtype(dtype).itemsize
        rows = np.repeat(has, self.count)
        places = (np.repeat(self.at + columns, self.count) + self.numbers() * width)[rows]
        absent[rows] = self._gather(places, dtype)
        return absent

    def cut(self, offsets: I64, data: I64, has: Bools) -> tuple[I64, I64]:
        """Where each entry's key or value starts and ends; nothing, at its block's start, for blocks without."""
        starts, ends = self._offsets(offsets, has)
        origin = np.repeat(self.at + data * has, self.count)
        return starts + origin, ends + origin

    def take(self, starts: I64, ends: I64, *, empty_is_null: bool) -> Any:
        """The bytes from each start to its end as one Arrow array; starts and ends rise together."""
        offsets = np.empty(2 * len(starts), np.int32)
        offsets[0::2], offsets[1::2] = starts, ends
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(self.bytes)]
        alternating = pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)
        null = starts == ends if empty_is_null else None
        return alternating.take(pa.array(np.arange(0, len(offsets), 2), pa.int64(), mask=null))

    def _offsets(self, columns: I64, has: Bools) -> tuple[I64, I64]:
        """What the offsets columns say, for each entry; 0 and 0 for those of blocks without."""
        rows = np.repeat(has, self.count)
        places = (np.repeat(self.at + columns, self.count) + self.numbers() * 4)[rows]
        starts, ends = np.zeros(self.rows, np.int64), np.zeros(self.rows, np.int64)
        starts[rows], ends[rows] = self._gather(places, "<i4"), self._gather(places + 4, "<i4")
        return starts, ends

    def _gather(self, places: I64, dtype: str) -> NDArray[Any]:
        width = np.dtype(dtype).itemsize
        return self.bytes[: len(self.bytes) // width * width].view(dtype)[places // width]

    def _rise(self, columns: I64, lengths: NDArray[Any], has: Bools) -> Bools:
        starts, ends = self._offsets(columns, has)
        wrong = np.bincount(np.repeat(np.arange(len(has)), self.count)[starts > ends], minlength=len(has))
        stop = np.cumsum(self.count)
        right: Bools = (wrong == 0) & (starts[stop - self.count] == 0) & (ends[stop - 1] == lengths)
        return right | ~has


def _batch(window: _Window, part: Part, node: str) -> Any:
    headers, lays, rows = window.blocks.headers, window.layouts, window.rows
    keyed = headers["flags"] & np.uint8(BlockFlag.KEYS) != 0
    kinds = window.body(BlockFlag.KINDS, lays.kinds, "u1", window.column("kind"))
    columns = [
        pa.repeat(pa.scalar(node, pa.string()), rows),
        pa.repeat(pa.scalar(part.number, pa.int32()), rows),
        pa.array(window.repeated(window.blocks.offsets + lsn(part.number, 0))),
        pa.array(window.column("first_vlsn") + window.numbers()),
        pa.array(window.column("term")),
        pa.array(window.column("clock_us")),
        _KINDS.take(pa.array(kinds, mask=kinds >= len(_KINDS))),
        pa.array(window.body(BlockFlag.TXNS, lays.txns, "<i8", np.zeros(rows, np.int64))),
        window.take(*window.cut(lays.key_offsets, lays.keys, keyed), empty_is_null=True),
        window.take(*window.cut(lays.value_offsets, lays.values, np.ones_like(keyed)), empty_is_null=False),
        pa.array(window.repeated(window.blocks.overmarked)),
        pa.array(np.zeros(rows, np.bool_)),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _damaged(buf: Buffer, offsets: list[int], part: Part, node: str) -> Any:
    rows = []
    for offset in offsets:
        row = {
            "node": node,
            "segment": part.number,
            "lsn": lsn(part.number, offset),
            "overmarked": False,
            "damaged": True,
        }
        try:
            header = decode_header(memoryview(buf), offset + FRAME_BYTES)
            row |= {"vlsn": header.first_vlsn, "term": header.term, "time": header.clock_us}
        except BadBody:
            pass  # nothing of it is to be trusted
        rows.append(row)
    return pa.RecordBatch.from_pylist(rows, schema=SCHEMA)
