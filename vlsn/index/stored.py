"""The buckets in the store, and the record that describes them.

Keys: ``b`` + first VLSN (big-endian u64) → bucket; ``r`` → the record:

    0       2   4   8       16              24      32     40          48
    |version| 0 | 0 | owner | checkpoint id | first | last | last_sync | last_txn_end |

The record holds the range at the flush that wrote the record, and the id of that flush's checkpoint. The buckets begin
exactly at ``first`` and end exactly at ``last``. ``owner`` is the incarnation of the node whose log is indexed. LSNs
differ between nodes, so another node's index is of no use.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from struct import Struct

from vlsn.errors import Damaged
from vlsn.ids import U64_MAX, Vlsn
from vlsn.index.bucket import Bucket, bucket_key, decode
from vlsn.index.range import VlsnRange
from vlsn.levels import unread
from vlsn.seams import KeyValue

RECORD_KEY = b"r"
RECORD = Struct("<HHIQQQQQQ")
VERSION = 2
FIRST_KEY = bucket_key(Vlsn(0))
END_KEY = bucket_key(Vlsn(U64_MAX)) + b"\0"
LAST_KEY = bucket_key(Vlsn(U64_MAX))

assert RECORD.size == 56
assert END_KEY < RECORD_KEY

UNFINISHED = U64_MAX
"""The checkpoint's id of an index that is being rebuilt. No checkpoint has this id, so half an index is never used."""


@dataclass(frozen=True, slots=True)
class Record:
    checkpoint_id: int
    range: VlsnRange
    owner: int = 0

    def encode(self) -> bytes:
        held = self.range
        landmarks = held.first, held.last, held.last_sync, held.last_txn_end
        return RECORD.pack(VERSION, 0, 0, self.owner, self.checkpoint_id, *landmarks)


def decode_record(value: bytes) -> Record:
    """Decodes the record. Raises ``Damaged`` for bad bytes and for an older version. Raises ``WrongVersion`` for a
    later version, since the checksum was correct."""
    version = int.from_bytes(value[:2], "little")
    if version > VERSION:
        raise unread("a VLSN index", version, VERSION)
    if version != VERSION or len(value) != RECORD.size:
        raise Damaged(f"the index's record has version {version}, not {VERSION}, and {len(value)} bytes")
    _, zero, zero_too, owner, checkpoint_id, *held = RECORD.unpack(value)
    if zero or zero_too:
        raise Damaged("the index's record holds more than it should")
    found = VlsnRange(*map(Vlsn, held))
    found.verify()
    return Record(checkpoint_id, found, owner)


class StoredBuckets:
    """Reads the buckets in the store. Each read is one short transaction on any thread, and sees the state that is
    committed at that moment."""

    __slots__ = ("_store", "wounded")

    def __init__(self, store: KeyValue) -> None:
        self._store = store
        self.wounded = False
        """True if a bucket could not be read. Lookups skip an unreadable bucket until its part of the log is indexed
        again."""

    def record(self) -> Record | None:
        """Reads the record, and compares the record's range with the first and the last bucket. Raises ``Damaged`` if
        the record's range differs from the buckets."""
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
        """Returns the bucket with the highest first VLSN that is at or before ``vlsn``."""
        return self._before(bucket_key(vlsn))

    def at_or_after(self, vlsn: Vlsn) -> Bucket | None:
        """Returns the bucket with the lowest first VLSN that is at or after ``vlsn``."""
        item = self._store.at_or_after(bucket_key(vlsn))
        return decode(*item) if item is not None and item[0] < END_KEY else None

    def readable_at_or_before(self, vlsn: Vlsn) -> Bucket | None:
        """Returns the same as ``at_or_before``, but skips a bucket that cannot be read."""
        try:
            return self.at_or_before(vlsn)
        except Damaged:
            self.wounded = True
            return self._first_readable(reversed(self._keys(FIRST_KEY, bucket_key(vlsn) + b"\0")))

    def readable_at_or_after(self, vlsn: Vlsn) -> Bucket | None:
        """Returns the same as ``at_or_after``, but skips a bucket that cannot be read."""
        try:
            return self.at_or_after(vlsn)
        except Damaged:
            self.wounded = True
            return self._first_readable(self._keys(bucket_key(vlsn), END_KEY))

    def each(self, upto: Vlsn) -> Iterator[Bucket | None]:
        """Yields the buckets that begin at or before ``upto``, ascending. Yields None for each bucket that cannot be
        read or whose mappings do not rise."""
        for key in self._keys(FIRST_KEY, bucket_key(upto) + b"\0"):
            bucket = self._readable(key)
            try:
                if bucket is not None:
                    bucket.verify()
            except Damaged:
                bucket = None
            yield bucket

    def all(self, first: int = 0, last: int = U64_MAX) -> Iterator[Bucket]:
        """Yields the buckets whose first VLSN is ``first`` to ``last``, ascending. Each bucket is read separately, so
        that a long walk holds no snapshot of the store."""
        bucket = self.at_or_after(Vlsn(first))
        while bucket is not None and bucket.first <= last:
            yield bucket
            bucket = self.at_or_after(Vlsn(bucket.first + 1))

    def count(self, start: bytes, end: bytes) -> int:
        return len(self._keys(start, end))

    def _keys(self, start: bytes, end: bytes) -> list[bytes]:
        try:
            return self._store.keys(start, end)
        except Damaged:
            return []

    def _first_readable(self, keys: Iterable[bytes]) -> Bucket | None:
        return next((bucket for key in keys if (bucket := self._readable(key)) is not None), None)

    def _readable(self, key: bytes) -> Bucket | None:
        try:
            value = self._store.get(key)
            return None if value is None else decode(key, value)
        except Damaged:
            return None

    def _before(self, key: bytes) -> Bucket | None:
        item = self._store.at_or_before(key)
        return None if item is None else decode(*item)
