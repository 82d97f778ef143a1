"""Does work in many small pieces, some in each turn of the event loop. So other work waits for some pieces only, not
for all.

One append may wake every reader of a node. Writing to 1,000 sockets in one turn would take 10 ms, and heartbeats, feeds
and appends would wait for that long.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")


def at_once(steps: Generator[int, None, T]) -> T:
    """Runs ``steps`` without a pause, and returns what ``steps`` returns."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


class Slices:
    """Shares each turn of the event loop among all users of this object, in the order in which they wait."""

    __slots__ = ("_a_turn", "_called", "_line", "_used")

    def __init__(self, a_turn: int) -> None:
        self._a_turn = a_turn
        self._line: deque[tuple[asyncio.Future[None], int]] = deque()
        self._used = 0
        self._called = False

    async def turn(self, cost: int) -> None:
        """Returns when work of ``cost`` may be done. A single piece may cost more than a whole turn's share."""
        if not self._called:
            self._called = True
            asyncio.get_running_loop().call_soon(self._next)
        if self._line or self._used >= self._a_turn:
            turn = asyncio.get_running_loop().create_future()
            self._line.append((turn, cost))
            await turn
        else:
            self._used += cost

    async def run(self, steps: Generator[int, None, T]) -> T:
        """Returns what ``steps`` returns. Before each piece of work ``steps`` must yield the cost of the piece."""
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
            if not turn.done():  # otherwise a cancel has ended it
                turn.set_result(None)
                self._used += cost
        if self._called:
            asyncio.get_running_loop().call_soon(self._next)
