"""Flushes: the changes that one transaction brings into the index's store.

*Commit point*: that transaction's own.  Before it the store is as it was, and recovery tracks the rest again
from the checkpoint's start; after it the buckets, the range and the checkpoint's id are there together.
"""

from __future__ import annotations

from dataclasses import dataclass

from vlsn.index.bucket import Bucket, bucket_key
from vlsn.index.stored import RECORD_KEY, Record
from vlsn.seams import KeyValue


@dataclass(frozen=True, slots=True)
class Flush:
    """A snapshot of the data to write; ``run`` on the store's thread."""

    store: KeyValue
    record: Record
    tracked: tuple[Bucket, ...]
    """The tracker's, ascending: they leave it when the flush is finished."""
    patches: tuple[Bucket, ...] = ()
    """Others, in place of the dropped ones."""
    drops: tuple[tuple[bytes, bytes], ...] = ()
    """Ranges of keys that the store has too much, end exclusive."""
    times: tuple[tuple[bytes, bytes], ...] = ()
    """The records of the time index that changed."""

    def run(self) -> None:
        """Writes the flush in one transaction. Blocking; durable on return. Raises ``LogFailed``."""
        puts = [(bucket_key(bucket.first), bucket.encode()) for bucket in (*self.patches, *self.tracked)]
        self.store.write([*puts, *self.times, (RECORD_KEY, self.record.encode())], delete_ranges=self.drops)
