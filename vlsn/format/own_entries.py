"""The log's own entries in a block: what its history is made of, read by the column."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from vlsn.format.block import BlockHeader, Entry, EntryKind, entry
from vlsn.format.columns import KINDS, TXNS
from vlsn.ids import NULL_VLSN, Vlsn
from vlsn.seams import Buffer

_DATA, _COMMIT = int(EntryKind.DATA), int(EntryKind.COMMIT)


class OwnEntries(NamedTuple):
    """The log's own entries of a block that say something, and the last COMMIT of a transaction in it, 0 for none."""

    entries: list[Entry]
    txn_end: Vlsn


def own_entries(block: Buffer, header: BlockHeader) -> OwnEntries:
    """Reads the log's own entries of a checked block, by the column; COMMITs without a value say nothing but that."""
    kinds = _kinds(block, header)
    rows = np.flatnonzero(kinds != _DATA)
    if not len(rows):
        return OwnEntries([], NULL_VLSN)
    lay = header.layout
    ends = np.frombuffer(block, "<i4", header.count + 1, lay.value_offsets)
    says = rows[(kinds[rows] != _COMMIT) | (ends[rows + 1] > ends[rows])]
    entries = [entry(block, header, Vlsn(header.first_vlsn + row)) for row in says.tolist()]
    txn_end = NULL_VLSN
    if header.flags & TXNS:
        inside = np.flatnonzero(np.frombuffer(block, "<u8", header.count, lay.txns))
        txn_end = Vlsn(header.first_vlsn + int(inside[-1]))
    return OwnEntries(entries, txn_end)


def _kinds(block: Buffer, header: BlockHeader) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    if header.flags & KINDS:
        return np.frombuffer(block, np.uint8, header.count, header.layout.kinds)
    return np.full(header.count, header.kind, np.uint8)
