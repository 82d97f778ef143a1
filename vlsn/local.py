"""The local log of one node: latch, append, write, sync, roll, checkpoint.

    append ─► queue ─► under the latch: VLSNs, LSN, seal ─► group ─► writer: write, fdatasync ─► synced
                 │                                                                                 │
        QueueFull past the limit                        index put, ring, waiters, outside the latch's work

1. One group is with the writer at a time; what comes meanwhile gathers, so a quiet log seals small blocks
   and a busy one large ones, with no timer.
2. VLSNs are given, and places in the segment, only under the latch and only when the group will fit: a
   sealed block is never unsealed, so nothing may fail between sealing and the writer but the disk itself.
3. A write or sync that fails costs its segment: what was not synced is written again in the next one, and
   callers hear nothing of it (``replacement``).  A second failure meanwhile, or a failure of LMDB, ends the
   log (``LogFailed``): what the page cache then says is not to be trusted, and the process must end.
4. Everything here runs *at home* (see ``seams.Worker``): on the loop's thread in a node, under the latch on
   callers' and workers' threads when embedded.  The writer's thread writes and syncs, the keeper's thread
   runs every LMDB transaction, zeroes standbys and closes segments.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from vlsn.block import EntryKind
from vlsn.checkpoint import Checkpointer
from vlsn.cleaning import Cleaner
from vlsn.consumer import Consumer
from vlsn.errors import LogClosed, LogFailed, NoSpace, NotMaster, QueueFull, TooLarge, VlsnLogError
from vlsn.frame import FrameKind
from vlsn.history import History
from vlsn.holds import Holds
from vlsn.ids import Lsn, Term, Vlsn, lsn
from vlsn.index.index import VlsnIndex
from vlsn.index.range import VlsnRange
from vlsn.limits import FLUSH_BYTES, QUEUE_SHED_FRACTION
from vlsn.options import Durability, LogOptions, LogStats
from vlsn.overmark import check_rollback, rollback
from vlsn.placement import Placement
from vlsn.queued import Barrier, LocalEntries, LocalRecord, Pending, ReplicaRun, Roll
from vlsn.reader import LogReader
from vlsn.recovery import Recovered
from vlsn.replacer import Replacer
from vlsn.ring import Ring
from vlsn.seams import Seams, Worker
from vlsn.slowsync import SlowSyncs
from vlsn.space import Space
from vlsn.state import IdleEnd, StateRecord
from vlsn.stream import BlockRun
from vlsn.tail import Group


class LogListener(Protocol):
    """What the owner of a log hears, at home."""

    def sealed(self, pendings: list[Pending]) -> None:
        """These have VLSNs now, in order, and are on their way to the writer."""
        ...

    def written(self, last_vlsn: Vlsn) -> None:
        """Everything up to ``last_vlsn`` is written here; not called for what is synced in the same step."""
        ...

    def synced(self, last_vlsn: Vlsn) -> None:
        """Everything up to ``last_vlsn`` is synced here, indexed and readable."""
        ...

    def failed(self, error: LogFailed) -> None:
        """The log has ended; the process must."""
        ...


class LocalLog:
    """An open log.  Made by ``recovery.recover`` and this constructor; see the module for who may call."""

    def __init__(
        self,
        recovered: Recovered,
        options: LogOptions,
        seams: Seams,
        *,
        writer: Worker,
        keeper: Worker,
        listener: LogListener,
    ) -> None:
        self.directory = recovered.directory
        self.options = options
        self.seams = seams
        self.latch = recovered.latch
        self.node_file = recovered.node_file
        self.index: VlsnIndex = recovered.index
        self.state = recovered.state
        self.history: History = recovered.history
        self.ring = Ring(options.ring_bytes_max)
        self.ring.restart(Vlsn(recovered.index.range.last))
        self.stats = LogStats(index=recovered.index.stats)
        self.stats.cuts = recovered.cuts
        self.keeper = keeper
        self.writer = writer
        self.failure: LogFailed | None = None
        self.closed = False
        self.dtvlsn: Vlsn = recovered.dtvlsn
        self.slow_syncs = SlowSyncs()
        self._closing = False
        self._cleaned = recovered.cleaned
        self._closers: list[Callable[[], None]] = []
        self._listener = listener
        self._lock = recovered.lock
        self._unsynced_since: float | None = None
        self._writing: Group | None = None
        self._gathering = False
        self._quiet_since: float | None = None
        self._idle_stated: tuple[Lsn, Vlsn] | None = None
        self.placement = Placement(
            recovered,
            options,
            seams,
            keeper,
            stats=self.stats,
            on_change=self._placement_changed,
            on_failure=self.fail,
        )
        self._consumer = Consumer(
            self.placement,
            self.history,
            self.ring,
            options,
            seams.clock,
            next_vlsn=Vlsn(recovered.index.range.last + 1),
            dtvlsn=lambda: self.dtvlsn,
            sealed=listener.sealed,
        )
        self._queue = self._consumer.queue
        self.replacer = Replacer(self, self._written)
        self.space = Space(
            seams.disk,
            self.directory,
            keeper,
            self.latch,
            free_bytes_min=options.free_bytes_min,
            failed=lambda error: self.fail(f"the disk does not tell its free space: {error}", error),
        )
        self.checkpointer = Checkpointer(self, last=recovered.checkpoint)
        self.holds = Holds(clock=seams.clock.monotonic_s)
        self.cleaner = Cleaner(self, settled=recovered.settled)
        self.placement.start()

    # What is there.

    @property
    def range(self) -> VlsnRange:
        """The visible VLSNs, replaced whole."""
        return self.index.range

    @property
    def allocated(self) -> Vlsn:
        """The highest VLSN given so far; at or above ``range.last``."""
        return Vlsn(self._consumer.next_vlsn - 1)

    @property
    def trimmed_to(self) -> Vlsn:
        """The last VLSN that was cleaned away; 0 when the log begins at 1 or is empty."""
        return Vlsn(max(0, self.index.range.first - 1))

    def state_record(self, vlsn: Vlsn) -> StateRecord:
        """What entries up to ``vlsn`` add up to, and where the log begins since it was cleaned."""
        return self.history.record(vlsn, trimmed_to=self.trimmed_to, first_segment=self.first_segment)

    @property
    def first_segment(self) -> int:
        """The segment that the log begins in since it was cleaned; 0 when it never was."""
        return min(self.segments(), default=0) if self._cleaned else 0

    @property
    def promised(self) -> Vlsn:
        """The highest VLSN that what was appended so far has or will have."""
        return Vlsn(self.allocated + self._queue.vlsns)

    @property
    def queue_length(self) -> int:
        """Entries that wait for VLSNs."""
        return self._queue.entries

    @property
    def queue_bytes(self) -> int:
        return self._queue.bytes

    @property
    def overloaded(self) -> bool:
        """The queue is past its shedding mark: refuse new work before reading it."""
        shed = QUEUE_SHED_FRACTION
        options = self.options
        return (
            self._queue.entries >= options.queue_entries_max * shed
            or self._queue.bytes >= options.queue_bytes_max * shed
        )

    @property
    def no_space(self) -> str:
        """Why appends are refused, or soon will be, for lack of space; empty while there is room."""
        if self.space.low:
            return f"the disk has too little room: {self.space.free_bytes} bytes free of {self.options.free_bytes_min}"
        return "the disk has no room for another segment" if self.placement.no_space else ""

    @property
    def late_standbys(self) -> int:
        return self.placement.late_standbys

    @property
    def entry_bytes_max(self) -> int:
        """Bytes of a submission (keys and values) that still fit one segment."""
        return self.placement.payload_bytes_max

    def active_files(self) -> list[int]:
        """Numbers of the current segment (when there is one yet) and the standby."""
        return self.placement.active_files()

    def segments(self) -> dict[int, int]:
        """Number → synced end (offset) of every live segment, ascending."""
        return self.placement.segments()

    def synced_end(self, number: int) -> int:
        """How far segment ``number`` may be read from outside; 0 when it is not a live one."""
        return self.placement.synced_end(number)

    def reader(self, *, segments_max: int = 1) -> LogReader:
        """For one user at a time; what is cleaned away under it is ``Trimmed``."""
        return LogReader(
            self.seams.disk, self.directory, self.synced_end, lambda: self.range.first, segments_max=segments_max
        )

    # The master's side.

    def start_sealing(self, term: Term) -> None:
        """Appends are taken from now on, sealed under ``term``.  Rule: a term is sealed in by one process of
        one node only; the caller has it in the node file, synced."""
        assert term <= self.node_file.record.term
        runs = self.history.term_runs
        assert not runs or term > runs[-1].term, (term, runs[-1])
        self._consumer.term = term

    def stop_sealing(self, error: VlsnLogError) -> None:
        """What is not sealed yet is refused with ``error``; what is, goes on to the writer."""
        with self.latch:
            self._consumer.term = None
            refused = self._queue.take_appends()
        for pending in refused:
            pending.refused(error)

    def append(self, pending: Pending) -> None:
        """Queues a submission.  Raises ``NotMaster``, ``QueueFull``, ``NoSpace``, ``LogFailed`` or ``LogClosed``
        with nothing logged; afterwards the listener hears of it, or ``pending.refused`` is called."""
        if self._consumer.term is None or self._closing:
            self.check_open()
            if self._closing:
                raise LogClosed("the log is closing")
            raise NotMaster("this log takes no appends: it is not sealing")
        if self.space.low or (self.placement.no_space and self.placement.is_full_for(pending.cost)):
            raise NoSpace(f"{self.no_space}; free some and appends go on by themselves")
        queue, options = self._queue, self.options
        if (
            queue.entries + pending.count > options.queue_entries_max
            or queue.bytes + pending.cost > options.queue_bytes_max
        ):
            raise QueueFull(f"{queue.entries} entries ({queue.bytes} bytes) already wait to be logged")
        queue.push_append(pending)
        if pending.durability is Durability.NO_SYNC:
            self._reserve(pending)
        if self._writing is None:
            self._pump()

    def _reserve(self, pending: Pending) -> None:
        """A place in the queue is as good as a VLSN: first in, first out, and nothing leaves it otherwise."""
        queue = self._queue
        pending.last = self._consumer.next_vlsn + queue.vlsns - 1
        pending.first = pending.last - pending.count + 1
        if queue.lazy == 1:
            queue.lazy_since_s = self.seams.clock.monotonic_s()

    def append_entries(self, kinds: list[EntryKind], values: list[bytes], done: Callable[[Vlsn], None]) -> None:
        """Entries of the log's own, sealed as one block; ``done`` gets their last VLSN once it is synced."""
        assert self._consumer.term is not None
        self._queue.push(LocalEntries([int(kind) for kind in kinds], values, done))
        self._pump()

    # The replica's side.

    def append_blocks(self, run: BlockRun, done: Callable[[VlsnLogError | None], None]) -> None:
        """Keeps blocks that a master sealed, verbatim; they follow on ``allocated`` exactly and are verified.
        ``done(None)`` once they are synced here, ``done(error)`` when nothing (more) of them was kept.  Raises
        ``TooLarge``, with nothing kept, where one does not fit a segment of this log; ``LogFailed``, ``LogClosed``."""
        self.check_open()
        assert self._consumer.term is None
        if (size := max(map(len, run.blocks))) > self.placement.frame_bytes_max:
            raise TooLarge(f"a block of {size} bytes does not fit a segment of {self.options.segment_bytes}")
        self._queue.push(ReplicaRun(run, done))
        if self._writing is None:
            self._pump()

    # Both sides.

    def append_record(
        self,
        kind: FrameKind,
        payload: Callable[[], bytes],
        done: Callable[[Lsn], None],
        refused: Callable[[VlsnLogError], None] | None = None,
    ) -> None:
        """A local frame, in its turn; ``done`` gets its LSN once it is synced.  Without room for another segment it
        waits, unless ``refused`` is there to be told."""
        self.check_open()
        self._queue.push(LocalRecord(kind, payload, done, refused))
        self._pump()

    def rotate(self, reason: str, done: Callable[[int], None] = lambda _: None) -> None:
        """The next frame goes to a new segment, whose number ``done`` gets.  An empty segment is not rolled, nor any
        while there is no room for another one: ``done`` then gets its own number."""
        self.check_open()
        self._queue.push(Roll(reason, done))
        self._pump()

    def drain(self, done: Callable[[], None]) -> None:
        """``done`` once everything queued before is synced."""
        self._queue.push(Barrier(done))
        self._pump()

    def rollback(self, matchpoint: Vlsn, done: Callable[[], None], refused: Callable[[VlsnLogError], None]) -> None:
        """Abandons the blocks after ``matchpoint``, a block's end or 0, once all that was queued is synced (see
        ``overmark``).  Nothing is sealed or handed over from before this call until ``done`` or ``refused`` (then
        nothing has changed), and no checkpoint runs meanwhile.  Raises ``RollbackProhibited``, ``BadArgument``."""
        self.check_open()
        assert self._consumer.term is None
        check_rollback(self, matchpoint)
        self.replacer.follow(on=True)

        def ended() -> None:
            self.replacer.follow(on=False)
            self.checkpointer.release()
            done()

        def given_up(error: VlsnLogError) -> None:
            self.replacer.follow(on=False)
            self.checkpointer.release()
            refused(error)

        self.checkpointer.hold(lambda: self.drain(lambda: rollback(self, matchpoint, ended, given_up)))

    def abandon_after(self, matchpoint: Vlsn) -> None:
        """A rollback to ``matchpoint`` is about to begin: what follows it is not written again should a segment
        fail, and the current one gets no sidecar (flags that its sums include are about to change)."""
        with self.latch:
            self.placement.forget_after(matchpoint)

    def forget_after(self, matchpoint: Vlsn) -> None:
        """What memory holds of VLSNs after ``matchpoint`` goes; the next block follows on it."""
        with self.latch:
            self.ring.truncate(matchpoint)
            self.history.truncate(matchpoint)
            self.placement.last_vlsn = matchpoint
            self._consumer.next_vlsn = Vlsn(matchpoint + 1)

    def forget_before(self, number: int) -> None:
        """Segments before ``number`` are no log any more: the index's range begins after them."""
        self._cleaned = True
        self.placement.forget_before(number)
        self.history.truncate_head(self.range.first)

    def raise_dtvlsn(self, vlsn: Vlsn) -> None:
        """The durable end, as this node knows it, never falls."""
        if vlsn > self.dtvlsn:
            self.dtvlsn = vlsn

    def tick(self) -> None:
        """Called a few times a second: the intervals of lazy appends, the idle end, the periods of segments and
        checkpoints, another try for space."""
        with self.latch:
            if self.failure is not None or self.closed:
                return
            now = self.seams.clock.monotonic_s()
            self.placement.retry()
            if self._closing:
                if self.placement.no_space:
                    self._close_without_space()
                return
            if self._queue.lazy and now - self._queue.lazy_since_s >= self.options.flush_interval_s:
                self._pump(flush=True)
            if self._unsynced_since is not None and now - self._unsynced_since >= self.options.sync_interval_s:
                self._unsynced_since = None  # asked for once
                self.drain(lambda: None)
            period = self.options.roll_period_s
            if period and not self.placement.empty and now - self.placement.taken_s >= period:
                self.placement.taken_s = now  # asked for once
                self.rotate("period")
            self.space.look(self._looked)

    def _looked(self) -> None:
        """The part of a tick that needs room on the disk."""
        with self.latch:
            if self.failure is not None or self.closed or self._closing or self.space.cramped:
                return
            now = self.seams.clock.monotonic_s()
            if self._writing is not None or self._queue:
                self._quiet_since = None
            elif self._quiet_since is None:
                self._quiet_since = now
            elif now - self._quiet_since >= self.options.idle_end_s:
                self._state_idle_end()
            self.checkpointer.tick(now)

    def close(self, done: Callable[[], None]) -> None:
        """A clean stop: everything queued is synced, then a checkpoint whose end says clean.  What waits for space is
        refused, and a checkpoint that finds none is left out.  ``done`` when the files are closed, also if the log
        fails before; the caller then closes the workers."""

        def stop() -> None:
            self.stop_sealing(LogClosed("the log is closing"))
            self.space.look(end)

        def end() -> None:
            if self.space.cramped:
                self.drain(self._finish)  # not a clean stop: the next open reads from the checkpoint before
            else:
                self.checkpointer.run(clean=True, done=lambda _: self._finish(), failed=lambda _: self._finish())

        self._closing = True
        self._closers.append(done)
        if self.failure is not None or self.closed:
            self._finish()
        else:
            self.drain(stop)

    def _close_without_space(self) -> None:
        self.stop_sealing(NoSpace("the log is closing, and the disk has no room for another segment"))
        self._pump()
        if self._writing is None and self._queue:  # not even a record has a place: not a clean stop
            self._queue.items.clear()
            self._finish()

    def _finish(self) -> None:
        """Closes the files, and tells who asked for it."""
        with self.latch:
            closers, self._closers = self._closers, []
            if not self.closed:
                self.closed = True
                self.placement.close()
                self.index.fail_waiters(LogClosed("the log was closed"))
                self.keeper.submit(self._close_stores, lambda _: None, lambda _: None)
        for done in closers:
            self.keeper.submit(lambda: None, lambda _, done=done: done(), lambda _: None)  # type: ignore[misc]

    # The consumer.

    def _pump(self, *, flush: bool = False) -> None:
        """Hands the next group to the writer, if it is free and anything waits that may not wait longer."""
        if not self._queue:
            return
        with self.latch:
            if self._writing is not None or self._gathering or self.failure is not None:
                return
            if self._queue.only_lazy and not flush and self._queue.bytes < FLUSH_BYTES:
                return
            self._gathering = True
            try:
                group = self._consumer.gather()
            finally:
                self._gathering = False
            if group is None:
                return
            self._writing = group
            self.stats.unacked += group.entries
        self.writer.submit(lambda: self._write(group), self._written, self._write_failed)

    # What the workers answer.

    def _write(self, group: Group) -> float:
        """On the writer's thread: how long it took, in seconds."""
        began = self.seams.clock.monotonic_s()
        group.write()
        return self.seams.clock.monotonic_s() - began

    def _written(self, seconds: float) -> None:
        with self.latch:
            group = self._writing
            assert group is not None
            self._writing = None
            synced = group.sync or len(group.chunks) > 1
            self.placement.written(group)
            self._count(group, seconds, synced=synced)
            self._pump()
            if group.firsts:
                self.index.put_run(group.firsts, group.lasts, group.lsns)
            if synced:
                self._synced()
            elif group.firsts:
                self._listener.written(group.last_vlsn)
            for after in group.after:
                after()
            self.checkpointer.wrote(group.bytes)

    def _synced(self) -> None:
        """A sync has ended, and with it everything that was put into the index is on the medium."""
        self._unsynced_since = None
        last = self.index.range.last
        if last > self.index.range.last_sync:
            self.index.note_synced(last)
            self.ring.set_synced(last)
            self._listener.synced(last)

    def _count(self, group: Group, seconds: float, *, synced: bool) -> None:
        stats = self.stats
        stats.unacked -= group.entries
        stats.groups += 1
        stats.bytes += group.bytes
        stats.group_bytes.add(group.bytes)
        now = self.seams.clock.monotonic_s()
        if not synced:
            stats.waiting_for_sync += group.submissions
            if self._unsynced_since is None:
                self._unsynced_since = now
            return
        stats.sync_seconds.add(seconds)
        if shared := stats.waiting_for_sync + group.submissions:
            stats.appends_per_sync.add(shared)
        stats.waiting_for_sync = 0
        if self.slow_syncs.should_roll(seconds, now) and not self.placement.empty and not self._closing:
            self._queue.push(Roll("slow_sync", lambda _: None))

    def _write_failed(self, error: BaseException) -> None:
        with self.latch:
            group = self._writing
            assert group is not None
            self.replacer.begin(group, error)

    def _placement_changed(self) -> None:
        with self.latch:
            self.replacer.go_on()
            self._pump()

    def _state_idle_end(self) -> None:
        tail = self.placement.tail
        span = self.range
        if tail is None or not span.last or span.last_sync < span.last:
            return
        at = lsn(tail.number, tail.synced)
        durable = min(self.dtvlsn, span.last_sync)
        if self._idle_stated == (at, durable):
            return
        self._idle_stated = (at, durable)
        end = IdleEnd(lsn=at, term=self.history.last_term, vlsn=span.last, dtvlsn=durable)
        self.keeper.submit(lambda: self.state.save(idle_end=end), lambda _: None, self.store_failed)

    def store_failed(self, error: BaseException) -> None:
        self.fail(f"an index or state transaction failed: {error}", error)

    def fail(self, text: str, error: BaseException) -> None:
        """Ends the log; once."""
        with self.latch:
            if self.failure is not None:
                return
            failure = LogFailed(text)
            failure.__cause__ = error
            self.failure = failure
            self._consumer.term = None
            refused = self._queue.take_appends()
            self._queue.items.clear()
            self.checkpointer.give_up(failure)
            self.index.fail_waiters(failure)
        for pending in refused:
            pending.refused(failure)
        self._listener.failed(failure)
        if self._closing:
            self._finish()

    def check_open(self) -> None:
        """Raises ``LogFailed`` or ``LogClosed``."""
        if self.failure is not None:
            raise self.failure
        if self.closed:
            raise LogClosed("the log is closed")

    def _close_stores(self) -> None:
        self.index.close()
        self.state.close()
        self._lock.release()
