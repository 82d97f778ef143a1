"""The write cycle. The writer's thread gets one group (the blocks of one write and sync) at a time. Items that are
queued meanwhile form the next group.

    queue ─► gather, under the latch: VLSNs, seal, place ─► writer: write, fdatasync ─► index put, ring, callers
      ▲                                                                                       │
      └───────────────────────────────── the next group ──────────────────────────────────────┘

A quiet log seals small blocks and a busy one large ones, without a timer. A group consists of as many waiting items as
certainly fit the segments (``Placement.fits``). A sealed block is never unsealed, so once a block is sealed, only the
disk may fail. The cycle runs on the owner's thread (``seams.Worker``), under the log's latch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from vlsn.errors import NoSpace, VlsnLogError
from vlsn.format.batch import ENTRY_OVERHEAD_BYTES
from vlsn.format.block import FLAGS_AT, decode_header, producers
from vlsn.format.columns import PRODUCERS
from vlsn.format.frame import FRAME_BYTES, FrameKind, padded
from vlsn.format.seal import Sealed, seal, seal_local
from vlsn.format.submission import FRAME_OVERHEAD_BYTES
from vlsn.ids import NULL_TERM, Lsn, Term, Vlsn
from vlsn.limits import (
    FLUSH_BYTES,
    SLOW_SYNC_S,
    SLOW_SYNCS_MAX,
    SLOW_SYNCS_WINDOW_S,
    STALLED_SYNC_S,
    UNSYNCED_BYTES_MAX,
)
from vlsn.seams import Worker
from vlsn.segments.tail import Group, Record
from vlsn.state.options import Durability, LogOptions, LogStats
from vlsn.write.log_life import LogLife
from vlsn.write.log_view import LogView
from vlsn.write.placement import Placement
from vlsn.write.queue import (
    Barrier,
    LocalEntries,
    LocalRecord,
    Pending,
    Queue,
    ReplicaRun,
    Roll,
)
from vlsn.write.replacer import Replacer


class LogListener:
    """The interface of a log's listener. Each method is called on the owner's thread; in this class the methods do
    nothing."""

    def sealed(self, pendings: list[Pending]) -> None:
        """Is called when the appends ``pendings`` have their VLSNs, in order, before the writer's thread gets them."""
        raise AssertionError(f"{type(self).__name__} appends nothing")

    def handed_over(self) -> None:
        """Is called when a group's blocks are in the ring, just before the writer's thread gets the group."""

    def written(self, last_vlsn: Vlsn) -> None:
        """Is called when everything up to ``last_vlsn`` is written here. ``written`` is not called if the same step
        syncs everything."""

    def synced(self, last_vlsn: Vlsn) -> None:
        """Is called when everything up to ``last_vlsn`` is synced here, is in the index, and can be read."""


class WriteCycle:
    """Gathers groups of blocks, has the writer's thread write them, and reports the result."""

    def __init__(
        self,
        placement: Placement,
        replacer: Replacer,
        view: LogView,
        life: LogLife,
        options: LogOptions,
        *,
        writer: Worker,
        stats: LogStats,
        listener: LogListener,
        by_writer: bool,
    ) -> None:
        """``by_writer`` has the same meaning as in ``LocalLog``."""
        self.queue = Queue()
        self.term = NULL_TERM
        """The term in which appends are sealed; 0 while none are accepted."""
        self.taken: list[Pending] = []
        """Appends that were taken from the queue and are not sealed yet. If sealing fails, these appends are refused,
        as are the appends in the queue."""
        self.checkpoint_due: Callable[[], None] = lambda: None
        """A function that is called after each group while ``uncovered_bytes`` is at least the option
        ``checkpoint_bytes``."""
        self.uncovered_bytes = 0
        """The bytes written since the last checkpoint began."""
        self.group: Group | None = None
        """The group that the writer's thread has now; None if the thread has no group."""
        self.handed_over_s = 0.0
        """The time at which the writer's thread got ``group``."""
        self.unsynced_since: float | None = None
        """The time of the oldest group that was written without a sync. None if no group is unsynced, or if its sync
        was requested already."""
        self.slow_syncs = SlowSyncs()
        self._placement = placement
        self._replacer = replacer
        self._view = view
        self._history = view.history
        self._index = view.index
        self._ring = view.ring
        self._life = life
        self._options = options
        self._writer = writer
        self._clock = life.clock
        self._stats = stats
        self.listener = listener
        """The part of a node that currently receives this log's events."""
        self._by_writer = by_writer
        self._gathering = False
        self._asked = False

    @property
    def idle(self) -> bool:
        """True if the writer's thread has no group and is not about to get one."""
        return self.group is None and not self._asked

    @property
    def writing_s(self) -> float:
        """The seconds for which the writer's thread has been busy with its group; 0 if it has none."""
        return self._clock.monotonic_s() - self.handed_over_s if self.group is not None else 0.0

    # Items for the queue.

    def append_record(
        self,
        kind: FrameKind,
        payload: Callable[[], bytes],
        done: Callable[[Lsn], None],
        refused: Callable[[VlsnLogError], None] | None = None,
    ) -> None:
        """Queues a local frame (a checkpoint's or rollback's record). ``done`` receives the frame's LSN once the frame
        is synced. If there is no room for another segment, the frame waits; but if ``refused`` is set, it is called
        with the error. Raises ``LogFailed`` or ``LogClosed``."""
        self._life.check_open()
        self.queue.push(LocalRecord(kind, payload, done, refused))
        self.ask()

    def rotate(self, reason: str, done: Callable[[int], None] = lambda _: None) -> None:
        """Directs the next frame to a new segment. ``done`` receives that segment's number. An empty segment stays in
        use, and so does the current segment while there is no room for another; ``done`` then receives the current
        number. Raises ``LogFailed`` or ``LogClosed``."""
        self._life.check_open()
        self.queue.push(Roll(reason, done))
        self.ask()

    def drain(self, done: Callable[[], None]) -> None:
        """Calls ``done`` once everything that was queued before this call is synced."""
        self.queue.push(Barrier(done))
        self.ask()

    def stop_sealing(self, error: VlsnLogError) -> None:
        """Refuses the appends that are not sealed yet with ``error``. The writer's thread still writes the sealed
        blocks."""
        with self._life.latch:
            self.term = NULL_TERM
            refused = self.queue.take_appends()
        for pending in refused:
            pending.refused(error)

    # The next group for the writer's thread.

    def gather(self) -> Group | None:
        """Gathers the next group. Returns None if there is nothing to write, or no room for it yet."""
        placement, items = self._placement, self.queue.items
        group = placement.group()
        while items and group.bytes < self._options.group_bytes_max:
            item = items[0]
            if isinstance(item, Pending):
                if not self._gather_appends(group):
                    break
            elif self._gather_other(group, item):
                items.popleft()
            else:
                break
        group.sync = group.sync or placement.unsynced_bytes > UNSYNCED_BYTES_MAX
        if group.bytes or group.after:
            return group
        if items and placement.unsynced_bytes:
            group.sync = True  # the next item does not fit beside the unsynced bytes
            return group
        if items and (refusal := placement.refusal) is not None:
            self._refuse_for_space(group, refusal)
        return group if group.after else None

    def _gather_other(self, group: Group, item: LocalEntries | ReplicaRun | LocalRecord | Roll | Barrier) -> bool:
        """Adds ``item`` to the group. Returns True if there was room for all of the item."""
        placement = self._placement
        if isinstance(item, ReplicaRun):
            group.sync |= item.sync
            return self._gather_run(group, item)
        group.sync = True
        if isinstance(item, Roll):
            return self._gather_roll(group, item)
        if isinstance(item, Barrier):
            group.after.append(item.done)
        elif isinstance(item, LocalRecord):
            if not placement.fits(group, item.room):
                return False
            record = Record(placement.record(group, item.kind, item.payload()), item.done)
            group.records.append(record)
            group.after.append(record.tell)
        else:
            size = sum(map(len, item.values)) + len(item.values) * ENTRY_OVERHEAD_BYTES + FRAME_OVERHEAD_BYTES
            if not placement.fits(group, size):
                return False
            self._seal_entries(group, item)
        return True

    def _gather_appends(self, group: Group) -> bool:
        taken = self._take_appends(group, self._options.group_bytes_max - group.bytes)
        if taken:
            self._seal(group, taken)
            self.taken = []
        return bool(taken)

    def _take_appends(self, group: Group, limit: int) -> list[Pending]:
        """Takes as many of the next appends as fit. At least one append is taken, whatever the ``limit``."""
        queue, placement = self.queue, self._placement
        if queue.only_appends and queue.bytes <= limit and placement.fits(group, queue.bytes, several=True):
            self.taken = queue.take_all()
            return self.taken
        taken: list[Pending] = []
        self.taken = taken
        total = 0
        while queue.items:
            item = queue.items[0]
            if not isinstance(item, Pending) or (taken and total + item.cost > limit):
                break
            if not placement.fits(group, total + item.cost, several=bool(taken)):
                break
            total += item.cost
            taken.append(item)
            queue.items.popleft()
            queue.taken(item)
        return taken

    def _seal(self, group: Group, pendings: list[Pending]) -> None:
        term = self.term
        assert term
        first, clock_us = self._view.next_vlsn, self._clock.wall_us()
        sealed = seal(
            [pending.submission for pending in pendings if pending.submission is not None],
            term=term,
            first_vlsn=first,
            dtvlsn=self._view.dtvlsn,
            clock_us=clock_us,
            block_bytes_max=min(self._options.block_bytes_max, self._placement.block_bytes_max),
        )
        self._place(group, term, sealed, clock_us)
        next_vlsn: int = first
        for pending in pendings:
            if pending.durability is Durability.SYNC:
                group.sync = True
            elif pending.durability is Durability.NO_SYNC:
                assert pending.first == next_vlsn, (pending.first, next_vlsn)
            pending.first = next_vlsn
            next_vlsn += pending.count
            pending.last = next_vlsn - 1
            pending.term = term
            pending.submission = None
        assert next_vlsn == self._view.next_vlsn
        group.submissions += len(pendings)
        group.entries += next_vlsn - first
        self.listener.sealed(pendings)

    def _seal_entries(self, group: Group, item: LocalEntries) -> None:
        assert self.term
        clock_us = self._clock.wall_us()
        sealed = seal_local(
            item.kinds,
            item.values,
            term=self.term,
            first_vlsn=self._view.next_vlsn,
            dtvlsn=self._view.dtvlsn,
            clock_us=clock_us,
        )
        self._place(group, self.term, [sealed], clock_us)
        self._history.note_block(sealed.data)
        self.queue.vlsns -= len(item.values)
        group.after.append(lambda: item.done(sealed.last_vlsn))

    def _place(self, group: Group, term: Term, sealed: list[Sealed], clock_us: int) -> None:
        for each in sealed:
            self._placement.block(group, each.data, each.first_vlsn, each.last_vlsn, clock_us)
            if each.txn_end:
                if each.says:
                    self._history.note_block(each.data)
                else:
                    self._history.txn_ends.append(each.txn_end)
                group.txn_end = each.txn_end
            if each.data[FLAGS_AT] & PRODUCERS:  # settings in the same block apply before its producers are noted
                self._history.note_submissions(producers(each.data, decode_header(each.data)))
        self._history.note_term(term, sealed[0].first_vlsn, sealed[-1].last_vlsn)
        self._ring.extend([each.data for each in sealed], [each.last_vlsn for each in sealed])
        self._view.allocated = sealed[-1].last_vlsn

    def _gather_run(self, group: Group, item: ReplicaRun) -> bool:
        """Places the blocks of a replica's run until one block does not fit. Returns True when all blocks are
        placed."""
        run, placement = item.run, self._placement
        blocks = run.blocks
        assert run.firsts[item.at] == self._view.next_vlsn, (run.firsts[item.at], self._view.next_vlsn)
        start = item.at
        while item.at < len(blocks):
            block = blocks[item.at]
            if not placement.fits(group, FRAME_BYTES + padded(len(block))):
                break
            placement.block(group, block, Vlsn(run.firsts[item.at]), Vlsn(run.lasts[item.at]), run.clocks[item.at])
            item.at += 1
        end = item.at
        if end == start:
            return False
        if txn_end := self._history.note_run(run, start, end):
            group.txn_end = txn_end
        self._ring.extend(blocks[start:end], run.lasts[start:end])
        self._view.allocated = Vlsn(run.lasts[end - 1])
        group.entries += run.lasts[end - 1] - run.firsts[start] + 1
        if end < len(blocks):
            return False
        group.after.append(lambda: item.done(None))
        return True

    def _gather_roll(self, group: Group, item: Roll) -> bool:
        placement = self._placement
        if not placement.empty and placement.refusal is None:  # a change of segment does not wait until there is room
            if not placement.can_roll:
                return False
            placement.roll(group, item.reason)
        number = placement.number
        group.after.append(lambda: item.done(number))
        return True

    def _refuse_for_space(self, group: Group, refusal: NoSpace) -> None:
        """Refuses the waiting runs of blocks, checkpoints and appends. Appends whose callers know their VLSNs already
        are not refused; they wait for space, and so do all items before them."""
        for run in self.queue.take_runs():
            run.done(refusal)  # refuse it now, so that no later run of blocks follows it
        refused = [*self.queue.take_refusable(), *[pending.refused for pending in self.queue.take_back()]]

        def tell() -> None:
            for each in refused:
                each(refusal)

        if refused:
            group.after.append(tell)

    def ask(self) -> None:
        """Requests a ``pump``, because a new item may wait in the queue. If ``by_writer`` is set, the writer's thread
        runs the pump."""
        if not self._by_writer:
            self.pump()
            return
        with self._life.latch:
            if self._asked or self.group is not None:
                return
            self._writer.submit(lambda: None, self._pump_as_asked, self._life.store_failed)
            self._asked = True

    def _pump_as_asked(self, _: None) -> None:
        with self._life.latch:
            self._asked = False
            self.pump()

    def pump(self, *, flush: bool = False) -> None:
        """Gives the next group to the writer's thread, if that thread is free and an item must not wait longer."""
        life, queue = self._life, self.queue
        if not queue.items:
            return
        with life.latch:
            if self.group is not None or self._gathering or life.over:
                return
            if queue.only_lazy and not flush and queue.bytes < FLUSH_BYTES:
                return
            self._gathering = True
            try:
                group, now = self.gather(), self._clock.monotonic_s()
            # the group's sealed blocks have VLSNs but no position, so nothing may follow them
            except BaseException as error:
                life.fail(f"the next group could not be made: {error!r}", error)
                raise
            finally:
                self._gathering = False
            if group is None:
                return
            self.group = group
            self.handed_over_s = now
            self._stats.unacked += group.entries
        try:
            # the feeders send the group before the writer's thread wakes and acquires the interpreter's lock
            if group.firsts:
                self.listener.handed_over()
        finally:
            written, failed = partial(self._written, group), partial(self._write_failed, group)
            self._writer.submit(partial(self._write, group), written, failed)

    def _write(self, group: Group) -> float:
        """Writes a group on the writer's thread. Returns the seconds that the write and sync took."""
        clock = self._clock
        began = clock.monotonic_s()
        group.write()
        return clock.monotonic_s() - began

    # After a write.

    def written(self, group: Group, seconds: float) -> None:
        """Finishes ``group`` after the writer's thread, or the replacer in its place, has written it."""
        with self._life.latch:
            self.group = None
            synced = group.sync or len(group.chunks) > 1
            self._placement.written(group)
            self._count(group, seconds, synced=synced)
            self.pump()
            if group.firsts:
                self._index.put_run(group.firsts, group.lasts, group.lsns, group.clocks)
                if group.txn_end:
                    self._index.note_txn_end(group.txn_end)
            if synced:  # everything that is in the index is now on the medium
                self.unsynced_since = None
                span = self._index.range
                if span.last > span.last_sync:
                    self._index.note_synced(span.last)
                    self._ring.set_synced(span.last)
                    self.listener.synced(span.last)
            elif group.firsts:
                self.listener.written(Vlsn(group.lasts[-1]))
            for after in group.after:
                after()
            self.uncovered_bytes += group.bytes
            if self.uncovered_bytes >= self._options.checkpoint_bytes:
                self.checkpoint_due()

    def _count(self, group: Group, seconds: float, *, synced: bool) -> None:
        stats = self._stats
        stats.unacked -= group.entries
        stats.groups += 1
        stats.bytes += group.bytes
        stats.group_bytes.add(group.bytes)
        now = self._clock.monotonic_s()
        if not synced:
            stats.waiting_for_sync += group.submissions
            if self.unsynced_since is None:
                self.unsynced_since = now
            return
        stats.sync_seconds.add(seconds)
        if shared := stats.waiting_for_sync + group.submissions:
            stats.appends_per_sync.add(shared)
        stats.waiting_for_sync = 0
        if self.slow_syncs.should_roll(seconds, now) and not self._placement.empty and not self._life.closing:
            self.queue.push(Roll("slow_sync", lambda _: None))

    def _written(self, group: Group, seconds: float) -> None:
        with self._ends_the_log():
            self.written(group, seconds)

    def _write_failed(self, group: Group, error: BaseException) -> None:
        with self._ends_the_log(), self._life.latch:
            self._replacer.begin(group, error, self.written)

    @contextmanager
    def _ends_the_log(self) -> Iterator[None]:
        """Makes the log fail if anything fails between the writer's thread and the waiting callers. If the log did not
        fail, the callers would wait for ever."""
        try:
            yield
        except BaseException as error:
            self._life.fail(f"the result of a group could not be reported: {error!r}", error)
            raise


class SlowSyncs:
    """Decides when slow syncs are a reason to leave the current segment: after one sync that stalled, or after a
    hundred slow syncs within a minute. The minute is a sliding window, so slow syncs long ago are not counted together
    with a new one. Source: HBase (HBASE-22301; ``hbase.regionserver.wal.slowsync.*``)."""

    def __init__(self) -> None:
        self.total = 0
        self._ends: deque[float] = deque(maxlen=SLOW_SYNCS_MAX)

    def should_roll(self, seconds: float, now: float) -> bool:
        """Counts a write and sync that took ``seconds`` and ended at ``now`` (monotonic, in seconds). Returns whether
        the log should change to a new segment."""
        if seconds <= SLOW_SYNC_S:
            return False
        self.total += 1
        ends = self._ends
        ends.append(now)
        if seconds < STALLED_SYNC_S and (len(ends) < SLOW_SYNCS_MAX or now - ends[0] > SLOW_SYNCS_WINDOW_S):
            return False
        ends.clear()
        return True
