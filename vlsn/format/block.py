"""The block, the unit of replication: a run of entries. A block has the same bytes on every node and on the wire.

    0       1     2    3 4     8    16         24     32       40
    |version|flags|kind|0|count|term|first_vlsn|dtvlsn|clock_us|
    40          44        48          52         56       60         64
    |submissions|key_bytes|value_bytes|body_bytes|body_crc|header_crc| body …

The header is followed by the body, the columns of ``columns.py``. The column of kinds exists only if ``kind`` is 255.
``header_crc`` covers bytes 0–59, and ``body_crc`` covers the body. The same content must always have the same encoding,
so a block with a column that it does not need is refused.

The name of a block is (term, first_vlsn), and no two blocks ever have the same name. For example, a block has three
entries ``a``, ``bc``, ``""`` from VLSN 7 on. In that block the offsets 0 1 3 3 are at 64 and the values at 80,
body_bytes is 19, and last_vlsn is 9.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from struct import Struct
from typing import Any

from msgspec import Struct as Record

from vlsn.errors import BadBody
from vlsn.format import producer_columns
from vlsn.format.arrays import works
from vlsn.format.checksum import crc
from vlsn.format.codec import decode_json, decode_text
from vlsn.format.columns import (
    BODY_AT,
    KEYS,
    KINDS,
    PRODUCERS,
    TXNS,
    Layout,
    body_parts,
    check_columns,
    check_zero,
    cut,
    layout,
)
from vlsn.format.columns import BlockFlag as BlockFlag
from vlsn.format.columns import Columns as Columns
from vlsn.format.columns import columns_of as columns_of
from vlsn.format.transactions import COMMIT, DATA, check_transactions
from vlsn.ids import NUMBER_MAX as NUMBER_MAX
from vlsn.ids import Term, Vlsn
from vlsn.levels import unread
from vlsn.limits import BATCH_ENTRIES_MAX, BODY_BYTES_MAX
from vlsn.seams import Buffer

BLOCK = Struct("<BBBBIQQQQIIIIII")
BLOCK_BYTES = BODY_AT
VERSION = 1
FLAGS_AT = 1
KIND_COLUMN = 255

assert BLOCK.size == BLOCK_BYTES


class EntryKind(IntEnum):
    DATA = 0
    TERM = 1
    GROUP = 2
    COMMIT = 3
    ABORT = 4


assert (EntryKind.DATA, EntryKind.COMMIT) == (DATA, COMMIT)
SUPPORTED = KINDS | TXNS | PRODUCERS | KEYS
_ALL_KINDS = bytes(EntryKind)
_COVERED = BLOCK_BYTES - 4
_PAIR = Struct("<ii")


class BlockHeader(Record, frozen=True, gc=False):
    """The 64 bytes before a block's body. The block has the VLSNs ``first_vlsn`` to ``last_vlsn``, inclusive."""

    version: int
    flags: int
    kind: int
    count: int
    term: Term
    first_vlsn: Vlsn
    dtvlsn: Vlsn
    clock_us: int
    submissions: int
    key_bytes: int
    value_bytes: int
    body_bytes: int
    body_crc: int
    header_crc: int

    @property
    def last_vlsn(self) -> Vlsn:
        return Vlsn(self.first_vlsn + self.count - 1)

    @property
    def size(self) -> int:
        """The bytes of the block with its header and without padding."""
        return BLOCK_BYTES + self.body_bytes

    @property
    def name(self) -> tuple[Term, Vlsn]:
        return self.term, self.first_vlsn

    @property
    def layout(self) -> Layout:
        """The places of the block's columns, counted from the start of the block."""
        return layout(self.flags, self.count, self.key_bytes, self.value_bytes, self.submissions)


class Entry(Record, frozen=True, gc=False):
    """One entry as a reader sees it. ``time`` is the time at which the master sealed the entry, by the master's clock,
    in µs since the epoch."""

    vlsn: Vlsn
    term: Term
    time: int
    kind: int
    txn: int
    key: bytes | None
    value: bytes

    def text(self) -> str:
        """Returns the value decoded as UTF-8. Raises ``ValueError`` if the value is not UTF-8."""
        try:
            return decode_text(self.value)
        except ValueError as error:
            raise ValueError(f"VLSN {self.vlsn} is not text: {error}") from None

    def json(self) -> Any:
        """Returns the value decoded as JSON. Raises ``ValueError`` if the value is not JSON."""
        try:
            return decode_json(self.value)
        except ValueError as error:
            raise ValueError(f"VLSN {self.vlsn} is not JSON: {error}") from None


# Decoding.


def decode(block: Buffer) -> BlockHeader:
    """Checks every byte of a block that fills ``block`` exactly, and returns its header. Raises ``BadBody``."""
    header = decode_header(block)
    if len(block) != BLOCK_BYTES + header.body_bytes:
        raise BadBody(f"a block of {BLOCK_BYTES + header.body_bytes} bytes in {len(block)}")
    check_body(block, header)
    return header


def decode_header(buf: Buffer, at: int = 0) -> BlockHeader:
    """Reads the header at ``buf[at]``, and checks only the header: its crc, its limits, and that its lengths add up.
    Takes constant time and space, whatever the bytes are. Raises ``BadBody``, or ``WrongVersion`` if the crc is
    correct. A header of any version has 64 bytes, with the version first and the crc last."""
    if at < 0 or len(buf) - at < BLOCK_BYTES:
        raise BadBody(f"{max(len(buf) - at, 0)} bytes are no block header")
    version, flags, kind, zero, count, *rest = BLOCK.unpack_from(buf, at)
    term, first_vlsn, dtvlsn, clock_us, submissions, key_bytes, value_bytes, body_bytes, body_crc, header_crc = rest
    if crc(buf[at : at + _COVERED]) != header_crc:
        raise BadBody("block header crc")
    if version != VERSION:
        raise unread("a block", version, VERSION)
    if zero or flags & ~SUPPORTED:
        raise BadBody(f"block flags {flags:#x} are not supported")
    if (kind == KIND_COLUMN) != bool(flags & KINDS) or (kind != KIND_COLUMN and kind >= len(EntryKind)):
        raise BadBody(f"block kind {kind} with flags {flags:#x}")
    if not 1 <= count <= BATCH_ENTRIES_MAX or submissions > count or (flags & PRODUCERS and not submissions):
        raise BadBody(f"block of {count} entries from {submissions} submissions")
    if not (1 <= term <= NUMBER_MAX and dtvlsn < first_vlsn <= NUMBER_MAX - count and clock_us <= NUMBER_MAX):
        raise BadBody(f"block of term {term} from VLSN {first_vlsn} with DTVLSN {dtvlsn} at {clock_us}")
    if bool(flags & KEYS) != bool(key_bytes):
        raise BadBody(f"block with {key_bytes} bytes of keys and flags {flags:#x}")
    if body_bytes > BODY_BYTES_MAX or (
        BLOCK_BYTES + body_bytes != layout(flags, count, key_bytes, value_bytes, submissions).end
    ):
        raise BadBody(f"block body of {body_bytes} bytes for {count} entries of {key_bytes} + {value_bytes}")
    return BlockHeader(
        version,
        flags,
        kind,
        count,
        term,
        first_vlsn,
        dtvlsn,
        clock_us,
        submissions,
        key_bytes,
        value_bytes,
        body_bytes,
        body_crc,
        header_crc,
    )


def check_body(block: Buffer, header: BlockHeader) -> None:
    """Checks the part of a block that ``decode_header`` cannot check. ``block`` starts at the block's header, and may
    be longer than the block. Raises ``BadBody``."""
    end = BLOCK_BYTES + header.body_bytes
    if len(block) < end:
        raise BadBody(f"a block of {end} bytes in {len(block)}")
    if crc(memoryview(block)[BLOCK_BYTES:end]) != header.body_crc:
        raise BadBody("block body crc")
    check_contents(block, header)


def check_contents(block: Buffer, header: BlockHeader) -> None:
    """Checks the content of a block's columns, if the checksums were found correct. Raises ``BadBody``."""
    lay = header.layout
    check_columns(block, lay, header.count, header.key_bytes, header.value_bytes)
    if header.flags & (KINDS | TXNS):
        check_kinds_and_transactions(block, header, lay)
    if lay.producers >= 0:
        producer_columns.check(block, lay.producers, header.submissions, header.count)


def check_kinds_and_transactions(block: Buffer, header: BlockHeader, lay: Layout) -> None:
    """Checks the columns of kinds and transactions of a block. Raises ``BadBody``, or ``BadTransaction`` if the block
    has an incomplete transaction."""
    count = header.count
    if lay.kinds >= 0:
        kinds = bytes(block[lay.kinds : lay.kinds + count])
        if kinds.translate(None, _ALL_KINDS) or kinds.count(kinds[0]) == count:
            raise BadBody("unknown kinds, or a column of one kind")
        check_zero(block, lay.kinds + count, lay.txns if lay.txns >= 0 else _after_kinds(lay))
    if lay.txns >= 0:
        txns = bytes(block[lay.txns : lay.txns + 8 * count])
        if txns.count(0) == len(txns):
            raise BadBody("a column of zeros")
        check_transactions(txns, kinds if lay.kinds >= 0 else bytes([header.kind]) * count, header.first_vlsn)


def _after_kinds(lay: Layout) -> int:
    return min(at for at in (lay.producers, lay.key_offsets, lay.value_offsets) if at >= 0)


def check_producers(block: Buffer, header: BlockHeader) -> None:
    """Checks that the producer columns of a block can be read. The block must have such columns. Raises ``BadBody``."""
    producer_columns.check(block, header.layout.producers, header.submissions, header.count)


def producers(block: Buffer, header: BlockHeader) -> list[producer_columns.Produced]:
    """Lists the submissions of a checked block that have a producer, in order."""
    if not header.flags & PRODUCERS:
        return []
    at = header.layout.producers
    return producer_columns.produced(block, at, header.submissions, header.first_vlsn, header.term)


def entries(
    block: Buffer, header: BlockHeader, *, from_vlsn: int = 0, kinds: frozenset[int] | None = None
) -> list[Entry]:
    """Returns the entries of a checked block from ``from_vlsn`` on, of ``kinds`` (None: all kinds), with copies of
    their values."""
    skip = max(from_vlsn - header.first_vlsn, 0)
    if skip >= header.count or _unwanted(header, kinds):
        return []
    lay = header.layout
    return _entries(block, header, lay, skip, header.count - skip, kinds)


def take(
    block: Buffer, header: BlockHeader, *, from_vlsn: int, limit: int, bytes_max: int, kinds: frozenset[int] | None
) -> tuple[list[Entry], Vlsn, int]:
    """Returns at most ``limit`` entries from ``from_vlsn`` on, with at most ``bytes_max`` bytes of keys and values, but
    at least one entry. Also returns the VLSN after the last entry that was examined, and the bytes of all examined
    entries. The cost of this function depends only on the examined entries, however large the block is."""
    skip = from_vlsn - header.first_vlsn
    assert 0 <= skip < header.count and limit > 0
    if _unwanted(header, kinds):
        return [], Vlsn(header.last_vlsn + 1), 0
    lay = header.layout
    count, size = header.count, header.key_bytes + header.value_bytes
    if skip or count > limit or (count > 1 and size > bytes_max):
        columns = (lay.value_offsets, lay.key_offsets) if lay.keys >= 0 else (lay.value_offsets,)
        count, size = works().fitting(block, columns, skip, min(limit, count - skip), bytes_max)
    return _entries(block, header, lay, skip, count, kinds), Vlsn(from_vlsn + count), size


def _unwanted(header: BlockHeader, kinds: frozenset[int] | None) -> bool:
    return kinds is not None and header.kind != KIND_COLUMN and header.kind not in kinds


def _entries(
    block: Buffer, header: BlockHeader, lay: Layout, skip: int, count: int, kinds: frozenset[int] | None
) -> list[Entry]:
    term, time, first = header.term, header.clock_us, header.first_vlsn + skip
    values = cut(block, lay.value_offsets, lay.values, count, skip)
    if not header.flags & ~PRODUCERS:
        kind = header.kind
        return [Entry(vlsn, term, time, kind, 0, None, value) for vlsn, value in enumerate(values, first)]  # type: ignore[arg-type]
    keys: Sequence[bytes | None] = [None] * count
    if lay.keys >= 0:
        keys = [key or None for key in cut(block, lay.key_offsets, lay.keys, count, skip)]
    kind_of = block[lay.kinds + skip : lay.kinds + skip + count] if lay.kinds >= 0 else bytes([header.kind]) * count
    txns = _u64s(block, lay.txns + 8 * skip, count) if lay.txns >= 0 else [0] * count
    rows = zip(range(first, first + count), kind_of, txns, keys, values, strict=True)
    return [
        Entry(Vlsn(vlsn), term, time, kind, txn, key, value)
        for vlsn, kind, txn, key, value in rows
        if kinds is None or kind in kinds
    ]


def _u64s(block: Buffer, at: int, count: int) -> list[int]:
    return memoryview(block)[at : at + 8 * count].cast("Q").tolist()


def entry(block: Buffer, header: BlockHeader, vlsn: Vlsn) -> Entry:
    """Returns the entry at ``vlsn`` of a checked block. The block must contain ``vlsn``."""
    number = vlsn - header.first_vlsn
    lay = header.layout
    kind, txn, key = header.kind, 0, None
    if lay.kinds >= 0:
        kind = block[lay.kinds + number]
    if lay.txns >= 0:
        txn = int.from_bytes(block[lay.txns + 8 * number : lay.txns + 8 * number + 8], "little")
    if lay.keys >= 0:
        start, end = _PAIR.unpack_from(block, lay.key_offsets + 4 * number)
        key = bytes(block[lay.keys + start : lay.keys + end]) or None
    start, end = _PAIR.unpack_from(block, lay.value_offsets + 4 * number)
    value = bytes(block[lay.values + start : lay.values + end])
    return Entry(vlsn, header.term, header.clock_us, kind, txn, key, value)


# Building.


def build(
    *,
    term: int,
    first_vlsn: int,
    dtvlsn: int,
    clock_us: int,
    kind: int | Sequence[int],
    columns: Columns,
    submissions: int,
) -> bytes:
    """Builds a complete block. ``kind`` is the kind of all entries, or a sequence with the kind of each entry."""
    flags, kinds = columns.flags, b""
    if not isinstance(kind, int):
        kinds = bytes(kind)
        kind = KIND_COLUMN if kinds.count(kinds[0]) < len(kinds) else kinds[0]
        flags |= KINDS if kind == KIND_COLUMN else 0
    return seal_body(
        body_parts(columns, kinds if flags & KINDS else b""),
        flags=flags,
        kind=kind,
        count=columns.count,
        term=term,
        first_vlsn=first_vlsn,
        dtvlsn=dtvlsn,
        clock_us=clock_us,
        submissions=submissions,
        key_bytes=len(columns.keys),
        value_bytes=len(columns.values),
    )


def seal_body(
    body: Sequence[Buffer],
    body_crc: int | None = None,
    *,
    flags: int,
    kind: int,
    count: int,
    term: int,
    first_vlsn: int,
    dtvlsn: int,
    clock_us: int,
    submissions: int,
    key_bytes: int,
    value_bytes: int,
) -> bytes:
    """Builds a block from the pieces of a body that is already laid out. The body is copied once. If ``body_crc`` is
    not passed, it is computed here."""
    assert dtvlsn < first_vlsn and term >= 1 and 1 <= count <= BATCH_ENTRIES_MAX and submissions <= count
    size = 0
    for part in body:
        size += len(part)
    if body_crc is None:
        body_crc = 0
        for part in body:
            body_crc = crc(part, body_crc)
    head = _HEAD.pack(
        VERSION,
        flags,
        kind,
        0,
        count,
        term,
        first_vlsn,
        dtvlsn,
        clock_us,
        submissions,
        key_bytes,
        value_bytes,
        size,
        body_crc,
    )
    return b"".join((head, crc(head).to_bytes(4, "little"), *body))


_HEAD = Struct("<BBBBIQQQQIIIII")
assert _HEAD.size == _COVERED
