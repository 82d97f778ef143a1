"""The columns of visible mode, and blocks made Arrow batches of them, without a Python step an entry.

``time`` is a timestamp, as Spark's windows, watermarks and dates want it; ``txn`` is the first VLSN of the entry's
transaction and null where it has none; ``key`` is null where there is none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from vlsn.format.block import BlockFlag, EntryKind
from vlsn.format.key_filter import KeyFilter
from vlsn.format.rows import I64, Rows

TYPES: Final = {
    "vlsn": pa.int64(),
    "term": pa.int64(),
    "time": pa.timestamp("us", "UTC"),
    "txn": pa.int64(),
    "key": pa.binary(),
    "value": pa.binary(),
}
"""All that there are, in the order of the default schema."""
_DATA: Final = int(EntryKind.DATA)


def batch_of(rows: Rows, first: int, last: int, names: Sequence[str], keys: KeyFilter | None = None) -> Any | None:
    """Makes one record batch of the DATA entries from VLSN ``first`` to ``last`` (inclusive), these columns in this
    order; None where there is no entry. The blocks are checked, and follow on one another; the batch may hold
    ``rows.buf``."""
    vlsns = rows.vlsns()
    if not len(vlsns):
        return None
    span = slice(max(first - int(vlsns[0]), 0), max(last - int(vlsns[0]) + 1, 0))
    chosen: slice | I64 = span
    if keys is not None or rows.headers["kind"].any():
        wanted = np.ones(len(vlsns), np.bool_) if keys is None else keys.mask(rows)
        wanted &= rows.kinds() == _DATA
        wanted[: span.start] = wanted[span.stop :] = False
        chosen = np.flatnonzero(wanted)
    count = len(vlsns[chosen])
    if not count:
        return None
    arrays = [_column(name, rows, vlsns, chosen, count) for name in names]
    return pa.RecordBatch.from_arrays(arrays, names=list(names))


def _column(name: str, rows: Rows, vlsns: I64, chosen: slice | I64, count: int) -> Any:
    match name:
        case "vlsn":
            return pa.array(vlsns[chosen])
        case "term":
            return pa.array(rows.column("term")[chosen])
        case "time":
            return pa.array(rows.column("clock_us")[chosen]).view(TYPES["time"])
        case "txn":
            if not rows.has(BlockFlag.TXNS).any():
                return pa.nulls(count, TYPES["txn"])
            txns = rows.txns()[chosen]
            return pa.array(txns, mask=txns == 0)
        case "key":
            if not rows.has(BlockFlag.KEYS).any():
                return pa.nulls(count, TYPES["key"])
            starts, ends = rows.key_cuts()
            return _taken(rows, starts[chosen], ends[chosen], empty_is_null=True)
        case _:
            starts, ends = rows.value_cuts()
            return _taken(rows, starts[chosen], ends[chosen], empty_is_null=False)


def _taken(rows: Rows, starts: I64, ends: I64, *, empty_is_null: bool) -> Any:
    """Returns the bytes from each start to its end as one array; starts and ends rise together. They are one array over
    the buffer, of which every other element is what lies between."""
    base = int(starts[0])
    offsets = np.empty(2 * len(starts), np.int32)
    offsets[0::2], offsets[1::2] = starts - base, ends - base
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(rows.buf).slice(base)]
    alternating = pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)
    null = starts == ends if empty_is_null else None
    return alternating.take(pa.array(np.arange(0, len(offsets), 2), pa.int64(), mask=null))
