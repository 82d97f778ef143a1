"""The disk's free space. The free space is checked on the keeper's (background) thread, so that a slow file system
never stops the event loop.

    free ≥ free_bytes_min     appends are accepted
    below                     appends are refused (``no-space``), reads continue
    below 2 MiB               checkpoints, the idle end and cleaning wait as well

Accepted appends are written to segments whose space was reserved before, so they need no free space. The free space is
kept for all other files. When the disk has room again, appends are accepted again by themselves.

A check that fails is repeated in the background (``background``). Until a check succeeds, the last known free space is
used, and the callers that waited for the check continue.
"""

from __future__ import annotations

from collections.abc import Callable

from vlsn.limits import STATE_FREE_BYTES_MIN
from vlsn.seams import Disk
from vlsn.write.log_life import LogLife


class FreeSpace:
    """The free space of a directory's file system, as the last check found it. Only the thread that owns
    the log uses the object."""

    def __init__(self, disk: Disk, directory: str, life: LogLife, *, free_bytes_min: int) -> None:
        self.free_bytes: int | None = None
        """The free bytes; None before the first successful check."""
        self.low = False
        """True while less than the minimum is free. Appends are refused then."""
        self._disk = disk
        self._directory = directory
        self._life = life
        self._background = life.background
        self._min = free_bytes_min
        self._waiting: list[Callable[[], None]] = []
        self._looking = False

    @property
    def cramped(self) -> bool:
        """True while so little is free that not even a checkpoint should be tried. A transaction of LMDB that finds no
        room would end the process."""
        return self.free_bytes is not None and self.free_bytes < STATE_FREE_BYTES_MIN

    def look(self, then: Callable[[], None] = lambda: None) -> None:
        """Checks the free space, then calls ``then``. A call during a running check shares that check. If the same
        ``then`` is passed twice, it is called once."""
        with self._life.latch:
            if then not in self._waiting:
                self._waiting.append(then)
            if self._looking:
                return
            self._looking = True
            if self._background.is_due("space"):
                self._life.keeper.submit(lambda: self._disk.free_bytes(self._directory), self._seen, self._failed)
            else:
                self._life.keeper.submit(lambda: None, lambda _: self._answer(), self._failed)

    def _seen(self, free_bytes: int) -> None:
        with self._life.latch:
            self.free_bytes = free_bytes
            self.low = free_bytes < self._min
            self._background.works("space")
        self._answer()

    def _failed(self, error: BaseException) -> None:
        with self._life.latch:
            self._background.fails("space", error, lambda: None, path=self._directory)
        self._answer()

    def _answer(self) -> None:
        with self._life.latch:
            self._looking = False
            waiting, self._waiting = self._waiting, []
        for then in waiting:
            then()
