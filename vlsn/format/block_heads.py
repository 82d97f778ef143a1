"""Checks thousands of block headers at once, by column. The check is the same as that of ``block.decode_header``.

The check of a block header is written in both modules, since by column, checking many headers costs about as little as
checking one. A test compares the two checks over random headers. The caller has to check the crcs, since only the
caller has the bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vlsn.format.block import BLOCK_BYTES, KIND_COLUMN, SUPPORTED, VERSION, EntryKind
from vlsn.format.columns import BODY_AT, KEYS, KINDS, PRODUCERS, TXNS
from vlsn.format.producer_columns import Produced
from vlsn.ids import NUMBER_MAX
from vlsn.limits import BATCH_ENTRIES_MAX, BODY_BYTES_MAX

BLOCK_DTYPE = np.dtype(
    [
        ("version", "u1"),
        ("flags", "u1"),
        ("kind", "u1"),
        ("zero", "u1"),
        ("count", "<u4"),
        ("term", "<u8"),
        ("first_vlsn", "<u8"),
        ("dtvlsn", "<u8"),
        ("clock_us", "<u8"),
        ("submissions", "<u4"),
        ("key_bytes", "<u4"),
        ("value_bytes", "<u4"),
        ("body_bytes", "<u4"),
        ("body_crc", "<u4"),
        ("header_crc", "<u4"),
    ]
)
I64 = npt.NDArray[np.int64]
Heads = npt.NDArray[np.void]
"""An array of block headers (``BLOCK_DTYPE``)."""
Mask = npt.NDArray[np.bool_]
_KINDS_END = len(EntryKind)

assert BLOCK_DTYPE.itemsize == BLOCK_BYTES


@dataclass(frozen=True, slots=True)
class Layouts:
    """The ``Layout`` of many blocks, as columns. Places are counted from the start of each block. An absent column has
    no bytes."""

    kinds: I64
    txns: I64
    producers: I64
    key_offsets: I64
    value_offsets: I64
    keys: I64
    values: I64
    end: I64


def layouts(headers: npt.NDArray[np.void]) -> Layouts:
    """Computes the places of the columns of many blocks from their headers (``BLOCK_DTYPE``), by arithmetic alone."""
    flags, count = headers["flags"], headers["count"].astype(np.int64)
    at = np.full(len(headers), BODY_AT, np.int64)
    if not flags.any():
        values = at + _aligned(4 * count + 4)
        return Layouts(at, at, at, at, at, values, values, values + headers["value_bytes"])
    has_kinds, has_txns, has_producers, has_keys = (
        (flags & np.uint8(flag) != 0).astype(np.int64) for flag in (KINDS, TXNS, PRODUCERS, KEYS)
    )
    txns = _aligned(at + count * has_kinds)
    producers = txns + 8 * count * has_txns
    key_offsets = _aligned(producers + 20 * headers["submissions"].astype(np.int64) * has_producers)
    value_offsets = _aligned(key_offsets + 4 * (count + 1) * has_keys)
    keys = _aligned(value_offsets + 4 * (count + 1))
    values = _aligned(keys + headers["key_bytes"].astype(np.int64) * has_keys)
    return Layouts(at, txns, producers, key_offsets, value_offsets, keys, values, values + headers["value_bytes"])


def _aligned(at: I64) -> I64:
    return at + 7 & ~7


def heads_good(heads: Heads) -> Mask:
    """Marks the headers that ``decode_header`` would accept if their crcs are correct."""
    flags, kinds, firsts, terms = heads["flags"], heads["kind"], heads["first_vlsn"], heads["term"]
    counts, submissions = heads["count"], heads["submissions"]
    good: Mask = (heads["version"] == VERSION) & (heads["zero"] == 0)
    good &= (counts >= 1) & (counts <= BATCH_ENTRIES_MAX) & (submissions <= counts)
    good &= (terms >= 1) & (terms <= NUMBER_MAX) & (heads["clock_us"] <= NUMBER_MAX)
    good &= (heads["dtvlsn"] < firsts) & (firsts <= np.uint64(NUMBER_MAX) - counts.astype(np.uint64))
    if flags.any():
        good &= (flags & ~np.uint8(SUPPORTED)) == 0
        good &= (kinds == KIND_COLUMN) == (flags & KINDS != 0)
        good &= ((flags & KEYS) != 0) == (heads["key_bytes"] != 0)
        good &= ((flags & PRODUCERS) == 0) | (submissions > 0)
        good &= (kinds < _KINDS_END) | (kinds == KIND_COLUMN)
    else:
        good &= (kinds < _KINDS_END) & (heads["key_bytes"] == 0)
    sizes = heads["body_bytes"].astype(np.int64)
    good &= (sizes <= BODY_BYTES_MAX) & (layouts(heads).end == sizes + BLOCK_BYTES)
    return good


def produced_of(buf: bytes, at: npt.NDArray[np.int64], headers: npt.NDArray[np.void]) -> list[Produced]:
    """Lists the submissions of many blocks, all with producers, by column. The producer columns are at the places
    ``at`` of ``buf`` (multiples of 8, ascending), and ``headers`` are the blocks' headers (``BLOCK_DTYPE``)."""
    submissions = headers["submissions"].astype(np.int64)
    begins = np.cumsum(submissions) - submissions
    number = np.arange(int(submissions.sum())) - np.repeat(begins, submissions)
    columns_at = at + layouts(headers).producers
    longs = np.frombuffer(buf, "<u8", len(buf) // 8)
    producers = longs[np.repeat(columns_at >> 3, submissions) + number]
    sequences = longs[np.repeat((columns_at >> 3) + submissions, submissions) + number]
    ints = np.frombuffer(buf, "<u4", len(buf) // 4)
    counts = ints[np.repeat((columns_at + 16 * submissions) >> 2, submissions) + number].astype(np.int64)
    before = np.cumsum(counts) - counts
    firsts = before + np.repeat(headers["first_vlsn"].astype(np.int64) - before[begins], submissions)
    terms = np.repeat(headers["term"], submissions)
    named = producers != 0
    rows = (column[named].tolist() for column in (producers, sequences, firsts, firsts + counts - 1, terms))
    return list(zip(*rows, strict=True))
