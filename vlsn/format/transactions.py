"""Transactions in a block: rows that bear the VLSN of their first one, the last of them a COMMIT.

    vlsn   10    11    12      13      14
    txn     0    11    11      11      14
    kind  DATA  DATA  DATA  COMMIT  COMMIT        10 is no transaction's; 11 … 13 are one, 14 commits nothing but itself

One block holds all of a transaction, so none is ever open in a log, and none is cut by a torn tail, a rollback, a
cleaning or a reader's end: those go by whole blocks.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from vlsn.errors import BadBody
from vlsn.format.block import BlockHeader, Entry, EntryKind, entry
from vlsn.format.columns import KINDS, TXNS
from vlsn.ids import NULL_VLSN, Vlsn
from vlsn.seams import Buffer

_DATA, _COMMIT = int(EntryKind.DATA), int(EntryKind.COMMIT)


class OwnEntries(NamedTuple):
    """The log's own entries of a block that say something, and the last COMMIT of a transaction in it, 0 for none."""

    entries: list[Entry]
    txn_end: Vlsn


def check_transactions(block: Buffer, header: BlockHeader) -> None:
    """Checks that each transaction of this block is whole in it: its id, its DATA, one COMMIT at its end. Raises
    ``BadBody``."""
    if not header.flags & TXNS:
        return
    count, lay = header.count, header.layout
    txns = np.frombuffer(block, "<u8", count, lay.txns)
    kinds = _kinds(block, header)
    vlsns = np.arange(header.first_vlsn, header.first_vlsn + count, dtype=np.uint64)
    changes = txns[1:] != txns[:-1]
    begins = np.concatenate(([True], changes))
    ends = np.concatenate((changes, [True]))
    inside = txns != 0
    if (inside & begins & (txns != vlsns)).any():
        raise BadBody("a transaction that does not begin with its own VLSN")
    if (inside & (kinds != np.where(ends, _COMMIT, _DATA))).any():
        raise BadBody("a transaction that is not DATA with one COMMIT at its end")


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
