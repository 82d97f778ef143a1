"""The local log of one node: it accepts appends, writes and syncs them, changes segments and makes checkpoints.

    append ─► queue, or QueueFull ─► cycle: under the latch VLSNs, LSN, seal ─► writer: write, fdatasync ─► synced
    log         appends, a master's blocks, rollback
    log.view    the contents: range, durable end, history, index, ring, readers
    log.care    checkpoints, cleaning, holds, free space
    log.life    open, closing, closed or failed; its latch, its background work

1. The writer's thread has one group (the blocks of one write and sync) at a time (``cycle``).
2. VLSNs, and offsets in the segment, are assigned only under the log's latch, and only when the group will fit. A
   sealed block is never unsealed. So once a block is sealed, only the disk itself may fail.
3. A write or sync that fails ends the use of its segment. The unsynced frames are written again to the next segment,
   and callers notice nothing (``replacer``). If a second write fails meanwhile, or LMDB fails, the log fails
   (``LogFailed``). The system's page cache can no longer be trusted then, and the process must end. Background work, on
   which no promise to a client depends, is tried again when it fails (``background``).
4. Everything in this file runs *on the owner's thread* (see ``seams.Worker``). In a node that is the thread of the
   event loop. In an embedded log it is any thread of a caller or worker that has the latch. The writer's thread writes
   and syncs. The keeper's thread runs every LMDB transaction, fills standbys (the next segments) with zeros and closes
   segments.
"""

from __future__ import annotations

from collections.abc import Callable

from vlsn.errors import LogClosed, LogFailed, NoSpace, NotMaster, QueueFull, TooLarge, VlsnLogError
from vlsn.format.block import EntryKind
from vlsn.format.block_run import BlockRun
from vlsn.ids import NULL_TERM, Term, Vlsn
from vlsn.limits import QUEUE_SHED_FRACTION
from vlsn.recover.recovery import Recovered
from vlsn.seams import Seams, Worker
from vlsn.state.options import Durability, LogOptions, LogStats
from vlsn.write.log_care import LogCare
from vlsn.write.log_life import LogLife
from vlsn.write.log_view import LogView
from vlsn.write.node_promises import NodePromises
from vlsn.write.placement import Placement
from vlsn.write.queue import LocalEntries, Pending, Queue, ReplicaRun
from vlsn.write.replacer import Replacer
from vlsn.write.rollback import Rollback
from vlsn.write.write_cycle import LogListener, WriteCycle


class LocalLog:
    """An open log. ``recovery.recover`` opens the directory, and this constructor makes the log. The module's docstring
    says which threads may call the log.

    ``failed`` is called on the owner's thread when the log has failed; the process must end.

    With ``by_writer``, only the writer's thread makes groups, because a caller's thread may be interrupted at any
    point. A signal whose handler raises can interrupt a process's main thread.
    """

    def __init__(
        self,
        recovered: Recovered,
        options: LogOptions,
        seams: Seams,
        *,
        writer: Worker,
        keeper: Worker,
        listener: LogListener,
        failed: Callable[[LogFailed], None],
        by_writer: bool = False,
    ) -> None:
        self.directory = recovered.directory
        self.options = options
        self.seams = seams
        self.latch = recovered.latch
        self.node_file = recovered.node_file
        self.lock = recovered.lock
        self.writer = writer
        self._owner_failed = failed
        self.stats = stats = LogStats(index=recovered.index.stats, cuts=recovered.cuts)
        self.view = view = LogView(recovered, seams.disk, ring_bytes_max=options.ring_bytes_max)
        self.life = life = LogLife(self.latch, keeper, seams.clock, stop=self._stop, failed=self._failed)
        self.placement = placement = Placement(
            recovered, view, options, seams, life, stats=stats, on_change=self._placement_changed
        )
        self.replacer = Replacer(view, placement, life, writer=writer, stats=stats)
        self.cycle = cycle = WriteCycle(
            placement,
            self.replacer,
            view,
            life,
            options,
            writer=writer,
            stats=stats,
            listener=listener,
            by_writer=by_writer,
        )
        self.queue: Queue = cycle.queue
        self.care = care = LogCare(recovered, view, life, placement, cycle, options, seams.disk)
        cycle.checkpoint_due = care.checkpointer.run_for_bytes
        self.promises = NodePromises(self.node_file, view, seams.levels, life)
        self._closers: list[Callable[[], None]] = []
        placement.start()

    # Which appends are accepted.

    @property
    def promised(self) -> Vlsn:
        """The highest VLSN that an append accepted so far has, or will get."""
        return Vlsn(self.view.allocated + self.queue.vlsns)

    @property
    def no_space(self) -> str:
        """The reason why appends are refused, or soon will be, for lack of disk space; empty while there is room."""
        space = self.care.space
        if space.low:
            return f"the disk has too little room: {space.free_bytes} bytes free of {self.options.free_bytes_min}"
        return str(self.placement.refusal) if self.placement.no_space else ""

    @property
    def refusal(self) -> NoSpace | None:
        """The error with which appends are refused now or soon. The error is ``NoSpace``, or ``NoSegment`` if the disk
        has room. None while appends are accepted."""
        return NoSpace(self.no_space) if self.no_space else self.placement.refusal

    @property
    def stuck(self) -> NoSpace | None:
        """The error for which the queue waits, if only a missing next segment keeps the queue from going on."""
        with self.latch:
            waits = self.cycle.idle and bool(self.queue) and not self.queue.only_lazy
            return self.placement.refusal if waits else None

    # The side of the master.

    def start_sealing(self, term: Term) -> None:
        """Accepts appends from now on, and seals them under ``term``. In each term only one process of one node ever
        seals blocks. The caller has stored the term in the node file, synced."""
        assert term <= self.node_file.record.term
        runs = self.view.history.term_runs
        assert not runs or term > runs[-1].term, (term, runs[-1])
        self.cycle.term = term

    def stop_sealing(self, error: VlsnLogError) -> None:
        """Refuses the appends that are not sealed yet with ``error``. The writer still writes the sealed blocks."""
        self.cycle.stop_sealing(error)

    def check_size(self, cost: int) -> None:
        """Raises ``TooLarge`` for a submission whose ``cost`` (``queue.cost_of``) is more than a segment holds."""
        if cost > self.placement.payload_bytes_max:
            raise TooLarge(f"{cost} bytes of entries do not fit a segment of {self.options.segment_bytes}")

    def append(self, pending: Pending) -> None:
        """Queues a submission that ``check_size`` has accepted. Before anything is logged, raises ``NotMaster``,
        ``NoSpace`` (or ``NoSegment``), ``QueueFull``, ``LogFailed`` or ``LogClosed``. If nothing is raised, the
        listener receives the sealed submission later, or ``pending.refused`` is called."""
        if not self.cycle.term or self.life.closing:
            self.life.check_open()
            if self.life.closing:
                raise LogClosed("the log is closing")
            raise NotMaster("this log accepts no appends: it is not sealing")
        placement = self.placement
        if self.care.space.low:
            raise NoSpace(f"{self.no_space}; free some and appends continue by themselves")
        if placement.is_full_for(pending.cost) and (refusal := placement.refusal) is not None:
            raise type(refusal)(f"{refusal}; appends continue by themselves once there is one")
        self._check_queue(pending)
        if pending.durability is Durability.NO_SYNC:
            self._reserve(pending)
        self.queue.push_append(pending)
        if self.cycle.group is None:
            self.cycle.ask()

    def _check_queue(self, pending: Pending) -> None:
        """Raises ``QueueFull`` if the queue is filled past its shedding mark, or if ``pending`` would exceed the
        queue's limits."""
        entries, size = self.queue.entries, self.queue.bytes
        entries_max, bytes_max = self.options.queue_entries_max, self.options.queue_bytes_max
        is_shed = entries >= entries_max * QUEUE_SHED_FRACTION or size >= bytes_max * QUEUE_SHED_FRACTION
        if is_shed or entries + pending.count > entries_max or size + pending.cost > bytes_max:
            raise QueueFull(f"{entries} entries ({size} bytes) already wait to be logged")

    def _reserve(self, pending: Pending) -> None:
        """Assigns the VLSNs of ``pending`` in advance. The queue is first in, first out, so the position in the queue
        determines the VLSNs."""
        queue = self.queue
        pending.first = self.view.next_vlsn + queue.vlsns
        pending.last = pending.first + pending.count - 1
        if not queue.lazy:
            queue.lazy_since_s = self.seams.clock.monotonic_s()

    def append_entries(self, kinds: list[EntryKind], values: list[bytes], done: Callable[[Vlsn], None]) -> None:
        """Appends entries of the log's own (TERM, GROUP …), sealed as one block. ``done`` receives the last VLSN of the
        entries once they are synced."""
        assert self.cycle.term
        self.queue.push(LocalEntries([int(kind) for kind in kinds], values, done))
        self.cycle.ask()

    # The side of the replica.

    def append_blocks(self, run: BlockRun, done: Callable[[VlsnLogError | None], None], *, sync: bool = True) -> None:
        """Stores blocks that a master sealed, byte for byte. The blocks must follow ``allocated`` exactly, and are
        verified already. ``done(None)`` is called once the blocks are synced here, or only written if ``sync`` is
        false. ``done(error)`` is called if some of the blocks were not stored. Raises ``TooLarge``, before any block is
        stored, if a block does not fit a segment of this log. Raises ``LogFailed`` or ``LogClosed``."""
        self.life.check_open()
        assert not self.cycle.term
        if (size := max(map(len, run.blocks))) > self.placement.frame_bytes_max:
            raise TooLarge(f"a block of {size} bytes does not fit a segment of {self.options.segment_bytes}")
        self.queue.push(ReplicaRun(run, done, sync))
        if self.cycle.group is None:
            self.cycle.ask()

    # The side of both.

    def rollback(self, matchpoint: Vlsn, done: Callable[[], None], refused: Callable[[VlsnLogError], None]) -> None:
        """Abandons the blocks after ``matchpoint``, a block's end or 0, once everything queued is synced (see
        ``rollback``). From this call until ``done`` or ``refused`` is called, nothing is sealed or written, and no
        checkpoint runs. If ``refused`` is called, nothing has changed. Raises ``RollbackProhibited`` or
        ``BadArgument``."""
        self.life.check_open()
        assert not self.cycle.term
        parts = self.view, self.life, self.placement, self.cycle, self.replacer, self.care.checkpointer
        Rollback(*parts, matchpoint, done, refused).begin()

    def tick(self) -> None:
        """Runs the periodic work, and tries again to find disk space. ``tick`` is called a few times a second."""
        with self.latch:
            if self.life.over:
                return
            self.placement.retry()
            self.view.fold_acks()
            if not self.life.closing:
                self.care.tick()
            elif (refusal := self.placement.refusal) is not None:
                self._close_without_space(refusal)
        self.life.background.tick()

    def _placement_changed(self) -> None:
        with self.latch:
            self.replacer.go_on()
            self.cycle.pump()

    # A clean stop, or a stop without disk space.

    def close(self, done: Callable[[], None]) -> None:
        """Stops the log cleanly. ``done`` is called when the files are closed, even if the log fails meanwhile. The
        caller then closes the workers' threads. A second call waits for the same stop.

            1  everything queued is synced; new appends are refused
            2  a checkpoint whose end is marked clean; without room it is left out, and the next open reads from the
               preceding checkpoint
            3  the files are closed, the lock is released
        """
        joins, self.life.closing = self.life.closing, True
        self._closers.append(done)
        if self.life.over:
            self._finish()
        elif not joins:
            self.cycle.drain(self._drained)

    def _drained(self) -> None:
        self.stop_sealing(LogClosed("the log is closing"))
        self.care.space.look(self._end_state)

    def _end_state(self) -> None:
        if self.care.space.cramped:
            self.cycle.drain(self._finish)
        else:
            self.care.checkpointer.run(clean=True, done=lambda _: self._finish(), failed=lambda _: self._finish())

    def _close_without_space(self, refusal: NoSpace) -> None:
        """Closes the log although it has no other segment: appends that wait for a segment are refused."""
        self.stop_sealing(type(refusal)(f"the log is closing, and {refusal}"))
        self.cycle.pump()
        if self.cycle.group is None and self.queue:  # then not even a record fits
            self.queue.items.clear()
            self._finish()

    def _finish(self) -> None:
        """Closes the files, and calls the callbacks of ``close``."""
        life = self.life
        with life.latch:
            closers, self._closers = self._closers, []
            if not life.closed:
                life.closed = life.over = True
                life.background.close()
                self.placement.close()
                self.view.index.fail_waiters(LogClosed("the log was closed"))
                life.keeper.submit(self._close_stores, lambda _: None, lambda _: None)
        for done in closers:
            life.keeper.submit(lambda: None, lambda _, done=done: done(), lambda _: None)  # type: ignore[misc]

    def _close_stores(self) -> None:
        """Closes the index and the state, on the keeper's thread."""
        self.view.index.close()
        self.care.state.close()
        self.lock.release()

    # A failure.

    def _stop(self, failure: LogFailed) -> list[Pending]:
        """Stops the sealing of appends, the checkpoints and all waits, because the log has failed. Returns the appends
        that were not sealed."""
        self.cycle.term = NULL_TERM
        refused = [*self.cycle.taken, *self.queue.take_appends()]
        self.queue.items.clear()
        self.care.checkpointer.give_up(failure)
        self.view.index.fail_waiters(failure)
        return refused

    def _failed(self, failure: LogFailed) -> None:
        self._owner_failed(failure)
        if self.life.closing:
            self._finish()
