"""The life of an open log: open, closing, closed, or failed.

    open ─► closing ─► closed
      └────────┴─────► failed      the page cache can no longer be trusted: the process must end

A log fails once. Then the queued appends are refused, and the workers get no more jobs.
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
    """Shared by the parts of one log: its state, its latch, the keeper and the background work."""

    def __init__(
        self,
        latch: AbstractContextManager[object],
        keeper: Worker,
        clock: Clock,
        *,
        stop: Callable[[LogFailed], Sequence[Pending]],
        failed: Callable[[LogFailed], None],
    ) -> None:
        """``stop`` ends the work under way, under the latch, and returns the appends to refuse. ``failed`` is called
        last."""
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
        """Runs ``job``, a transaction of the index or the state, on the keeper's thread. Its failure ends the log."""
        self.keeper.submit(job, done, self.store_failed)

    def store_failed(self, error: BaseException) -> None:
        self.fail(f"an index or state transaction failed: {error}", error)

    def fail(self, text: str, error: BaseException) -> None:
        """Ends the log. A second call does nothing."""
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
