"""A thread that closes what has been open for too long, while no event comes."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Overdue:
    """Calls ``act`` every ``period_s``, under ``latch``, until ``close``.  What it raises is raised again by ``check``,
    which the consumer's own calls begin with."""

    def __init__(self, act: Callable[[], None], period_s: float) -> None:
        self.latch = threading.RLock()
        self._act = act
        self._period_s = period_s
        self._fault: BaseException | None = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="overdue", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raises what went wrong since the last call."""
        fault, self._fault = self._fault, None
        if fault is not None:
            raise fault

    def close(self) -> None:
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closed.wait(self._period_s):
            with self.latch:
                if self._fault is None:
                    try:
                        self._act()
                    except Exception as error:  # handed to the consumer's own thread
                        self._fault = error
