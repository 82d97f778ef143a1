"""Compares the keys and values of two submissions, which may be laid out differently.

Submissions are compared by column, as bytes and without hashes, so equal submissions are equal in every byte. All
entries of a submission are in one block.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from vlsn.format.batch import Batch
from vlsn.format.block import BLOCK_BYTES, BlockHeader, decode_header
from vlsn.format.columns import TXNS, columns_of
from vlsn.format.seal import merge
from vlsn.format.submission import Submission, Transaction
from vlsn.ids import Vlsn
from vlsn.seams import Buffer


class _Column(NamedTuple):
    """Some entries of a column of keys or values. Their offsets are in ``offsets_in`` from ``offsets`` on, and the data
    are in ``data_in`` from ``data`` on."""

    offsets_in: Buffer
    offsets: int
    data_in: Buffer
    data: int

    def says(self, other: _Column, count: int) -> bool:
        mine, theirs = self._offsets(count), other._offsets(count)
        if not np.array_equal(mine - mine[0], theirs - theirs[0]):
            return False
        return self._bytes(mine) == other._bytes(theirs)

    def is_empty(self, count: int) -> bool:
        offsets = self._offsets(count)
        return bool(offsets[0] == offsets[-1])

    def _offsets(self, count: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
        return np.frombuffer(self.offsets_in, "<i4", count + 1, self.offsets)

    def _bytes(self, offsets: np.ndarray[tuple[int], np.dtype[np.int32]]) -> memoryview:
        return memoryview(self.data_in)[self.data + int(offsets[0]) : self.data + int(offsets[-1])]


class _Entries(NamedTuple):
    number: int
    """The number of entries."""
    values: _Column
    keys: _Column | None

    def say(self, other: _Entries) -> bool:
        if self.number != other.number or not self.values.says(other.values, self.number):
            return False
        if self.keys is None or other.keys is None:
            keys = self.keys or other.keys
            return keys is None or keys.is_empty(self.number)
        return self.keys.says(other.keys, self.number)


def same(one: Submission, other: Submission) -> bool:
    return isinstance(one, Transaction) == isinstance(other, Transaction) and _of(one).say(_of(other))


def _commits_as(block: Buffer, header: BlockHeader, skip: int, submission: Submission) -> bool:
    """Returns whether the rows from ``skip`` on are a transaction if ``submission`` is a transaction, and in no
    transaction if ``submission`` is none."""
    txn = header.first_vlsn + skip if isinstance(submission, Transaction) else 0
    if not header.flags & TXNS:
        return not txn
    return bool((np.frombuffer(block, "<u8", submission.count, header.layout.txns + 8 * skip) == txn).all())


def lies_in(block: Buffer, first: Vlsn, submission: Submission) -> bool:
    """Returns whether the checked ``block`` contains ``submission`` from VLSN ``first`` on."""
    header = decode_header(block)
    skip = first - header.first_vlsn
    if skip < 0 or skip + submission.count > header.count:
        return False
    lay = header.layout
    if not _commits_as(block, header, skip, submission):
        return False
    values = _Column(block, lay.value_offsets + 4 * skip, block, lay.values)
    keys = _Column(block, lay.key_offsets + 4 * skip, block, lay.keys) if lay.keys >= 0 else None
    return _Entries(submission.count, values, keys).say(_of(submission))


def _of(submission: Submission) -> _Entries:
    if isinstance(submission, Batch):
        lay, body = submission.layout, submission.body
        values = _Column(body, lay.value_offsets - BLOCK_BYTES, body, lay.values - BLOCK_BYTES)
        keys = _Column(body, lay.key_offsets - BLOCK_BYTES, body, lay.keys - BLOCK_BYTES) if lay.keys >= 0 else None
        return _Entries(submission.count, values, keys)
    columns = (
        merge([submission]) if isinstance(submission, Transaction) else columns_of(submission.values, submission.keys)
    )
    values = _Column(columns.value_offsets, 0, columns.values, 0)
    return _Entries(columns.count, values, _Column(columns.key_offsets, 0, columns.keys, 0) if columns.keys else None)
