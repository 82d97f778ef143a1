"""The end of a log: a clean stop, or what is left of one when there is no room or the log fails.

    1  everything queued is synced; what comes now is refused
    2  a checkpoint whose end says clean
    3  the files are closed, the lock is released

Without room for 2 it is left out, and the next open reads from the checkpoint before.  At home.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from vlsn.errors import LogClosed, NoSpace
from vlsn.write.queue import Queue

if TYPE_CHECKING:
    from vlsn.write.local_log import LocalLog


class Shutdown:
    """``asked``: a stop is under way, or has ended."""

    def __init__(self, log: LocalLog, queue: Queue) -> None:
        self.asked = False
        self.closed = False
        self._log = log
        self._queue = queue
        self._closers: list[Callable[[], None]] = []

    def begin(self, done: Callable[[], None]) -> None:
        """``done`` when the files are closed, also if the log fails before."""
        log = self._log

        def stop() -> None:
            log.stop_sealing(LogClosed("the log is closing"))
            log.space.look(end)

        def end() -> None:
            if log.space.cramped:
                log.drain(self.finish)  # not a clean stop: the next open reads from the checkpoint before
            else:
                log.checkpointer.run(clean=True, done=lambda _: self.finish(), failed=lambda _: self.finish())

        self.asked = True
        self._closers.append(done)
        if log.failure is not None or self.closed:
            self.finish()
        else:
            log.drain(stop)

    def without_space(self, refusal: NoSpace) -> None:
        """There is no other segment: what waits for one is refused."""
        log = self._log
        log.stop_sealing(type(refusal)(f"the log is closing, and {refusal}"))
        log.cycle.pump()
        if log.cycle.group is None and self._queue:  # not even a record has a place: not a clean stop
            self._queue.items.clear()
            self.finish()

    def finish(self) -> None:
        """Closes the files, and tells who asked for it."""
        log = self._log
        with log.latch:
            closers, self._closers = self._closers, []
            if not self.closed:
                self.closed = True
                log.background.close()
                log.placement.close()
                log.index.fail_waiters(LogClosed("the log was closed"))
                log.keeper.submit(self._close_stores, lambda _: None, lambda _: None)
        for done in closers:
            log.keeper.submit(lambda: None, lambda _, done=done: done(), lambda _: None)  # type: ignore[misc]

    def _close_stores(self) -> None:
        """On the keeper's thread."""
        log = self._log
        log.index.close()
        log.state.close()
        log.lock.release()
