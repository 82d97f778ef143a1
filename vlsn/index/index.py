"""The VLSN index: the LSN of each VLSN's block in this node's log.

1. The first and the last VLSN of the range always have a mapping. So every VLSN in the range has a mapping at or before
   it, and a mapping at or after it.
2. New mappings are in the tracker (in memory); a flush moves them to the store. All mappings in the store are for lower
   VLSNs than the mappings in the tracker.
3. Only a checkpoint, a close, a truncation and a merge write to the store. Adding a block (``put``) never does.
4. Blocks are added in the log's order. A block that was added before is ignored.
5. If the log and the index differ, the log is right, since the index is derived. ``Damaged`` raised by the index means
   *clear and rebuild*. Lookups never raise ``Damaged`` (``lookup``).

    put(1–10), put(21–30) → range {1, 30}: 15 is found through the mapping of 1. A later put(11–20) is ignored.

The owner's threads call the index under the log's latch, and the index also acquires the latch itself. ``Flush.run``
and the methods described as *blocking* are called on the store's thread. Flushes, truncations and merges exclude one
another. The model is JE's ``VLSNIndex``.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

from vlsn.errors import BadArgument, Damaged, VlsnLogError
from vlsn.ids import NULL_LSN, NULL_VLSN, Lsn, Vlsn
from vlsn.index.bucket import Bucket, Mapping, bucket_key
from vlsn.index.flush import Flush
from vlsn.index.lookup import Lookups
from vlsn.index.range import EMPTY, VlsnRange
from vlsn.index.stored import END_KEY, FIRST_KEY, RECORD_KEY, Record
from vlsn.index.time_index import END_KEY as TIMES_END
from vlsn.index.time_index import META_KEY as TIMES_FIRST
from vlsn.index.time_index import TimeIndex
from vlsn.index.waiters import Cancel, Waiters, Wake
from vlsn.seams import KeyValue


class IndexHole(Damaged):
    """Raised if VLSNs are missing between the end of the loaded index and the first block that recovery found. The
    index then has to be rebuilt."""


class VlsnIndex(Lookups):
    """The index of one log. After ``load``, recovery calls ``merge`` with the blocks that it found; or it calls
    ``clear`` and adds the whole log. ``settings`` are the settings of the tracker."""

    def __init__(self, store: KeyValue, latch: AbstractContextManager[object], **settings: int) -> None:
        super().__init__(store, latch, **settings)
        self.owner = 0
        """The incarnation of the node whose log is indexed. Every flush stores the owner's incarnation."""
        self._waiters = Waiters()
        self._times = TimeIndex()
        self.checkpoint_id: int | None = None
        """The checkpoint's id of the last flush, or of the loaded index; None while the store is empty."""

    @property
    def waiting(self) -> int:
        """The number of waits for a VLSN that have not ended."""
        return len(self._waiters)

    # Adding blocks.

    def put_run(
        self, firsts: Sequence[int], lasts: Sequence[int], lsns: Sequence[int], clocks: Sequence[int] = ()
    ) -> None:
        """Adds many blocks, ascending. Blocks at or below the range's last VLSN are ignored. ``clocks`` has the time at
        which each block was sealed, or is empty if the times are not known."""
        with self._latch:
            start = bisect_right(firsts, self.range.last) if firsts and firsts[0] <= self.range.last else 0
            if start:
                first, last = firsts[start - 1], lasts[start - 1]
                if last > self.range.last:
                    text = f"the index ends at VLSN {self.range.last}, within the block {first}–{last}"
                    raise Damaged(text, vlsn=first)
                firsts, lasts, lsns, clocks = firsts[start:], lasts[start:], lsns[start:], clocks[start:]
            if not firsts:
                return
            self._tracker.track_run(firsts, lasts, lsns)
            self._times.extend_run(firsts, lasts, lsns, clocks)
            held, last = self.range, Vlsn(lasts[-1])
            if not held.last:
                self.levels.head = Vlsn(firsts[0]), Lsn(lsns[0])
            self.range = VlsnRange(held.first or Vlsn(firsts[0]), last, held.last_sync, held.last_txn_end)
            due = self._waiters.take(last) if last >= self._waiters.lowest else ()
        for wake in due:
            wake(None)

    def note_synced(self, vlsn: Vlsn) -> None:
        """Records that everything up to ``vlsn``, which was added before, is synced. A lower ``vlsn`` than in an
        earlier call is ignored."""
        with self._latch:
            held = self.range
            assert vlsn <= held.last, f"VLSN {vlsn} was synced, but {held.last} is the last one put"
            if vlsn > held.last_sync:
                self.range = VlsnRange(held.first, held.last, vlsn, held.last_txn_end)

    def note_txn_end(self, vlsn: Vlsn) -> None:
        """Records that ``vlsn``, which was added before, is the last COMMIT of a transaction. 0 means that no COMMIT is
        known."""
        with self._latch:
            held = self.range
            assert vlsn <= held.last, f"VLSN {vlsn} ends a transaction, but {held.last} is the last one put"
            self.range = VlsnRange(held.first, held.last, held.last_sync, vlsn)

    # Waiting for VLSNs.

    def wait_for(self, vlsn: Vlsn, wake: Wake) -> Cancel:
        """Calls ``wake(None)`` when ``vlsn`` is in the index: at once if it is already there, else in the thread that
        adds it. Calls ``wake(error)`` if the wait ends before ``vlsn`` is in the index. ``wake`` is called only once,
        and never after the wait was cancelled with the returned function."""
        with self._latch:
            if vlsn > self.range.last:
                number = self._waiters.add(vlsn, wake)
                return lambda: self._stop_waiting(number)
        wake(None)
        return lambda: None

    def fail_waiters(self, error: VlsnLogError) -> None:
        """Ends every wait with ``error``, because the node's role changes or the log closes."""
        with self._latch:
            ended = self._waiters.take_all()
        for wake in ended:
            wake(error)

    def _stop_waiting(self, number: int) -> None:
        with self._latch:
            self._waiters.remove(number)

    # Writing to the store.

    def start_flush(self, checkpoint_id: int) -> Flush:
        """Returns the data that a checkpoint writes, on the owner's thread. The caller then calls the flush's ``run``
        on the store's thread, and ``finish_flush``."""
        with self._latch:
            flush = self.levels.start_flush(Record(checkpoint_id, self.range, self.owner))
            times, drops = self._times.flush(checkpoint_id, self.levels.tail(flush))
            return replace(flush, times=tuple(times), drops=(*flush.drops, *drops))

    def finish_flush(self, flush: Flush) -> None:
        """Removes the written buckets from the tracker after ``run``, on the owner's thread."""
        with self._latch:
            self.levels.finish_flush(flush)
            self.checkpoint_id = flush.record.checkpoint_id
            self.stats.flushes += 1

    def truncate_tail(self, matchpoint: Vlsn, matchpoint_lsn: Lsn, *, block_first: Vlsn = NULL_VLSN) -> None:
        """Removes everything after ``matchpoint`` from the range. The block ``block_first`` … ``matchpoint``, at
        ``matchpoint_lsn``, becomes the last mapping. If ``block_first`` is not passed, the closest mapping at or before
        ``matchpoint`` becomes the last mapping. If ``matchpoint`` is before the range's first VLSN, the range becomes
        empty. If ``matchpoint`` is at or past the range's last VLSN, nothing changes. The call blocks, and the change
        is durable on return."""
        with self._latch:
            if matchpoint >= self.range.last:
                return
            self._cut_tail(matchpoint, (block_first, matchpoint_lsn) if block_first else None)
        self._commit()

    def truncate_head(self, first_kept: Vlsn, first_lsn: Lsn) -> None:
        """Makes the range begin at ``first_kept``, for a cleaning. ``first_kept`` is the first VLSN of the visible
        block at ``first_lsn``. The block at ``first_lsn`` becomes the first mapping, whether it is inside a bucket or
        in a gap. The change is durable on return; only then may files with log before ``first_lsn`` be removed.

        The method blocks, on the store's thread. No checkpoint or rollback may run meanwhile (``Checkpointer.hold``),
        but blocks may be added and looked up. If ``first_kept`` is at or before the range's first VLSN, nothing
        changes, so that a cleaning that was stopped can be repeated. Raises ``BadArgument`` if ``first_kept`` is past
        the range's last VLSN, and ``LogFailed``.
        """
        with self._latch:
            if first_kept <= self.range.first:
                return
            if first_kept > self.range.last:
                raise BadArgument(f"VLSN {first_kept} is past the last VLSN, {self.range.last}: nothing would be left")
            self.levels.cut_head(first_kept, first_lsn)
            self._times.cut_head(first_kept)
            self.range = self.range.cut_head(first_kept)
            self.epoch += 1
        self._commit()

    def relocate(self, firsts: Sequence[int], lasts: Sequence[int], lsns: Sequence[int]) -> None:
        """Moves blocks up to the range's last VLSN, ascending, to new LSNs. Blocks that were not added yet are ignored.
        The range does not change. The method is called on the owner's thread, while no flush, cut or merge is under
        way. The next flush stores the change. If there is no flush, the merge at the next opening of the log makes the
        change again."""
        with self._latch:
            held = self.range
            known = bisect_right(lasts, held.last)
            if not known:
                return
            if firsts[0] <= held.first:
                self.levels.cut_all()
                self.levels.head = Vlsn(firsts[0]), Lsn(lsns[0])
            else:
                self.levels.cut_tail(Vlsn(firsts[0] - 1), None)
            self._tracker.track_run(firsts[:known], lasts[:known], lsns[:known])
            self.epoch += 1

    def merge(
        self,
        base: Vlsn,
        firsts: Sequence[int],
        lasts: Sequence[int],
        lsns: Sequence[int],
        clocks: Sequence[int] = (),
    ) -> None:
        """Merges the part of the log that recovery read again: the log reaches VLSN ``base``, and these blocks follow.
        The blocks are ascending and synced, and no rollback has abandoned them. Everything that was loaded past
        ``base`` is removed. Raises ``IndexHole`` if the loaded index ends before ``base``. The call blocks, and the
        result is durable on return."""
        with self._latch:
            self.levels.check_idle()
            loaded = self.range
            if loaded.last < base:
                raise IndexHole(f"the index ends at VLSN {loaded.last}, but the log continues after {base}", vlsn=base)
            below = bisect_left(firsts, loaded.first)
            if below:  # the log was cleaned up to here
                base = Vlsn(lasts[below - 1])
                firsts, lasts, lsns, clocks = firsts[below:], lasts[below:], lsns[below:], clocks[below:]
            if base < loaded.last:
                self._cut_tail(base, None)
            self.put_run(firsts, lasts, lsns, clocks)
            self.note_synced(self.range.last)
        if self.range != loaded or firsts:
            self._commit()

    def load(self) -> int | None:
        """Loads the range from the store. Returns the id of the checkpoint that the store belongs to, or None if the
        store is empty. Raises ``Damaged``. Buckets other than the first and the last are checked only when they are
        read."""
        record = self._stored.record()
        head = self._stored.at_or_after(NULL_VLSN)
        tail = self._stored.at_or_before(record.range.last) if record is not None else None
        with self._latch:
            self._forget()
            if record is None:
                return None
            self.checkpoint_id, self.owner = record.checkpoint_id, record.owner
            self.range = record.range
            self.levels.covered = record.range.last
            if head is not None:
                self.levels.head = head.at_or_before(head.first)
            self.levels.tail_lsn = tail.at_or_before(tail.last)[1] if tail is not None else NULL_LSN
            span = record.range
            self._times.load(self._store, record.checkpoint_id, span.first, span.last, self.levels.tail_lsn)
            return record.checkpoint_id

    def save(self, checkpoint_id: int) -> None:
        """Runs a whole flush in one call. The call blocks, and the changes are durable on return."""
        flush = self.start_flush(checkpoint_id)
        flush.run()
        self.finish_flush(flush)

    def clear(self) -> None:
        """Empties the range and the store. The call blocks, and the change is durable on return."""
        with self._latch:
            self.levels.check_idle()
            self._forget()
        self._store.write(deletes=[RECORD_KEY], delete_ranges=[(FIRST_KEY, END_KEY), (TIMES_FIRST, TIMES_END)])

    def buckets(self) -> Iterator[Bucket]:
        """Yields all buckets, ascending: first those in the store, then those in the tracker. No truncation may run
        meanwhile."""
        for bucket in self._stored.all():
            if bucket.first > self.levels.covered:
                break
            yield bucket
        with self._latch:
            current = self._tracker.current
            tracked = [*self._tracker.buckets, *([current.freeze()] if current else ())]
        yield from tracked

    # The time index.

    def step_reaching(self, time_us: int, from_vlsn: Vlsn) -> tuple[Vlsn, Vlsn] | None:
        """Searches the steps of the time index (``time_index``) at or after ``from_vlsn``. Returns the first and the
        last VLSN of the first step that may hold a block sealed at ``time_us`` or later, or None if there is no such
        step."""
        with self._latch:
            return self._times.reaching(time_us, from_vlsn)

    def lower_bound(self, first: Vlsn, last: Vlsn, clock_us: int) -> None:
        """Records that blocks ``first`` to ``last``, of one step of the time index, were read, and that the latest of
        them was sealed at ``clock_us``. The caller has checked that no rollback ran meanwhile (``epoch``)."""
        with self._latch:
            self._times.lower(first, last, clock_us)

    def time_steps(self) -> list[tuple[int, int, int]]:
        """Returns the first VLSN, the last VLSN and the latest time of every step of the time index, for tests and
        tools."""
        with self._latch:
            return self._times.steps()

    def check_keys(self) -> None:
        """Raises ``Damaged`` if even the keys of the store cannot be read, so that the store cannot be mended."""
        self._store.keys(FIRST_KEY, END_KEY)

    def replace_stored(self, keys: tuple[bytes, bytes], buckets: Sequence[Bucket]) -> None:
        """Replaces the stored buckets under ``keys`` (a range with an exclusive end) with ``buckets``. The call blocks,
        and the change is durable on return."""
        self._store.write([(bucket_key(each.first), each.encode()) for each in buckets], delete_ranges=[keys])
        with self._latch:
            self.epoch += 1
            self.levels.stored.wounded = False

    def close(self) -> None:
        """Closes the store, without a flush."""
        self._store.close()

    def _commit(self) -> None:
        """Saves all cuts, and all mappings in the tracker, under the checkpoint's id that the store has."""
        if self.checkpoint_id is None:
            self.levels.nothing_stored()
            return
        self.save(self.checkpoint_id)

    def _cut_tail(self, last: Vlsn, cap: Mapping | None) -> None:
        left = self.range.cut_tail(last)
        if left.empty:
            self.levels.cut_all()
        else:
            self.levels.cut_tail(last, cap)
        self._times.cut_tail(left.last)
        self.range = left
        self.epoch += 1

    def _forget(self) -> None:
        self.epoch += 1
        self.levels.forget()
        self._times.forget()
        self.range = EMPTY
        self.checkpoint_id = None
