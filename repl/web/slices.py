"""Work in many small pieces, a slice in each turn of the event loop: other work waits for one slice, not for all.

One append may wake every reader of a node.  Writing to 1,000 sockets in one turn would take 10 ms, in which no
heartbeat, feed or append is heard.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")


def at_once(steps: Generator[int, None, T]) -> T:
    """Returns what ``steps`` returns, with a stop at none of them."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


class Slices:
    """Shares of a turn, for all users of this object, in the order in which they wait."""

    __slots__ = ("_a_turn", "_called", "_line", "_loop", "_used")

    def __init__(self, a_turn: int) -> None:
        self._a_turn = a_turn
        self._loop = asyncio.get_running_loop()
        self._line: deque[tuple[asyncio.Future[None], int]] = deque()
        self._used = 0
        self._called = False

    async def turn(self, cost: int) -> None:
        """Returns when work of ``cost`` may be done; one piece may cost more than a whole turn has."""
        if not self._called:
            self._called = True
            self._loop.call_soon(self._next)
        if self._line or self._used >= self._a_turn:
            turn = self._loop.create_future()
            self._line.append((turn, cost))
            await turn
        else:
            self._used += cost

    async def run(self, steps: Generator[int, None, T]) -> T:
        """Returns what ``steps`` returns; before each piece of work they yield its cost."""
        while True:
            try:
                cost = next(steps)
            except StopIteration as end:
                result: T = end.value
                return result
            await self.turn(cost)

    def _next(self) -> None:
        self._used, self._called = 0, bool(self._line)
        while self._line and self._used < self._a_turn:
            turn, cost = self._line.popleft()
            if not turn.done():  # by a cancel
                turn.set_result(None)
                self._used += cost
        if self._called:
            self._loop.call_soon(self._next)
