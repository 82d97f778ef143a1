"""The end of an embedded log. The log is closed, no reference to it is left, or the process ends or forks.

    log.close()                     waits until the log is closed
    the log is garbage              a separate thread closes it, with a ``ResourceWarning``; this may be the fault of a
                                    signal's handler that raises just after ``open``
    the process ends                logs that are still open are closed first; their threads do not delay the end
    the process forks               the child has the log's memory but not its threads: in the child the log is closed

The log's threads hold no reference to the callers' ``Log`` object, since otherwise the object would never become
garbage.
"""

from __future__ import annotations

import atexit
import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress

from vlsn.embedded.calls import LogCalls
from vlsn.embedded.forks import tell_of_forks
from vlsn.embedded.readers import LogReading
from vlsn.errors import LogClosed, LogFailed, VlsnLogError
from vlsn.real.threads import Answer, Ticker, begin_apart
from vlsn.seams import Worker
from vlsn.write.local_log import LocalLog


class LogEnd:
    """Ends one open log. ``ticker``, if there is one, is closed together with the log."""

    def __init__(
        self,
        log: LocalLog,
        latch: AbstractContextManager[object],
        calls: LogCalls,
        reading: LogReading,
        workers: Sequence[Worker],
    ) -> None:
        self.ticker: Ticker | None = None
        self._log = log
        self._latch = latch
        self._calls = calls
        self._reading = reading
        self._workers = workers
        tell_of_forks(self)
        atexit.register(self._at_exit)

    def close(self) -> None:
        """Closes the log, after the appends and the rollback that are under way. Closing a log again does no harm.
        Raises ``LogFailed`` if the log fails meanwhile. Even then everything is closed."""
        failed = self._log.life.failure
        try:
            self._calls.in_turn(lambda: self._close(failed))
        except LogClosed:
            return

    def lost(self) -> None:
        """Ends a log to which no reference is left. Any thread may call this, at any point of its work."""
        if self._log.life.closing or self._calls.gone is not None:
            return
        begin_apart(self._at_exit)
        warnings.warn(f"the log in {self._log.directory} was not closed", ResourceWarning, stacklevel=2)

    def forked(self) -> None:
        """Gives up the log in a forked child process, before the child does anything else. The parent continues with
        the log and keeps its lock. If the child did not give up the log, it would hold the lock after the parent has
        closed the log."""
        self._log.lock.release()
        self._calls.gone = LogClosed("the log was opened before this process was forked; open a log after the fork")

    def _at_exit(self) -> None:
        with suppress(VlsnLogError):  # there is no caller to whom an error of the disk could be reported
            self.close()

    def _close(self, failed: LogFailed | None) -> None:
        """Closes the log. ``failed`` is the error with which the log has failed, if it has."""
        done: Answer[None] = Answer()
        with self._latch:
            if self._log.life.closed:
                return
            self._log.close(lambda: done.give(None))
        done.wait()
        if self.ticker is not None:
            self.ticker.close()
        self._reading.close()
        for worker in self._workers:
            worker.close()
        self._log.node_file.close()
        atexit.unregister(self._at_exit)
        self._calls.close()
        if failed is None and self._log.life.failure is not None:
            raise self._log.life.failure
