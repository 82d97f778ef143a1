"""Producers that wait for room: in the budget of bodies, or in the log's queue.

A producer awaits its answers. Others' appends under way are no reason to refuse it: it waits in line with one message,
in order of arrival. The waiting bytes are counted. A message is refused when they reach their limit, or when its time
is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from repl.web.limits import PRODUCERS_WAITING_BYTES_MAX, Budget

AGAIN_S = 0.05
"""Seconds after which the first in line tries again while no bytes come back."""
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
        """Appends ``again`` to the line. Once first, it is called until it returns True. Raises ``QueueFull``."""
        self.waiting_bytes.take(size)
        self._line[again] = size
        self._bodies.given = self._given
        self._call_later()

    def leave(self, again: Try) -> None:
        """Does nothing when it has left already."""
        if again in self._line:
            self.waiting_bytes.give(self._line.pop(again))

    def _given(self) -> None:
        """Tries again once bytes were given back, in a turn of its own. The caller that returned them is still at work
        in this turn."""
        if self._called is not None:
            self._called.cancel()
        self._bodies.given = None
        self._called = asyncio.get_running_loop().call_soon(self._serve)

    def _serve(self) -> None:
        self._called = None
        self._bodies.given = None  # a try's own bytes are no new room: it would try in every turn
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
