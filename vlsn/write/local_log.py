"""The local log of one node: latch, append, write, sync, roll, checkpoint.

    append ─► queue, or QueueFull ─► cycle: under the latch VLSNs, LSN, seal ─► writer: write, fdatasync ─► synced

1. One group is with the writer at a time (``cycle``).
2. VLSNs are given, and places in the segment, only under the latch and only when the group will fit: a
   sealed block is never unsealed, so nothing may fail between sealing and the writer but the disk itself.
3. A write or sync that fails costs its segment: what was not synced is written again in the next one, and
   callers hear nothing of it (``segment_rewrite``).  A second failure meanwhile, or a failure of LMDB, ends the
   log (``LogFailed``): what the page cache then says is not to be trusted, and the process must end.  What the
   promise does not rest on is tried again when it fails, and ends nothing (``background``).
4. Everything here runs *at home* (see ``seams.Worker``): on the loop's thread in a node, under the latch on
   callers' and workers' threads when embedded.  The writer's thread writes and syncs, the keeper's thread
   runs every LMDB transaction, zeroes standbys and closes segments.
"""

from __future__ import annotations

from collections.abc import Callable

from vlsn.errors import LogClosed, LogFailed, NoSpace, NotMaster, QueueFull, TooLarge, VlsnLogError
from vlsn.format.block import EntryKind
from vlsn.format.block_run import BlockRun
from vlsn.format.frame import FrameKind
from vlsn.ids import NULL_TERM, Lsn, Term, Vlsn
from vlsn.index.index import VlsnIndex
from vlsn.index.range import VlsnRange
from vlsn.limits import QUEUE_SHED_FRACTION
from vlsn.recover.recovery import Recovered
from vlsn.seams import Seams, Worker
from vlsn.segments.background import Background
from vlsn.segments.reader import LogReader
from vlsn.state.consumers import ConsumerHolds
from vlsn.state.destinations import Destinations
from vlsn.state.history import History
from vlsn.state.holds import Holds
from vlsn.state.options import Durability, LogOptions, LogStats
from vlsn.state.state_store import StateRecord
from vlsn.write.checkpoint import CheckpointParts
from vlsn.write.checkpoint_schedule import Checkpointer
from vlsn.write.cleaning import Cleaner
from vlsn.write.cleaning_pass import CleaningParts
from vlsn.write.free_space import Space
from vlsn.write.idle_end import IdleEndStatement
from vlsn.write.lifecycle import Lifecycle
from vlsn.write.log_contents import LogContents
from vlsn.write.node_promises import NodePromises
from vlsn.write.queue import LocalEntries, Pending, ReplicaRun
from vlsn.write.queue_consumer import Consumer
from vlsn.write.ring import Ring
from vlsn.write.rollback import Rollback, RollbackParts
from vlsn.write.segment_roll import Placement
from vlsn.write.segment_survey import Survey
from vlsn.write.shutdown import Shutdown
from vlsn.write.slow_syncs import SlowSyncs
from vlsn.write.upkeep import Upkeep
from vlsn.write.write_cycle import Cycle, LogListener
from vlsn.write.write_failure import Replacer


class LocalLog:
    """An open log.  Made by ``recovery.recover`` and this constructor; see the module for who may call.

    ``by_writer``: groups are made by the writer's thread alone, where callers' threads may be interrupted at any point,
    as a process's main thread is by a signal whose handler raises."""

    def __init__(
        self,
        recovered: Recovered,
        options: LogOptions,
        seams: Seams,
        *,
        writer: Worker,
        keeper: Worker,
        listener: LogListener,
        by_writer: bool = False,
    ) -> None:
        self.directory = recovered.directory
        self.options = options
        self.seams = seams
        self.latch = recovered.latch
        self.node_file = recovered.node_file
        self.lock = recovered.lock
        self.state = recovered.state
        self.keeper = keeper
        self.writer = writer
        self._listener = listener
        clock = seams.clock
        self.stats = LogStats(index=recovered.index.stats, cuts=recovered.cuts)
        self.contents = contents = LogContents(recovered, seams.disk)
        self.index: VlsnIndex = contents.index
        self.history: History = contents.history
        self.ring = Ring(options.ring_bytes_max)
        self.ring.restart(recovered.last_vlsn)
        self.lifecycle = lifecycle = Lifecycle(self.latch, stop=self._stop, failed=self._failed)
        self.check_open, self.fail, self.store_failed = lifecycle.check_open, lifecycle.fail, lifecycle.store_failed
        self.background = Background(keeper, self.latch, clock, ends=lifecycle.fail)
        self.placement = placement = Placement(
            recovered,
            contents,
            options,
            seams,
            keeper,
            self.background,
            stats=self.stats,
            on_change=self._placement_changed,
        )
        self._consumer = consumer = Consumer(
            placement,
            contents,
            self.ring,
            options,
            clock,
            next_vlsn=Vlsn(recovered.last_vlsn + 1),
            sealed=listener.sealed,
        )
        self._queue = consumer.queue
        self.replacer = Replacer(
            contents, placement, lifecycle, writer=writer, keeper=keeper, clock=clock, stats=self.stats
        )
        self.cycle = cycle = Cycle(
            consumer,
            placement,
            self.replacer,
            self.index,
            self.ring,
            lifecycle,
            writer=writer,
            clock=clock,
            stats=self.stats,
            listener=listener,
            grew=self._grew,
            by_writer=by_writer,
        )
        self.space = Space(
            seams.disk,
            self.directory,
            keeper,
            self.latch,
            background=self.background,
            free_bytes_min=options.free_bytes_min,
        )
        self.holds = Holds(clock=clock.monotonic_s, floor=Vlsn(max(0, self.range.first - 1)))
        self.consumer_holds = ConsumerHolds(self.holds, contents.history.small)
        self.destinations = Destinations(self.holds, contents.history.small, contents.history.acks)
        self.checkpointer = Checkpointer(
            CheckpointParts(contents, self.state, consumer, cycle, keeper, self.background, lifecycle, clock),
            options,
            self.space,
            self.holds,
            last=recovered.checkpoint,
            settled=recovered.settled,
        )
        survey = Survey(contents, placement, self.space, clock, segment_bytes=options.segment_bytes)
        self.cleaner = Cleaner(
            CleaningParts(
                contents,
                self.state,
                self.holds,
                self.consumer_holds,
                self.destinations,
                self.checkpointer,
                placement,
                survey,
                self.background,
                lifecycle,
                keeper,
            ),
            options.retention,
        )
        self._rollback_parts = RollbackParts(
            contents, consumer, placement, cycle, self.replacer, self.checkpointer, keeper, lifecycle, clock
        )
        idle_end = IdleEndStatement(contents, placement, self.state, keeper, lifecycle)
        self._upkeep = Upkeep(
            options, clock, lifecycle, consumer, cycle, placement, self.space, self.checkpointer, idle_end
        )
        self._promises = NodePromises(self.node_file, contents, seams.levels, keeper, lifecycle)
        self._shutdown = Shutdown(
            lifecycle,
            self._queue,
            cycle,
            self.space,
            self.checkpointer,
            contents=contents,
            state=self.state,
            lock=self.lock,
            placement=placement,
            background=self.background,
            keeper=keeper,
        )
        placement.start()

    # What is there.

    @property
    def closing(self) -> bool:
        """A stop is under way, or has ended."""
        return self.lifecycle.closing

    @property
    def closed(self) -> bool:
        return self.lifecycle.closed

    @property
    def failure(self) -> LogFailed | None:
        return self.lifecycle.failure

    @property
    def dtvlsn(self) -> Vlsn:
        """The durable end, as this node knows it."""
        return self.contents.dtvlsn

    @dtvlsn.setter
    def dtvlsn(self, vlsn: Vlsn) -> None:
        self.contents.dtvlsn = vlsn

    @property
    def rollbacks(self) -> int:
        """Raised when a rollback begins and when it is over: odd while one is under way."""
        return self.contents.rollbacks

    @property
    def slow_syncs(self) -> SlowSyncs:
        return self.cycle.slow_syncs

    @property
    def range(self) -> VlsnRange:
        """The visible VLSNs, replaced whole."""
        return self.index.range

    @property
    def allocated(self) -> Vlsn:
        """The highest VLSN given so far; at or above ``range.last``."""
        return self._consumer.allocated

    @property
    def trimmed_to(self) -> Vlsn:
        """The last VLSN that was cleaned away, or never was here; 0 when the log begins at 1."""
        return self.contents.trimmed_to

    def state_record(self, vlsn: Vlsn) -> StateRecord:
        """Returns the sum of entries up to ``vlsn``, and where the log begins since it was cleaned."""
        return self.state_snapshot(vlsn)()

    def state_snapshot(self, vlsn: Vlsn) -> Callable[[], StateRecord]:
        """Copies the state record; the returned call puts it together, on any thread."""
        return self.contents.snapshot(vlsn)

    @property
    def first_segment(self) -> int:
        """The segment that the log begins in since it was cleaned; 0 when it never was."""
        return self.contents.first_segment

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
        queue, options, shed = self._queue, self.options, QUEUE_SHED_FRACTION
        return queue.entries >= options.queue_entries_max * shed or queue.bytes >= options.queue_bytes_max * shed

    @property
    def no_space(self) -> str:
        """The reason why appends are refused, or soon will be, for lack of space; empty while there is room."""
        if self.space.low:
            return f"the disk has too little room: {self.space.free_bytes} bytes free of {self.options.free_bytes_min}"
        return str(self.placement.refusal) if self.placement.no_space else ""

    @property
    def refusal(self) -> NoSpace | None:
        """The refusal of appends, or of those soon to come: ``NoSpace``, or ``NoSegment`` where there is room.
        None while they are taken."""
        return NoSpace(self.no_space) if self.no_space else self.placement.refusal

    @property
    def unmade(self) -> str:
        """The reason why the next segment could not be made, though there is room; empty while it can."""
        return self.placement.unmade

    @property
    def stuck(self) -> NoSpace | None:
        """The refusal that the queue waits for, if another segment is all that it lacks."""
        with self.latch:
            waits = self.cycle.idle and bool(self._queue) and not self._queue.only_lazy
            return self.placement.refusal if waits else None

    @property
    def writing_s(self) -> float:
        """Seconds that the writer has been at what it was handed last; 0 when it is free."""
        cycle = self.cycle
        return self.seams.clock.monotonic_s() - cycle.handed_over_s if cycle.group is not None else 0.0

    @property
    def late_standbys(self) -> int:
        return self.placement.late_standbys

    @property
    def entry_bytes_max(self) -> int:
        """Bytes of a submission (keys and values) that still fit one segment."""
        return self.placement.payload_bytes_max

    def active_files(self) -> list[int]:
        """Returns numbers of the current segment (when there is one yet) and the standby."""
        return self.placement.active_files()

    @property
    def disk_bytes(self) -> int:
        """Bytes of the disk that all segment files take."""
        return self.placement.disk_bytes

    def segments(self) -> dict[int, int]:
        """Returns number → synced end (offset) of every live segment, ascending."""
        return self.contents.segments()

    def synced_end(self, number: int) -> int:
        """Returns how far segment ``number`` may be read from outside; 0 when it is not a live one."""
        return self.contents.synced_end(number)

    def reader(self, *, segments_max: int = 1) -> LogReader:
        """Makes a reader, for one user at a time; what is cleaned away under it is ``Trimmed``."""
        return self.contents.reader(segments_max=segments_max)

    # The master's side.

    def start_sealing(self, term: Term) -> None:
        """Takes appends from now on, sealed under ``term``. Rule: a term is sealed in by one process of one node only;
        the caller has it in the node file, synced."""
        assert term <= self.node_file.record.term
        runs = self.history.term_runs
        assert not runs or term > runs[-1].term, (term, runs[-1])
        self._consumer.term = term

    def stop_sealing(self, error: VlsnLogError) -> None:
        """Refuses with ``error`` what is not sealed yet; what is, goes on to the writer."""
        self.cycle.stop_sealing(error)

    def append(self, pending: Pending) -> None:
        """Queues a submission.  Raises ``NotMaster``, ``QueueFull``, ``NoSpace`` (``NoSegment``), ``LogFailed`` or
        ``LogClosed`` with nothing logged; afterwards the listener hears of it, or ``pending.refused`` is called."""
        if not self._consumer.term or self.lifecycle.closing:
            self.check_open()
            if self.lifecycle.closing:
                raise LogClosed("the log is closing")
            raise NotMaster("this log takes no appends: it is not sealing")
        if self.space.low:
            raise NoSpace(f"{self.no_space}; free some and appends go on by themselves")
        if self.placement.is_full_for(pending.cost) and (refusal := self.placement.refusal) is not None:
            raise type(refusal)(f"{refusal}; when there is one, appends go on by themselves")
        queue, most = self._queue, self.options
        if queue.entries + pending.count > most.queue_entries_max or queue.bytes + pending.cost > most.queue_bytes_max:
            raise QueueFull(f"{queue.entries} entries ({queue.bytes} bytes) already wait to be logged")
        if pending.durability is Durability.NO_SYNC:
            self._reserve(pending)
        queue.push_append(pending)
        if self.cycle.group is None:
            self.cycle.ask()

    def _reserve(self, pending: Pending) -> None:
        """Reserves VLSNs: a place in the queue is as good as one, for it is first in, first out."""
        queue = self._queue
        pending.first = self._consumer.next_vlsn + queue.vlsns
        pending.last = pending.first + pending.count - 1
        if not queue.lazy:
            queue.lazy_since_s = self.seams.clock.monotonic_s()

    def append_entries(self, kinds: list[EntryKind], values: list[bytes], done: Callable[[Vlsn], None]) -> None:
        """Appends entries of the log's own, sealed as one block; ``done`` gets their last VLSN, synced."""
        assert self._consumer.term
        self._queue.push(LocalEntries([int(kind) for kind in kinds], values, done))
        self.cycle.ask()

    # The replica's side.

    def append_blocks(self, run: BlockRun, done: Callable[[VlsnLogError | None], None], *, sync: bool = True) -> None:
        """Keeps blocks that a master sealed, verbatim; they follow on ``allocated`` exactly and are verified.
        ``done(None)`` once they are synced here, or written where no ``sync`` is asked for; ``done(error)`` when
        nothing (more) of them was kept.  Raises ``TooLarge``, with nothing kept, where one does not fit a segment of
        this log; ``LogFailed``, ``LogClosed``."""
        self.check_open()
        assert not self._consumer.term
        if (size := max(map(len, run.blocks))) > self.placement.frame_bytes_max:
            raise TooLarge(f"a block of {size} bytes does not fit a segment of {self.options.segment_bytes}")
        self._queue.push(ReplicaRun(run, done, sync))
        if self.cycle.group is None:
            self.cycle.ask()

    # Both sides.

    def append_record(
        self,
        kind: FrameKind,
        payload: Callable[[], bytes],
        done: Callable[[Lsn], None],
        refused: Callable[[VlsnLogError], None] | None = None,
    ) -> None:
        """Appends a local frame, in its turn; ``done`` gets its LSN once it is synced. Without room for another segment
        it waits, unless ``refused`` is there to be told."""
        self.cycle.append_record(kind, payload, done, refused)

    def rotate(self, reason: str, done: Callable[[int], None] = lambda _: None) -> None:
        """Sends the next frame to a new segment, whose number ``done`` gets. An empty segment is not rolled, nor any
        while there is no room for another one: ``done`` then gets its own number."""
        self.cycle.rotate(reason, done)

    def drain(self, done: Callable[[], None]) -> None:
        """Calls ``done`` once everything queued before is synced."""
        self.cycle.drain(done)

    def rollback(self, matchpoint: Vlsn, done: Callable[[], None], refused: Callable[[VlsnLogError], None]) -> None:
        """Abandons the blocks after ``matchpoint``, a block's end or 0, once all that was queued is synced (see
        ``rollback``).  Nothing is sealed or handed over from before this call until ``done`` or ``refused`` (then
        nothing has changed), and no checkpoint runs meanwhile.  Raises ``RollbackProhibited``, ``BadArgument``."""
        self.check_open()
        assert not self._consumer.term
        Rollback(self._rollback_parts, matchpoint, done, refused).begin()

    def rewrite_state(self) -> None:
        """Has a checkpoint write all of the ``state`` store anew, out of memory, which holds it whole."""
        with self.latch:
            self.contents.history.keep_all()
        self.checkpointer.run()

    @property
    def level(self) -> int:
        """The level that may be written (``levels``): the newest that is durable here."""
        return self.contents.level

    def store_level(self, level: int, done: Callable[[BaseException | None], None]) -> None:
        """Promises ``level`` in the node file, synced, and calls ``done(None)`` before its entry is acknowledged. A
        file that cannot be written ends the log. Raises ``WrongVersion`` for a level that this binary does not
        speak."""
        self._promises.store_level(level, done)

    def meet_floor(self, term: Term) -> None:
        """Lowers the vote floor to where the log ends now, synced, if it was further on. The log has all that the
        master of ``term`` has, while that is the stored one. A file that cannot be written ends the log."""
        self._promises.meet_floor(term)

    def raise_dtvlsn(self, vlsn: Vlsn) -> None:
        """Raises the durable end, as this node knows it; it never falls."""
        if vlsn > self.contents.dtvlsn:
            self.contents.dtvlsn = vlsn

    def fold_acks(self) -> None:
        """Folds the acknowledgements of destinations that are durable, and synced here."""
        self.contents.fold_acks()

    def tick(self) -> None:
        """Does, a few times a second, what is done by the clock, and tries for space again."""
        with self.latch:
            if self.lifecycle.over:
                return
            self.placement.retry()
            self.fold_acks()
            if not self.closing:
                self._upkeep.tick()
            elif (refusal := self.placement.refusal) is not None:
                self._shutdown.without_space(refusal)
        self.background.tick()

    def close(self, done: Callable[[], None]) -> None:
        """Stops the log cleanly: everything queued is synced, then a checkpoint whose end says clean. What waits for
        space is refused, and a checkpoint that finds none is left out. ``done`` when the files are closed, also if the
        log fails before; the caller then closes the workers."""
        self._shutdown.begin(done)

    # What workers answer.

    def _placement_changed(self) -> None:
        with self.latch:
            self.replacer.go_on()
            self.cycle.pump()

    def _grew(self, size: int) -> None:
        self.checkpointer.wrote(size)

    # How it ends.

    def _stop(self, failure: LogFailed) -> list[Pending]:
        """Stops sealing, checkpoints and waits; returns the appends that were not sealed."""
        self._consumer.term = NULL_TERM
        refused = [*self._consumer.taken, *self._queue.take_appends()]
        self._queue.items.clear()
        self.checkpointer.give_up(failure)
        self.index.fail_waiters(failure)
        return refused

    def _failed(self, failure: LogFailed) -> None:
        self._listener.failed(failure)
        if self.closing:
            self._shutdown.finish()
