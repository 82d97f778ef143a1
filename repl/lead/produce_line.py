"""Producers that wait for room, in the budget of bodies or in the log's queue.

A producer waits for its answers anyway, so it is not refused when a budget is full. Instead the producer waits with one
message, in order of arrival. The bytes of waiting messages are limited. A message is refused when the limit is reached,
or when the message times out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from repl.web.limits import PRODUCERS_WAITING_BYTES_MAX, Budget

AGAIN_S = 0.05
"""If no bytes are returned to the budget meanwhile, the first producer in line tries again after this many seconds."""
Try = Callable[[], bool]
"""A function that tries to submit a request. Returns True if the request no longer needs to wait."""


class Line:
    """The line of waiting producers of one gateway. Most producers wait for room in ``bodies``, the budget of request
    bodies."""

    def __init__(self, bodies: Budget) -> None:
        self.waiting_bytes = Budget("bytes of messages that wait for room", PRODUCERS_WAITING_BYTES_MAX)
        self._bodies = bodies
        self._line: dict[Try, int] = {}
        self._called: asyncio.Handle | None = None

    def __bool__(self) -> bool:
        return bool(self._line)

    def wait(self, again: Try, size: int) -> None:
        """Appends ``again`` to the line. At the head of the line, ``again`` is called until it returns True. Raises
        ``QueueFull``."""
        self.waiting_bytes.take(size)
        self._line[again] = size
        self._bodies.given = self._given
        self._call_later()

    def leave(self, again: Try) -> None:
        """Removes ``again`` from the line, if it is still there."""
        if again in self._line:
            self.waiting_bytes.give(self._line.pop(again))

    def _given(self) -> None:
        """Tries again after bytes were returned to the budget. The next try runs in a later turn of the event loop,
        because the caller that returned the bytes has not finished."""
        if self._called is not None:
            self._called.cancel()
        self._bodies.given = None
        self._called = asyncio.get_running_loop().call_soon(self._serve)

    def _serve(self) -> None:
        self._called = None
        # a try may return its own bytes, which would call this function in every turn
        self._bodies.given = None
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
