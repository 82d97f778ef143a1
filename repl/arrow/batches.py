"""Turns blocks into Arrow record batches. No Python code runs for each entry.

A large block becomes a batch without a copy, because its offsets and values already have Arrow's layout:

    block    |hdr| key_offsets | value_offsets | keys | values |
    batch            └── key ───────────┼────────┘        │
                                        └───── value ─────┘

Small blocks are collected until they fill a batch. The values of small blocks become one array over the blocks' bytes.
Every second element of the array is a value; the other elements are the bytes between values.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa

from vlsn.errors import BadBody
from vlsn.format.block import BlockFlag, EntryKind
from vlsn.format.columns import layout
from vlsn.format.key_filter import KeyFilter
from vlsn.format.rows import I64, Rows

SCHEMA: Final = pa.schema(
    [
        pa.field("vlsn", pa.uint64(), nullable=False),
        pa.field("term", pa.uint64(), nullable=False),
        pa.field("time", pa.timestamp("us", "UTC"), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary(), nullable=False),
    ]
)
WHOLE_BYTES: Final = 64 << 10
"""A block with at least this many bytes of keys and values becomes a batch by itself."""
BATCH_BYTES: Final = 4 << 20
"""Blocks that are collected for one batch have about this many bytes; a batch has at least one block."""
_TIME: Final = pa.timestamp("us", "UTC")
_DATA: Final = int(EntryKind.DATA)


def reader_of(found: Iterator[tuple[Rows, int, int]], keys: KeyFilter | None = None) -> Any:
    """Makes the Arrow reader of the blocks' DATA entries. Each item of ``found`` has the rows of blocks, and the first
    and last wanted VLSN. ``keys`` selects entries (None: all)."""
    return pa.RecordBatchReader.from_batches(SCHEMA, _batches(found, keys))


def _batches(found: Iterator[tuple[Rows, int, int]], keys: KeyFilter | None) -> Iterator[Any]:
    for rows, first, last in found:
        yield from batches_of(rows, first, last, keys)


def batches_of(rows: Rows, first: int, last: int, keys: KeyFilter | None = None) -> Iterator[Any]:
    """Yields the DATA entries from VLSN ``first`` to ``last`` (inclusive) as batches, none of them empty. The batches
    keep a reference to ``rows.buf``; with ``keys`` they have a copy of the selected entries. Raises ``BadBody`` if
    offsets do not rise."""
    if not rows.rising().all():
        raise BadBody("offsets of a block do not rise from 0 to their column's length")
    headers = rows.headers
    firsts = headers["first_vlsn"].astype(np.int64)
    begin = int(np.searchsorted(firsts + rows.count, first, side="right"))
    end = int(np.searchsorted(firsts, last, side="right"))
    whole = headers["key_bytes"].astype(np.int64) + headers["value_bytes"] >= WHOLE_BYTES
    whole &= (headers["kind"] == _DATA) & (keys is None)
    ends = rows.at + rows.layouts.end
    if first > last:
        return
    at = begin
    for alone in [*(np.flatnonzero(whole[begin:end]) + begin).tolist(), end]:
        while at < alone:
            stop = min(max(at + 1, int(np.searchsorted(ends, int(rows.at[at]) + BATCH_BYTES, side="right"))), alone)
            batch = _gathered(rows, slice(at, stop), first, last, keys)
            if batch.num_rows:
                yield batch
            at = stop
        if alone < end:
            yield _whole(rows, alone, first, last)
            at = alone + 1


def _whole(rows: Rows, index: int, first: int, last: int) -> Any:
    """Makes a batch of one block that has only DATA entries, without a copy of keys and values."""
    header = rows.headers[index]
    count, block_first = int(header["count"]), int(header["first_vlsn"])
    key_bytes, value_bytes = int(header["key_bytes"]), int(header["value_bytes"])
    lay = layout(int(header["flags"]), count, key_bytes, value_bytes, int(header["submissions"]))
    base, buf = int(rows.at[index]), pa.py_buffer(rows.buf)
    offsets = buf.slice(base + lay.value_offsets, 4 * (count + 1))
    values = pa.Array.from_buffers(pa.binary(), count, [None, offsets, buf.slice(base + lay.values, value_bytes)])
    if lay.keys < 0:
        keys = pa.nulls(count, pa.binary())
    else:
        places = np.frombuffer(rows.buf, "<i4", count + 1, base + lay.key_offsets)
        there = np.packbits(places[1:] != places[:-1], bitorder="little")
        offsets = buf.slice(base + lay.key_offsets, 4 * (count + 1))
        keys = pa.Array.from_buffers(
            pa.binary(), count, [pa.py_buffer(there), offsets, buf.slice(base + lay.keys, key_bytes)]
        )
    batch = _batch(
        np.arange(block_first, block_first + count, dtype=np.uint64),
        np.full(count, header["term"], np.uint64),
        np.full(count, header["clock_us"], np.int64),
        keys,
        values,
    )
    skip = max(first - block_first, 0)
    return batch.slice(skip, min(last - block_first + 1, count) - skip)


def _gathered(rows: Rows, which: slice, first: int, last: int, keep: KeyFilter | None) -> Any:
    """Makes a batch of several blocks, with a copy of their keys and values."""
    some = rows.only(which)
    vlsns = some.vlsns()
    chosen = data_between(some, vlsns, first, last, keep)
    found = vlsns[chosen].astype(np.uint64)
    return _batch(
        found,
        some.column("term")[chosen].astype(np.uint64),
        some.column("clock_us")[chosen],
        keys_column(some, chosen, len(found)),
        values_column(some, chosen),
    )


def data_between(rows: Rows, vlsns: I64, first: int, last: int, keep: KeyFilter | None) -> slice | I64:
    """Finds the DATA entries from VLSN ``first`` to ``last`` (inclusive) among the consecutive ``vlsns``. ``keep``
    selects entries by key (None: all)."""
    span = slice(max(first - int(vlsns[0]), 0), max(last - int(vlsns[0]) + 1, 0))
    if keep is None and not rows.headers["kind"].any():
        return span
    wanted = rows.kinds() == _DATA
    if keep is not None:
        wanted &= keep.mask(rows)
    wanted[: span.start] = wanted[span.stop :] = False
    return np.flatnonzero(wanted)


def keys_column(rows: Rows, chosen: slice | I64, count: int) -> Any:
    """Copies the keys of ``count`` chosen entries; an entry without a key gets null."""
    if not rows.has(BlockFlag.KEYS).any():
        return pa.nulls(count, pa.binary())
    starts, ends = rows.key_cuts()
    return _taken(rows, starts[chosen], ends[chosen], empty_is_null=True)


def values_column(rows: Rows, chosen: slice | I64) -> Any:
    """Copies the values of the chosen entries."""
    starts, ends = rows.value_cuts()
    return _taken(rows, starts[chosen], ends[chosen], empty_is_null=False)


def _taken(rows: Rows, starts: I64, ends: I64, *, empty_is_null: bool) -> Any:
    """Returns the bytes from each start to its end as one array; starts and ends rise together. The array refers to the
    whole buffer: every second element is the bytes between two results, and is left out of the returned array."""
    if not len(starts):
        return pa.array([], pa.binary())
    base = int(starts[0])
    offsets = np.empty(2 * len(starts), np.int32)
    offsets[0::2], offsets[1::2] = starts - base, ends - base
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(rows.buf).slice(base)]
    alternating = pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)
    null = starts == ends if empty_is_null else None
    return alternating.take(pa.array(np.arange(0, len(offsets), 2), pa.int64(), mask=null))


def _batch(vlsns: Any, terms: Any, times: I64, keys: Any, values: Any) -> Any:
    time = pa.Array.from_buffers(_TIME, len(times), [None, pa.py_buffer(np.ascontiguousarray(times))])
    return pa.RecordBatch.from_arrays([pa.array(vlsns), pa.array(terms), time, keys, values], schema=SCHEMA)
