"""Checks the transactions of many blocks at once, by column. The check is the same as that of
``format.transactions``."""

from __future__ import annotations

import numpy as np

from vlsn.format.block import EntryKind
from vlsn.format.rows import Rows


def are_whole(rows: Rows) -> bool:
    """Returns whether each transaction in these blocks is complete within its block. A transaction's id is its first
    VLSN, and its rows are DATA entries with one COMMIT after them."""
    txns, kinds = rows.txns(), rows.kinds()
    begins = np.ones(rows.rows, np.bool_)
    begins[1:] = txns[1:] != txns[:-1]
    begins |= rows.numbers() == 0
    ends = np.append(begins[1:], True)
    inside = txns != 0
    wrong = begins & (txns != rows.vlsns())
    wrong |= kinds != np.where(ends, int(EntryKind.COMMIT), int(EntryKind.DATA))
    return not bool((wrong & inside).any())
