"""The life of an open log: open, closing, closed, or failed.

    open ─► closing ─► closed
      └────────┴─────► failed      what the page cache says is not to be trusted any more: the process must end

A log fails once.  What is queued is then refused, and nothing goes to the workers any more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from vlsn.errors import LogClosed, LogFailed
from vlsn.write.queue import Pending


class Lifecycle:
    """Shared by the parts of one log.  ``latch`` is the log's."""

    def __init__(
        self,
        latch: AbstractContextManager[object],
        *,
        stop: Callable[[LogFailed], Sequence[Pending]],
        failed: Callable[[LogFailed], None],
    ) -> None:
        """``stop`` ends what is under way, under the latch, and gives the appends to refuse; ``failed`` comes last."""
        self.latch = latch
        self.closing = False
        """A stop is under way, or has ended."""
        self.closed = False
        self.failure: LogFailed | None = None
        self._stop = stop
        self._failed = failed

    @property
    def over(self) -> bool:
        return self.failure is not None or self.closed

    def check_open(self) -> None:
        """Raises ``LogFailed`` or ``LogClosed``."""
        if self.failure is not None:
            raise self.failure
        if self.closed:
            raise LogClosed("the log is closed")

    def store_failed(self, error: BaseException) -> None:
        self.fail(f"an index or state transaction failed: {error}", error)

    def fail(self, text: str, error: BaseException) -> None:
        """Ends the log; once."""
        with self.latch:
            if self.failure is not None:
                return
            failure = LogFailed(text)
            failure.__cause__ = error
            self.failure = failure
            refused = self._stop(failure)
        for pending in refused:
            pending.refused(failure)
        self._failed(failure)
