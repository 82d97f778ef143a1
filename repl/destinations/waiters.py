"""Queues the calls that wait for messages of one destination. A message wakes the call that has waited longest."""

from __future__ import annotations

import asyncio
from collections import deque

from repl.destinations.limits import WAITERS_MAX
from vlsn.errors import QueueFull


class Waiters:
    def __init__(self, destination: str) -> None:
        self._destination = destination
        self._waiting: deque[asyncio.Future[None]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    async def wait(self, deadline: float) -> None:
        """Waits to be woken, until ``deadline`` (the event loop's time). Raises ``QueueFull``."""
        if len(self._waiting) >= WAITERS_MAX:
            raise QueueFull(f"{WAITERS_MAX} calls already wait for messages of {self._destination}")
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting.append(turn)
        timer = loop.call_at(deadline, _wake, turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.wake()  # a cancelled call wakes the next waiting call in its place
            raise
        finally:
            timer.cancel()
            if turn in self._waiting:
                self._waiting.remove(turn)

    def wake(self) -> None:
        """Wakes the call that has waited longest."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return

    def wake_all(self) -> None:
        for turn in self._waiting:
            _wake(turn)


def _wake(turn: asyncio.Future[None]) -> None:
    if not turn.done():
        turn.set_result(None)
