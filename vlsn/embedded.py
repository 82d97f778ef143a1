"""The embedded log: ``vlsn.Log``, one directory, no cluster; blocking and thread-safe.

    with Log.open("DIR") as log:
        first, last = log.append([b"one", b"two"])        # both, atomically; on the medium on return
        for entry in log.read(from_vlsn=first): ...

Concurrent appends share a sync: while one group is with the writer, the next gathers.  Alone, what this
log has synced is durable, so the DTVLSN is its last synced VLSN, and nothing can be rolled back.  Whose copies
elsewhere decide that opens it with ``durable_when_synced=False``:

    log.raise_durable(40)      a majority of my copies has everything up to 40
    log.rollback(40)           41 and later, synced here only, are abandoned; their VLSNs are given again

An adapter: it turns the log's callbacks into calls that wait.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from types import TracebackType
from typing import TypeVar

from vlsn.block import Entry, EntryKind
from vlsn.cleaning import CleaningReport
from vlsn.clock import SystemClock, SystemRandom
from vlsn.disk import PosixDisk
from vlsn.errors import BadArgument, LogFailed, NotMaster, OutcomeUnknown, QueueFull, Trimmed, VlsnLogError
from vlsn.holds import Hold, Owner
from vlsn.ids import Lsn, Term, Vlsn
from vlsn.index.range import VlsnRange
from vlsn.lmdb_store import LmdbStores
from vlsn.local import LocalLog
from vlsn.options import Durability, LogOptions
from vlsn.overmark import check_rollback
from vlsn.queued import Pending
from vlsn.reader import DATA_ONLY, EntryRun, LogReader, PairRun
from vlsn.records import TermEntry
from vlsn.recovery import Recovered, recover
from vlsn.seal import Values, values_of
from vlsn.seams import Seams, Worker
from vlsn.state import Checkpoint
from vlsn.threads import CallerThreads, LoopShot, OneShot, Relay, Ticker

GROUP_NAME = "embedded"
NODE_NAME = "log"
TICK_S_MIN = 0.005
TICK_S_MAX = 0.1
_READ_BYTES = 1 << 20
_READ_ENTRIES = 10_000
_READERS_KEPT = 4
_READER_SEGMENTS = 16
"""So many segments stay open in each."""
T = TypeVar("T")
_Run = TypeVar("_Run", EntryRun, PairRun)


class _Waiting(Pending):
    """An append whose caller is told once, through ``shot``."""

    __slots__ = ("_told", "shot")

    def __init__(self, submission: Values, durability: Durability, shot: OneShot | LoopShot) -> None:
        super().__init__(submission, durability)
        self.shot = shot
        self._told = False

    def tell(self, error: VlsnLogError | None = None) -> None:
        if not self._told:
            self._told = True
            self.shot.give(error)

    def tell_by_relay(self) -> OneShot | None:
        """As ``tell``, but whose thread waits for it is left to the caller to give."""
        if self._told or not isinstance(self.shot, OneShot):
            self.tell()
            return None
        self._told = True
        return self.shot

    def refused(self, error: VlsnLogError) -> None:
        self.tell(error)


class LogHold:
    """A hold on an embedded log, from any thread; a context that releases it."""

    def __init__(self, log: LocalLog, hold: Hold) -> None:
        self._log = log
        self._hold = hold

    @property
    def vlsn(self) -> Vlsn:
        return self._hold.vlsn

    @property
    def live(self) -> bool:
        """False once it was released, replaced or dropped."""
        return self._hold.live

    def advance(self, vlsn: int) -> None:
        """VLSNs below ``vlsn`` are not needed any more; it never goes back."""
        with self._log.latch:
            self._hold.advance(Vlsn(vlsn))

    def release(self) -> None:
        with self._log.latch:
            self._log.holds.release(self._hold)

    def __enter__(self) -> LogHold:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.release()


class Log:
    """See ``Log.open``."""

    def __init__(self, recovered: Recovered, options: LogOptions, seams: Seams, keeper: Worker) -> None:
        self._seams = seams
        self._waiting: deque[_Waiting] = deque()
        self._waiting_for_write: deque[_Waiting] = deque()
        self._relay = Relay(())
        self._readers: list[LogReader] = []
        self._ticker: Ticker | None = None
        self._keeper = keeper
        self._latch = recovered.latch
        self._writer = seams.threads.worker("vlsnlog-writer")
        self._turn = seams.threads.latch()
        """Held by what stops the sealing: a rollback, the end."""
        self._log = LocalLog(recovered, options, seams, writer=self._writer, keeper=keeper, listener=self)
        if options.retention:
            self._log.checkpointer.after = self._log.cleaner.run

    @classmethod
    def open(cls, directory: str | os.PathLike[str], options: LogOptions | None = None) -> Log:
        """Opens or makes the log in ``directory`` and takes a new term in it.  Raises ``LogInUse``,
        ``WrongDirectory`` (a node's directory among them), ``Damaged`` or ``LogFailed``."""
        seams = Seams(PosixDisk(), SystemClock(), SystemRandom(), CallerThreads(), LmdbStores())
        options = options or LogOptions()
        keeper = seams.threads.worker("vlsnlog-keeper")
        opened: Future[Recovered] = Future()
        keeper.submit(
            lambda: recover(
                os.fspath(directory),
                seams,
                group=GROUP_NAME,
                node=NODE_NAME,
                segment_bytes=options.segment_bytes,
            ),
            opened.set_result,
            opened.set_exception,
        )
        try:
            recovered = opened.result()
        except BaseException:
            keeper.close()
            raise
        log = cls(recovered, options, seams, keeper)
        log._take_term()
        period = max(TICK_S_MIN, min(TICK_S_MAX, options.flush_interval_s / 2, options.sync_interval_s / 2))
        log._ticker = Ticker("vlsnlog-ticker", period, log._log.tick)
        return log

    def __enter__(self) -> Log:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @property
    def range(self) -> VlsnRange:
        """First and last VLSN, and how far it is synced; immutable."""
        return self._log.range

    @property
    def term(self) -> Term:
        return Term(self._log.node_file.record.term)

    @property
    def durable_vlsn(self) -> Vlsn:
        """Up to here nothing is ever undone.  After a reopen: the highest that the log itself can tell, which may
        be lower than what was told to it last."""
        return self._log.dtvlsn

    @property
    def queue_length(self) -> int:
        """Entries that wait to be logged."""
        return self._log.queue_length

    @property
    def active_logs(self) -> list[int]:
        """Numbers of the current segment and the standby."""
        return self._log.active_files()

    def append(
        self,
        values: bytes | Sequence[bytes],
        *,
        keys: Sequence[bytes | None] | None = None,
        durability: Durability = Durability.SYNC,
    ) -> tuple[Vlsn, Vlsn]:
        """First and last VLSN of ``values``, which are logged together or not at all.

        On the medium on return; with ``WRITE_NO_SYNC`` written and synced within ``sync_interval_s``, with
        ``NO_SYNC`` written within ``flush_interval_s`` (see ``Durability`` and ``LogOptions``).  Entries can be read
        once they are synced.  Raises ``QueueFull`` (from 90 % of the queue on), ``NoSpace``, ``TooLarge`` (nothing
        was logged), or ``OutcomeUnknown`` and ``LogFailed`` when the log ends (it may have been)."""
        shot = OneShot()
        pending = self._submit(values, keys, durability, shot)
        shot.wait()
        return Vlsn(pending.first), Vlsn(pending.last)

    async def append_async(
        self,
        values: bytes | Sequence[bytes],
        *,
        keys: Sequence[bytes | None] | None = None,
        durability: Durability = Durability.SYNC,
    ) -> tuple[Vlsn, Vlsn]:
        """As ``append``, for a coroutine.  Cancelled, the entries are logged all the same."""
        shot = LoopShot(asyncio.get_running_loop())
        pending = self._submit(values, keys, durability, shot)
        await shot.future
        return Vlsn(pending.first), Vlsn(pending.last)

    def sync(self, vlsn: int | None = None) -> Vlsn:
        """Everything up to ``vlsn`` (default: all that was appended before the call) is on the medium on return; the
        last VLSN that is.  At once where it is already.  Raises ``BadArgument`` for a VLSN not given yet, and
        ``LogFailed``."""
        log = self._log
        if vlsn is not None and vlsn <= log.range.last_sync:
            return log.range.last_sync
        done: Future[None] = Future()
        with log.latch:
            self._check()
            if vlsn is not None and vlsn > log.promised:
                raise BadArgument(f"VLSN {vlsn} was not given yet; the last one is {log.promised}")
            log.drain(lambda: done.set_result(None))
        self._wait(done)
        return log.range.last_sync

    def read(self, *, from_vlsn: int = 0, to_vlsn: int = 0, all_kinds: bool = False) -> Iterator[Entry]:
        """Synced entries from ``from_vlsn`` (0: the first there is) to ``to_vlsn`` (0: what is synced now).
        Raises ``Trimmed`` or ``Damaged``.  A rollback meanwhile ends it there; what it gave before may be undone."""
        kinds = None if all_kinds else DATA_ONLY

        def some(reader: LogReader, at: Vlsn, start: Lsn, upto: int, wanted: int) -> EntryRun:
            limit = min(wanted - at + 1, _READ_ENTRIES)
            return reader.entries(at, start=start, upto_vlsn=upto, limit=limit, bytes_max=_READ_BYTES, kinds=kinds)

        for run in self._runs(from_vlsn, to_vlsn, some):
            for entry in run.entries:
                if to_vlsn and entry.vlsn > to_vlsn:
                    return
                yield entry

    def pairs(self, *, from_vlsn: int = 0, to_vlsn: int = 0) -> Iterator[tuple[int, bytes]]:
        """(VLSN, value) of the same entries, at less than half the cost.  Raises as ``read`` does."""

        def some(reader: LogReader, at: Vlsn, start: Lsn, upto: int, wanted: int) -> PairRun:
            return reader.pairs(at, start=start, upto_vlsn=upto, to_vlsn=wanted)

        return chain.from_iterable(run.pairs for run in self._runs(from_vlsn, to_vlsn, some))

    def _runs(
        self, from_vlsn: int, to_vlsn: int, some: Callable[[LogReader, Vlsn, Lsn, int, int], _Run]
    ) -> Iterator[_Run]:
        """``some`` of the log after some, until all up to ``to_vlsn`` was looked at."""
        epoch = self._log.index.epoch
        upto = self.range.last_sync
        at = Vlsn(from_vlsn) or self.range.first
        self._check_first(at)
        wanted = min(to_vlsn, upto) if to_vlsn else upto
        start: Lsn | None = None
        with self._reader() as reader:
            while at and at <= wanted:
                if epoch != self._log.index.epoch:  # a rollback, a cleaning: places, and the ends, are others now
                    epoch, start = self._log.index.epoch, None
                    self._check_first(at)
                    upto = min(upto, self.range.last_sync)
                    wanted = min(wanted, upto)
                    continue
                if start is None:
                    mapping = self._log.index.at_or_before(at)
                    assert mapping is not None
                    start = mapping[1]
                run = some(reader, at, start, upto, wanted)
                if run.next_vlsn == at:
                    return
                yield run
                at, start = run.next_vlsn, run.next_lsn

    @contextmanager
    def _reader(self) -> Iterator[LogReader]:
        """A reader of its own, kept for the next read with the segments that it has open."""
        try:
            reader = self._readers.pop()
        except IndexError:
            reader = self._log.reader(segments_max=_READER_SEGMENTS)
        try:
            yield reader
        finally:
            if len(self._readers) < _READERS_KEPT and not self._log.closed:
                self._readers.append(reader)
            else:
                reader.close()

    def wait_for(self, vlsn: int, timeout_s: float | None = None) -> bool:
        """Whether ``vlsn`` came (synced) within ``timeout_s``.  Raises ``LogClosed`` or ``LogFailed`` when the log
        ends first."""
        reached: Future[None] = Future()

        def wake(error: VlsnLogError | None) -> None:
            if error is not None:
                reached.set_exception(error)
            else:
                reached.set_result(None)

        with self._log.latch:
            if vlsn > self.range.last:
                self._log.check_open()
            cancel = self._log.index.wait_for(Vlsn(vlsn), wake)
        try:
            reached.result(timeout_s)
        except TimeoutError:
            cancel()
            return reached.done()
        return True

    def checkpoint(self) -> Checkpoint:
        """The next open reads from here on."""
        done: Future[Checkpoint] = Future()
        with self._log.latch:
            self._check()
            self._log.checkpointer.run(done=done.set_result, failed=done.set_exception)
        return self._wait(done)

    def rotate(self) -> int:
        """Goes on in a new segment (unless the current one is empty); its number."""
        done: Future[int] = Future()
        with self._log.latch:
            self._check()
            self._log.rotate("request", done.set_result)
        return self._wait(done)

    def clean(self, *, dry_run: bool = False) -> CleaningReport:
        """Removes what retention wants gone and nothing holds (``LogOptions.retention_bytes``, ``retention_age_s``);
        the files are gone on return.  Every checkpoint of an embedded log does it too.  ``dry_run`` says what would
        go, and who keeps the rest."""
        done: Future[CleaningReport] = Future()
        with self._log.latch:
            self._check()
            self._log.cleaner.run(done.set_result, dry_run=dry_run)
        return self._wait(done)

    def hold(
        self,
        name: str,
        vlsn: int,
        *,
        owner: Owner = Owner.CONSUMER,
        on_dropped: Callable[[Vlsn], None] = lambda _: None,
    ) -> LogHold:
        """Keeps the log from ``vlsn`` on (0: all there is) until it is released, advanced, or dropped for lying more
        than ``hold_bytes_max`` behind; ``on_dropped`` is then told the first VLSN left, under the log's latch.  It
        does not outlive the process.  An older hold of that owner and name ends.  Raises ``Trimmed``."""
        with self._log.latch:
            self._check()
            return LogHold(self._log, self._log.holds.place(owner, name, Vlsn(vlsn), on_dropped=on_dropped))

    def raise_durable(self, vlsn: int) -> None:
        """Everything up to ``vlsn`` is durable: never rolled back from now on.  Lower than before changes nothing.
        The next block, the next checkpoint and a clean stop keep it.  Raises ``BadArgument`` past what is synced."""
        with self._log.latch:
            if vlsn > self.range.last_sync:
                raise BadArgument(f"VLSN {vlsn} cannot be durable: this log has synced up to {self.range.last_sync}")
            self._log.raise_dtvlsn(Vlsn(vlsn))

    def rollback(self, matchpoint: int) -> None:
        """Abandons everything after ``matchpoint``, the last VLSN of a block (appends that waited together may share
        one) or 0.  Durable on return; when the process ends on the way, the next open finishes it or nothing has
        happened.  Then the log goes on in a new term, whose TERM entry takes the next VLSN.

        Appends that wait for VLSNs, and those that come meanwhile, are refused with ``NotMaster``: nothing of them
        was logged.  Raises, with nothing abandoned, ``RollbackProhibited`` below ``durable_vlsn`` (always, where
        what is synced is durable), ``BadArgument`` when no block ends there, ``Damaged`` when what is to be
        abandoned cannot be read; ``LogFailed``."""
        log = self._log
        with self._turn:
            done: Future[None] = Future()
            with log.latch:
                self._check()
                check_rollback(log, Vlsn(matchpoint))
                log.stop_sealing(NotMaster("the log was rolled back before this was logged; send it again"))
                log.rollback(Vlsn(matchpoint), lambda: done.set_result(None), done.set_exception)
            try:
                self._wait(done)
            finally:
                if log.failure is None:
                    self._take_term()

    def close(self) -> None:
        """A clean stop.  Appends and a rollback under way are finished first; harmless when done before.  Raises
        ``LogFailed`` when the log fails meanwhile; everything is closed all the same."""
        with self._turn:
            done: Future[None] = Future()
            with self._log.latch:
                if self._log.closed:
                    return
                failed = self._log.failure
                self._log.close(lambda: done.set_result(None))
            done.result()
            if self._ticker is not None:
                self._ticker.close()
            while self._readers:
                self._readers.pop().close()
            self._writer.close()
            self._keeper.close()
            self._log.node_file.close()
            if failed is None and self._log.failure is not None:
                raise self._log.failure

    # The log's listener.

    def sealed(self, pendings: list[Pending]) -> None:
        for pending in pendings:
            assert isinstance(pending, _Waiting)
            if pending.durability is Durability.SYNC:
                self._waiting.append(pending)
            elif pending.durability is Durability.WRITE_NO_SYNC:
                self._waiting_for_write.append(pending)

    def handed_over(self, last_vlsn: Vlsn) -> None:
        pass

    def written(self, last_vlsn: Vlsn) -> None:
        self._tell(self._waiting_for_write, last_vlsn)

    def synced(self, last_vlsn: Vlsn) -> None:
        if self._log.options.durable_when_synced:
            self._log.raise_dtvlsn(last_vlsn)
        self._tell(self._waiting_for_write, last_vlsn)
        self._tell(self._waiting, last_vlsn)

    def failed(self, error: LogFailed) -> None:
        with self._latch:  # what is synced meanwhile is told that, once
            self._relay.finish()
            waiting = [*self._waiting_for_write, *self._waiting]
            self._waiting_for_write.clear()
            self._waiting.clear()
            for pending in waiting:
                unknown = OutcomeUnknown(f"the log failed while this was being synced: {error}")
                unknown.__cause__ = error
                pending.tell(unknown)

    # Inside.

    def _submit(
        self,
        values: bytes | Sequence[bytes],
        keys: Sequence[bytes | None] | None,
        durability: Durability,
        shot: OneShot | LoopShot,
    ) -> _Waiting:
        many = [values] if isinstance(values, bytes) else list(values)
        pending = _Waiting(values_of(many, keys), durability, shot)
        if pending.cost > self._log.entry_bytes_max:
            raise BadArgument(f"{pending.cost} bytes do not fit a segment of {self._log.options.segment_bytes}")
        with self._log.latch:
            self._check()
            if self._log.overloaded:
                raise QueueFull(f"{self._log.queue_length} entries already wait to be logged")
            self._log.append(pending)
            if durability is Durability.NO_SYNC:
                pending.tell()
        return pending

    def _check_first(self, vlsn: int) -> None:
        first = self.range.first
        if vlsn < first:
            raise Trimmed(f"VLSN {vlsn} was cleaned away; the first is {first}", first=first)

    def _take_term(self) -> None:
        log = self._log
        record = log.node_file.record
        term = Term(max(record.term, log.history.last_term) + 1)
        log.node_file.replace(replace(record, term=term))
        entry = TermEntry(term=term, master=record.node, incarnation=f"{record.incarnation:016x}")
        done: Future[Vlsn] = Future()
        with log.latch:
            if log.options.durable_when_synced:
                log.raise_dtvlsn(log.range.last_sync)
            log.start_sealing(term)
            log.append_entries([EntryKind.TERM], [entry.encode()], done.set_result)
        self._wait(done)

    def _wait(self, done: Future[T]) -> T:
        while True:
            try:
                return done.result(1.0)
            except TimeoutError:
                self._check()

    def _check(self) -> None:
        if self._log.failure is not None:
            raise self._log.failure

    def _tell(self, waiting: deque[_Waiting], last_vlsn: Vlsn) -> None:
        """Tells all up to ``last_vlsn``: by a relay while another group waits for this thread to write it, and then
        whom that has not come to by now at once."""
        if not waiting or waiting[0].last > last_vlsn:
            return
        self._relay.finish()
        told = []
        while waiting and waiting[0].last <= last_vlsn:
            if (shot := waiting.popleft().tell_by_relay()) is not None:
                told.append(shot)
        self._relay = Relay(told)
        if self._log.cycle.group is not None:
            self._relay.pass_on()
        else:
            self._relay.finish()
