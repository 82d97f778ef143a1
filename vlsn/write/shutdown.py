"""The end of a log: a clean stop, or what is left of one without room.

    1  everything queued is synced; what comes now is refused
    2  a checkpoint whose end says clean
    3  the files are closed, the lock is released

Without room for 2 it is left out, and the next open reads from the checkpoint before.  On the owner's thread.
"""

from __future__ import annotations

from collections.abc import Callable

from vlsn.errors import LogClosed, NoSpace
from vlsn.seams import DirectoryLock
from vlsn.write.log_care import LogCare
from vlsn.write.log_life import LogLife
from vlsn.write.log_view import LogView
from vlsn.write.placement import Placement
from vlsn.write.queue import Queue
from vlsn.write.write_cycle import WriteCycle


class Shutdown:
    """The end of one log."""

    def __init__(
        self,
        view: LogView,
        life: LogLife,
        queue: Queue,
        cycle: WriteCycle,
        placement: Placement,
        care: LogCare,
        lock: DirectoryLock,
    ) -> None:
        self._index = view.index
        self._life = life
        self._queue = queue
        self._cycle = cycle
        self._placement = placement
        self._care = care
        self._lock = lock
        self._closers: list[Callable[[], None]] = []

    # 1

    def begin(self, done: Callable[[], None]) -> None:
        """Begins the stop; calls ``done`` when the files are closed, also if the log fails before."""
        self._life.closing = True
        self._closers.append(done)
        if self._life.over:
            self.finish()
        else:
            self._cycle.drain(self._stop)

    def _stop(self) -> None:
        self._cycle.stop_sealing(LogClosed("the log is closing"))
        self._care.space.look(self._state_end)

    # 2

    def _state_end(self) -> None:
        if self._care.space.cramped:
            self._cycle.drain(self.finish)  # not a clean stop: the next open reads from the checkpoint before
        else:
            self._care.checkpointer.run(clean=True, done=self._finish, failed=self._finish)

    def _finish(self, _: object) -> None:
        self.finish()

    def without_space(self, refusal: NoSpace) -> None:
        """Closes without another segment: appends that wait for one are refused."""
        self._cycle.stop_sealing(type(refusal)(f"the log is closing, and {refusal}"))
        self._cycle.pump()
        if self._cycle.group is None and self._queue:  # not even a record has a place: not a clean stop
            self._queue.items.clear()
            self.finish()

    # 3

    def finish(self) -> None:
        """Closes the files, and calls the callers back."""
        with self._life.latch:
            closers, self._closers = self._closers, []
            if not self._life.closed:
                self._life.closed = self._life.over = True
                self._life.background.close()
                self._placement.close()
                self._index.fail_waiters(LogClosed("the log was closed"))
                self._life.keeper.submit(self._close_stores, lambda _: None, lambda _: None)
        for done in closers:
            self._life.keeper.submit(lambda: None, lambda _, done=done: done(), lambda _: None)  # type: ignore[misc]

    def _close_stores(self) -> None:
        """Closes the stores, on the keeper's thread."""
        self._index.close()
        self._care.state.close()
        self._lock.release()
