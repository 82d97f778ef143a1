"""The log's own entries in a block: what its history is made of, read by the column.

The TERM entry at VLSN 1 founds a log, and names it: no other log has that name, ``INCARNATION-TERM`` of who wrote it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

import numpy as np

from vlsn.errors import BadBody
from vlsn.format.block import BlockHeader, Entry, EntryKind, entry
from vlsn.format.columns import Layout
from vlsn.format.records import TermEntry
from vlsn.ids import NULL_VLSN, Vlsn
from vlsn.seams import Buffer

FOUNDING_FIELD: Final = "Vlsnlog-Founding"
"""The header of a call that is meant for one log alone: its name."""
_COMMIT = int(EntryKind.COMMIT)


class OwnEntries(NamedTuple):
    """The log's own entries of a block that say something, and the last COMMIT of a transaction in it, 0 for none."""

    entries: list[Entry]
    txn_end: Vlsn


def own_entries(block: Buffer, header: BlockHeader) -> OwnEntries:
    """Reads the log's own entries of a checked block, by the column; COMMITs without a value say nothing but that."""
    lay, count = header.layout, header.count
    if lay.kinds >= 0:
        kinds = np.frombuffer(block, np.uint8, count, lay.kinds)
    else:
        kinds = np.full(count, header.kind, np.uint8)
    rows = kinds.nonzero()[0]
    if not len(rows):
        return OwnEntries([], NULL_VLSN)
    ends = np.frombuffer(block, "<i4", count + 1, lay.value_offsets)
    says = rows[(kinds[rows] != _COMMIT) | (ends[rows + 1] != ends[rows])]
    entries = [entry(block, header, Vlsn(header.first_vlsn + row)) for row in says.tolist()]
    return OwnEntries(entries, _txn_end(block, header, lay))


def founding_of(entries: Iterable[Entry]) -> str:
    """Finds the entry that founds the log among those of its own; the log's name, empty where none is there."""
    first = next((each for each in entries if each.vlsn == 1 and each.kind == EntryKind.TERM), None)
    try:
        return TermEntry.decode(first.value).founding if first is not None else ""
    except BadBody:
        return ""


def _txn_end(block: Buffer, header: BlockHeader, lay: Layout) -> Vlsn:
    if lay.txns < 0:
        return NULL_VLSN
    if any(block[lay.txns + 8 * header.count - 8 : lay.txns + 8 * header.count]):  # the last row's is its own end
        return header.last_vlsn
    inside = np.frombuffer(block, "<u8", header.count, lay.txns).nonzero()[0]
    return Vlsn(header.first_vlsn + int(inside[-1]))
