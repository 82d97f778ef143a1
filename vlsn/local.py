"""The local log of one node: latch, append, write, sync, roll, checkpoint.

    append ─► queue ─► under the latch: VLSNs, LSN, seal ─► group ─► writer: write, fdatasync ─► synced
                 │                                                                                 │
        QueueFull past the limit                        index put, ring, waiters, outside the latch's work

1. One group is with the writer at a time; what comes meanwhile gathers, so a quiet log seals small blocks
   and a busy one large ones, with no timer.
2. VLSNs are given, and places in the segment, only under the latch and only when the group will fit: a
   sealed block is never unsealed, so nothing may fail between sealing and the writer but the disk itself.
3. A write or sync that fails ends the log (``LogFailed``): what the page cache then says is not to be
   trusted, and the process that owns it must end.
4. Everything here runs *at home* (see ``seams.Worker``): on the loop's thread in a node, under the latch on
   callers' and workers' threads when embedded.  The writer's thread writes and syncs, the keeper's thread
   runs every LMDB transaction, zeroes standbys and closes segments.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from vlsn.block import EntryKind
from vlsn.checkpoint import Checkpointer
from vlsn.cleaning import Cleaner
from vlsn.closing import seal_segment
from vlsn.errors import LogClosed, LogFailed, NoSpace, NotMaster, QueueFull, VlsnLogError
from vlsn.frame import FRAME_BYTES, FrameKind
from vlsn.history import History
from vlsn.holds import Holds
from vlsn.ids import Lsn, Term, Vlsn, padded
from vlsn.index.index import VlsnIndex
from vlsn.index.range import VlsnRange
from vlsn.limits import (
    QUEUE_SHED_FRACTION,
    STATE_FREE_BYTES_MIN,
)
from vlsn.options import LogOptions, LogStats
from vlsn.overmark import check_rollback, rollback
from vlsn.queued import (
    ENTRY_OVERHEAD_BYTES,
    FRAME_OVERHEAD_BYTES,
    Barrier,
    Item,
    LocalEntries,
    LocalRecord,
    Pending,
    ReplicaRun,
    Roll,
)
from vlsn.recovery import Recovered
from vlsn.ring import Ring
from vlsn.seal import seal, seal_local
from vlsn.seams import Buffer, Seams, Worker
from vlsn.segment import FIRST_FRAME, SegmentHeader, SegmentState
from vlsn.standby import Standby, active
from vlsn.state import IdleEnd
from vlsn.stream import BlockRun
from vlsn.tail import Chunk, Group, Tail


class LogListener(Protocol):
    """What the owner of a log hears, at home."""

    def sealed(self, pendings: list[Pending]) -> None:
        """These have VLSNs now, in order, and are on their way to the writer."""
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
        self.stats = LogStats()
        self.stats.cuts = recovered.cuts
        self.keeper = keeper
        self.writer = writer
        self.failure: LogFailed | None = None
        self.closed = False
        self.dtvlsn: Vlsn = recovered.dtvlsn
        self._listener = listener
        self._recovered = recovered
        self._lock = recovered.lock
        self._queue: deque[Item] = deque()
        self._queued_entries = 0
        self._queued_bytes = 0
        self._writing: Group | None = None
        self._gathering = False
        self._sealing_term: Term | None = None
        self._next_vlsn: Vlsn = Vlsn(recovered.index.range.last + 1)
        self._tail: Tail | None = recovered.tail
        self._prev_number = recovered.prev_number
        self._prev_end = recovered.prev_end
        self._next_number = recovered.next_number
        self._ends: dict[int, int] = dict(recovered.ends)
        self._capacity = options.segment_bytes - FIRST_FRAME
        self._quiet_since: float | None = None
        self._idle_stated: tuple[Lsn, Vlsn] | None = None
        self._standby = Standby(
            seams.disk,
            self.directory,
            keeper,
            on_ready=self._standby_changed,
            free_bytes_min=options.free_bytes_min,
        )
        self._standby.prepare(self._standby_header())
        self.checkpointer = Checkpointer(self, last=recovered.checkpoint)
        self.holds = Holds(clock=seams.clock.monotonic_s)
        self.cleaner = Cleaner(self, settled=recovered.settled)

    # What is there.

    @property
    def range(self) -> VlsnRange:
        """The visible VLSNs, replaced whole."""
        return self.index.range

    @property
    def allocated(self) -> Vlsn:
        """The highest VLSN given so far; at or above ``range.last``."""
        return Vlsn(self._next_vlsn - 1)

    @property
    def trimmed_to(self) -> Vlsn:
        """The last VLSN that was cleaned away; 0 when the log begins at 1 or is empty."""
        return Vlsn(max(0, self.index.range.first - 1))

    @property
    def first_segment(self) -> int:
        """The segment that the log begins in since it was cleaned; 0 when it never was."""
        return min(self._ends, default=0) if self.trimmed_to else 0

    @property
    def queue_length(self) -> int:
        """Entries that wait for VLSNs."""
        return self._queued_entries

    @property
    def queue_bytes(self) -> int:
        return self._queued_bytes

    @property
    def overloaded(self) -> bool:
        """The queue is past its shedding mark: refuse new work before reading it."""
        shed = QUEUE_SHED_FRACTION
        options = self.options
        return (
            self._queued_entries >= options.queue_entries_max * shed
            or self._queued_bytes >= options.queue_bytes_max * shed
        )

    @property
    def no_space(self) -> bool:
        return self._standby.no_space

    @property
    def cramped(self) -> bool:
        """So little is free that not even a checkpoint should be tried."""
        return self.seams.disk.free_bytes(self.directory) < STATE_FREE_BYTES_MIN

    @property
    def late_standbys(self) -> int:
        return self._standby.late

    @property
    def entry_bytes_max(self) -> int:
        """Bytes of a submission (keys and values) that still fit one segment."""
        return self._capacity - FRAME_OVERHEAD_BYTES

    def active_files(self) -> list[int]:
        """Numbers of the current segment (when there is one yet) and the standby."""
        numbers = [self._tail.number] if self._tail is not None else []
        standby = self._standby.number
        return numbers + ([standby] if standby is not None else [])

    def segments(self) -> dict[int, int]:
        """Number → synced end (offset) of every live segment, ascending."""
        return dict(sorted(self._ends.items()))

    def synced_end(self, number: int) -> int:
        """How far segment ``number`` may be read from outside; 0 when it is not a live one."""
        return self._ends.get(number, 0)

    # The master's side.

    def start_sealing(self, term: Term) -> None:
        """Appends are taken from now on, sealed under ``term``.  Rule: a term is sealed in by one process of
        one node only; the caller has it in the node file, synced."""
        assert term <= self.node_file.record.term
        runs = self.history.term_runs
        assert not runs or term > runs[-1].term, (term, runs[-1])
        self._sealing_term = term

    def stop_sealing(self, error: VlsnLogError) -> None:
        """What is not sealed yet is refused with ``error``; what is, goes on to the writer."""
        with self.latch:
            self._sealing_term = None
            kept: deque[Item] = deque()
            refused: list[Pending] = []
            for item in self._queue:
                if isinstance(item, Pending):
                    refused.append(item)
                elif not isinstance(item, LocalEntries):
                    kept.append(item)
            self._queue = kept
            self._queued_entries = self._queued_bytes = 0
        for pending in refused:
            pending.refused(error)

    def append(self, pending: Pending) -> None:
        """Queues a submission.  Raises ``NotMaster``, ``QueueFull``, ``NoSpace``, ``LogFailed`` or ``LogClosed``
        with nothing logged; afterwards the listener hears of it, or ``pending.refused`` is called."""
        if self._sealing_term is None:
            self._check_open()
            raise NotMaster("this log takes no appends: it is not sealing")
        if self._standby.no_space and self._tail_is_full(pending.cost):
            raise NoSpace("the disk has no room for another segment; free some and appends go on by themselves")
        entries = self._queued_entries + pending.count
        size = self._queued_bytes + pending.cost
        if entries > self.options.queue_entries_max or size > self.options.queue_bytes_max:
            raise QueueFull(f"{self._queued_entries} entries ({self._queued_bytes} bytes) already wait to be logged")
        self._queued_entries = entries
        self._queued_bytes = size
        self._queue.append(pending)
        if self._writing is None:
            self._pump()

    def append_entries(self, kinds: list[EntryKind], values: list[bytes], done: Callable[[Vlsn], None]) -> None:
        """Entries of the log's own, sealed as one block; ``done`` gets their last VLSN once it is synced."""
        assert self._sealing_term is not None
        self._queue.append(LocalEntries([int(kind) for kind in kinds], values, done))
        self._pump()

    # The replica's side.

    def append_blocks(self, run: BlockRun, done: Callable[[VlsnLogError | None], None]) -> None:
        """Keeps blocks that a master sealed, verbatim; they follow on ``allocated`` exactly and are verified.
        ``done(None)`` once they are synced here, ``done(error)`` when nothing (more) of them was kept."""
        self._check_open()
        assert self._sealing_term is None
        self._queue.append(ReplicaRun(run, done))
        if self._writing is None:
            self._pump()

    # Both sides.

    def append_record(self, kind: FrameKind, payload: Callable[[], bytes], done: Callable[[Lsn], None]) -> None:
        """A local frame, in its turn; ``done`` gets its LSN once it is synced."""
        self._check_open()
        self._queue.append(LocalRecord(kind, payload, done))
        self._pump()

    def rotate(self, reason: str, done: Callable[[int], None]) -> None:
        """The next frame goes to a new segment, whose number ``done`` gets.  An empty segment is not rolled."""
        self._check_open()
        self._queue.append(Roll(reason, done))
        self._pump()

    def drain(self, done: Callable[[], None]) -> None:
        """``done`` once everything queued before is synced."""
        self._queue.append(Barrier(done))
        self._pump()

    def rollback(self, matchpoint: Vlsn, done: Callable[[], None], refused: Callable[[VlsnLogError], None]) -> None:
        """Abandons the blocks after ``matchpoint``, a block's end or 0, once all that was queued is synced (see
        ``overmark``).  Nothing is sealed or handed over from before this call until ``done`` or ``refused`` (then
        nothing has changed), and no checkpoint runs meanwhile.  Raises ``RollbackProhibited``, ``BadArgument``."""
        self._check_open()
        assert self._sealing_term is None
        check_rollback(self, matchpoint)

        def ended() -> None:
            self.checkpointer.release()
            done()

        def given_up(error: VlsnLogError) -> None:
            self.checkpointer.release()
            refused(error)

        self.checkpointer.hold(lambda: self.drain(lambda: rollback(self, matchpoint, ended, given_up)))

    def forget_tail_sums(self) -> None:
        """The current segment gets no sidecar: frames that its sums include are about to be overmarked."""
        if self._tail is not None:
            self._tail.crc = None

    def forget_after(self, matchpoint: Vlsn) -> None:
        """What memory holds of VLSNs after ``matchpoint`` goes; the next block follows on it."""
        with self.latch:
            self.ring.truncate(matchpoint)
            self.history.truncate(matchpoint)
            self._next_vlsn = Vlsn(matchpoint + 1)

    def forget_before(self, number: int) -> None:
        """Segments before ``number`` are no log any more: the index's range begins after them."""
        for each in [each for each in self._ends if each < number]:
            del self._ends[each]
        self.history.truncate_head(self.range.first)

    def raise_dtvlsn(self, vlsn: Vlsn) -> None:
        """The durable end, as this node knows it, never falls."""
        if vlsn > self.dtvlsn:
            self.dtvlsn = vlsn

    def tick(self) -> None:
        """Called a few times a second: the idle end, the checkpoint's period, another try for space."""
        if self.failure is not None or self.closed:
            return
        if self._standby.no_space:
            self._standby.retry()
        now = self.seams.clock.monotonic_s()
        if self.cramped:
            return
        if self._writing is not None or self._queue:
            self._quiet_since = None
        elif self._quiet_since is None:
            self._quiet_since = now
        elif now - self._quiet_since >= self.options.idle_end_s:
            self._state_idle_end()
        self.checkpointer.tick(now)

    def close(self, done: Callable[[], None]) -> None:
        """A clean stop: everything queued is synced, then a checkpoint whose end says clean.  ``done`` when the
        files are closed; the caller then closes the workers."""

        def finish() -> None:
            self.closed = True
            self._standby.close()
            if self._tail is not None:
                self._tail.file.close()
            self.index.fail_waiters(LogClosed("the log was closed"))
            self.keeper.submit(self._close_stores, lambda _: done(), lambda _: done())

        if self.failure is not None or self.closed:
            finish()
            return
        self.stop_sealing(LogClosed("the log is closing"))
        if self.cramped:
            self.drain(finish)  # not a clean stop: the next open reads from the checkpoint before
            return
        self.checkpointer.run(clean=True, done=lambda _: finish(), failed=lambda _: finish())

    # The consumer.

    def _pump(self) -> None:
        if not self._queue:
            return
        with self.latch:
            if self._writing is not None or self._gathering or self.failure is not None:
                return
            self._gathering = True
            try:
                group = self._gather()
            finally:
                self._gathering = False
            if group is None:
                return
            self._writing = group
        self.writer.submit(lambda: self._write(group), self._written, self._write_failed)

    def _gather(self) -> Group | None:
        """The next group, from what waits, as far as it surely fits; None when there is nothing or no room."""
        group = Group([Chunk(self._tail, self._tail.offset)] if self._tail is not None else [])
        queue = self._queue
        while queue and group.bytes < self.options.group_bytes_max:
            item = queue[0]
            if isinstance(item, Pending):
                if not self._gather_pendings(group):
                    break
                continue
            if isinstance(item, ReplicaRun):
                if not self._gather_run(group, item):
                    break
            elif isinstance(item, Barrier):
                group.after.append(item.done)
            elif isinstance(item, Roll):
                if not self._gather_roll(group, item):
                    break
            elif isinstance(item, LocalRecord):
                payload = item.payload()
                if not self._fits(group, FRAME_BYTES + padded(len(payload))):
                    break
                at = self._place(group, item.kind, payload)
                group.after.append(lambda done=item.done, at=at: done(at))  # type: ignore[misc]
            else:
                size = sum(map(len, item.values)) + len(item.values) * ENTRY_OVERHEAD_BYTES + FRAME_OVERHEAD_BYTES
                if not self._fits(group, size):
                    break
                self._seal_entries(group, item)
            queue.popleft()
        if not group.bytes and not group.after:
            return None
        return group

    def _gather_pendings(self, group: Group) -> bool:
        queue = self._queue
        taken: list[Pending] = []
        total = 0
        limit = self.options.group_bytes_max - group.bytes
        while queue:
            item = queue[0]
            if not isinstance(item, Pending) or (taken and total + item.cost > limit):
                break
            if not self._fits(group, total + item.cost):
                break
            total += item.cost
            taken.append(item)
            queue.popleft()
        if not taken:
            if not self._standby.no_space:
                return False
            self._refuse_for_space(group)
            return True
        self._seal(group, taken)
        return True

    def _seal(self, group: Group, pendings: list[Pending]) -> None:
        term = self._sealing_term
        assert term is not None
        first = self._next_vlsn
        sealed = seal(
            [pending.submission for pending in pendings if pending.submission is not None],
            term=term,
            first_vlsn=first,
            dtvlsn=self.dtvlsn,
            clock_us=self.seams.clock.wall_us(),
            block_bytes_max=min(self.options.block_bytes_max, self._capacity // 2),
        )
        for each in sealed:
            self._place_block(group, each.data, each.first_vlsn, each.last_vlsn)
        self.history.note_term(term, first, sealed[-1].last_vlsn)
        self.ring.extend([each.data for each in sealed], [each.last_vlsn for each in sealed])
        next_vlsn: int = first
        for pending in pendings:
            pending.first = next_vlsn
            next_vlsn += pending.count
            pending.last = next_vlsn - 1
            pending.term = term
            pending.submission = None
            self._queued_entries -= pending.count
            self._queued_bytes -= pending.cost
        assert next_vlsn == sealed[-1].last_vlsn + 1
        self._next_vlsn = Vlsn(next_vlsn)
        self._listener.sealed(pendings)

    def _seal_entries(self, group: Group, item: LocalEntries) -> None:
        term = self._sealing_term
        assert term is not None
        first = self._next_vlsn
        each = seal_local(
            item.kinds,
            item.values,
            term=term,
            first_vlsn=first,
            dtvlsn=self.dtvlsn,
            clock_us=self.seams.clock.wall_us(),
        )
        self._place_block(group, each.data, each.first_vlsn, each.last_vlsn)
        self.history.note_term(term, first, each.last_vlsn)
        self.history.note_block(each.data)
        self.ring.extend([each.data], [each.last_vlsn])
        self._next_vlsn = Vlsn(each.last_vlsn + 1)
        group.after.append(lambda: item.done(each.last_vlsn))

    def _gather_run(self, group: Group, item: ReplicaRun) -> bool:
        """Places blocks of a replica's run until one does not fit; True when all of it is placed."""
        run = item.run
        blocks = run.blocks
        assert run.firsts[item.at] == self._next_vlsn, (run.firsts[item.at], self._next_vlsn)
        start = item.at
        while item.at < len(blocks):
            block = blocks[item.at]
            if not self._fits(group, FRAME_BYTES + padded(len(block))):
                break
            self._place_block(group, block, Vlsn(run.firsts[item.at]), Vlsn(run.lasts[item.at]))
            item.at += 1
        end = item.at
        if end == start:
            if not self._standby.no_space:
                return False
            group.after.append(lambda: item.done(NoSpace("the disk has no room for another segment")))
            return True
        self.history.note_run(run, start, end)
        self.ring.extend(blocks[start:end], run.lasts[start:end])
        self._next_vlsn = Vlsn(run.lasts[end - 1] + 1)
        if end < len(blocks):
            return False
        group.after.append(lambda: item.done(None))
        return True

    def _gather_roll(self, group: Group, item: Roll) -> bool:
        tail = self._tail
        if tail is not None and tail.offset > FIRST_FRAME:
            if not self._can_roll():
                return False
            self._roll(group, item.reason)
            tail = self._tail
        number = tail.number if tail is not None else self._next_number
        group.after.append(lambda: item.done(number))
        return True

    def _fits(self, group: Group, size: int) -> bool:
        """Whether frames of ``size`` bytes in all still have a place: in the current segment, or in the standby
        together with all that this group has (so that one roll is always enough)."""
        tail = self._tail
        if tail is not None and size <= tail.remaining:
            return True
        return self._can_roll() and group.bytes + size <= self._capacity and len(group.chunks) < 3

    def _can_roll(self) -> bool:
        """The first segment after an open is used from its first byte on, so it waits for all of its zeros; a later
        one that is not quite done is taken as it is."""
        standby = self._standby
        return standby.complete if self._tail is None else standby.ready and not standby.zeroing

    def _tail_is_full(self, cost: int) -> bool:
        return self._tail is None or self._tail.remaining < cost

    def _place_block(self, group: Group, data: Buffer, first: Vlsn, last: Vlsn) -> None:
        at = self._place(group, FrameKind.BLOCK, data)
        group.firsts.append(first)
        group.lasts.append(last)
        group.lsns.append(at)
        tail = self._tail
        assert tail is not None
        if not tail.first_vlsn:
            tail.first_vlsn = first
        tail.last_vlsn = last
        tail.entries += last - first + 1
        self.stats.blocks += 1

    def _place(self, group: Group, kind: FrameKind, payload: Buffer) -> Lsn:
        size = FRAME_BYTES + padded(len(payload))
        tail = self._tail
        if tail is None or tail.remaining < size:
            self._roll(group, "size" if tail is not None else None)
        group.bytes += size
        return group.chunks[-1].place(kind, payload)

    def _roll(self, group: Group, reason: str | None) -> None:
        """The standby becomes the current segment; its header page goes out with its first frames."""
        old = self._tail
        taken = self._standby.take()
        last = group.lasts[-1] if group.lasts else self._next_vlsn - 1
        header = active(
            taken.header,
            prev_number=old.number if old is not None else self._prev_number,
            prev_end=old.offset if old is not None else self._prev_end,
            prev_last_vlsn=last,
        )
        tail = Tail(header, taken.file)
        self._tail = tail
        group.chunks.append(Chunk(tail, 0, [header.encode()], taken.allocate))
        if old is not None:
            group.sealed_tails.append(old)
        if reason is not None:
            self.stats.rolls[reason] += 1
        self._next_number = header.number + 1
        self._standby.prepare(self._standby_header())

    def _standby_header(self) -> SegmentHeader:
        record = self.node_file.record
        return SegmentHeader(
            group=record.group,
            node=record.node,
            incarnation=record.incarnation,
            number=self._next_number,
            salt=self.seams.random.u32(),
            state=SegmentState.PREPARED,
            size=self.options.segment_bytes,
            created_us=self.seams.clock.wall_us(),
            prev_number=0,
            prev_end=0,
            prev_last_vlsn=0,
        )

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
            self.stats.sync_seconds.add(seconds)
            for chunk in group.chunks:
                tail = chunk.tail
                tail.synced = tail.offset
                self._ends[tail.number] = tail.offset
            self.stats.groups += 1
            self.stats.bytes += group.bytes
            self._pump()
            if group.firsts:
                self.index.put_run(group.firsts, group.lasts, group.lsns)
                self.index.note_synced(group.last_vlsn)
                self.ring.set_synced(group.last_vlsn)
                self._listener.synced(group.last_vlsn)
            for tail in group.sealed_tails:  # before what follows: a rollback may void the sidecar again
                self._close_segment(tail)
            for after in group.after:
                after()
            if self._tail is not None:
                self._standby.pace((self._tail.offset - FIRST_FRAME) / self._capacity)
            self.checkpointer.wrote(group.bytes)

    def _write_failed(self, error: BaseException) -> None:
        self._fail(f"a write or sync of the log failed: {error}", error)

    def _standby_changed(self) -> None:
        if self._standby.failed is not None:
            self._fail(f"the next segment could not be made: {self._standby.failed}", self._standby.failed)
            return
        if self._tail is None:
            self._standby.pace(1.0)
        self._pump()

    def _close_segment(self, tail: Tail) -> None:
        self.keeper.submit(
            lambda: seal_segment(self.seams.disk, self.directory, tail),
            lambda _: None,
            lambda error: self._fail(f"a sealed segment could not be closed: {error}", error),
        )

    def _refuse_for_space(self, group: Group) -> None:
        refused: list[Pending] = []
        queue = self._queue
        while queue and isinstance(queue[0], Pending):
            item = queue.popleft()
            assert isinstance(item, Pending)
            self._queued_entries -= item.count
            self._queued_bytes -= item.cost
            refused.append(item)
        error = NoSpace("the disk has no room for another segment")

        def tell() -> None:
            for pending in refused:
                pending.refused(error)

        group.after.append(tell)

    def _state_idle_end(self) -> None:
        tail = self._tail
        if tail is None or not self.range.last:
            return
        at = Lsn(tail.number << 32 | tail.synced)
        durable = min(self.dtvlsn, self.range.last_sync)
        if self._idle_stated == (at, durable):
            return
        self._idle_stated = (at, durable)
        end = IdleEnd(lsn=at, term=self.history.last_term, vlsn=self.range.last, dtvlsn=durable)
        self.keeper.submit(lambda: self.state.save(idle_end=end), lambda _: None, self.store_failed)

    def store_failed(self, error: BaseException) -> None:
        self._fail(f"an index or state transaction failed: {error}", error)

    def _fail(self, text: str, error: BaseException) -> None:
        if self.failure is not None:
            return
        failure = LogFailed(text)
        failure.__cause__ = error
        self.failure = failure
        self._sealing_term = None
        refused = [item for item in self._queue if isinstance(item, Pending)]
        self._queue.clear()
        self._queued_entries = self._queued_bytes = 0
        self.checkpointer.give_up(failure)
        self.index.fail_waiters(failure)
        for pending in refused:
            pending.refused(failure)
        self._listener.failed(failure)

    def _check_open(self) -> None:
        if self.failure is not None:
            raise self.failure
        if self.closed:
            raise LogClosed("the log is closed")

    def _close_stores(self) -> None:
        self.index.close()
        self.state.close()
        self._lock.release()
