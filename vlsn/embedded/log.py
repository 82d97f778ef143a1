"""The embedded log, ``vlsn.Log``: a log in one directory, without a cluster. ``vlsn.Log`` is blocking and thread-safe.

    with Log.open("DIR") as log:
        first, last = log.append([b"one", b"two"])        # atomic; on the medium on return
        for entry in log.read(from_vlsn=first): ...

Concurrent appends share a sync: while the writer's thread writes one group of appends, the next group gathers. By
default all synced entries are durable, and nothing can be rolled back. If copies elsewhere decide what is durable, the
log is opened with ``durable_when_synced=False``:

    log.raise_durable(40)      entries up to 40 are durable, since a majority of the copies has them
    log.rollback(40)           41 and later, synced only here, are abandoned; their VLSNs are assigned again

``vlsn.Log`` is an adapter that turns the log's callbacks into blocking calls. If a signal's handler raises (Ctrl-C),
only the waiting ends; the work continues. A log that is still open at the end of the process is closed, and so is a log
to which no reference is left (``end``).
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from operator import index
from types import TracebackType
from typing import ClassVar, overload

from vlsn.embedded.calls import LogCalls
from vlsn.embedded.end import LogEnd
from vlsn.embedded.owned_values import owned_with_keys
from vlsn.embedded.readers import LogReading
from vlsn.embedded.transaction import LogTransaction
from vlsn.embedded.waiting_appends import WaitingAppend, WaitingAppends
from vlsn.errors import BadArgument, LogFailed, NoSpace, NotMaster, VlsnLogError, said_of
from vlsn.format.block import Entry, EntryKind
from vlsn.format.records import CommitEntry, Settings, TermEntry
from vlsn.format.submission import Submission, Transaction, values_of
from vlsn.ids import Term, Vlsn
from vlsn.index.range import VlsnRange
from vlsn.levels import TRANSACTIONS
from vlsn.real.clock import SystemClock, SystemRandom
from vlsn.real.disk import PosixDisk
from vlsn.real.lmdb_store import LmdbStores
from vlsn.real.threads import Answer, CallerThreads, LoopShot, OneShot, Ticker, undisturbed
from vlsn.recover.recovery import Recovered, recover
from vlsn.seams import Buffer, Seams, Worker
from vlsn.segments.background import Fault
from vlsn.segments.reader import DATA_ONLY
from vlsn.state.holds import LogHold, Owner
from vlsn.state.options import Durability, LogOptions, LogStats
from vlsn.state.state_store import Checkpoint
from vlsn.times import time_us
from vlsn.write.cleaner import CleaningReport
from vlsn.write.local_log import LocalLog
from vlsn.write.rollback import check_rollback

GROUP_NAME = "embedded"
NODE_NAME = "log"
logger = logging.getLogger("vlsnlog")
TICK_S_MIN = 0.005
TICK_S_MAX = 0.1
TERM_RUNS_KEPT = 1_000
"""The most terms whose first and last VLSNs are kept. Each opening of the log begins a new term, and each checkpoint
writes all kept terms."""


class Log:
    """An embedded log. ``Log.open`` makes it."""

    _listener: ClassVar[type[WaitingAppends]] = WaitingAppends

    def __init__(self, recovered: Recovered, options: LogOptions, seams: Seams, keeper: Worker) -> None:
        del recovered.history.term_runs[:-TERM_RUNS_KEPT]
        self._waiting = self._listener(recovered.latch)
        self._latch = recovered.latch
        writer = seams.threads.worker("vlsnlog-writer")
        self._log = LocalLog(
            recovered,
            options,
            seams,
            writer=writer,
            keeper=keeper,
            listener=self._waiting,
            failed=self._waiting.failed,
            by_writer=True,
        )
        self._waiting.log = self._log
        self._log.life.background.told = _tell
        self._calls = LogCalls(self._log, self._latch, seams.threads.worker("vlsnlog-calls"))
        self._reading = LogReading(self._log, self._calls)
        self._end = LogEnd(self._log, self._latch, self._calls, self._reading, (writer, keeper))
        weakref.finalize(self, self._end.lost).atexit = False  # at exit, ``LogEnd`` closes every log
        if options.retention:
            self._log.care.checkpointer.after = self._log.care.cleaner.run

    @classmethod
    def open(cls, directory: str | os.PathLike[str], options: LogOptions | None = None) -> Log:
        """Opens or creates the log in ``directory``, and begins a new term in it. While the log is open, the directory
        may be renamed, and the working directory may change, since the log keeps the directory open. If the log becomes
        garbage without being closed, it is closed with a ``ResourceWarning``, and can be opened again a moment later.
        In a forked child process the log is closed. If there is no disk space for a segment, an existing log can be
        read, and appends are refused with ``NoSpace`` until there is space. Raises ``LogInUse``, ``WrongDirectory``
        (also for a node's directory), ``Damaged``, ``NoSpace`` or ``LogFailed``."""
        path = os.path.abspath(os.fspath(directory))
        return undisturbed(lambda: cls._open(path, options), lambda log: log.close())

    @classmethod
    def _open(cls, directory: str, options: LogOptions | None) -> Log:
        seams = Seams(PosixDisk(), SystemClock(), SystemRandom(), CallerThreads(), LmdbStores())
        options = options or LogOptions()
        keeper = seams.threads.worker("vlsnlog-keeper")
        opened: Answer[Recovered] = Answer()
        keeper.submit(
            lambda: recover(
                directory,
                seams,
                group=GROUP_NAME,
                node=NODE_NAME,
                segment_bytes=options.segment_bytes,
            ),
            opened.give,
            opened.fail,
        )
        try:
            recovered = opened.wait()
        except OSError as error:
            keeper.close()
            kind = NoSpace if error.errno in (errno.ENOSPC, errno.EDQUOT) else LogFailed
            raise kind(f"the log in {directory} could not be opened: {said_of(error)}") from error
        except BaseException:
            keeper.close()
            raise
        log = cls(recovered, options, seams, keeper)
        period = max(TICK_S_MIN, min(TICK_S_MAX, options.flush_interval_s / 2, options.sync_interval_s / 2))
        try:
            log._end.ticker = Ticker("vlsnlog-ticker", period, log._log.tick)
            log._take_term()
        except BaseException:
            log.close()
            raise
        return log

    def __enter__(self) -> Log:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @property
    def range(self) -> VlsnRange:
        """The first VLSN, the last VLSN, and the last synced VLSN of the log, as an immutable object."""
        return self._log.view.range

    @property
    def term(self) -> Term:
        return Term(self._log.node_file.record.term)

    @property
    def durable_vlsn(self) -> Vlsn:
        """The durable end. Entries up to this VLSN are never rolled back. After the log was opened again, it is the
        highest VLSN that the files state to be durable, which may be lower than the last ``raise_durable``."""
        return self._log.view.dtvlsn

    @property
    def queue_length(self) -> int:
        """The number of entries that wait to be logged."""
        return self._log.queue.entries

    @property
    def active_logs(self) -> list[int]:
        """The numbers of the current segment and of the standby (the prepared next segment)."""
        return self._log.placement.active_files()

    @property
    def stats(self) -> LogStats:
        """The log's live counters: groups and syncs, appends for each sync, changes of segment, and the counters of the
        index."""
        return self._log.stats

    @property
    def failing(self) -> list[Fault]:
        """The background work that fails and is retried. No acknowledged append depends on background work."""
        return self._log.life.background.faults()

    def synced_length(self, segment: int) -> int:
        """Returns how many bytes of ``segment`` are synced. Another process may read the file's synced bytes. Returns 0
        if ``segment`` is not, or no longer, a segment of the log."""
        return self._log.view.synced_end(segment)

    @overload
    def append(
        self, values: Buffer, *, key: Buffer | None = None, durability: Durability = Durability.SYNC
    ) -> tuple[Vlsn, Vlsn]: ...
    @overload
    def append(
        self,
        values: Buffer | Iterable[Buffer],
        *,
        keys: Iterable[Buffer | None] | None = None,
        durability: Durability = Durability.SYNC,
    ) -> tuple[Vlsn, Vlsn]: ...
    def append(
        self,
        values: Buffer | Iterable[Buffer],
        *,
        key: Buffer | None = None,
        keys: Iterable[Buffer | None] | None = None,
        durability: Durability = Durability.SYNC,
    ) -> tuple[Vlsn, Vlsn]:
        """Appends all ``values`` or none, as they are at the time of the call. Returns the first and last VLSN of the
        new entries. A ``bytes``, ``bytearray`` or ``memoryview`` is a single value, whose key is ``key``. For several
        values, ``keys`` has a key or None for each value. An empty key means no key.

        On return the entries are on the medium. With ``WRITE_NO_SYNC`` the entries are only written on return, and are
        synced within ``sync_interval_s``. With ``NO_SYNC`` the entries are written within ``flush_interval_s`` (see
        ``Durability`` and ``LogOptions``). Entries can be read once they are synced. If nothing was logged, raises
        ``QueueFull`` (from 90 % of the queue on), ``NoSpace``, ``TooLarge``, ``BadBody``, ``BadArgument`` or
        ``TypeError``. If the log closes or fails, the entries may have been logged; raises ``OutcomeUnknown`` or
        ``LogFailed`` then.
        """
        shot = OneShot()
        pending = self._submit(values, key, keys, durability, shot)
        shot.wait()
        return Vlsn(pending.first), Vlsn(pending.last)

    @overload
    async def append_async(
        self, values: Buffer, *, key: Buffer | None = None, durability: Durability = Durability.SYNC
    ) -> tuple[Vlsn, Vlsn]: ...
    @overload
    async def append_async(
        self,
        values: Buffer | Iterable[Buffer],
        *,
        keys: Iterable[Buffer | None] | None = None,
        durability: Durability = Durability.SYNC,
    ) -> tuple[Vlsn, Vlsn]: ...
    async def append_async(
        self,
        values: Buffer | Iterable[Buffer],
        *,
        key: Buffer | None = None,
        keys: Iterable[Buffer | None] | None = None,
        durability: Durability = Durability.SYNC,
    ) -> tuple[Vlsn, Vlsn]:
        """Appends like ``append``, but from a coroutine. If the coroutine is cancelled, the entries are logged all the
        same."""
        shot = LoopShot(asyncio.get_running_loop())
        pending = self._submit(values, key, keys, durability, shot)
        await shot.future
        return Vlsn(pending.first), Vlsn(pending.last)

    def transaction(self, *, durability: Durability = Durability.SYNC) -> LogTransaction:
        """Begins a transaction. The entries of a transaction are logged together when its ``with`` block ends or it is
        committed, or not at all. The first transaction of a log raises the log's level (the version of its formats).
        Older binaries refuse a log with transactions.

            with log.transaction() as txn:
                txn.append(b"a")
                txn.append([b"b", b"c"], keys=[b"k", None])
            txn.first, txn.last                    four VLSNs: the last one is the COMMIT's
        """
        return LogTransaction(partial(self._commit, durability))

    def _commit(self, durability: Durability, transaction: Transaction) -> tuple[Vlsn, Vlsn]:
        if self._log.view.history.level < TRANSACTIONS:
            self._calls.in_turn(self._raise_level)
        shot = OneShot()
        pending = self._queue(transaction, durability, shot)
        shot.wait()
        return Vlsn(pending.first), Vlsn(pending.last)

    def _raise_level(self) -> None:
        """Raises the log's level, first in the node file. After that, readers of the log must support transactions."""
        log = self._log
        if log.view.history.level >= TRANSACTIONS:
            return
        stored: Answer[None] = Answer()
        with log.latch:
            log.life.check_open()
            log.promises.store_level(
                TRANSACTIONS, lambda error: stored.give(None) if error is None else stored.fail(error)
            )
        self._calls.wait(stored)
        done: Answer[Vlsn] = Answer()
        entry = CommitEntry(set=Settings(level=TRANSACTIONS)).encode()
        with log.latch:
            log.life.check_open()
            log.append_entries([EntryKind.COMMIT], [entry], done.give)
        self._calls.wait(done, for_room=False)

    def sync(self, vlsn: int | None = None) -> Vlsn:
        """Waits until everything up to ``vlsn`` is on the medium, and returns the last VLSN that is on the medium. By
        default, waits for everything that was appended before the call. Returns at once if everything is already
        synced. Raises ``BadArgument`` for a VLSN that is not assigned yet. Raises ``NoSpace`` while entries wait for
        disk space; the waiting entries are logged later. Raises ``LogFailed``."""
        return self._calls.sync(None if vlsn is None else index(vlsn))

    def read(self, *, from_vlsn: int = 0, to_vlsn: int = 0, all_kinds: bool = False) -> Generator[Entry, None]:
        """Yields synced entries from ``from_vlsn`` (0: the first in the log) to ``to_vlsn`` (0: the last synced one).
        Raises ``Trimmed`` or ``Damaged``. If the log is rolled back meanwhile, the iteration ends at the matchpoint,
        and entries that were yielded before may have been rolled back."""
        return self._reading.entries(index(from_vlsn), index(to_vlsn), None if all_kinds else DATA_ONLY, keeps=self)

    def pairs(self, *, from_vlsn: int = 0, to_vlsn: int = 0) -> Iterator[tuple[int, bytes]]:
        """Yields the VLSN and the value of each entry that ``read`` yields, at less than half the cost. Raises the
        errors of ``read``."""
        return self._reading.pairs(index(from_vlsn), index(to_vlsn), keeps=self)

    def find_time(self, at: datetime | int) -> Vlsn:
        """Returns the first VLSN of the first synced block that was sealed at ``at`` or later, by the clock of the
        process that sealed it. ``at`` is a ``datetime`` (UTC if it has no zone) or µs since the epoch. If no block was
        sealed at ``at`` or later, returns the VLSN after the last synced one, so that the caller can wait for that
        VLSN. A search reads about a MiB, whatever the length of the log. Raises ``Damaged`` or ``BadArgument``."""
        return self._reading.find_time(time_us(at))

    def wait_for(self, vlsn: int, timeout_s: float | None = None) -> bool:
        """Returns True as soon as ``vlsn`` is appended and synced, or False after ``timeout_s``. Raises ``LogClosed``
        or ``LogFailed`` if the log is closed or fails first."""
        reached: Answer[None] = Answer()

        def wake(error: VlsnLogError | None) -> None:
            if error is not None:
                reached.fail(error)
            else:
                reached.give(None)

        wanted = Vlsn(index(vlsn))
        self._calls.check_threads()
        with self._log.latch:
            if wanted > self.range.last:
                self._log.life.check_open()
            cancel = self._log.view.index.wait_for(wanted, wake)
        try:
            reached.wait(timeout_s)
        except TimeoutError:
            cancel()
            return reached.given
        return True

    def checkpoint(self) -> Checkpoint:
        """Runs a checkpoint, from which the next opening of the log starts to read."""

        def begin(done: Answer[Checkpoint]) -> None:
            self._log.care.checkpointer.run(done=done.give, failed=done.fail)

        return self._calls.begun(begin)

    def rotate(self) -> int:
        """Continues in a new segment, unless the current segment is empty. Returns the segment's number. Raises the
        errors of ``sync``."""
        done: Answer[int] = Answer()
        self._calls.check()
        with self._log.latch:
            self._log.cycle.rotate("request", done.give)
        return self._calls.wait(done, for_room=False)

    def clean(self, *, dry_run: bool = False) -> CleaningReport:
        """Removes the segments that retention (``LogOptions.retention_bytes``, ``retention_age_s``) wants removed and
        that no hold keeps. The files are removed on return. Every checkpoint of an embedded log also removes such
        segments. With ``dry_run``, only reports the segments that would be removed, and the holds that keep other
        segments."""

        def begin(done: Answer[CleaningReport]) -> None:
            self._log.care.cleaner.run(done.give, dry_run=dry_run)

        return self._calls.begun(begin)

    def hold(
        self,
        name: str,
        vlsn: int,
        *,
        owner: Owner = Owner.CONSUMER,
        on_dropped: Callable[[Vlsn], None] = lambda _: None,
    ) -> LogHold:
        """Keeps the log from ``vlsn`` on (0: the whole log) until the hold is released, advanced or dropped, or the
        process ends. The hold may be dropped if it is more than ``hold_bytes_max`` behind the log's end. ``on_dropped``
        is then called under the log's latch, with the first VLSN that remains. The new hold replaces an older one of
        the same owner and name. Raises ``Trimmed`` if ``vlsn`` was cleaned away."""
        first = Vlsn(index(vlsn))
        self._calls.check()
        with self._log.latch:
            self._log.life.check_open()
            holds = self._log.care.holds
            hold = holds.place(owner, name, first, on_dropped=on_dropped)
            return LogHold(holds, self._latch, hold, self._calls.check_threads)

    def raise_durable(self, vlsn: int) -> None:
        """Declares everything up to ``vlsn`` durable, so that it is never rolled back. If ``vlsn`` is lower than in an
        earlier call, it is ignored. The next block, the next checkpoint and a clean stop store the durable end. Raises
        ``BadArgument`` for a VLSN that is not synced."""
        durable = Vlsn(index(vlsn))
        self._calls.check_threads()
        with self._log.latch:
            if durable > self.range.last_sync:
                raise BadArgument(f"VLSN {durable} cannot be durable: this log has synced up to {self.range.last_sync}")
            self._log.view.raise_dtvlsn(durable)

    def rollback(self, matchpoint: int) -> None:
        """Rolls back everything after ``matchpoint``, which is 0 or the last VLSN of a block. Appends that waited
        together may share a block. The rollback is durable on return. If the process ends before the return, either the
        next opening of the log finishes the rollback, or nothing has happened. After the rollback the log continues in
        a new term, whose TERM entry gets the next VLSN.

        Appends that have no VLSNs yet, and appends made during the rollback, are refused with ``NotMaster``; nothing of
        them is logged. If nothing is rolled back, raises ``RollbackProhibited`` (``matchpoint`` is below
        ``durable_vlsn``, as always with ``durable_when_synced``), ``BadArgument`` (no block ends at ``matchpoint``),
        ``Damaged`` (the blocks after ``matchpoint`` cannot be read) or ``NoSpace``. May also raise ``LogFailed``.
        """
        end = Vlsn(index(matchpoint))
        self._log.life.check_open()
        self._calls.in_turn(lambda: self._rollback(end))

    def _rollback(self, matchpoint: Vlsn) -> None:
        log = self._log
        done: Answer[None] = Answer()
        with log.latch:
            log.life.check_open()
            check_rollback(log.view, matchpoint)
            log.stop_sealing(NotMaster("the log was rolled back before this was logged; send it again"))
            log.rollback(matchpoint, lambda: done.give(None), done.fail)
        try:
            self._calls.wait(done)
        finally:
            if log.life.failure is None:
                self._take_term()

    def close(self) -> None:
        """Stops the log cleanly, after the appends and the rollback that are under way. Closing a log again does no
        harm.

        Raises ``LogFailed`` if the log fails meanwhile. Even then everything is closed.
        """
        self._end.close()

    # Private methods.

    def _submit(
        self,
        values: Buffer | Iterable[Buffer],
        key: Buffer | None,
        keys: Iterable[Buffer | None] | None,
        durability: Durability,
        shot: OneShot | LoopShot,
    ) -> WaitingAppend:
        return self._queue(values_of(*owned_with_keys(values, key, keys)), durability, shot)

    def _queue(self, submission: Submission, durability: Durability, shot: OneShot | LoopShot) -> WaitingAppend:
        if type(durability) is not Durability:
            durability = _durability(durability)
        pending = WaitingAppend(submission, durability, shot)
        self._log.check_size(pending.cost)
        self._calls.check()
        with self._log.latch:
            self._log.append(pending)
            if durability is Durability.NO_SYNC:
                pending.tell()
        return pending

    def _take_term(self) -> None:
        """Begins the next term. The TERM entry that begins the term is synced on return. If there is no space for a
        segment, the TERM entry is the next entry to be logged instead."""
        log = self._log
        record = log.node_file.record
        term = Term(max(record.term, log.view.history.last_term) + 1)
        log.node_file.replace(replace(record, term=term))
        entry = TermEntry(term=term, master=record.node, incarnation=f"{record.incarnation:016x}")
        done: Answer[Vlsn] = Answer()
        with log.latch:
            if log.options.durable_when_synced:
                log.view.raise_dtvlsn(log.view.range.last_sync)
            log.start_sealing(term)
            log.append_entries([EntryKind.TERM], [entry.encode()], done.give)
        with suppress(NoSpace):
            self._calls.wait(done, for_room=False)


def _tell(fault: Fault) -> None:
    """Warns of the first, second, fourth, eighth … failure in a row."""
    if not fault.failures & (fault.failures - 1):
        level = logging.WARNING if fault.failures else logging.INFO
        count = f"failed {fault.failures} times" if fault.failures else "works again"
        logger.log(level, "background work %s: %s (%s)", count, fault.work, fault.why)


def _durability(given: int) -> Durability:
    try:
        return Durability(given)
    except ValueError:
        raise BadArgument(
            f"durability: {given!r} is not one of {', '.join(each.name for each in Durability)}"
        ) from None
