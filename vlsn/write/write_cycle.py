"""The write cycle: one group at a time goes to the writer, and what comes meanwhile is the next one.

    queue ─► gather, under the latch ─► writer: write, fdatasync ─► index put, ring, who waits
      ▲                                                                     │
      └─────────────────────── the next group ──────────────────────────────┘

A quiet log seals small blocks and a busy one large ones, with no timer.  At home, under the log latch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Protocol

from vlsn.errors import LogFailed, VlsnLogError
from vlsn.format.frame import FrameKind
from vlsn.ids import NULL_TERM, Lsn, Vlsn
from vlsn.limits import FLUSH_BYTES
from vlsn.seams import Worker
from vlsn.segments.tail import Group
from vlsn.state.options import LogStats
from vlsn.write.log_life import LogLife
from vlsn.write.log_view import LogView
from vlsn.write.placement import Placement
from vlsn.write.queue import Barrier, LocalRecord, Pending, Roll
from vlsn.write.queue_reader import QueueReader
from vlsn.write.replacer import Replacer
from vlsn.write.slow_syncs import SlowSyncs


class LogListener(Protocol):
    """The owner of a log, as its listener at home."""

    def sealed(self, pendings: list[Pending]) -> None:
        """Hears that these have VLSNs now, in order, and are on their way to the writer."""
        ...

    def handed_over(self, last_vlsn: Vlsn) -> None:
        """Hears that everything up to ``last_vlsn`` is in the ring, and goes to the writer next."""
        ...

    def written(self, last_vlsn: Vlsn) -> None:
        """Hears that all up to ``last_vlsn`` is written here; not of what is synced in the same step."""
        ...

    def synced(self, last_vlsn: Vlsn) -> None:
        """Hears that everything up to ``last_vlsn`` is synced here, indexed and readable."""
        ...

    def failed(self, error: LogFailed) -> None:
        """Hears that the log has ended; the process must."""
        ...


class WriteCycle:
    """Gathers, has it written, tells what became of it."""

    def __init__(
        self,
        queue_reader: QueueReader,
        placement: Placement,
        replacer: Replacer,
        view: LogView,
        life: LogLife,
        *,
        writer: Worker,
        stats: LogStats,
        listener: LogListener,
        by_writer: bool,
    ) -> None:
        """Gathers for the writer. ``by_writer`` as in ``LocalLog``."""
        self.grew: Callable[[int], None] = lambda _: None
        """A call that gets the synced bytes of each group."""
        self.group: Group | None = None
        """The group that is with the writer."""
        self.handed_over_s = 0.0
        """The time at which the writer got ``group``."""
        self.unsynced_since: float | None = None
        """The time of the oldest group that was written without a sync. None where there is none, or its sync was asked
        for."""
        self.slow_syncs = SlowSyncs()
        self._queue_reader = queue_reader
        self._placement = placement
        self._replacer = replacer
        self._index = view.index
        self._ring = view.ring
        self._life = life
        self._writer = writer
        self._clock = life.clock
        self._stats = stats
        self._listener = listener
        self._by_writer = by_writer
        self._gathering = False
        self._asked = False

    @property
    def idle(self) -> bool:
        """Nothing is with the writer, nor about to be."""
        return self.group is None and not self._asked

    @property
    def writing_s(self) -> float:
        """Seconds that the writer has been at what it was handed last; 0 when it is free."""
        return self._clock.monotonic_s() - self.handed_over_s if self.group is not None else 0.0

    # What goes into the queue, in its turn.

    def append_record(
        self,
        kind: FrameKind,
        payload: Callable[[], bytes],
        done: Callable[[Lsn], None],
        refused: Callable[[VlsnLogError], None] | None = None,
    ) -> None:
        """Queues a local frame; ``done`` gets its LSN once it is synced. Without room for another segment it waits,
        unless ``refused`` is there to be told. Raises ``LogFailed``, ``LogClosed``."""
        self._life.check_open()
        self._queue_reader.queue.push(LocalRecord(kind, payload, done, refused))
        self.ask()

    def rotate(self, reason: str, done: Callable[[int], None] = lambda _: None) -> None:
        """Sends the next frame to a new segment, whose number ``done`` gets. An empty segment is not rolled, nor any
        while there is no room for another one: ``done`` then gets its own number. Raises ``LogFailed``,
        ``LogClosed``."""
        self._life.check_open()
        self._queue_reader.queue.push(Roll(reason, done))
        self.ask()

    def drain(self, done: Callable[[], None]) -> None:
        """Calls ``done`` once everything queued before is synced."""
        self._queue_reader.queue.push(Barrier(done))
        self.ask()

    def stop_sealing(self, error: VlsnLogError) -> None:
        """Refuses with ``error`` what is not sealed yet; what is, goes on to the writer."""
        with self._life.latch:
            self._queue_reader.term = NULL_TERM
            refused = self._queue_reader.queue.take_appends()
        for pending in refused:
            pending.refused(error)

    # What goes to the writer.

    def ask(self) -> None:
        """Asks for a ``pump``, since something may wait that did not before. The writer's thread runs it if the log is
        of ``by_writer``."""
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
        """Hands the next group to the writer, if it is free and anything waits that may not wait longer."""
        life, queue = self._life, self._queue_reader.queue
        if not queue:
            return
        with life.latch:
            if self.group is not None or self._gathering or life.over:
                return
            if queue.only_lazy and not flush and queue.bytes < FLUSH_BYTES:
                return
            self._gathering = True
            try:
                group, now = self._queue_reader.gather(), self._clock.monotonic_s()
            except BaseException as error:  # what it sealed has VLSNs and no place: nothing may follow on that
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
            if group.firsts:  # before the writer is woken, which would take the interpreter's lock from whoever feeds
                self._listener.handed_over(group.last_vlsn)
        finally:
            written, failed = partial(self._written, group), partial(self._write_failed, group)
            self._writer.submit(partial(self._write, group), written, failed)

    def _write(self, group: Group) -> float:
        """Writes on the writer's thread, and returns how long it took, in seconds."""
        clock = self._clock
        began = clock.monotonic_s()
        group.write()
        return clock.monotonic_s() - began

    # What became of it.

    def written(self, group: Group, seconds: float) -> None:
        """Ends ``group``, with which the writer, or the replacer in its place, is done."""
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
            if synced:
                self._synced()
            elif group.firsts:
                self._listener.written(group.last_vlsn)
            for after in group.after:
                after()
            self.grew(group.bytes)

    def _synced(self) -> None:
        """Notes the end of a sync: everything that was put into the index is on the medium."""
        self.unsynced_since = None
        span = self._index.range
        if span.last > span.last_sync:
            self._index.note_synced(span.last)
            self._ring.set_synced(span.last)
            self._listener.synced(span.last)

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
            self._queue_reader.queue.push(Roll("slow_sync", lambda _: None))

    def _written(self, group: Group, seconds: float) -> None:
        with self._ends_the_log():
            self.written(group, seconds)

    def _write_failed(self, group: Group, error: BaseException) -> None:
        with self._ends_the_log(), self._life.latch:
            self._replacer.begin(group, error, self.written)

    @contextmanager
    def _ends_the_log(self) -> Iterator[None]:
        """Ends the log for whatever fails between the writer and who waits, or they would wait for ever."""
        try:
            yield
        except BaseException as error:
            self._life.fail(f"what became of a group could not be told: {error!r}", error)
            raise
