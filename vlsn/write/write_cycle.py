"""The write cycle: one group at a time goes to the writer, and what comes meanwhile is the next one.

    queue ─► gather, under the latch ─► writer: write, fdatasync ─► index put, ring, who waits
      ▲                                                                     │
      └─────────────────────── the next group ──────────────────────────────┘

A quiet log seals small blocks and a busy one large ones, with no timer.  At home, under the log latch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from vlsn.errors import LogFailed
from vlsn.ids import Vlsn
from vlsn.limits import FLUSH_BYTES
from vlsn.segments.current_segment import Group
from vlsn.write.queue import Pending, Roll
from vlsn.write.queue_consumer import Consumer

if TYPE_CHECKING:
    from vlsn.write.local_log import LocalLog


class LogListener(Protocol):
    """What the owner of a log hears, at home."""

    def sealed(self, pendings: list[Pending]) -> None:
        """These have VLSNs now, in order, and are on their way to the writer."""
        ...

    def handed_over(self, last_vlsn: Vlsn) -> None:
        """Everything up to ``last_vlsn`` is in the ring, and goes to the writer next."""
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


class Cycle:
    """Gathers, has it written, tells what became of it."""

    def __init__(self, log: LocalLog, consumer: Consumer, listener: LogListener, *, by_writer: bool) -> None:
        self.group: Group | None = None
        """What is with the writer."""
        self.handed_over_s = 0.0
        """When the writer got ``group``."""
        self.unsynced_since: float | None = None
        """When the oldest group that was written without a sync was; None where there is none, or its sync was
        asked for."""
        self._log = log
        self._consumer = consumer
        self._listener = listener
        self._by_writer = by_writer
        self._gathering = False
        self._asked = False

    @property
    def idle(self) -> bool:
        """Nothing is with the writer, nor about to be."""
        return self.group is None and not self._asked

    def ask(self) -> None:
        """Something may wait that did not before: ``pump``, by the writer's thread if the log is of ``by_writer``."""
        log = self._log
        if not self._by_writer:
            self.pump()
            return
        with log.latch:
            if self._asked or self.group is not None:
                return
            log.writer.submit(lambda: None, self._pump_as_asked, log.store_failed)
            self._asked = True

    def _pump_as_asked(self, _: None) -> None:
        with self._log.latch:
            self._asked = False
            self.pump()

    def pump(self, *, flush: bool = False) -> None:
        """Hands the next group to the writer, if it is free and anything waits that may not wait longer."""
        log, queue = self._log, self._consumer.queue
        if not queue:
            return
        with log.latch:
            if self.group is not None or self._gathering or log.failure is not None or log.closed:
                return
            if queue.only_lazy and not flush and queue.bytes < FLUSH_BYTES:
                return
            self._gathering = True
            try:
                group, now = self._consumer.gather(), log.seams.clock.monotonic_s()
            except BaseException as error:  # what it sealed has VLSNs and no place: nothing may follow on that
                log.fail(f"the next group could not be made: {error!r}", error)
                raise
            finally:
                self._gathering = False
            if group is None:
                return
            self.group = group
            self.handed_over_s = now
            log.stats.unacked += group.entries
        try:
            if group.firsts:  # before the writer is woken, which would take the interpreter's lock from whoever feeds
                self._listener.handed_over(group.last_vlsn)
        finally:
            log.writer.submit(lambda: self._write(group), self._written, self._write_failed)

    def _write(self, group: Group) -> float:
        """On the writer's thread: how long it took, in seconds."""
        clock = self._log.seams.clock
        began = clock.monotonic_s()
        group.write()
        return clock.monotonic_s() - began

    def written(self, seconds: float) -> None:
        """The writer, or the replacer in its place, is done with ``group``."""
        log = self._log
        with log.latch:
            group = self.group
            assert group is not None
            self.group = None
            synced = group.sync or len(group.chunks) > 1
            log.placement.written(group)
            self._count(group, seconds, synced=synced)
            self.pump()
            if group.firsts:
                log.index.put_run(group.firsts, group.lasts, group.lsns)
            if synced:
                self._synced()
            elif group.firsts:
                self._listener.written(group.last_vlsn)
            for after in group.after:
                after()
            log.checkpointer.wrote(group.bytes)

    def _synced(self) -> None:
        """A sync has ended, and with it everything that was put into the index is on the medium."""
        log = self._log
        self.unsynced_since = None
        last = log.index.range.last
        if last > log.index.range.last_sync:
            log.index.note_synced(last)
            log.ring.set_synced(last)
            self._listener.synced(last)

    def _count(self, group: Group, seconds: float, *, synced: bool) -> None:
        log = self._log
        stats = log.stats
        stats.unacked -= group.entries
        stats.groups += 1
        stats.bytes += group.bytes
        stats.group_bytes.add(group.bytes)
        now = log.seams.clock.monotonic_s()
        if not synced:
            stats.waiting_for_sync += group.submissions
            if self.unsynced_since is None:
                self.unsynced_since = now
            return
        stats.sync_seconds.add(seconds)
        if shared := stats.waiting_for_sync + group.submissions:
            stats.appends_per_sync.add(shared)
        stats.waiting_for_sync = 0
        if log.slow_syncs.should_roll(seconds, now) and not log.placement.empty and not log.closing:
            self._consumer.queue.push(Roll("slow_sync", lambda _: None))

    def _written(self, seconds: float) -> None:
        with self._ends_the_log():
            self.written(seconds)

    def _write_failed(self, error: BaseException) -> None:
        with self._ends_the_log(), self._log.latch:
            group = self.group
            assert group is not None
            self._log.replacer.begin(group, error)

    @contextmanager
    def _ends_the_log(self) -> Iterator[None]:
        """Whatever fails between the writer and who waits ends the log, or they would wait for ever."""
        try:
            yield
        except BaseException as error:
            self._log.fail(f"what became of a group could not be told: {error!r}", error)
            raise
