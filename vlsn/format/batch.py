"""A client's batch: the entries of one append, as bytes. If the batch is the only submission in a block, the master
copies its bytes into the block unchanged.

    0    4       5     6 8     12        16          20         24       28         32
    |VLB1|version|flags|0|count|key_bytes|value_bytes|body_bytes|body_crc|header_crc| key_offsets | value_offsets | …

The body is laid out exactly like a block's body (``columns.py``), but without kinds and transactions, which a client
never sets. The body of a producer's batch begins with the producer columns. The headers of batches and blocks are
multiples of 8 bytes long, so a batch's body and its crc can be used in a block unchanged. ``header_crc`` covers bytes
0–27. An empty key means no key.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct

from msgspec import Struct as Record

from vlsn.errors import BadBody, TooLarge
from vlsn.format import producer_columns
from vlsn.format.checksum import crc
from vlsn.format.columns import (
    BODY_AT,
    KEYS,
    PRODUCERS,
    Columns,
    Layout,
    body_parts,
    check_columns,
    columns_of,
    cut,
    layout,
)
from vlsn.levels import unread
from vlsn.limits import BATCH_ENTRIES_MAX, BODY_BYTES_MAX, ENTRY_BYTES_MAX, KEY_BYTES_MAX
from vlsn.seams import Buffer

BATCH = Struct("<4sBBHIIIIII")
BATCH_BYTES = 32
MAGIC = b"VLB1"
VERSION = 1
ENTRY_OVERHEAD_BYTES = 8
"""The bytes that an entry needs in a block besides its key and value: an offset in each of two columns."""

_HEAD = Struct("<4sBBHIIIII")
_COVERED = BATCH_BYTES - 4

assert BATCH.size == BATCH_BYTES and BATCH_BYTES % 8 == 0
assert _HEAD.size == _COVERED


class Batch(Record, frozen=True, gc=False):
    """A batch that has passed every check. ``body`` is a view into the received bytes."""

    count: int
    flags: int
    key_bytes: int
    value_bytes: int
    body_crc: int
    body: memoryview
    producer: int = 0
    """The producer's id, or 0 for no producer. Without a producer there is no sequence."""
    sequence: int = 0

    @property
    def bytes(self) -> int:
        """The most bytes that the batch occupies in a block and in the queue."""
        size = self.key_bytes + self.value_bytes + ENTRY_OVERHEAD_BYTES * self.count
        return size + producer_columns.PRODUCER_BYTES if self.producer else size

    @property
    def keyed(self) -> bool:
        return self.flags & KEYS != 0

    @property
    def layout(self) -> Layout:
        """The places of the batch's columns. The places are counted from 64 bytes before ``body``, as in a block."""
        return layout(self.flags, self.count, self.key_bytes, self.value_bytes, 1)


def encode(
    values: Sequence[bytes], keys: Sequence[bytes | None] | None = None, *, producer: tuple[int, int] | None = None
) -> bytes:
    """Encodes one batch. ``producer`` is the producer's id, from 1, and this submission's sequence. Raises ``BadBody``
    if there are no values, or if the number of keys differs from the number of values. Raises ``TooLarge`` past the
    limits on count and size. The receiver checks the limits on a single entry and key."""
    return b"".join(encode_parts(values, keys, producer=producer))


def encode_parts(
    values: Sequence[bytes], keys: Sequence[bytes | None] | None = None, *, producer: tuple[int, int] | None = None
) -> list[Buffer]:
    """Encodes like ``encode``, but returns the pieces, for a sender that can send several buffers at once."""
    if not values or (keys is not None and len(keys) != len(values)):
        raise BadBody(f"a batch of {len(values)} values and {len(keys or ())} keys")
    columns = columns_of(values, key_column(keys))
    lengths = columns.flags, columns.count, len(columns.keys), len(columns.values)
    return _with_header(body_parts(columns), *lengths, producer)


def encode_columns(columns: Columns) -> bytes:
    """Encodes a batch from columns, without a key column if all keys are empty. Raises the errors of ``encode``."""
    if not columns.count:
        raise BadBody("a batch of 0 values")
    lengths = columns.flags, columns.count, len(columns.keys), len(columns.values)
    return b"".join(_with_header(body_parts(columns), *lengths, None))


def of_producer(parts: Sequence[Buffer], producer: tuple[int, int]) -> list[Buffer]:
    """Rewrites the batch in ``parts`` as a submission of ``producer``. The batch must have no producer yet. The bytes
    after the header do not change."""
    _, _, flags, _, count, key_bytes, value_bytes, _, _, _ = BATCH.unpack_from(parts[0])
    assert not flags & PRODUCERS
    body = [memoryview(parts[0])[BATCH_BYTES:], *parts[1:]]
    return _with_header(body, flags, count, key_bytes, value_bytes, producer)


def _with_header(
    body: Sequence[Buffer], flags: int, count: int, key_bytes: int, value_bytes: int, producer: tuple[int, int] | None
) -> list[Buffer]:
    if producer is not None:
        assert producer[0] and 0 <= producer[1] <= producer_columns.SEQUENCE_MAX
        body = [producer_columns.columns(*([each] for each in (*producer, count))), *body]
        flags |= PRODUCERS
    size, total = 0, 0
    for part in body:
        size += len(part)
        total = crc(part, total)
    if count > BATCH_ENTRIES_MAX or size > BODY_BYTES_MAX:
        raise TooLarge(f"{count} entries, {size} bytes; at most {BATCH_ENTRIES_MAX}, {BODY_BYTES_MAX}")
    head = _HEAD.pack(MAGIC, VERSION, flags, 0, count, key_bytes, value_bytes, size, total)
    return [head + crc(head).to_bytes(4, "little"), *body]


def key_column(keys: Sequence[bytes | None] | None) -> list[bytes] | None:
    """Returns the keys with an empty key for each None, or None if no entry has a key."""
    if keys is None or not any(keys):
        return None
    return [key or b"" for key in keys]


def decode(
    data: Buffer,
    *,
    entry_bytes_max: int = ENTRY_BYTES_MAX,
    key_bytes_max: int = KEY_BYTES_MAX,
    body_bytes_max: int = BODY_BYTES_MAX,
    entries_max: int = BATCH_ENTRIES_MAX,
) -> Batch:
    """Decodes the batch that fills ``data`` exactly. Makes every check and copies nothing. Raises ``BadBody`` for bytes
    of another format, ``TooLarge`` for a batch over a limit, or ``WrongVersion``."""
    if len(data) < BATCH_BYTES:
        raise BadBody(f"{len(data)} bytes are no batch")
    magic, version, flags, zero, count, *lengths, body_crc, header_crc = BATCH.unpack_from(data)
    key_bytes, value_bytes, body_bytes = lengths
    if magic != MAGIC:
        raise BadBody("no batch")
    if crc(data[:_COVERED]) != header_crc:
        raise BadBody("batch header crc")
    if version != VERSION:
        raise unread("a batch", version, VERSION)
    if zero or flags & ~(KEYS | PRODUCERS) or bool(flags & KEYS) != bool(key_bytes):
        raise BadBody(f"batch flags {flags:#x} with {key_bytes} bytes of keys")
    if count > entries_max or body_bytes > body_bytes_max:
        raise TooLarge(f"a batch of {count} entries, {body_bytes} bytes; at most {entries_max}, {body_bytes_max}")
    lay = layout(flags, count, key_bytes, value_bytes, 1)
    if not count or body_bytes != len(data) - BATCH_BYTES or body_bytes != lay.end - BODY_AT:
        raise BadBody(f"batch of {count} entries, body {body_bytes} bytes of {len(data) - BATCH_BYTES}")
    body = memoryview(data)[BATCH_BYTES:]
    if crc(body) != body_crc:
        raise BadBody("batch body crc")
    producer = producer_columns.one(body, 0, count, producer_columns.SEQUENCE_MAX) if flags & PRODUCERS else (0, 0)
    longest_key, longest_value = check_columns(body, _in_body(lay), count, key_bytes, value_bytes)
    if longest_key > key_bytes_max or longest_value > entry_bytes_max:
        raise TooLarge(f"key {longest_key}, value {longest_value} bytes; at most {key_bytes_max}, {entry_bytes_max}")
    return Batch(count, flags, key_bytes, value_bytes, body_crc, body, *producer)


def _in_body(lay: Layout) -> Layout:
    """Converts the places of the columns from places in a block to places in the body. The place of an absent column
    stays negative."""
    return Layout(*[at - BODY_AT for at in lay])


def decode_columns(batch: Batch, skip: int = 0, most: int | None = None) -> tuple[list[bytes] | None, list[bytes]]:
    """Returns copies of the keys (None if no entry has a key) and the values of at most ``most`` entries, after the
    first ``skip`` entries. An empty key means no key."""
    lay, count = _in_body(batch.layout), batch.count - skip if most is None else most
    values = cut(batch.body, lay.value_offsets, lay.values, count, skip)
    return (None if lay.keys < 0 else cut(batch.body, lay.key_offsets, lay.keys, count, skip)), values


def keys_of(batch: Batch) -> list[bytes] | None:
    """Returns copies of the keys, or None if no entry has one."""
    lay = _in_body(batch.layout)
    return None if lay.keys < 0 else cut(batch.body, lay.key_offsets, lay.keys, batch.count)


def decode_entries(batch: Batch) -> list[tuple[bytes | None, bytes]]:
    """Returns copies of the (key, value) of each entry."""
    keys, values = decode_columns(batch)
    if keys is None:
        return [(None, value) for value in values]
    return [(key or None, value) for key, value in zip(keys, values, strict=True)]
