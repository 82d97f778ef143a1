"""Flushes: the changes that one transaction makes to the index's store.

The *commit point* is the commit of that transaction. Before the commit, the store is unchanged, and recovery would
track the rest again from the checkpoint's start. After it, the buckets, the range and the checkpoint's id are stored
together.
"""

from __future__ import annotations

from dataclasses import dataclass

from vlsn.index.bucket import Bucket, bucket_key
from vlsn.index.stored import RECORD_KEY, Record
from vlsn.seams import KeyValue


@dataclass(frozen=True, slots=True)
class Flush:
    """A snapshot of the data to write. ``run`` is called on the store's thread."""

    store: KeyValue
    record: Record
    tracked: tuple[Bucket, ...]
    """The tracker's buckets, ascending. They are removed from the tracker when the flush is finished."""
    patches: tuple[Bucket, ...] = ()
    """Buckets that replace dropped ones."""
    drops: tuple[tuple[bytes, bytes], ...] = ()
    """Ranges of keys to delete from the store, with exclusive ends."""
    times: tuple[tuple[bytes, bytes], ...] = ()
    """The changed records of the time index."""

    def run(self) -> None:
        """Writes the flush in one transaction. The call blocks, and the flush is durable on return. Raises
        ``LogFailed`` if the store cannot be written."""
        puts = [(bucket_key(bucket.first), bucket.encode()) for bucket in (*self.patches, *self.tracked)]
        self.store.write([*puts, *self.times, (RECORD_KEY, self.record.encode())], delete_ranges=self.drops)
