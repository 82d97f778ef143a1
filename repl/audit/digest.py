"""Digests: numbers that are equal in two copies of a log if, and only if, their blocks are equal. Pure.

    block    SHA-256 of the frame's payload, which is the block as its master sealed it, the same bytes on each node.
             The frame's salt, offset and flag are no part of the payload
    leaf     512 VLSNs: SHA-256 of the digests of its blocks, in the order of the log
    range    65,536 VLSNs: SHA-256 of the digests of its leaves
    chain    SHA-256 of the chain of the range before and of the range's digest: it covers all ranges up to this one

    node a   │1 2 3 4 5│6 7 8 9 …         A leaf may continue in the next segment, so the digests of the single blocks
    node b   │1 2 3│4 5 6 7 8│9 …         are kept for a segment's first and last leaf.  Then it does not matter how
    leaves    ──────┴──────┴─────         a log is cut into segments and tasks.

Each block is counted in the leaf and the range of its first VLSN. Nobody can make two different blocks with the same
SHA-256. With ``Checksums.CRC`` a block's digest is two checksums of different polynomials, recomputed from its bytes.
No fault of a disk, a network or a program leaves both checksums unchanged, but a forger can.

    entry digest   crc32c << 32 | crc32 of (length of the key as u32, key, value): a client keeps it for each append
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from itertools import repeat
from typing import Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from repl.audit.crc32 import crc32
from vlsn.format.checksum import crc
from vlsn.seams import Buffer

RANGE_BITS: Final = 16
LEAF_BITS: Final = 9
"""A leaf is 2 to the power of this many VLSNs. A segment's result has the digests of the single blocks of two leaves:
at most 32 KiB, if each block has one entry."""
DIGEST_BYTES: Final = 32
NO_CHAIN: Final = bytes(DIGEST_BYTES)
"""The chain value before the first range."""
U64 = NDArray[np.uint64]
U32 = NDArray[np.uint32]
Digests = NDArray[np.bytes_]
"""An array with one row for each block; all rows have the same width."""


class Checksums(StrEnum):
    """The kind of checksum by which blocks are compared."""

    SHA256 = "sha256"
    CRC = "crc"


@dataclass(frozen=True, slots=True)
class RangeDigest:
    """The digest of all blocks of one range, with the numbers of entries and of blocks."""

    range: int
    entries: int
    blocks: int
    digest: bytes


class Leaf(NamedTuple):
    """The blocks of one leaf (512 VLSNs) in one segment. The leaf may begin in an earlier segment, or continue in a
    later one."""

    number: int
    """The leaf's number: its first VLSN >> 9."""
    digests: bytes
    """The digests of the leaf's blocks, concatenated."""


Piece = Leaf | bytes
"""One leaf that may be incomplete, or the concatenated digests of complete leaves."""


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """Consecutive blocks of one range: one segment's share of the range, or the joined shares of several segments. The
    first and the last piece may be incomplete leaves."""

    range: int
    entries: int
    blocks: int
    pieces: tuple[Piece, ...]

    @property
    def sum(self) -> RangeDigest:
        """Returns the digest of the range. The share must contain all blocks of the range."""
        digest = sha256(b"".join(map(_hashed, self.pieces))).digest()
        return RangeDigest(self.range, self.entries, self.blocks, digest)

    def then(self, after: Share) -> Share:
        """Joins this share and ``after``, the share that follows in the log."""
        mine, (first, *others) = list(self.pieces), after.pieces
        if isinstance(last := mine[-1], Leaf) and isinstance(first, Leaf) and last.number == first.number:
            mine[-1] = Leaf(first.number, last.digests + first.digests)
        else:
            mine.append(first)
        (head, *inner), entries, blocks = mine + others, self.entries + after.entries, self.blocks + after.blocks
        tail = inner.pop() if inner else b""
        return _share(self.range, entries, blocks, head, b"".join(map(_hashed, inner)), tail)


def _share(at: int, entries: int, blocks: int, *pieces: Piece) -> Share:
    """Makes a share from its pieces. Empty pieces are dropped, and neighbouring digests are joined into one piece."""
    kept: list[Piece] = []
    for piece in pieces:
        if not piece:
            continue
        if kept and isinstance(piece, bytes) and isinstance(before := kept[-1], bytes):
            kept[-1] = before + piece
        else:
            kept.append(piece)
    return Share(range=at, entries=entries, blocks=blocks, pieces=tuple(kept))


def _hashed(piece: Piece) -> bytes:
    return sha256(piece.digests).digest() if isinstance(piece, Leaf) else piece


@dataclass(frozen=True, slots=True)
class Place:
    """The bytes ``start`` to ``end`` (exclusive) of a segment: the frames (envelopes of blocks) whose blocks have
    entries of one range."""

    range: int
    number: int
    start: int
    end: int


def compared_bytes(checksums: Checksums | None, payloads: Sequence[Buffer]) -> bytes:
    """Computes the bytes of each payload that ``block_digests`` needs, and concatenates them. If ``checksums`` is None,
    the result is empty."""
    if checksums is Checksums.SHA256:
        return b"".join([sha256(payload).digest() for payload in payloads])
    return np.fromiter(map(crc32, payloads), "<u4", len(payloads)).tobytes() if checksums else b""


def block_digests(checksums: Checksums | None, crc32c: U32, compared: bytes) -> Digests:
    """Returns a digest for each block, made of its crc32c and its 32 or 8 bytes in ``compared``. If ``checksums`` is
    None, the digests are empty."""
    if checksums is Checksums.SHA256:
        return np.frombuffer(compared, f"S{DIGEST_BYTES}")
    if checksums is None:
        return np.zeros(len(crc32c), "S1")
    return np.column_stack((crc32c.astype("<u4"), np.frombuffer(compared, "<u4"))).reshape(-1).view("S8")


def entry_digest(value: bytes, key: bytes | None = None) -> str:
    """Computes one entry's digest, as 16 hex digits; an empty key counts as no key."""
    return f"{int(entry_digests([value], [key] if key else None)[0]):016x}"


def entry_digests(values: Sequence[bytes], keys: Sequence[bytes | None] | None) -> U64:
    """Returns one digest for each entry. ``keys`` has as many elements as ``values``, or is None if no entry has a key.
    ``map`` over C functions costs about 0.4 µs an entry, beside the checksums themselves."""
    heads = [b""] if keys is None else [key or b"" for key in keys]
    heads = [len(head).to_bytes(4, "little") + head for head in heads]
    high, low = (_sums(sum_of, heads, values) for sum_of in (crc, crc32))
    return high << np.uint64(32) | low


def _sums(sum_of: Callable[..., int], heads: Sequence[bytes], values: Sequence[bytes]) -> U64:
    seeds = map(sum_of, heads) if len(heads) == len(values) else repeat(sum_of(heads[0]))
    return np.fromiter(map(sum_of, values, seeds), np.uint64, len(values))


def shares_of(first: U64, count: U64, digests: Digests) -> list[Share]:
    """Returns a segment's shares of the ranges that its blocks belong to, in the order of the log. Unless there is a
    finding, this is also the order of the VLSNs."""
    leaves = first >> np.uint64(LEAF_BITS)
    order = np.argsort(leaves >> np.uint64(RANGE_BITS - LEAF_BITS), kind="stable")
    leaves, count = leaves[order], count[order]
    data, width = memoryview(digests[order].tobytes()), digests.itemsize
    ranges = leaves >> np.uint64(RANGE_BITS - LEAF_BITS)
    found = []
    for low, high in _runs(ranges):
        cuts = [(low + start, low + end) for start, end in _runs(leaves[low:high])]
        head = [cuts.pop(0)] if not low else []
        tail = [cuts.pop()] if high == len(leaves) and cuts else []
        inner = b"".join([sha256(data[start * width : end * width]).digest() for start, end in cuts])
        ends = [Leaf(int(leaves[start]), bytes(data[start * width : end * width])) for start, end in head + tail]
        pieces: list[Piece] = [*ends[: len(head)], inner, *ends[len(head) :]]
        found.append(_share(int(ranges[low]), int(count[low:high].sum()), high - low, *pieces))
    return found


def _runs(column: U64) -> list[tuple[int, int]]:
    """Returns the begin and the end of each run of equal numbers in ``column``."""
    if not len(column):
        return []
    changes = (np.flatnonzero(column[1:] != column[:-1]) + 1).tolist()
    return list(zip([0, *changes], [*changes, len(column)], strict=True))


def merged(shares: Iterable[Share]) -> dict[int, Share]:
    """Joins ``shares``, which are in the order of the log, into one share for each range."""
    whole: dict[int, Share] = {}
    for share in shares:
        before = whole.get(share.range)
        whole[share.range] = share if before is None else before.then(share)
    return whole


def summed(shares: Iterable[Share]) -> dict[int, RangeDigest]:
    """Returns the digests of complete ranges, ascending. ``shares`` are all shares of these ranges, in the order of the
    log."""
    return {at: share.sum for at, share in sorted(merged(shares).items())}


def chained(chain: bytes, digest: RangeDigest) -> bytes:
    """Returns the chain of a range, computed from the range's ``digest`` and the ``chain`` of the range before."""
    numbers = b"".join(number.to_bytes(8, "little") for number in (digest.range, digest.entries, digest.blocks))
    return sha256(chain + numbers + digest.digest).digest()


def differing(copies: Sequence[Mapping[int, RangeDigest]], knows: Sequence[Callable[[int], bool]]) -> list[int]:
    """Returns, ascending, the ranges with different digests in two copies. For each copy, ``knows`` says whether a
    range was read completely."""
    found = []
    for at in sorted(set().union(*copies)):
        here = {copy.get(at) for copy, known in zip(copies, knows, strict=True) if known(at)}
        if len(here) > 1:
            found.append(at)
    return found
