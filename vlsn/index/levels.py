"""The two levels of the index: buckets in the store and, for later VLSNs, buckets in the tracker (in memory).

    store                          | tracker
    1–400   401–780   …   covered  |  covered+1 …   current

1. The store has the VLSNs up to ``covered``, and the tracker has the later VLSNs. A bucket is in either store or
   tracker.
2. A cut changes the tracker at once. A cut also records which keys have to be deleted from the store (``drops``), and
   which buckets have to be added (``patches``). The caller of a cut then runs a flush, which writes these deletions and
   additions.
3. Lookups are right even before the flush of a cut, since nothing in the store has changed below ``covered``.
"""

from __future__ import annotations

from bisect import bisect_right

from vlsn.errors import Damaged
from vlsn.ids import NULL_LSN, NULL_VLSN, Lsn, Vlsn, lsn_file
from vlsn.index.bucket import Bucket, Mapping, bucket_key, single
from vlsn.index.flush import Flush
from vlsn.index.stats import IndexStats
from vlsn.index.stored import END_KEY, FIRST_KEY, Record, StoredBuckets
from vlsn.index.tracker import Tracker
from vlsn.seams import KeyValue


class Levels:
    """The two levels of one index. Every method is called under the log's latch."""

    __slots__ = (
        "_drops",
        "_patches",
        "_stats",
        "_store",
        "covered",
        "flushing",
        "head",
        "stored",
        "tail_lsn",
        "tracker",
    )

    def __init__(self, store: KeyValue, tracker: Tracker, stats: IndexStats) -> None:
        self.tracker = tracker
        self.stored = StoredBuckets(store)
        self._store = store
        self._stats = stats
        self.forget()

    def forget(self) -> None:
        """Empties store and tracker, as seen by lookups; the store itself does not change."""
        self.tracker.clear()
        self.stored.wounded = False
        self.covered: Vlsn = NULL_VLSN
        self.head: Mapping = NULL_VLSN, NULL_LSN
        """The first mapping of the range. A lookup returns this mapping if no closer one can be read from the store."""
        self.tail_lsn: Lsn = NULL_LSN
        """The LSN of the last mapping at the last flush."""
        self.flushing = False
        """True while a flush of a checkpoint or of a cut is under way."""
        self._patches: list[Bucket] = []
        self._drops: list[tuple[bytes, bytes]] = []

    def start_flush(self, record: Record) -> Flush:
        self.check_idle()
        self.tracker.close_current()
        tracked = tuple(self.tracker.buckets)
        end = tracked[-1].last if tracked else self.covered
        assert end == record.range.last, f"the buckets end at {end}, the range at {record.range.last}"
        flush = Flush(self._store, record, tracked, tuple(self._patches), tuple(self._drops))
        self.nothing_stored()
        self.flushing = True
        return flush

    def tail(self, flush: Flush) -> Lsn:
        """Returns the LSN of the last mapping after ``flush`` has run."""
        for bucket in (*flush.patches, *flush.tracked):
            if bucket.last == flush.record.range.last:
                self.tail_lsn = bucket.at_or_before(bucket.last)[1]
        return self.tail_lsn

    def finish_flush(self, flush: Flush) -> None:
        self.tracker.forget(len(flush.tracked))
        self.covered = flush.record.range.last
        self.flushing = False

    def nothing_stored(self) -> None:
        """Forgets what cuts have recorded for the store, since no flush is needed, or a flush already includes it."""
        self._patches, self._drops = [], []

    def check_idle(self) -> None:
        assert not self.flushing, "flushes, truncations and merges exclude each other"

    def cut_tail(self, last: Vlsn, cap: Mapping | None) -> None:
        """Removes everything after VLSN ``last``. If the block that ends at ``last`` is known, ``cap`` is its
        mapping."""
        self.check_idle()
        tracker = self.tracker
        tracker.close_current()
        before = len(tracker.buckets)
        at = cap[0] if cap else last
        kept = [bucket for bucket in tracker.buckets if bucket.first <= at]
        if kept:
            kept[-1:] = _cut_bucket(kept[-1], last, cap)
        else:
            straddling = self.stored.readable_at_or_before(at) or single(self.head[0], *self.head)
            kept = _cut_bucket(straddling, last, cap)
            self._drop_from(straddling.first)
        tracker.buckets = kept
        self._stats.buckets_deleted += max(0, before - len(kept))

    def cut_all(self) -> None:
        self.check_idle()
        self.tracker.close_current()
        self._stats.buckets_deleted += len(self.tracker.buckets)
        self.tracker.clear()
        self.head = NULL_VLSN, NULL_LSN
        self._drop_from(NULL_VLSN)

    def cut_head(self, first: Vlsn, at: Lsn) -> None:
        """Removes everything before VLSN ``first``, the first VLSN of the block at LSN ``at``."""
        self.check_idle()
        tracker = self.tracker
        tracker.close_current()
        if first <= self.covered:
            straddling = self.stored.readable_at_or_before(first)
            if straddling is None or straddling.first != first:
                self._patches.append(_cap_head(straddling, first, at))
        else:
            gone = bisect_right(tracker.buckets, first, key=lambda bucket: bucket.first)
            last_gone = tracker.buckets[gone - 1] if gone else None
            kept = [last_gone] if last_gone and last_gone.first == first else [_cap_head(last_gone, first, at)]
            tracker.buckets[:gone] = kept
            self._stats.buckets_deleted += max(0, gone - 1)
        self.head = first, at
        self._drop(FIRST_KEY, bucket_key(first))

    def _drop_from(self, first: Vlsn) -> None:
        self._drop(bucket_key(first), END_KEY)
        self.covered = Vlsn(max(first - 1, NULL_VLSN))

    def _drop(self, start: bytes, end: bytes) -> None:
        self._stats.buckets_deleted += self.stored.count(start, end)
        self._drops.append((start, end))


def _cut_bucket(bucket: Bucket, last: Vlsn, cap: Mapping | None) -> list[Bucket]:
    """Returns the part of ``bucket`` up to ``last``, and a bucket for ``cap``, which may be in a later segment."""
    if cap is None or lsn_file(cap[1]) == bucket.file:
        return [bucket.cut_tail(last, cap)]
    _check_before(bucket, *cap)
    return [bucket.cut_tail(Vlsn(min(bucket.last, cap[0] - 1)), None), single(cap[0], last, cap[1])]


def _cap_head(bucket: Bucket | None, first: Vlsn, at: Lsn) -> Bucket:
    """Returns the bucket that begins with the block whose first VLSN is ``first``, at LSN ``at``."""
    if bucket is None or bucket.last < first:
        return single(first, first, at)
    if bucket.file == lsn_file(at):
        return bucket.cut_head((first, at))
    _check_before(bucket, first, at)
    return single(first, bucket.last, at)


def _check_before(bucket: Bucket, vlsn: Vlsn, at: Lsn) -> None:
    """Checks that ``bucket``, if it belongs to another segment than ``at``, has no mapping at or after ``vlsn``. A
    bucket that was cut at a block without a known mapping may still cover later VLSNs."""
    if bucket.file > lsn_file(at) or bucket.at_or_after(vlsn) is not None:
        raise Damaged(f"the index has VLSN {vlsn} in segment {bucket.file}, the log at {at:#x}", vlsn=vlsn)
