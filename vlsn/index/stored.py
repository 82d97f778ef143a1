"""The buckets that are in the store, and the record over them.

Keys: ``b`` + first VLSN (big-endian u64) → bucket; ``r`` → the record:

    0       2   4   8               16      24     32          40
    |version| 0 | 0 | checkpoint id | first | last | last_sync | last_txn_end |

The record holds the range as of the flush that wrote it and the id of that flush's checkpoint; the buckets
begin at ``first`` and end at ``last``, exactly.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct

from vlsn.errors import Damaged
from vlsn.ids import U64_MAX, Vlsn
from vlsn.index.bucket import Bucket, bucket_key, decode
from vlsn.index.range import VlsnRange
from vlsn.seams import KeyValue

RECORD_KEY = b"r"
RECORD = Struct("<HHIQQQQQ")
VERSION = 1
FIRST_KEY = bucket_key(Vlsn(0))
END_KEY = bucket_key(Vlsn(U64_MAX)) + b"\0"
LAST_KEY = bucket_key(Vlsn(U64_MAX))

assert RECORD.size == 48
assert END_KEY < RECORD_KEY


@dataclass(frozen=True, slots=True)
class Record:
    checkpoint_id: int
    range: VlsnRange

    def encode(self) -> bytes:
        held = self.range
        return RECORD.pack(VERSION, 0, 0, self.checkpoint_id, held.first, held.last, held.last_sync, held.last_txn_end)


def decode_record(value: bytes) -> Record:
    if len(value) != RECORD.size:
        raise Damaged(f"the index's record has {len(value)} bytes, not {RECORD.size}")
    version, zero, zero_too, checkpoint_id, *held = RECORD.unpack(value)
    if version != VERSION or zero or zero_too:
        raise Damaged(f"the index's record has version {version}, not {VERSION}")
    found = VlsnRange(*map(Vlsn, held))
    found.verify()
    return Record(checkpoint_id, found)


class StoredBuckets:
    """Reads: each one short transaction, of what is committed at that moment, from any thread."""

    __slots__ = ("_store",)

    def __init__(self, store: KeyValue) -> None:
        self._store = store

    def record(self) -> Record | None:
        """The record, its range held against the first and the last bucket.  Raises ``Damaged``."""
        value = self._store.get(RECORD_KEY)
        low, high = self.at_or_after(Vlsn(0)), self._before(LAST_KEY)
        if value is None:
            if low is not None:
                raise Damaged(f"the index has a bucket at {low.first}, but no record")
            return None
        record = decode_record(value)
        covers = (low.first, high.last) if low is not None and high is not None else (0, 0)
        if covers != (record.range.first, record.range.last):
            raise Damaged(
                f"the index's buckets cover {covers[0]}–{covers[1]}, its record says "
                f"{record.range.first}–{record.range.last}",
                vlsn=covers[0],
            )
        return record

    def at_or_before(self, vlsn: Vlsn) -> Bucket | None:
        """The bucket with the highest first VLSN that is at or before ``vlsn``."""
        return self._before(bucket_key(vlsn))

    def at_or_after(self, vlsn: Vlsn) -> Bucket | None:
        """The bucket with the lowest first VLSN that is at or after ``vlsn``."""
        item = self._store.at_or_after(bucket_key(vlsn))
        return decode(*item) if item is not None and item[0] < END_KEY else None

    def all(self) -> Iterator[Bucket]:
        """Ascending, one read each, so that a long walk holds no snapshot."""
        bucket = self.at_or_after(Vlsn(0))
        while bucket is not None:
            yield bucket
            bucket = self.at_or_after(Vlsn(bucket.first + 1))

    def count(self, start: bytes, end: bytes) -> int:
        return len(self._store.items(start, end))

    def _before(self, key: bytes) -> Bucket | None:
        item = self._store.at_or_before(key)
        return None if item is None else decode(*item)
