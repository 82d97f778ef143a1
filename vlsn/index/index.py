"""The VLSN index: where each VLSN's block lies in this node's log.

1. First and last of the range always have a mapping: at-or-before and at-or-after answer everywhere in it.
2. Mappings lie in the tracker until a flush, then in the store: store, then tracker, never interleaved.
3. Only checkpoint, close, truncation and merge write; a put never does.
4. Blocks are put in the log's order; those put before are passed over.
5. The log is right where both differ: the index is derived, and ``Damaged`` from here means *clear and rebuild*.
   Lookups never raise it (``lookup``).

    put(1–10), put(21–30) → range {1, 30}: 15 is found through the mapping of 1; then put(11–20): passed over.

Home threads call it under the log latch, which it takes itself as well.  ``Flush.run`` and the methods that
say *blocking* belong on the store's one thread; flushes, truncations and merges exclude each other.
Source: JE ``VLSNIndex``.
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
    """VLSNs between the end of the loaded index and the first block that recovery found: rebuild it."""


class VlsnIndex(Lookups):
    """``load`` it, ``merge`` what recovery finds; or ``clear`` it and put the whole log.  ``settings`` are the
    tracker's."""

    def __init__(self, store: KeyValue, latch: AbstractContextManager[object], **settings: int) -> None:
        super().__init__(store, latch, **settings)
        self.owner = 0
        """The incarnation of the store whose log this is the index of; every flush stores it."""
        self._waiters = Waiters()
        self._times = TimeIndex()
        self.checkpoint_id: int | None = None
        """The id of the last flush, or of the loaded one; ``None`` while the store holds nothing."""

    @property
    def waiting(self) -> int:
        """Waits that have not ended."""
        return len(self._waiters)

    # Putting.

    def put_run(
        self, firsts: Sequence[int], lasts: Sequence[int], lsns: Sequence[int], clocks: Sequence[int] = ()
    ) -> None:
        """Maps many blocks, ascending, and passes over those at or below the range's last. ``clocks``: when each was
        sealed, empty where that is not known."""
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
        """Notes that everything up to ``vlsn``, which was put before, is synced; never lowers."""
        with self._latch:
            held = self.range
            assert vlsn <= held.last, f"VLSN {vlsn} was synced, but {held.last} is the last one put"
            if vlsn > held.last_sync:
                self.range = VlsnRange(held.first, held.last, vlsn, held.last_txn_end)

    def note_txn_end(self, vlsn: Vlsn) -> None:
        """Notes that ``vlsn``, which was put before, is the last COMMIT of a transaction; 0: none is known."""
        with self._latch:
            held = self.range
            assert vlsn <= held.last, f"VLSN {vlsn} ends a transaction, but {held.last} is the last one put"
            self.range = VlsnRange(held.first, held.last, held.last_sync, vlsn)

    # Waiting.

    def wait_for(self, vlsn: Vlsn, wake: Wake) -> Cancel:
        """Calls ``wake(None)`` when ``vlsn`` is in the index, at once if it is already, in the thread that adds it.
        Calls ``wake(error)`` when the wait ends without it; either once, and never after the returned call."""
        with self._latch:
            if vlsn > self.range.last:
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
        """Returns the data that a checkpoint writes, on the owner's thread; ``run`` comes next, on the store's thread,
        then ``finish_flush``."""
        with self._latch:
            flush = self.levels.start_flush(Record(checkpoint_id, self.range, self.owner))
            times, drops = self._times.flush(checkpoint_id, self.levels.tail(flush))
            return replace(flush, times=tuple(times), drops=(*flush.drops, *drops))

    def finish_flush(self, flush: Flush) -> None:
        """Takes the written buckets out of the tracker, on the owner's thread, after ``run``."""
        with self._latch:
            self.levels.finish_flush(flush)
            self.checkpoint_id = flush.record.checkpoint_id
            self.stats.flushes += 1

    def truncate_tail(self, matchpoint: Vlsn, matchpoint_lsn: Lsn, *, block_first: Vlsn = NULL_VLSN) -> None:
        """Drops what lies after ``matchpoint`` from the range. Its block, ``block_first`` … ``matchpoint`` at
        ``matchpoint_lsn``, becomes the last mapping; where ``block_first`` is not given, the closest one at or before
        does. Before the range's first the range becomes empty; at or past its last nothing changes. Blocking; durable
        on return."""
        with self._latch:
            if matchpoint >= self.range.last:
                return
            self._cut_tail(matchpoint, (block_first, matchpoint_lsn) if block_first else None)
        self._commit()

    def truncate_head(self, first_kept: Vlsn, first_lsn: Lsn) -> None:
        """Lets the range begin at ``first_kept``, for a cleaning: the first VLSN of the visible block at ``first_lsn``.
        That block becomes the first mapping, wherever in a bucket or a gap it lies. Durable on return: only then may
        files go that lie before ``first_lsn``.

        On the store's thread, blocking, while checkpoints and rollbacks are held (``Checkpointer.hold``); puts
        and lookups may go on.  At or before the range's first it changes nothing, so that a cleaning that was
        stopped can be done again.  Raises ``BadArgument`` past the range's last, ``LogFailed``."""
        with self._latch:
            if first_kept <= self.range.first:
                return
            if first_kept > self.range.last:
                raise BadArgument(f"VLSN {first_kept} is past the last, {self.range.last}: nothing would be left")
            self.levels.cut_head(first_kept, first_lsn)
            self._times.cut_head(first_kept)
            self.range = self.range.cut_head(first_kept)
            self.epoch += 1
        self._commit()

    def relocate(self, firsts: Sequence[int], lasts: Sequence[int], lsns: Sequence[int]) -> None:
        """Moves blocks up to the range's last, ascending, to their new places; passes over what was not put yet. The
        range stays. On the owner's thread, while no flush, cut or merge is under way. The next flush brings it to the
        store; without one the merge of the next open does."""
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
        """Merges what recovery read again: the log goes up to ``base`` and then on with these blocks. They are
        ascending and synced, without overmarked ones. All that was loaded past ``base`` goes. Raises ``IndexHole``
        where what was loaded ends before ``base``. Blocking; durable on return."""
        with self._latch:
            self.levels.check_idle()
            loaded = self.range
            if loaded.last < base:
                raise IndexHole(f"the index ends at VLSN {loaded.last}, the log goes on after {base}", vlsn=base)
            below = bisect_left(firsts, loaded.first)
            if below:  # trimmed
                base = Vlsn(lasts[below - 1])
                firsts, lasts, lsns, clocks = firsts[below:], lasts[below:], lsns[below:], clocks[below:]
            if base < loaded.last:
                self._cut_tail(base, None)
            self.put_run(firsts, lasts, lsns, clocks)
            self.note_synced(self.range.last)
        if self.range != loaded or firsts:
            self._commit()

    def load(self) -> int | None:
        """Loads the store: its checkpoint's id and its owner, ``None`` when it holds nothing.
        Raises ``Damaged``.  The buckets between the first and the last are checked when they are read."""
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
        """Runs a whole flush at once. Blocking; durable on return."""
        flush = self.start_flush(checkpoint_id)
        flush.run()
        self.finish_flush(flush)

    def clear(self) -> None:
        """Empties range and store.  Blocking; durable on return."""
        with self._latch:
            self.levels.check_idle()
            self._forget()
        self._store.write(deletes=[RECORD_KEY], delete_ranges=[(FIRST_KEY, END_KEY), (TIMES_FIRST, TIMES_END)])

    def buckets(self) -> Iterator[Bucket]:
        """Yields all buckets, ascending, those in the store first; nothing may truncate meanwhile."""
        for bucket in self._stored.all():
            if bucket.first > self.levels.covered:
                break
            yield bucket
        with self._latch:
            current = self._tracker.current
            tracked = [*self._tracker.buckets, *([current.freeze()] if current else ())]
        yield from tracked

    # Times.

    def step_reaching(self, time_us: int, from_vlsn: Vlsn) -> tuple[Vlsn, Vlsn] | None:
        """Returns first and last VLSN of the first step at or after ``from_vlsn`` that may hold a block sealed at
        ``time_us`` or later; None where none may (``time_index``)."""
        with self._latch:
            return self._times.reaching(time_us, from_vlsn)

    def lower_bound(self, first: Vlsn, last: Vlsn, clock_us: int) -> None:
        """Notes that blocks ``first`` to ``last``, of one step, were read and sealed at ``clock_us`` at the latest. The
        caller has seen that no rollback came meanwhile (``epoch``)."""
        with self._latch:
            self._times.lower(first, last, clock_us)

    def time_steps(self) -> list[tuple[int, int, int]]:
        """Returns first VLSN, last VLSN and bound of every step, for tests and tools."""
        with self._latch:
            return self._times.steps()

    def check_keys(self) -> None:
        """Raises ``Damaged`` where not even the keys of the store can be read: nothing is to be mended there."""
        self._store.keys(FIRST_KEY, END_KEY)

    def replace_stored(self, keys: tuple[bytes, bytes], buckets: Sequence[Bucket]) -> None:
        """Replaces the store's buckets under ``keys`` (end exclusive) with ``buckets``. Blocking; durable on
        return."""
        self._store.write([(bucket_key(each.first), each.encode()) for each in buckets], delete_ranges=[keys])
        with self._latch:
            self.epoch += 1
            self.levels.stored.wounded = False

    def close(self) -> None:
        """Closes the store, without a flush."""
        self._store.close()

    def _commit(self) -> None:
        """Saves what was cut, and all that is tracked, under the checkpoint that the store is of."""
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
