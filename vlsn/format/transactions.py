"""Transactions in a block. The rows of a transaction have the VLSN of its first row as their id, and its last row is a
COMMIT.

    vlsn   10    11    12      13      14
    txn     0    11    11      11      14
    kind  DATA  DATA  DATA  COMMIT  COMMIT        10 is in no transaction; 11 … 13 are one; 14 is a COMMIT alone

All rows of a transaction are in one block, so a log never contains an open transaction. Torn tails, rollbacks,
cleanings and the end of a read are always between two blocks, so they never split a transaction.
"""

from __future__ import annotations

from vlsn.format.arrays import works
from vlsn.format.columns import SMALL_COLUMN, u64
from vlsn.ids import COMMIT as COMMIT
from vlsn.ids import DATA as DATA


def check_transactions(txns: bytes, kinds: bytes, first_vlsn: int) -> None:
    """Checks that each transaction of a block is complete in the block: its id, its DATA entries, and one COMMIT at its
    end. ``txns`` has a u64 for each entry, and ``kinds`` a byte. Raises ``BadTransaction`` if one is incomplete."""
    if txns != _all_whole(kinds, first_vlsn):  # in most blocks with transactions, every row belongs to one
        works().check_transactions(txns, kinds, first_vlsn)


def _all_whole(kinds: bytes, first_vlsn: int) -> bytes:
    """Returns the column of ids for a block with these ``kinds`` in which every row belongs to a complete transaction.
    Returns b"" if the kinds cannot be those of complete transactions only."""
    if len(kinds) <= SMALL_COLUMN:
        return _few_whole(kinds, first_vlsn)
    return works().whole_transactions(kinds, first_vlsn)


def _few_whole(kinds: bytes, first_vlsn: int) -> bytes:
    if kinds[-1] != COMMIT or kinds.count(COMMIT) + kinds.count(DATA) != len(kinds):
        return b""
    ids: list[int] = []
    while len(ids) < len(kinds):
        begin = len(ids)
        ids += [first_vlsn + begin] * (kinds.index(COMMIT, begin) + 1 - begin)
    return u64(len(ids)).pack(*ids)
