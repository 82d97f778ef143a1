"""Calls of an embedded log that wait for work which a signal must not interrupt.

    main thread     submit ─► waits ✗ Ctrl-C                  only the waiting ends
    vlsnlog-calls      └► begins the work, under the latch ─► …     the work continues to its end

A signal's handler that raises an exception may interrupt the main thread at any point. So a separate thread begins
every change of the log's state that needs several steps: a checkpoint, a cleaning, a rollback, or closing. Calls that
stop the log from accepting appends run entirely on that separate thread, one after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TypeVar

from vlsn.errors import BadArgument, LogClosed
from vlsn.ids import Vlsn
from vlsn.real.threads import Answer
from vlsn.seams import Worker
from vlsn.write.local_log import LocalLog

LOOK_S = 0.5
"""The seconds after which a waiting caller checks whether the log has closed or failed, or is out of disk space."""
T = TypeVar("T")


class LogCalls:
    def __init__(self, log: LocalLog, latch: AbstractContextManager[object], worker: Worker) -> None:
        self._log = log
        self._latch = latch
        self._worker = worker
        self.gone: LogClosed | None = None
        """The error with the reason why the log's threads no longer exist. None while the threads exist."""

    def begun(self, begin: Callable[[Answer[T]], None]) -> T:
        """Calls ``begin`` under the log's latch with an ``Answer``, waits for it, and returns its value."""
        done: Answer[T] = Answer()

        def call() -> None:
            with self._latch:
                self._log.life.check_open()
                begin(done)

        self.check()
        self._worker.submit(call, lambda _: None, done.fail)
        return self.wait(done)

    def in_turn(self, call: Callable[[], T]) -> T:
        """Runs ``call`` after all calls passed to this method before, and returns its result. Raises ``LogClosed``
        after ``close``."""
        self.check_threads()
        done: Answer[T] = Answer()
        self._worker.submit(call, done.give, done.fail)
        return done.wait()

    def wait(self, done: Answer[T], *, for_room: bool = True) -> T:
        """Returns the value of ``done``. Raises ``LogFailed`` or ``LogClosed`` if the log fails or is closed first. If
        ``for_room`` is false, raises ``NoSpace`` if the entries in the log's queue wait for a segment that cannot be
        made. The waiting entries are logged once a segment can be made."""
        while True:
            try:
                return done.wait(LOOK_S)
            except TimeoutError:
                self.check_threads()
                if not done.given:
                    self._log.life.check_open()
                if not for_room and (why := self._log.stuck) is not None:
                    raise type(why)(f"{why}; the waiting entries are logged once there is a segment") from None

    def check(self) -> None:
        """Raises the error with which the log or its threads ended, if they did. Callers use this check before they
        wait for the log's latch."""
        self.check_threads()
        self._log.life.check_open()

    def check_threads(self) -> None:
        """Raises ``LogClosed`` if the log's threads no longer exist, since one of them may hold the latch for ever."""
        if self.gone is not None:
            raise self.gone

    def sync(self, vlsn: int | None = None) -> Vlsn:
        """Syncs the log, as ``Log.sync`` describes."""
        log = self._log
        if vlsn is not None and vlsn <= log.view.range.last_sync:
            return log.view.range.last_sync
        done: Answer[None] = Answer()
        self.check()
        with log.latch:
            log.life.check_open()
            if vlsn is not None and vlsn > log.promised:
                raise BadArgument(f"VLSN {vlsn} is not assigned yet; the last assigned VLSN is {log.promised}")
            log.cycle.drain(lambda: done.give(None))
        self.wait(done, for_room=False)
        return log.view.range.last_sync

    def close(self) -> None:
        """Closes the thread for calls. No other method may be called afterwards."""
        self._worker.close()
