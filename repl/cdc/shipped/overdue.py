"""A thread that closes what has been open for too long, while no event comes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Overdue:
    """Calls ``act`` every ``period_s``, beside no ``call`` of the consumer's own, until ``close``.

    An error of the task or of a call is the end. The state of the file is unknown then, and half a file must not be
    closed as a whole one.  ``check`` and each further call raise it again, and ``act`` is called no more."""

    def __init__(self, act: Callable[[], None], period_s: float) -> None:
        self._latch = threading.RLock()
        self._act = act
        self._period_s = period_s
        self._fault: BaseException | None = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="overdue", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raises what went wrong first."""
        if self._fault is not None:
            raise self._fault

    @contextmanager
    def call(self) -> Iterator[None]:
        """Runs a call of the consumer's own. Raises as ``check``."""
        with self._latch:
            self.check()
            try:
                yield
            except BaseException as error:  # before the thread, which may wait for the latch, has it
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
                    except Exception as error:  # handed to the consumer's own thread
                        self._fault = error
