"""Rows of a numbered batch, stored by column, in the order in which the rows are to be logged.

    chunk 0    key_offsets 0 1 2 | keys k l | value_offsets 0 1 3 | values a bc         rows 0 and 1
    chunk 1    no key            |          | value_offsets 0 2   | values de           row 2

The rows of a batch are divided into parts; each part is one transaction. Each part is divided into pieces; each
piece is the body of one call. No Python code runs for each row. A missing key is stored as an empty key.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from itertools import pairwise
from typing import Final

import numpy as np

from vlsn.format.batch import ENTRY_OVERHEAD_BYTES, encode_columns
from vlsn.format.block_heads import I64
from vlsn.format.columns import Columns
from vlsn.format.submission import TRANSACTION_OVERHEAD_BYTES
from vlsn.limits import BATCH_ENTRIES_MAX, KIB, MIB, TRANSACTION_BYTES_MAX
from vlsn.seams import Buffer

PART_ENTRIES_MAX: Final = BATCH_ENTRIES_MAX - 1
"""The most rows of a part. A batch may have one entry more, which is left for the transaction's COMMIT."""
PART_BYTES_MAX: Final = TRANSACTION_BYTES_MAX - 8 * KIB
"""The most bytes of a part's rows, each with its overhead in a block. The rest of a transaction's limit is left for
its COMMIT."""
PIECE_BYTES: Final = 2 * MIB
"""The most bytes of rows in one call. A single row that is larger is sent in a call of its own."""
ROW_OVERHEAD_BYTES: Final = ENTRY_OVERHEAD_BYTES + TRANSACTION_OVERHEAD_BYTES
_DIGEST_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows whose values are adjacent in one buffer. ``value_offsets`` has one number more than there are rows, and
    may begin with any number. ``key_offsets`` is None if no row has a key."""

    value_offsets: I64
    values: Buffer
    key_offsets: I64 | None = None
    keys: Buffer = b""

    @property
    def count(self) -> int:
        return len(self.value_offsets) - 1

    def only(self, start: int, end: int) -> Chunk:
        """Returns rows ``start`` to ``end`` (exclusive) without copying their bytes."""
        key_offsets = self.key_offsets[start : end + 1] if self.key_offsets is not None else None
        return Chunk(self.value_offsets[start : end + 1], self.values, key_offsets, self.keys)

    def value_bytes(self) -> memoryview:
        return memoryview(self.values)[int(self.value_offsets[0]) : int(self.value_offsets[-1])]

    def key_bytes(self) -> memoryview:
        if self.key_offsets is None:
            return memoryview(b"")
        return memoryview(self.keys)[int(self.key_offsets[0]) : int(self.key_offsets[-1])]

    def value_lengths(self) -> I64:
        return np.diff(self.value_offsets)

    def key_lengths(self) -> I64:
        return np.zeros(self.count, np.int64) if self.key_offsets is None else np.diff(self.key_offsets)


def chunk_of(values: Sequence[bytes], keys: Sequence[bytes | None]) -> Chunk:
    """Copies separate values and keys into one chunk."""
    filled = [key or b"" for key in keys]
    return Chunk(_offsets(list(map(len, values))), b"".join(values), _offsets(list(map(len, filled))), b"".join(filled))


def _offsets(lengths: Sequence[int] | I64) -> I64:
    offsets: I64 = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


class BatchRows:
    """All rows of a batch, or consecutive rows of it."""

    def __init__(self, chunks: Sequence[Chunk]) -> None:
        self.chunks = [chunk for chunk in chunks if chunk.count]
        self._ends = np.cumsum([0, *(chunk.count for chunk in self.chunks)])
        self.count = int(self._ends[-1])

    def only(self, start: int, end: int) -> BatchRows:
        """Returns rows ``start`` to ``end`` (exclusive) without copying their bytes."""
        found: list[Chunk] = []
        for chunk, begin in zip(self.chunks, self._ends.tolist(), strict=False):
            first, last = max(start - begin, 0), min(end - begin, chunk.count)
            if first < last:
                found.append(chunk.only(first, last))
        return BatchRows(found)

    @cached_property
    def _sizes(self) -> I64:
        """Sums of row sizes: element n has the bytes of the first n rows, each row with its overhead in a block."""
        sizes = [chunk.value_lengths() + chunk.key_lengths() + ROW_OVERHEAD_BYTES for chunk in self.chunks]
        return _offsets(np.concatenate(sizes) if sizes else [])

    def cuts(self, bytes_max: int, entries_max: int = PART_ENTRIES_MAX) -> list[int]:
        """Returns the row numbers at which the rows are divided into parts, with 0 and ``count`` included. A part
        exceeds ``bytes_max`` only if it is a single row; no part exceeds ``entries_max``."""
        cuts = [0]
        while cuts[-1] < self.count:
            at = cuts[-1]
            fits = int(np.searchsorted(self._sizes, self._sizes[at] + bytes_max, side="right")) - 1
            cuts.append(min(max(fits, at + 1), at + entries_max, self.count))
        return cuts

    def pieces(self, bytes_max: int = PIECE_BYTES) -> Iterator[tuple[bytes, int]]:
        """Yields encoded batches of at most ``bytes_max`` bytes, unless a single row is larger. Each batch comes with
        its number of rows."""
        cuts = self.cuts(bytes_max)
        for start, end in pairwise(cuts):
            yield self.only(start, end).encoded(), end - start

    def encoded(self) -> bytes:
        """Encodes the rows as one batch. Raises ``TooLarge``, or ``BadBody`` if there are no rows."""
        values = b"".join(chunk.value_bytes() for chunk in self.chunks)
        keys = b"".join(chunk.key_bytes() for chunk in self.chunks)
        value_ends = _offsets(np.concatenate([chunk.value_lengths() for chunk in self.chunks]))
        columns = Columns(self.count, value_ends.astype("<i4").tobytes(), values)
        if keys:
            key_ends = _offsets(np.concatenate([chunk.key_lengths() for chunk in self.chunks]))
            columns = Columns(self.count, columns.value_offsets, values, key_ends.astype("<i4").tobytes(), keys)
        return encode_columns(columns)

    def pairs(self) -> Iterator[tuple[bytes, bytes]]:
        """Yields a copy of each row's key and value. Copying single rows is slow, and meant for rare cases."""
        for chunk in self.chunks:
            values, keys = bytes(chunk.value_bytes()), bytes(chunk.key_bytes())
            value_ends, key_ends = _offsets(chunk.value_lengths()).tolist(), _offsets(chunk.key_lengths()).tolist()
            for row in range(chunk.count):
                yield keys[key_ends[row] : key_ends[row + 1]], values[value_ends[row] : value_ends[row + 1]]


class RowsDigest:
    """A digest of rows in their order. The digest does not depend on how the rows are divided into chunks and parts."""

    def __init__(self) -> None:
        self._columns = [blake2b(digest_size=32) for _ in range(4)]

    def add(self, rows: BatchRows) -> None:
        for chunk in rows.chunks:
            key_lengths, value_lengths = chunk.key_lengths().astype("<i8"), chunk.value_lengths().astype("<i8")
            for column, data in zip(
                self._columns,
                (key_lengths.data, chunk.key_bytes(), value_lengths.data, chunk.value_bytes()),
                strict=True,
            ):
                column.update(data)

    def copy(self) -> RowsDigest:
        other = RowsDigest()
        other._columns = [column.copy() for column in self._columns]
        return other

    def hex(self) -> str:
        return blake2b(b"".join(column.digest() for column in self._columns), digest_size=_DIGEST_BYTES).hexdigest()


def row_digest(key: bytes, value: bytes) -> bytes:
    """Returns the digest of one row. Equal rows have equal digests."""
    return blake2b(len(key).to_bytes(8, "little") + key + value, digest_size=_DIGEST_BYTES).digest()


def without(rows: BatchRows, logged: Sequence[bytes]) -> BatchRows | None:
    """Returns the rows that are not in the log yet. ``logged`` has a digest for each logged row, once for each time
    that the row was logged. Returns None if a digest in ``logged`` belongs to none of ``rows``. Of several equal
    rows the first are removed. Needs 16 bytes of memory for each row, and a copy of the remaining rows."""
    there = np.array([row_digest(key, value) for key, value in rows.pairs()], f"S{_DIGEST_BYTES}")
    gone = np.sort(np.array(logged, f"S{_DIGEST_BYTES}"))
    order = np.argsort(there, kind="stable")
    ranked = there[order]
    rank = np.arange(len(ranked)) - np.searchsorted(ranked, ranked, side="left")
    times = np.searchsorted(gone, ranked, side="right") - np.searchsorted(gone, ranked, side="left")
    left = np.ones(len(ranked), np.bool_)
    left[order] = rank >= times
    if len(ranked) - np.count_nonzero(left) != len(gone):
        return None
    pairs = [pair for pair, stays in zip(rows.pairs(), left.tolist(), strict=True) if stays]
    return BatchRows([chunk_of([value for _, value in pairs], [key for key, _ in pairs])])
