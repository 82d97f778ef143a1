"""Measures how late the event loop calls a timer, which shows its longest turns.

Anything that takes long in one turn of the loop delays everything else there, including heartbeats and votes.
"""

from __future__ import annotations

import asyncio
from time import perf_counter

from vlsn.histogram import Histogram

PERIOD_S = 0.02
"""The seconds between two looks. A turn that takes longer is always noticed."""
SECONDS_BUCKETS = (
    *(0.001, 0.002, 0.003, 0.005, 0.007, 0.01, 0.015, 0.02, 0.03, 0.05, 0.07),
    *(0.1, 0.15, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0),
)


class Lateness:
    """The looks at one listener's event loop, from ``begin`` to ``close``."""

    def __init__(self) -> None:
        self.seconds = Histogram(SECONDS_BUCKETS)
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        self._due_s = perf_counter() + PERIOD_S
        self._timer = self._loop.call_later(PERIOD_S, self._look)

    def _look(self) -> None:
        self.seconds.add(max(0.0, perf_counter() - self._due_s))
        self.begin()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
