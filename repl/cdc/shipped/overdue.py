"""A thread that closes a file that has been open for too long, even if no event comes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Overdue:
    """Calls ``act`` every ``period_s`` until ``close``, never during a ``call`` of the consumer.

    After an error of ``act`` or of a call, ``act`` is not called again: the state of the file is unknown, and an
    incomplete file must not be published. ``check`` and each further call raise that error again.
    """

    def __init__(self, act: Callable[[], None], period_s: float) -> None:
        self._latch = threading.RLock()
        self._act = act
        self._period_s = period_s
        self._fault: BaseException | None = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="overdue", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raises the first error, if there was one."""
        if self._fault is not None:
            raise self._fault

    @contextmanager
    def call(self) -> Iterator[None]:
        """A context for one call of the consumer, during which ``act`` is not called. Raises as ``check``."""
        with self._latch:
            self.check()
            try:
                yield
            # the error is stored before the lock is released, so that the thread sees it
            except BaseException as error:
                self._fault = error
                raise

    def close(self) -> None:
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closed.wait(self._period_s):
            with self._latch:
                if self._fault is None:
                    try:
                        self._act()
                    except Exception as error:  # the error is raised later, on the consumer's own thread
                        self._fault = error
