"""Columns. The body of a block, and of a client's batch, consists of columns with a value for each entry.

The columns have the order below. Each column begins at a multiple of 8 from the block's start. The bytes between
columns are zeros, and there are none after the last column.

    kinds         u8[count]       with KINDS: when entries are of more than one kind
    txns          u64[count]      with TXNS: when any is not 0 (auto-commit)
    producers     20 B a submission, padded to 8    with PRODUCERS: when any has one (``producer_columns.py``)
    key_offsets   i32[count+1]    with KEYS: when any entry has a key
    value_offsets i32[count+1]
    keys | values

Offsets rise from 0 to the length of their column, as in Arrow. For example, three entries ``a``, ``bc``, ``""`` have
offsets 0 1 3 3 at 64 and values at 80, and the body ends at 83. Columns of up to 64 entries are handled with a cached
``Struct``. Longer columns are checked with NumPy, if it is there (``arrays``): every call costs 1–3 µs, whatever the
length.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from enum import IntFlag
from functools import lru_cache
from itertools import accumulate, pairwise
from operator import sub
from struct import Struct, error
from typing import NamedTuple

from msgspec import Struct as Record

from vlsn.errors import BadBody, TooLarge
from vlsn.format.arrays import SMALL_COLUMN as SMALL_COLUMN
from vlsn.format.arrays import works
from vlsn.seams import Buffer

BODY_AT = 64
"""The offset of the body in a block. A batch's body starts at another multiple of 8, but has the same bytes."""

assert sys.byteorder == "little", "columns are built as the machine's own integers"


class BlockFlag(IntFlag):
    KINDS = 1
    TXNS = 2
    PRODUCERS = 4
    KEYS = 8


KINDS, TXNS, PRODUCERS, KEYS = 1, 2, 4, 8  # plain ints, since an operation on an IntFlag costs a microsecond

assert tuple(BlockFlag) == (KINDS, TXNS, PRODUCERS, KEYS)


class Layout(NamedTuple):
    """The places of the columns, counted from the block's start; -1 for an absent column."""

    kinds: int
    txns: int
    producers: int
    key_offsets: int
    value_offsets: int
    keys: int
    values: int
    end: int


class Columns(Record, frozen=True, gc=False):
    """The columns of a body that is to be built, already laid out as bytes. If no entry has a key, ``key_offsets`` is
    empty."""

    count: int
    value_offsets: Buffer
    values: Buffer
    key_offsets: Buffer = b""
    keys: Buffer = b""
    txns: Buffer = b""
    producers: Buffer = b""
    """The producer columns, with their padding."""

    @property
    def flags(self) -> int:
        flags = KEYS if self.key_offsets else 0
        if self.txns:
            flags |= TXNS
        return flags | PRODUCERS if self.producers else flags


def producer_bytes(submissions: int) -> int:
    """Returns the bytes that the producer columns of ``submissions`` submissions occupy."""
    return (20 * submissions + 7) & ~7


def layout(flags: int, count: int, key_bytes: int, value_bytes: int, submissions: int = 0) -> Layout:
    """Computes the place of each column by arithmetic alone. ``submissions`` is used only if ``flags`` has
    PRODUCERS."""
    at = BODY_AT
    kinds = txns = producers = key_offsets = keys = -1
    if flags & KINDS:
        kinds = at
        at = (at + count + 7) & ~7
    if flags & TXNS:
        txns = at
        at += 8 * count
    if flags & PRODUCERS:
        producers = at
        at += producer_bytes(submissions)
    if flags & KEYS:
        key_offsets = at
        at = (at + 4 * count + 11) & ~7
    value_offsets = at
    at = (at + 4 * count + 11) & ~7
    if flags & KEYS:
        keys = at
        at = (at + key_bytes + 7) & ~7
    return Layout(kinds, txns, producers, key_offsets, value_offsets, keys, at, at + value_bytes)


def check_columns(buf: Buffer, lay: Layout, count: int, key_bytes: int, value_bytes: int) -> tuple[int, int]:
    """Checks that the offsets rise from 0 to the length, and that the padding is zero. Returns the lengths of the
    longest key and of the longest value, for a comparison with the limits on a client's batch. Raises ``BadBody``."""
    longest_value = _check_offsets(buf, lay.value_offsets, count, value_bytes)
    longest_key = 0
    offsets_end = lay.value_offsets + 4 * count + 4
    if lay.keys >= 0:
        longest_key = _check_offsets(buf, lay.key_offsets, count, key_bytes)
        check_zero(buf, lay.key_offsets + 4 * count + 4, lay.value_offsets)
        check_zero(buf, offsets_end, lay.keys)
        check_zero(buf, lay.keys + key_bytes, lay.values)
    else:
        check_zero(buf, offsets_end, lay.values)
    return longest_key, longest_value


def _check_offsets(buf: Buffer, at: int, count: int, length: int) -> int:
    if count == 1:
        if i32(2).unpack_from(buf, at) != (0, length):
            raise BadBody("offsets do not rise from 0 to the length")
        return length
    if count <= SMALL_COLUMN:
        few: tuple[int, ...] = i32(count + 1).unpack_from(buf, at)
        lengths: list[int] = list(map(sub, few[1:], few))
        if few[0] or few[-1] != length or min(lengths) < 0:
            raise BadBody("offsets do not rise from 0 to the length")
        return max(lengths)
    return works().check_offsets(buf, at, count, length)


def check_zero(buf: Buffer, start: int, end: int) -> None:
    if start != end and any(buf[start:end]):
        raise BadBody(f"padding at {start} is not zero")


def cut(buf: Buffer, offsets_at: int, data_at: int, count: int, skip: int = 0) -> list[bytes]:
    """Copies ``count`` pieces of one column, after the first ``skip`` pieces. Pieces before and after these are not
    read."""
    offsets: Sequence[int]
    if count <= SMALL_COLUMN:
        offsets = i32(count + 1).unpack_from(buf, offsets_at + 4 * skip)
    else:
        at = offsets_at + 4 * skip
        offsets = memoryview(buf)[at : at + 4 * count + 4].cast("i").tolist()
    base = offsets[0]
    data = bytes(memoryview(buf)[data_at + base : data_at + offsets[-1]])
    if base:
        return [data[start - base : end - base] for start, end in pairwise(offsets)]
    return [data[start:end] for start, end in pairwise(offsets)]


def body_parts(columns: Columns, kinds: bytes = b"") -> list[Buffer]:
    """Returns the pieces of the body in order, with the padding between them. Nothing is copied."""
    parts: list[Buffer] = []
    if kinds:
        parts += (kinds, bytes(-len(kinds) & 7))
    if columns.txns:
        parts.append(columns.txns)
    if columns.producers:
        parts.append(columns.producers)
    # There are count + 1 offsets of 4 bytes, so if the count is even, the offsets end in the middle of a word.
    odd = (columns.count & 1) == 0
    if columns.key_offsets:
        parts.append(columns.key_offsets)
        if odd:
            parts.append(b"\0\0\0\0")
    parts.append(columns.value_offsets)
    if odd:
        parts.append(b"\0\0\0\0")
    if columns.key_offsets:
        parts += (columns.keys, bytes(-len(columns.keys) & 7))
    parts.append(columns.values)
    return parts


def columns_of(values: Sequence[Buffer], keys: Sequence[Buffer] | None = None) -> Columns:
    """Makes the columns of plain values. The key columns are empty if no entry has a key."""
    if keys is None:
        return Columns(len(values), offsets_of(values), b"".join(values))
    return Columns(len(values), offsets_of(values), b"".join(values), offsets_of(keys), b"".join(keys))


def offsets_of(pieces: Sequence[Buffer]) -> bytes:
    """Packs a column of offsets: 0, and then the end of each piece. Raises ``TooLarge`` past 2 GiB."""
    count = len(pieces)
    try:
        packing = i32(count + 1) if count <= SMALL_COLUMN else Struct(f"<{count + 1}i")
        return packing.pack(0, *accumulate(map(len, pieces)))
    except error:
        raise TooLarge(f"{count} entries of 2 GiB or more") from None


@lru_cache(maxsize=SMALL_COLUMN + 1)
def u64(count: int) -> Struct:
    """Returns the ``Struct`` of ``count`` ids."""
    return Struct(f"<{count}Q")


@lru_cache(maxsize=SMALL_COLUMN + 1)
def i32(count: int) -> Struct:
    """Returns the ``Struct`` of ``count`` offsets."""
    return Struct(f"<{count}i")
