"""The state of a log in its life: open, closing, closed, or failed.

    open ─► closing ─► closed
      └────────┴─────► failed      the page cache can no longer be trusted: the process must end

A log can fail only once. The queued appends are refused then, and the workers' threads get no more jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TypeVar

from vlsn.errors import LogClosed, LogFailed
from vlsn.seams import Clock, Worker
from vlsn.segments.background import Background
from vlsn.write.queue import Pending

T = TypeVar("T")


class LogLife:
    """The state of one log, its latch, the keeper (its background thread) and the background work. All parts of the log
    share this object."""

    def __init__(
        self,
        latch: AbstractContextManager[object],
        keeper: Worker,
        clock: Clock,
        *,
        stop: Callable[[LogFailed], Sequence[Pending]],
        failed: Callable[[LogFailed], None],
    ) -> None:
        """``stop`` ends the work that is under way, under the latch, and returns the appends to refuse. ``failed`` is
        called after that."""
        self.latch = latch
        self.keeper = keeper
        self.clock = clock
        self.background = Background(keeper, latch, clock, ends=self.fail)
        self.closing = False
        """True once a clean stop has begun."""
        self.closed = False
        self.over = False
        """True if the log is closed or failed."""
        self.failure: LogFailed | None = None
        self._stop = stop
        self._failed = failed

    def check_open(self) -> None:
        """Raises ``LogFailed`` or ``LogClosed`` if the log is not open."""
        if self.failure is not None:
            raise self.failure
        if self.closed:
            raise LogClosed("the log is closed")

    def keep(self, job: Callable[[], T], done: Callable[[T], None] = lambda _: None) -> None:
        """Runs ``job``, a transaction of the index or the state, on the keeper's thread. If ``job`` fails, the log
        fails."""
        self.keeper.submit(job, done, self.store_failed)

    def store_failed(self, error: BaseException) -> None:
        self.fail(f"an index or state transaction failed: {error}", error)

    def fail(self, text: str, error: BaseException) -> None:
        """Makes the log fail, because of ``error``. A second call does nothing."""
        with self.latch:
            if self.failure is not None:
                return
            failure = LogFailed(text)
            failure.__cause__ = error
            self.failure, self.over = failure, True
            refused = self._stop(failure)
        for pending in refused:
            pending.refused(failure)
        self._failed(failure)
