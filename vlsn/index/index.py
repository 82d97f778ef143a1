"""The VLSN index: where each VLSN's block lies in this node's log.

1. First and last of the range always have a mapping: at-or-before and at-or-after answer everywhere in it.
2. Mappings lie in the tracker until a flush, then in the store: store, then tracker, never interleaved.
3. Only checkpoint, close, truncation and merge write; a put never does.
4. A put that comes late (out of order) is dropped, since its neighbours find its block; the range learns.
5. What the log says wins: the index is derived, and ``Damaged`` from here means *clear and rebuild*.

    put(1–10), put(21–30) → range {1, 30}: 15 is found through the mapping of 1; then put(11–20): dropped.

Home threads call it under the log latch, which it takes itself as well.  ``Flush.run`` and the methods that
say *blocking* belong on the store's one thread; flushes, truncations and merges exclude each other.
Source: JE ``VLSNIndex``.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from typing import Any

from vlsn import limits
from vlsn.errors import BadArgument, Damaged, VlsnLogError
from vlsn.ids import NULL_VLSN, Lsn, Vlsn
from vlsn.index.bucket import Bucket, Mapping
from vlsn.index.flush import Flush
from vlsn.index.levels import Levels
from vlsn.index.range import EMPTY, VlsnRange
from vlsn.index.stored import END_KEY, FIRST_KEY, RECORD_KEY, Record
from vlsn.index.tracker import Tracker
from vlsn.index.waiters import Cancel, Waiters, Wake
from vlsn.seams import KeyValue


class IndexHole(Damaged):
    """VLSNs between the end of the loaded index and the first block that recovery found: rebuild it."""


@dataclass(frozen=True, slots=True)
class IndexStats:
    """Since the index was made."""

    hits: int
    """Lookups that the tracker answered."""
    misses: int
    """Lookups that went to the store."""
    buckets_created: int
    buckets_deleted: int
    flushes: int


class VlsnIndex:
    """``load`` it, ``merge`` what recovery finds; or ``clear`` it and put the whole log."""

    def __init__(
        self,
        store: KeyValue,
        latch: AbstractContextManager[object],
        *,
        stride: int = limits.INDEX_STRIDE,
        mapping_bytes_min: int = limits.INDEX_MAPPING_BYTES_MIN,
        max_distance: int = limits.INDEX_MAX_DISTANCE_BYTES,
        max_mappings: int = limits.INDEX_MAX_MAPPINGS,
    ) -> None:
        self.epoch = 0
        """Rises when mappings are taken away: a bucket kept from before it may say what is no longer so."""
        self._latch = latch
        self._tracker = Tracker(
            stride=stride, mapping_bytes_min=mapping_bytes_min, max_distance=max_distance, max_mappings=max_mappings
        )
        self._levels = Levels(store, self._tracker)
        self._stored = self._levels.stored
        self._store = store
        self._waiters = Waiters()
        self._hits = self._misses = self._flushes = 0
        self._range = EMPTY
        self._floor = NULL_VLSN
        """Puts below it are of VLSNs that were trimmed, or flushed without them."""
        self._checkpoint_id: int | None = None
        self._loaded = False
        """Nothing was put past what was loaded."""

    @property
    def range(self) -> VlsnRange:
        return self._range

    @property
    def checkpoint_id(self) -> int | None:
        """Of the last flush, or of what was loaded; ``None`` while the store holds nothing."""
        return self._checkpoint_id

    # Putting.

    def put(self, first: Vlsn, last: Vlsn, at: Lsn, *, synced: bool = False, txn_end: Vlsn = NULL_VLSN) -> None:
        """The block ``first`` … ``last`` lies at ``at``.  0.6 µs, 1 µs where its mapping is kept."""
        with self._latch:
            held = self._range
            if first > held.last:
                if self._loaded:
                    self._check_follows(first)
                self._tracker.track(first, last, at)
                self._range = VlsnRange(
                    held.first or first, last, last if synced else held.last_sync, txn_end or held.last_txn_end
                )
            else:
                self._put_late(first, last, at, synced, txn_end)
            due = self._waiters.take(last) if last >= self._waiters.lowest else ()
        for wake in due:
            wake(None)

    def put_run(self, firsts: Sequence[int], lasts: Sequence[int], lsns: Sequence[int]) -> None:
        """Many blocks, ascending; those at or below the range's last are passed over.  0.1 µs a block."""
        with self._latch:
            start = bisect_right(firsts, self._range.last) if firsts and firsts[0] <= self._range.last else 0
            if start:
                self._check_ends(firsts[start - 1], lasts[start - 1])
                firsts, lasts, lsns = firsts[start:], lasts[start:], lsns[start:]
            if not firsts:
                return
            if self._loaded:
                self._check_follows(firsts[0])
            self._tracker.track_run(firsts, lasts, lsns)
            held, last = self._range, Vlsn(lasts[-1])
            self._range = VlsnRange(held.first or Vlsn(firsts[0]), last, held.last_sync, held.last_txn_end)
            due = self._waiters.take(last) if last >= self._waiters.lowest else ()
        for wake in due:
            wake(None)

    def note_synced(self, vlsn: Vlsn) -> None:
        """Everything up to ``vlsn``, which was put before, is synced; never lowers."""
        with self._latch:
            held = self._range
            assert vlsn <= held.last, f"VLSN {vlsn} was synced, but {held.last} is the last one put"
            if vlsn > held.last_sync:
                self._range = VlsnRange(held.first, held.last, vlsn, held.last_txn_end)

    def _put_late(self, first: Vlsn, last: Vlsn, at: Lsn, synced: bool, txn_end: Vlsn) -> None:
        if first < self._floor:
            return
        self._check_ends(first, last)
        held = self._range
        if first < held.first:
            self._tracker.prepend(first, last, at)
        self._range = VlsnRange(
            min(first, held.first),
            held.last,
            max(held.last_sync, last) if synced else held.last_sync,
            max(held.last_txn_end, txn_end),
        )

    def _check_follows(self, first: int) -> None:
        """The first block past what was loaded must be the next one."""
        if self._range.last and first != self._range.last + 1:
            raise IndexHole(
                f"the index ends at VLSN {self._range.last}, the log goes on at {first}", vlsn=self._range.last + 1
            )
        self._loaded = False

    def _check_ends(self, first: int, last: int) -> None:
        if last > self._range.last:
            raise Damaged(f"the index ends at VLSN {self._range.last}, within the block {first}–{last}", vlsn=first)

    # Looking up.

    def at_or_before(self, vlsn: Vlsn) -> Mapping | None:
        """The closest mapping at or before ``vlsn``; ``None`` only outside the range.  1 µs, 5 from the store."""
        held = self._range
        if not held.first <= vlsn <= held.last or vlsn == NULL_VLSN:
            return None
        with self._latch:
            found = self._tracker.at_or_before(vlsn)
            if found is not None:
                self._hits += 1
                return found
        bucket = self._stored_at_or_before(vlsn)
        return None if bucket is None else bucket.at_or_before(vlsn)

    def exact(self, vlsn: Vlsn) -> Lsn | None:
        """The LSN of the block that begins at ``vlsn``, where the index happens to map it."""
        found = self.at_or_before(vlsn)
        return found[1] if found is not None and found[0] == vlsn else None

    def at_or_after(self, vlsn: Vlsn) -> Mapping | None:
        """The closest mapping at or after ``vlsn``; past the last mapping, that one.  ``None`` only outside
        the range."""
        while vlsn in self._range:
            covered = self._levels.covered
            found = self._stored_at_or_after(vlsn, covered) if vlsn <= covered else None
            if found is None:
                with self._latch:
                    found = self._tracker.at_or_after(vlsn)
                    self._hits += 1
            if found is not None or (found := self.at_or_before(vlsn)) is not None:
                return found
        return None

    def bucket_at_or_before(self, vlsn: Vlsn) -> Bucket | None:
        """The bucket that answers ``at_or_before(vlsn)``, as it is now; ``None`` only outside the range."""
        if vlsn not in self._range:
            return None
        with self._latch:
            found = self._tracker.bucket_at_or_before(vlsn)
            if found is not None:
                self._hits += 1
                return found if isinstance(found, Bucket) else found.freeze()
        return self._stored_at_or_before(vlsn)

    def _stored_at_or_before(self, vlsn: Vlsn) -> Bucket | None:
        epoch = self.epoch
        self._misses += 1
        bucket = self._stored.at_or_before(vlsn)
        while bucket is None and vlsn in self._range:
            if epoch == self.epoch:
                raise Damaged(f"the index ({self._range}) has no mapping at or before VLSN {vlsn}", vlsn=vlsn)
            epoch = self.epoch
            bucket = self._stored.at_or_before(vlsn)
        return bucket

    def _stored_at_or_after(self, vlsn: Vlsn, covered: Vlsn) -> Mapping | None:
        self._misses += 1
        bucket = self._stored.at_or_before(vlsn)
        found = bucket.at_or_after(vlsn) if bucket is not None else None
        if found is not None:
            return found
        bucket = self._stored.at_or_after(vlsn)
        return bucket.at_or_after(vlsn) if bucket is not None and bucket.first <= covered else None

    # Waiting.

    def wait_for(self, vlsn: Vlsn, wake: Wake) -> Cancel:
        """Calls ``wake(None)`` when ``vlsn`` is put, at once if it is there, in the thread that puts it;
        ``wake(error)`` when the wait ends without it.  Once, and never after the returned call."""
        with self._latch:
            if vlsn > self._range.last:
                number = self._waiters.add(vlsn, wake)
                return lambda: self._stop_waiting(number)
        wake(None)
        return lambda: None

    def fail_waiters(self, error: VlsnLogError) -> None:
        """Ends every wait, at a role change or close."""
        with self._latch:
            ended = self._waiters.take_all()
        for wake in ended:
            wake(error)

    def _stop_waiting(self, number: int) -> None:
        with self._latch:
            self._waiters.remove(number)

    # Writing the store.

    def start_flush(self, checkpoint_id: int) -> Flush:
        """At home: what a checkpoint writes; then ``run`` on the store's thread, then ``finish_flush``."""
        with self._latch:
            self._floor = self._range.first
            return self._levels.start_flush(Record(checkpoint_id, self._range))

    def finish_flush(self, flush: Flush) -> None:
        """At home, after ``run``: what was written leaves the tracker."""
        with self._latch:
            self._levels.finish_flush(flush)
            self._checkpoint_id = flush.record.checkpoint_id
            self._flushes += 1

    def truncate_tail(self, matchpoint: Vlsn, matchpoint_lsn: Lsn, *, block_first: Vlsn = NULL_VLSN) -> None:
        """Nothing after ``matchpoint`` is in the range any more; its block, ``block_first`` … ``matchpoint`` at
        ``matchpoint_lsn``, becomes the last mapping.  Where ``block_first`` is not given, the closest one at or
        before does.  Before the range's first the range becomes empty; at or past its last nothing changes.
        Blocking; durable on return."""
        with self._latch:
            if matchpoint >= self._range.last:
                return
            self._cut_tail(matchpoint, (block_first, matchpoint_lsn) if block_first else None)
        self._commit()

    def truncate_head(self, first_kept: Vlsn, first_lsn: Lsn) -> None:
        """Cleaning's: the range begins at ``first_kept`` from now on, the first VLSN of the visible block at
        ``first_lsn``, which becomes the first mapping, wherever in a bucket or a gap it lies.  Durable on return:
        only then may files go that lie before ``first_lsn``.

        On the store's thread, blocking, while checkpoints and rollbacks are held (``Checkpointer.hold``); puts
        and lookups may go on.  At or before the range's first it changes nothing, so that a cleaning that was
        stopped can be done again.  Raises ``BadArgument`` past the range's last, ``LogFailed``."""
        with self._latch:
            if first_kept <= self._range.first:
                return
            if first_kept > self._range.last:
                raise BadArgument(f"VLSN {first_kept} is past the last, {self._range.last}: nothing would be left")
            self._levels.cut_head(first_kept, first_lsn)
            self._floor = first_kept
            self._range = self._range.cut_head(first_kept)
            self.epoch += 1
        self._commit()

    def merge(self, firsts: Sequence[int], lasts: Sequence[int], lsns: Sequence[int]) -> None:
        """What recovery found, ascending, from the checkpoint's start to the log's end, overmarked blocks left
        out: it replaces all that was loaded from ``firsts[0]`` on.  Raises ``IndexHole``.  Blocking; durable
        on return."""
        with self._latch:
            self._levels.check_idle()
            below = bisect_left(firsts, self._range.first)
            firsts, lasts, lsns = firsts[below:], lasts[below:], lsns[below:]
            if firsts and firsts[0] <= self._range.last:
                self._cut_tail(Vlsn(firsts[0] - 1), None)
            self.put_run(firsts, lasts, lsns)
            self._loaded = False
        if firsts:
            self._commit()

    def load(self) -> int | None:
        """Takes over what the store holds: its checkpoint's id, ``None`` when it holds nothing.  Raises
        ``Damaged``.  What lies between the first and the last bucket is checked when it is read, or by
        ``verify``."""
        record = self._stored.record()
        with self._latch:
            self._forget()
            if record is None:
                return None
            self._checkpoint_id = record.checkpoint_id
            self._range = record.range
            self._floor, self._levels.covered = record.range.first, record.range.last
            self._loaded = not record.range.empty
            return record.checkpoint_id

    def clear(self) -> None:
        """Empties range and store.  Blocking; durable on return."""
        with self._latch:
            self._levels.check_idle()
            self._forget()
        self._store.write(deletes=[RECORD_KEY], delete_ranges=[(FIRST_KEY, END_KEY)])

    def close(self) -> None:
        """Closes the store, without a flush."""
        self._store.close()

    def _commit(self) -> None:
        """What was cut, and all that is tracked, under the checkpoint that the store is of."""
        if self._checkpoint_id is None:
            self._levels.nothing_stored()
            return
        flush = self.start_flush(self._checkpoint_id)
        flush.run()
        self.finish_flush(flush)

    def _cut_tail(self, last: Vlsn, cap: Mapping | None) -> None:
        left = self._range.cut_tail(last)
        if left.empty:
            self._levels.cut_all()
            self._floor = NULL_VLSN
        else:
            self._levels.cut_tail(last, cap)
        self._range = left
        self.epoch += 1

    def _forget(self) -> None:
        self.epoch += 1
        self._levels.forget()
        self._range = EMPTY
        self._floor = NULL_VLSN
        self._checkpoint_id = None
        self._loaded = False

    # Looking at it.

    def stats(self) -> IndexStats:
        return IndexStats(self._hits, self._misses, self._tracker.created, self._levels.deleted, self._flushes)

    def mappings(self) -> Iterator[Mapping]:
        """All of them, ascending; a walk that nothing may truncate meanwhile."""
        for bucket in self.buckets():
            yield from bucket.mappings()

    def buckets(self) -> Iterator[Bucket]:
        """All of them, ascending, those in the store first."""
        for bucket in self._stored.all():
            if bucket.first > self._levels.covered:
                break
            yield bucket
        with self._latch:
            current = self._tracker.current
            tracked = [*self._tracker.buckets, *([current.freeze()] if current else ())]
        yield from tracked

    def verify(self) -> None:
        """Every bucket's order, that none overlap, and that they begin and end as the range.  Raises
        ``Damaged``; O(n).  Whether a mapping's block is there, the log alone can tell."""
        end, first = NULL_VLSN, NULL_VLSN
        for bucket in self.buckets():
            bucket.verify()
            if bucket.first <= end:
                raise Damaged(f"the index bucket at {bucket.first} begins before {end}, where one ends", vlsn=end)
            first, end = first or bucket.first, bucket.last
        if (first, end) != (self._range.first, self._range.last):
            raise Damaged(f"the index's buckets cover {first}–{end}, its range is {self._range}", vlsn=first)

    def describe(self) -> dict[str, Any]:
        """For ``vlsnlog index``: range, checkpoint, and every bucket."""
        held = self._range
        covered = self._levels.covered
        return {
            "range": {
                "first": held.first,
                "last": held.last,
                "last_sync": held.last_sync,
                "last_txn_end": held.last_txn_end,
            },
            "checkpoint": self._checkpoint_id,
            "waiters": len(self._waiters),
            "stats": asdict(self.stats()),
            "buckets": [
                {
                    "first": bucket.first,
                    "last": bucket.last,
                    "file": bucket.file,
                    "mappings": len(bucket),
                    "stored": bucket.first <= covered,
                }
                for bucket in self.buckets()
            ],
        }
