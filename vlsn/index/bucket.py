"""Buckets. A bucket is a run of mappings from a block's first VLSN to the block's LSN, within one segment.

1. A bucket covers VLSNs ``first`` … ``last`` of one segment, and the bucket's mappings rise in VLSN and in offset.
2. The first mapping of a bucket is that of VLSN ``first``. The last mapping is that of the bucket's last block, which
   ends at ``last``. If the index was cut at a block without a known mapping, the bucket's last mapping is the closest
   one before the cut. In a bucket that was cut so, ``last`` may be in the next segment, but no mapping is.
3. The mappings between the first and the last are sparse. A reader finds the closest mapping at or before a VLSN, and
   walks the block headers from there.
4. Only the current bucket is changed. ``freeze`` makes a permanent bucket from it. On disk, a bucket has the form

    0       2   4       8       12          16      24              24+4n      24+8n
    |version| 0 |  file | count | last_delta| first | u32 deltas[n] | u32 offsets[n] |

under the key ``b`` and ``first`` as a big-endian u64. A mapping's VLSN is ``first`` + delta, its LSN is ``file`` << 32
| offset. The model is JE's ``VLSNBucket``, but without its strides, since deltas are stored.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from struct import Struct

import msgspec
import numpy as np

from vlsn.errors import Damaged
from vlsn.ids import U32_MAX, Lsn, Vlsn, lsn_file, lsn_offset
from vlsn.levels import unread

Mapping = tuple[Vlsn, Lsn]

HEADER = Struct("<HHIIIQ")
KEY = Struct(">cQ")
VERSION = 1
VLSN_MAX = Vlsn((1 << 63) - 1)

assert HEADER.size == 24
assert KEY.size == 9
assert sys.byteorder == "little" and array("I").itemsize == 4, "columns are read as they lie"


def bucket_key(first: Vlsn) -> bytes:
    return KEY.pack(b"b", first)


class Bucket(msgspec.Struct, frozen=True, gc=False):
    """A run of mappings from VLSN to LSN that no longer changes. ``Bucket`` is a Struct because every lookup in the
    store makes a new one."""

    file: int
    first: Vlsn
    last: Vlsn
    deltas: Sequence[int]
    offsets: Sequence[int]

    def __len__(self) -> int:
        return len(self.deltas)

    def at_or_before(self, vlsn: Vlsn) -> Mapping:
        """Returns the closest mapping at or before ``vlsn``, which must not be below ``first``."""
        return self._mapping(bisect_right(self.deltas, vlsn - self.first) - 1)

    def at_or_after(self, vlsn: Vlsn) -> Mapping | None:
        """Returns the closest mapping at or after ``vlsn``, or None if ``vlsn`` is past the bucket's last mapping."""
        at = bisect_left(self.deltas, vlsn - self.first)
        return self._mapping(at) if at < len(self.deltas) else None

    def mappings(self) -> Iterator[Mapping]:
        return map(self._mapping, range(len(self.deltas)))

    def cut_tail(self, last: Vlsn, cap: Mapping | None) -> Bucket:
        """Returns the bucket with the mappings up to ``last``. If the block that ends at ``last`` is known, ``cap`` is
        its mapping, and becomes the bucket's last mapping."""
        keep = bisect_left(self.deltas, (cap[0] if cap else last + 1) - self.first)
        deltas, offsets = list(self.deltas[:keep]), list(self.offsets[:keep])
        if cap:
            deltas.append(cap[0] - self.first)
            offsets.append(lsn_offset(cap[1]))
        return Bucket(self.file, self.first, last, deltas, offsets)

    def cut_head(self, cap: Mapping) -> Bucket:
        """Returns the bucket with the mappings from ``cap`` on. ``cap`` is the mapping of the first block that is
        kept."""
        first, at = cap
        skip = bisect_right(self.deltas, first - self.first)
        shift = first - self.first
        deltas = [0, *(delta - shift for delta in self.deltas[skip:])]
        return Bucket(self.file, first, self.last, deltas, [lsn_offset(at), *self.offsets[skip:]])

    def encode(self) -> bytes:
        header = HEADER.pack(VERSION, 0, self.file, len(self.deltas), self.last - self.first, self.first)
        return header + array("I", self.deltas).tobytes() + array("I", self.offsets).tobytes()

    def verify(self) -> None:
        """Raises ``Damaged`` unless the mappings rise and are within the bucket's VLSNs. Takes O(n) time."""
        for column in (self.deltas, self.offsets):
            rising = np.asarray(column)
            if (rising[1:] <= rising[:-1]).any():
                raise Damaged(f"the mappings of the index bucket at {self.first} do not rise", vlsn=self.first)

    def _mapping(self, at: int) -> Mapping:
        return Vlsn(self.first + self.deltas[at]), Lsn(self.file << 32 | self.offsets[at])


def single(block_first: Vlsn, last: Vlsn, at: Lsn) -> Bucket:
    """Makes a bucket of one block."""
    return Bucket(lsn_file(at), block_first, last, [0], [lsn_offset(at)])


def decode(key: bytes, value: bytes) -> Bucket:
    """Decodes the bucket stored under ``key``. The bucket's columns are views of ``value``. Makes all checks that need
    O(1) time. Raises ``Damaged``, or ``WrongVersion`` if the version is a later one, since the checksum was correct."""
    if len(key) != KEY.size or len(value) < HEADER.size:
        raise Damaged(f"no index bucket: key {key.hex()} with {len(value)} bytes")
    version, zero, file, count, last_delta, first = HEADER.unpack_from(value)
    if version > VERSION:
        raise unread("a bucket of the VLSN index", version, VERSION)
    if version != VERSION or zero or key != bucket_key(first) or not 1 <= first <= VLSN_MAX:
        raise Damaged(f"no index bucket of version {VERSION}: key {key.hex()}, version {version}, first {first}")
    if count < 1 or len(value) != HEADER.size + 8 * count:
        raise Damaged(f"the index bucket at {first} names {count} mappings in {len(value)} bytes", vlsn=first)
    columns = memoryview(value)[HEADER.size :].cast("I")
    bucket = Bucket(file, first, Vlsn(first + last_delta), columns[:count], columns[count:])
    if bucket.deltas[0] != 0 or bucket.deltas[-1] > last_delta:
        raise Damaged(f"the index bucket at {first} does not begin or end with its mappings", vlsn=first)
    return bucket


class CurrentBucket:
    """The bucket that is being filled. The current bucket keeps some of the mappings, and separately the last block."""

    __slots__ = ("block_first", "block_lsn", "file", "first", "kept_lsn", "kept_vlsn", "last", "lsns", "vlsns")

    def __init__(self, block_first: Vlsn, last: Vlsn, at: Lsn) -> None:
        self.file = lsn_file(at)
        self.first = self.kept_vlsn = self.block_first = block_first
        self.kept_lsn = self.block_lsn = at
        self.last = last
        self.vlsns = [block_first]
        self.lsns = [at]

    def takes(self, vlsn: Vlsn, at: Lsn, mappings_max: int) -> bool:
        """Returns whether a mapping fits into this bucket and leaves space for the bucket's closing mapping."""
        return at >> 32 == self.file and len(self.vlsns) < mappings_max - 1 and vlsn - self.first <= U32_MAX

    def at_or_before(self, vlsn: Vlsn) -> Mapping:
        if vlsn >= self.block_first:
            return self.block_first, self.block_lsn
        at = bisect_right(self.vlsns, vlsn) - 1
        return self.vlsns[at], self.lsns[at]

    def at_or_after(self, vlsn: Vlsn) -> Mapping | None:
        at = bisect_left(self.vlsns, vlsn)
        if at < len(self.vlsns):
            return self.vlsns[at], self.lsns[at]
        return (self.block_first, self.block_lsn) if vlsn <= self.block_first else None

    def freeze(self) -> Bucket:
        vlsns, lsns = self.vlsns, self.lsns
        if self.kept_vlsn != self.block_first:
            vlsns, lsns = [*vlsns, self.block_first], [*lsns, self.block_lsn]
        deltas = [vlsn - self.first for vlsn in vlsns]
        return Bucket(self.file, self.first, self.last, deltas, [lsn_offset(at) for at in lsns])
