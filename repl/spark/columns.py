"""Turns blocks into Arrow batches with the columns of visible mode. No Python code runs for each entry.

``time`` is a timestamp, as Spark's windows, watermarks and dates need. ``txn`` is the first VLSN of the entry's
transaction, null without a transaction; ``key`` is null for an entry without a key.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

from repl.arrow.batches import data_between, keys_column, values_column
from vlsn.format.block import BlockFlag
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
"""All columns, in the order of the default schema."""


def batch_of(rows: Rows, first: int, last: int, names: Sequence[str], keys: KeyFilter | None = None) -> Any | None:
    """Makes one record batch of the DATA entries from VLSN ``first`` to ``last`` (inclusive), with the columns
    ``names`` in this order. Returns None if there is no such entry. The blocks must be checked and consecutive. The
    batch may keep a reference to ``rows.buf``."""
    vlsns = rows.vlsns()
    if not len(vlsns):
        return None
    chosen = data_between(rows, vlsns, first, last, keys)
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
            return keys_column(rows, chosen, count)
        case _:
            return values_column(rows, chosen)
