"""Deadlines for very many waiters. All waiters share one timer, and a waiter costs nothing until it is due.

    due at 12.31 s ─► tick 247 (12.35 s) ─► all of it at once, ``DUE_A_TURN`` a turn of the loop

A timer for each reader would cost more than the reader's answer. A deadline is met up to ``TICK_S`` late, and never
early.
"""

from __future__ import annotations

import asyncio
from collections import deque
from heapq import heappop, heappush
from typing import Protocol

TICK_S = 0.05
DUE_A_TURN = 64


class Due(Protocol):
    tick: int
    """The tick at which the waiter is due; 0 for never. Only ``Deadlines`` sets and reads it."""

    def due(self) -> None:
        """Is called once, at the deadline. It may set another deadline."""
        ...


class Deadlines:
    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ticks: dict[int, dict[Due, None]] = {}
        self._heap: list[int] = []
        self._now: deque[tuple[int, Due]] = deque()
        """The waiters that are due and were not called yet, each with the tick at which it was due."""
        self._timer: asyncio.TimerHandle | None = None

    def now(self) -> float:
        """Returns the loop's time."""
        return self._loop.time()

    def set(self, one: Due, at_s: float) -> None:
        """Sets the deadline of ``one`` (in the loop's time), replacing its earlier deadline."""
        self.clear(one)
        tick = one.tick = int(at_s / TICK_S) + 1
        those = self._ticks.get(tick)
        if those is None:
            those = self._ticks[tick] = {}
            heappush(self._heap, tick)
            if self._heap[0] == tick:
                self._sleep()
        those[one] = None

    def clear(self, one: Due) -> None:
        if one.tick:
            those = self._ticks.get(one.tick)
            if those is not None:
                those.pop(one, None)
            one.tick = 0

    def _sleep(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(self._heap[0] * TICK_S, self._wake) if self._heap else None

    def _wake(self) -> None:
        self._timer = None
        called, now = bool(self._now), self._loop.time()
        while self._heap and self._heap[0] * TICK_S <= now:
            tick = heappop(self._heap)
            self._now.extend((tick, one) for one in self._ticks.pop(tick))
        self._sleep()
        if not called and self._now:
            self._call()

    def _call(self) -> None:
        those = [self._now.popleft() for _ in range(min(DUE_A_TURN, len(self._now)))]
        if self._now:
            self._loop.call_soon(self._call)
        for tick, one in those:
            if one.tick == tick:  # otherwise the deadline was cleared or put off meanwhile
                one.tick = 0
                try:
                    one.due()
                except Exception as fault:  # the others of this turn are called all the same
                    self._loop.call_exception_handler({"message": "a deadline was missed", "exception": fault})
