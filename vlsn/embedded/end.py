"""The end of an embedded log: it is closed, its last user is gone, or the process ends or forks.

    log.close()                     waits until it is over
    the log is garbage              a thread of its own ends it, with a ``ResourceWarning``: a signal's handler that
                                    raises just behind ``open`` may have been all that it took
    the process ends                what is still open is ended before; its threads hold up nobody
    the process forks               the child has the log's memory and none of its threads: there it is closed

The log's threads hold no reference to the ``Log`` that callers have, since otherwise it would never be garbage.
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
    """Ends one open log. ``ticker`` is closed with the log, if there is one."""

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
        """Closes the log, after appends and a rollback under way are finished. Closing it again does no harm. Raises
        ``LogFailed`` if the log fails meanwhile. Even then everything is closed."""
        failed = self._log.life.failure
        try:
            self._calls.in_turn(lambda: self._close(failed))
        except LogClosed:
            return

    def lost(self) -> None:
        """Ends a log that no longer has a user. Any thread may call this, at any point of its work."""
        if self._log.life.closing or self._calls.gone is not None:
            return
        begin_apart(self._at_exit)
        warnings.warn(f"the log in {self._log.directory} was not closed", ResourceWarning, stacklevel=2)

    def forked(self) -> None:
        """Gives up the log in a forked child process, before the child does anything else. The parent continues with
        the log and keeps its lock. Otherwise the child would hold the lock after the parent has closed the log."""
        self._log.lock.release()
        self._calls.gone = LogClosed("the log was opened before this process was forked; open one behind the fork")

    def _at_exit(self) -> None:
        with suppress(VlsnLogError):  # nothing is left that an error of the disk could be reported to
            self.close()

    def _close(self, failed: LogFailed | None) -> None:
        """Closes the log. ``failed`` is the error with which the log had failed before, if any."""
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
