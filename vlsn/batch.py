"""A client's batch: what a producer sends, and what the master seals untouched when it is alone in its group.

    0    4       5     6 8     12        16          20         24       28         32
    |VLB1|version|flags|0|count|key_bytes|value_bytes|body_bytes|body_crc|header_crc| key_offsets | value_offsets | …

The body is laid out exactly as a block's (``columns.py``) with no kinds and no transactions, which a client
never sets by hand.  Both headers are multiples of 8 bytes, so the body's bytes and its crc are a block's.
``header_crc`` is over bytes 0–27.  An empty key is no key.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct

from msgspec import Struct as Record

from vlsn.checksum import crc
from vlsn.columns import BODY_AT, KEYS, Layout, body_parts, check_columns, columns_of, cut, layout
from vlsn.errors import BadBody, TooLarge
from vlsn.limits import BATCH_ENTRIES_MAX, BODY_BYTES_MAX, ENTRY_BYTES_MAX, KEY_BYTES_MAX
from vlsn.seams import Buffer

BATCH = Struct("<4sBBHIIIIII")
BATCH_BYTES = 32
MAGIC = b"VLB1"
VERSION = 1
ENTRY_OVERHEAD_BYTES = 8
"""What an entry adds to a block beside its bytes: an offset in each of two columns."""

_HEAD = Struct("<4sBBHIIIII")
_COVERED = BATCH_BYTES - 4

assert BATCH.size == BATCH_BYTES and BATCH_BYTES % 8 == 0
assert _HEAD.size == _COVERED


class Batch(Record, frozen=True, gc=False):
    """A batch that passed every check; ``body`` is a view into what was received."""

    count: int
    flags: int
    key_bytes: int
    value_bytes: int
    body_crc: int
    body: memoryview

    @property
    def bytes(self) -> int:
        """What it takes at most of a block and of the queue."""
        return self.key_bytes + self.value_bytes + ENTRY_OVERHEAD_BYTES * self.count

    @property
    def keyed(self) -> bool:
        return self.flags != 0

    @property
    def layout(self) -> Layout:
        """Its columns, counted from 64 bytes before ``body``, as in a block."""
        return layout(self.flags, self.count, self.key_bytes, self.value_bytes)


def encode(values: Sequence[bytes], keys: Sequence[bytes | None] | None = None) -> bytes:
    """One batch.  Raises ``BadBody`` for no values, or keys of another number, ``TooLarge`` past the limits
    on its count and size; the limits on one entry and one key are its receiver's."""
    return b"".join(encode_parts(values, keys))


def encode_parts(values: Sequence[bytes], keys: Sequence[bytes | None] | None = None) -> list[Buffer]:
    """The same in pieces, for a sender that gathers them itself."""
    if not values or (keys is not None and len(keys) != len(values)):
        raise BadBody(f"a batch of {len(values)} values and {len(keys or ())} keys")
    columns = columns_of(values, key_column(keys))
    body = body_parts(columns)
    size, total = 0, 0
    for part in body:
        size += len(part)
        total = crc(part, total)
    if columns.count > BATCH_ENTRIES_MAX or size > BODY_BYTES_MAX:
        raise TooLarge(f"{columns.count} entries, {size} bytes; at most {BATCH_ENTRIES_MAX}, {BODY_BYTES_MAX}")
    key_bytes, value_bytes = len(columns.keys), len(columns.values)
    head = _HEAD.pack(MAGIC, VERSION, columns.flags, 0, columns.count, key_bytes, value_bytes, size, total)
    return [head + crc(head).to_bytes(4, "little"), *body]


def key_column(keys: Sequence[bytes | None] | None) -> list[bytes] | None:
    """Keys with the absent ones as empty; None when no entry has one."""
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
    """The batch that fills ``data`` exactly, every check made and nothing copied.  Raises ``BadBody`` for
    what is not its format, ``TooLarge`` for what is over a limit."""
    if len(data) < BATCH_BYTES:
        raise BadBody(f"{len(data)} bytes are no batch")
    magic, version, flags, zero, count, *lengths, body_crc, header_crc = BATCH.unpack_from(data)
    key_bytes, value_bytes, body_bytes = lengths
    if magic != MAGIC or version != VERSION:
        raise BadBody(f"not a batch of version {VERSION}")
    if crc(data[:_COVERED]) != header_crc:
        raise BadBody("batch header crc")
    if zero or flags & ~KEYS or bool(flags) != bool(key_bytes):
        raise BadBody(f"batch flags {flags:#x} with {key_bytes} bytes of keys")
    if count > entries_max or body_bytes > body_bytes_max:
        raise TooLarge(f"a batch of {count} entries, {body_bytes} bytes; at most {entries_max}, {body_bytes_max}")
    lay = layout(flags, count, key_bytes, value_bytes)
    if not count or body_bytes != len(data) - BATCH_BYTES or body_bytes != lay.end - BODY_AT:
        raise BadBody(f"batch of {count} entries, body {body_bytes} bytes of {len(data) - BATCH_BYTES}")
    body = memoryview(data)[BATCH_BYTES:]
    if crc(body) != body_crc:
        raise BadBody("batch body crc")
    longest_key, longest_value = check_columns(body, _in_body(lay), count, key_bytes, value_bytes)
    if longest_key > key_bytes_max or longest_value > entry_bytes_max:
        raise TooLarge(f"key {longest_key}, value {longest_value} bytes; at most {key_bytes_max}, {entry_bytes_max}")
    return Batch(count, flags, key_bytes, value_bytes, body_crc, body)


def _in_body(lay: Layout) -> Layout:
    """Columns counted from the body's start; one that is absent stays negative."""
    return Layout(*(at - BODY_AT for at in lay))


def decode_entries(batch: Batch) -> list[tuple[bytes | None, bytes]]:
    """(key, value) of each entry, copied."""
    lay = _in_body(batch.layout)
    values = cut(batch.body, lay.value_offsets, lay.values, batch.count)
    if lay.keys < 0:
        return [(None, value) for value in values]
    keys = cut(batch.body, lay.key_offsets, lay.keys, batch.count)
    return [(key or None, value) for key, value in zip(keys, values, strict=True)]
