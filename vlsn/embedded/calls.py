"""Calls of an embedded log that wait, and that a signal must not cut in two.

    main thread     submit ─► waits ✗ Ctrl-C                  only the waiting ends
    vlsnlog-calls      └► begins it, under the latch ─► …     goes on to its end

A signal's handler that raises may interrupt the main thread at any point.  So changes of the log's state in several
steps (a checkpoint, a cleaning, a rollback, the end) are begun by a thread of their own.  Those that stop the sealing
run there whole, one after the other.
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
"""The seconds after which who waits looks whether the log has ended, or is out of room."""
T = TypeVar("T")


class LogCalls:
    def __init__(self, log: LocalLog, latch: AbstractContextManager[object], worker: Worker) -> None:
        self._log = log
        self._latch = latch
        self._worker = worker
        self.gone: LogClosed | None = None
        """The reason why there are no threads any more that could do anything."""

    def begun(self, begin: Callable[[Answer[T]], None]) -> T:
        """Calls ``begin`` under the latch and returns what its answer is given."""
        done: Answer[T] = Answer()

        def call() -> None:
            with self._latch:
                self._log.life.check_open()
                begin(done)

        self.check()
        self._worker.submit(call, lambda _: None, done.fail)
        return self.wait(done)

    def in_turn(self, call: Callable[[], T]) -> T:
        """Runs ``call`` after those before it and returns what it gives. Raises ``LogClosed`` after ``close``."""
        self.check_threads()
        done: Answer[T] = Answer()
        self._worker.submit(call, done.give, done.fail)
        return done.wait()

    def wait(self, done: Answer[T], *, for_room: bool = True) -> T:
        """Returns the value of ``done``, or raises ``LogFailed`` or ``LogClosed`` when the log ends first. Unless
        ``for_room``, raises ``NoSpace`` where what waits in the log's queue has no other segment; it is done when there
        is one again."""
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
        """Raises what ended the log, or left it without threads: to be asked before the latch is waited for."""
        self.check_threads()
        self._log.life.check_open()

    def check_threads(self) -> None:
        """Raises ``LogClosed`` where there are none: the latch may be held by one of them, for ever."""
        if self.gone is not None:
            raise self.gone

    def sync(self, vlsn: int | None = None) -> Vlsn:
        """Syncs, as ``Log.sync`` says."""
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
        """Closes the worker, in the last of the calls."""
        self._worker.close()
