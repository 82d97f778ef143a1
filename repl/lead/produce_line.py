"""Producers that wait for room: in the budget of bodies, or in the log's queue.

A producer awaits its answers: it is not refused for what others have under way, but waits in line with one message,
and no other producer's overtakes it.  What waits is counted; when that is full, or its time is over, it is refused
after all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from repl.web.limits import PRODUCERS_WAITING_BYTES_MAX, Budget

AGAIN_S = 0.05
"""Seconds after which the first in line tries again while nobody gives anything back."""
Try = Callable[[], bool]
"""A try: says whether it needs to wait no longer."""


class Line:
    """The line of one gateway; ``bodies`` is what most of them wait for."""

    def __init__(self, bodies: Budget) -> None:
        self.waiting_bytes = Budget("bytes of messages that wait for room", PRODUCERS_WAITING_BYTES_MAX)
        self._bodies = bodies
        self._line: dict[Try, int] = {}
        self._called: asyncio.Handle | None = None

    def __bool__(self) -> bool:
        return bool(self._line)

    def wait(self, again: Try, size: int) -> None:
        """Puts ``again`` into the line: once first, it is called until it holds. Raises ``QueueFull``."""
        self.waiting_bytes.take(size)
        self._line[again] = size
        self._bodies.given = self._given
        self._call_later()

    def leave(self, again: Try) -> None:
        """Does nothing when it has left already."""
        if again in self._line:
            self.waiting_bytes.give(self._line.pop(again))

    def _given(self) -> None:
        """Tries again once bytes were given back, in a turn of its own. Whoever gave them is in the middle of it."""
        if self._called is not None:
            self._called.cancel()
        self._bodies.given = None
        self._called = asyncio.get_running_loop().call_soon(self._serve)

    def _serve(self) -> None:
        self._called = None
        self._bodies.given = None  # what a try takes and gives back itself is no room: it would try in every turn
        while self._line:
            first = next(iter(self._line))
            if not first():
                self._bodies.given = self._given
                self._call_later()
                return
            self.leave(first)

    def _call_later(self) -> None:
        if self._called is None:
            self._called = asyncio.get_running_loop().call_later(AGAIN_S, self._serve)
