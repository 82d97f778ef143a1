"""Calls of an embedded log that wait, and whose work a signal must not interrupt.

    main thread     submit ─► waits ✗ Ctrl-C                  only the waiting ends
    vlsnlog-calls      └► begins it, under the latch ─► …     goes on to its end

A signal's handler that raises an exception may interrupt the main thread at any point. So a separate thread begins
every change of the log's state that takes several steps: a checkpoint, a cleaning, a rollback, or closing. Calls that
stop the sealing run entirely on that thread, one after the other.
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
"""The seconds after which a waiting caller checks whether the log has ended, or is out of disk space."""
T = TypeVar("T")


class LogCalls:
    def __init__(self, log: LocalLog, latch: AbstractContextManager[object], worker: Worker) -> None:
        self._log = log
        self._latch = latch
        self._worker = worker
        self.gone: LogClosed | None = None
        """The error that says why the log's threads no longer exist."""

    def begun(self, begin: Callable[[Answer[T]], None]) -> T:
        """Calls ``begin`` under the latch, and returns the value that is given to its answer."""
        done: Answer[T] = Answer()

        def call() -> None:
            with self._latch:
                self._log.life.check_open()
                begin(done)

        self.check()
        self._worker.submit(call, lambda _: None, done.fail)
        return self.wait(done)

    def in_turn(self, call: Callable[[], T]) -> T:
        """Runs ``call`` after the calls before it, and returns its result. Raises ``LogClosed`` after ``close``."""
        self.check_threads()
        done: Answer[T] = Answer()
        self._worker.submit(call, done.give, done.fail)
        return done.wait()

    def wait(self, done: Answer[T], *, for_room: bool = True) -> T:
        """Returns the value of ``done``. Raises ``LogFailed`` or ``LogClosed`` if the log ends first. Unless
        ``for_room``, raises ``NoSpace`` if the entries in the log's queue wait for a segment that cannot be made. They
        are logged once there is a segment again."""
        while True:
            try:
                return done.wait(LOOK_S)
            except TimeoutError:
                self.check_threads()
                if not done.given:
                    self._log.life.check_open()
                if not for_room and (why := self._log.stuck) is not None:
                    raise type(why)(f"{why}; what waits for it is logged when there is one") from None

    def check(self) -> None:
        """Raises the error that ended the log or its threads. Call it before waiting for the latch."""
        self.check_threads()
        self._log.life.check_open()

    def check_threads(self) -> None:
        """Raises ``LogClosed`` if the threads no longer exist, since one of them may hold the latch for ever."""
        if self.gone is not None:
            raise self.gone

    def sync(self, vlsn: int | None = None) -> Vlsn:
        """Syncs as described in ``Log.sync``."""
        log = self._log
        if vlsn is not None and vlsn <= log.view.range.last_sync:
            return log.view.range.last_sync
        done: Answer[None] = Answer()
        self.check()
        with log.latch:
            log.life.check_open()
            if vlsn is not None and vlsn > log.promised:
                raise BadArgument(f"VLSN {vlsn} was not given yet; the last one is {log.promised}")
            log.cycle.drain(lambda: done.give(None))
        self.wait(done, for_room=False)
        return log.view.range.last_sync

    def close(self) -> None:
        """Closes the worker. This is the last call."""
        self._worker.close()
