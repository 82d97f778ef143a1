"""Flushes. A flush is a set of changes that one transaction makes to the index's store.

The *commit point* of a flush is the commit of its transaction. Before the commit, the store is unchanged, and a
recovery would index the log again from the checkpoint's start. After the commit, the buckets, the range and the
checkpoint's id are stored together.
"""

from __future__ import annotations

from dataclasses import dataclass

from vlsn.index.bucket import Bucket, bucket_key
from vlsn.index.stored import RECORD_KEY, Record
from vlsn.seams import KeyValue


@dataclass(frozen=True, slots=True)
class Flush:
    """A snapshot of the data that one flush writes. ``run`` is called on the store's thread."""

    store: KeyValue
    record: Record
    tracked: tuple[Bucket, ...]
    """The tracker's buckets (those not stored yet), ascending. The tracker drops its buckets when the flush is
    finished."""
    patches: tuple[Bucket, ...] = ()
    """Buckets that replace stored buckets."""
    drops: tuple[tuple[bytes, bytes], ...] = ()
    """Ranges of keys to delete from the store, with exclusive ends."""
    times: tuple[tuple[bytes, bytes], ...] = ()
    """The changed records of the time index, as keys and values."""

    def run(self) -> None:
        """Writes the flush in one transaction. The call blocks, and the changes are durable on return. Raises
        ``LogFailed`` if the store cannot be written."""
        puts = [(bucket_key(bucket.first), bucket.encode()) for bucket in (*self.patches, *self.tracked)]
        self.store.write([*puts, *self.times, (RECORD_KEY, self.record.encode())], delete_ranges=self.drops)
