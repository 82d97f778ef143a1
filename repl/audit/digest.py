"""Digests: numbers that two copies of a log share when their blocks are the same, and not otherwise.  Pure.

    block digest   64-bit mix of (crc32c, crc32 of the whole block, term, first VLSN, count)
    range          first VLSN >> 16; a block is counted whole in the range of its first VLSN
    range digest   the sum of its blocks' digests mod 2^64, beside their number

A sum asks for no order, so it does not matter how a log is cut into segments and partitions, which differ
from node to node.  Both checksums are recomputed from the bytes, never taken from a header: two different
blocks that are right by their own checksums still differ in one of two polynomials.

    entry digest   crc32c << 32 | crc32 of (length of the key as u32, key, value): what a client keeps of an append
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Final

import numpy as np
from numpy.typing import NDArray

from repl.audit.crc32 import crc32
from vlsn.format.checksum import crc

RANGE_BITS: Final = 16
U64 = NDArray[np.uint64]

# The finalizer of splitmix64 (Steele, Lea, Flood 2014), and odd constants that keep the fields apart.
_MIX_1: Final = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2: Final = np.uint64(0x94D049BB133111EB)
_TERM: Final = np.uint64(0x9E3779B97F4A7C15)
_FIRST: Final = np.uint64(0xD6E8FEB86659FD93)
_COUNT: Final = np.uint64(0xA0761D6478BD642F)


@dataclass(frozen=True, slots=True)
class RangeDigest:
    """The blocks of one range (or of one segment's share of it); ``entries`` and ``blocks`` are numbers of."""

    range: int
    entries: int
    blocks: int
    digest: int


@dataclass(frozen=True, slots=True)
class Place:
    """A segment's frames, ``start`` to ``end`` (exclusive), that hold blocks with entries of a range."""

    range: int
    number: int
    start: int
    end: int


def block_digests(crc32c: U64, crc32: U64, term: U64, first: U64, count: U64) -> U64:
    """Returns one digest for each block; every column a u64."""
    mixed = _mix(crc32c | crc32 << np.uint64(32))
    mixed = _mix(mixed ^ term * _TERM)
    mixed = _mix(mixed ^ first * _FIRST)
    return _mix(mixed ^ count * _COUNT)


def _mix(x: U64) -> U64:
    x = (x ^ x >> np.uint64(30)) * _MIX_1
    x = (x ^ x >> np.uint64(27)) * _MIX_2
    return x ^ x >> np.uint64(31)


def entry_digest(value: bytes, key: bytes | None = None) -> str:
    """Computes one entry's digest, as 16 hex digits; an empty key is no key."""
    return f"{int(entry_digests([value], [key] if key else None)[0]):016x}"


def entry_digests(values: Sequence[bytes], keys: Sequence[bytes | None] | None) -> U64:
    """Returns one digest for each entry; ``keys`` as many as values, or None where no entry has one. By ``map`` over C
    functions: about 0.4 µs an entry, and the checksums themselves."""
    heads = [b""] if keys is None else [key or b"" for key in keys]
    heads = [len(head).to_bytes(4, "little") + head for head in heads]
    high, low = (_sums(sum_of, heads, values) for sum_of in (crc, crc32))
    return high << np.uint64(32) | low


def _sums(sum_of: Callable[..., int], heads: Sequence[bytes], values: Sequence[bytes]) -> U64:
    seeds = map(sum_of, heads) if len(heads) == len(values) else repeat(sum_of(heads[0]))
    return np.fromiter(map(sum_of, values, seeds), np.uint64, len(values))


def range_digests(first: U64, count: U64, digests: U64) -> list[RangeDigest]:
    """Returns the blocks summed by range."""
    if not len(first):
        return []
    keys, index = np.unique(first >> np.uint64(RANGE_BITS), return_inverse=True)
    sums, entries = np.zeros(len(keys), np.uint64), np.zeros(len(keys), np.uint64)
    np.add.at(sums, index, digests)
    np.add.at(entries, index, count)
    blocks = np.bincount(index, minlength=len(keys))
    rows = zip(keys.tolist(), entries.tolist(), blocks.tolist(), sums.tolist(), strict=True)
    return [RangeDigest(*row) for row in rows]


def merged(parts: list[RangeDigest]) -> dict[int, RangeDigest]:
    """Shares of ranges as whole ranges."""
    whole: dict[int, RangeDigest] = {}
    for part in parts:
        seen = whole.get(part.range)
        if seen is not None:
            total = (seen.digest + part.digest) & 0xFFFF_FFFF_FFFF_FFFF
            part = RangeDigest(part.range, seen.entries + part.entries, seen.blocks + part.blocks, total)
        whole[part.range] = part
    return whole


def chained(chain: int, digest: RangeDigest) -> int:
    """Returns the chain of a range, made of its digest and of the ``chain`` of the range before (0: there is none)."""
    mixed = np.array([chain], np.uint64)
    for number in (digest.range, digest.entries, digest.blocks, digest.digest):
        mixed = _mix(mixed * _TERM ^ np.array([number], np.uint64))
    return int(mixed[0])


def differing(copies: Sequence[Mapping[int, RangeDigest]], knows: Sequence[Callable[[int], bool]]) -> list[int]:
    """Returns the ranges, ascending, that are not one and the same in every copy that ``knows`` them."""
    found = []
    for at in sorted(set().union(*copies)):
        here = {copy.get(at) for copy, known in zip(copies, knows, strict=True) if known(at)}
        if len(here) > 1:
            found.append(at)
    return found
