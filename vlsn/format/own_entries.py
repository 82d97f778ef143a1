"""Reads, by column, the entries of the log's own (TERM, GROUP, COMMIT …) in a block. The history of a log is derived
from these entries of its own.

The TERM entry at VLSN 1 founds a log, and gives it the name ``INCARNATION-TERM`` of the master that wrote the entry. No
other log has the same name.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from vlsn.errors import BadBody
from vlsn.format.block import BlockHeader, Entry, EntryKind, entry
from vlsn.format.block_heads import I64
from vlsn.format.columns import SMALL_COLUMN, Layout, i32
from vlsn.format.records import TermEntry
from vlsn.ids import NULL_VLSN, Vlsn
from vlsn.seams import Buffer

FOUNDING_FIELD: Final = "Vlsnlog-Founding"
"""The HTTP header of a call that is meant for one log only. The value of the header is the log's name."""
_COMMIT = int(EntryKind.COMMIT)
Kinds = npt.NDArray[np.uint8]
Ends = npt.NDArray[np.int32]


class OwnEntries(NamedTuple):
    """The result of reading a block: the log's own entries that have a value, and the last COMMIT of a transaction (0
    for none)."""

    entries: list[Entry]
    txn_end: Vlsn


def own_entries(block: Buffer, header: BlockHeader) -> OwnEntries:
    """Reads the log's own entries of a checked block, by column. A COMMIT without a value only ends its transaction,
    and is left out."""
    lay, count = header.layout, header.count
    if count <= SMALL_COLUMN:
        return OwnEntries(_few(block, header, lay), _txn_end(block, header, lay))
    if lay.kinds >= 0:
        kinds = np.frombuffer(block, np.uint8, count, lay.kinds)
    else:
        kinds = np.full(count, header.kind, np.uint8)
    rows = kinds.nonzero()[0]
    if not len(rows):
        return OwnEntries([], NULL_VLSN)
    ends = np.frombuffer(block, "<i4", count + 1, lay.value_offsets)
    says = rows[(kinds[rows] != _COMMIT) | (ends[rows + 1] != ends[rows])]
    return OwnEntries(_entries(block, header, lay, says, kinds, ends), _txn_end(block, header, lay))


def _few(block: Buffer, header: BlockHeader, lay: Layout) -> list[Entry]:
    kinds = block[lay.kinds : lay.kinds + header.count] if lay.kinds >= 0 else bytes([header.kind]) * header.count
    ends = i32(header.count + 1).unpack_from(block, lay.value_offsets)
    return [
        entry(block, header, Vlsn(header.first_vlsn + row))
        for row, kind in enumerate(kinds)
        if kind and (kind != _COMMIT or ends[row + 1] != ends[row])
    ]


def _entries(block: Buffer, header: BlockHeader, lay: Layout, rows: I64, kinds: Kinds, ends: Ends) -> list[Entry]:
    if lay.keys >= 0:
        return [entry(block, header, Vlsn(header.first_vlsn + row)) for row in rows.tolist()]
    txns = np.frombuffer(block, "<u8", header.count, lay.txns)[rows].tolist() if lay.txns >= 0 else [0] * len(rows)
    places = zip((rows + header.first_vlsn).tolist(), kinds[rows].tolist(), txns, strict=True)
    values = zip((ends[rows] + lay.values).tolist(), (ends[rows + 1] + lay.values).tolist(), strict=True)
    return [
        Entry(Vlsn(vlsn), header.term, header.clock_us, kind, txn, None, bytes(block[start:end]))
        for (vlsn, kind, txn), (start, end) in zip(places, values, strict=True)
    ]


def founding_of(entries: Iterable[Entry]) -> str:
    """Returns the log's name if one of ``entries`` founds the log, or else ""."""
    first = next((each for each in entries if each.vlsn == 1 and each.kind == EntryKind.TERM), None)
    try:
        return TermEntry.decode(first.value).founding if first is not None else ""
    except BadBody:
        return ""


def _txn_end(block: Buffer, header: BlockHeader, lay: Layout) -> Vlsn:
    if lay.txns < 0:
        return NULL_VLSN
    # the last row is the last row of a transaction
    if any(block[lay.txns + 8 * header.count - 8 : lay.txns + 8 * header.count]):
        return header.last_vlsn
    inside = np.frombuffer(block, "<u8", header.count, lay.txns).nonzero()[0]
    return Vlsn(header.first_vlsn + int(inside[-1]))
