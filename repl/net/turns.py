"""The share of one turn of the event loop for a listener's connections: frames taken in, bytes sent.

A read of 256 KiB may hold 37,000 frames of one byte, and a socket is read up to 32 times in a turn: the loop would be
gone for seconds, and with it heartbeats and votes.  So what has been read is followed frame by frame, and what is past
the turn's share waits in its connection, whose reading pauses:

    read ─► share left, nobody waits ─► aiohttp's reader
         └► else held ─► the line ─► ``FRAMES_AT_ONCE`` of it when its turn comes ─► the line's end, or read on

1. The line is served in its order, a few frames each time: whoever floods it waits with the rest.
2. A small message that comes alone goes past the line (``tap.py``), also while others flood; so many of them a turn.
3. Pieces of streams are sent so many bytes a turn: one append wakes every tail, and a system call copies what is sent.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

from vlsn.limits import KIB, MIB

FRAMES_A_TURN = 256
"""About 3 ms of pings, 10 ms of appends."""
FRAMES_AT_ONCE = 32
"""Frames of one connection, while others wait."""


SMALL_A_TURN = 256
"""Messages that come alone, each on a connection of its own."""
SENT_BYTES_A_TURN = 2 * MIB
"""About 2 ms; of pieces over ``SENT_AT_ONCE_BYTES``."""
SENT_AT_ONCE_BYTES = 16 * KIB


class Waiting(Protocol):
    def go_on(self, frames_max: int) -> int:
        """Takes in up to so many frames of what is held; how many it were.  Joins the line again by itself."""
        ...


class Turns:
    """The turns of one listener's incoming frames."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._line: deque[Waiting] = deque()
        self._turn = -1.0
        self._left = 0
        self._small_turn = -1.0
        self._small_left = 0
        self._called = False

    def small(self) -> bool:
        """Says whether one more message that comes alone may go past the line in this turn."""
        now = self._loop.time()
        if now != self._small_turn:
            self._small_turn, self._small_left = now, SMALL_A_TURN
        self._small_left -= 1
        return self._small_left >= 0

    def share(self) -> int:
        """Returns frames that may be taken in at once; none while somebody waits."""
        if self._line:
            return 0
        now = self._loop.time()  # uvloop's stands still for a turn
        if now != self._turn:
            self._turn, self._left = now, FRAMES_A_TURN
        return self._left

    def took(self, frames: int) -> None:
        self._left -= frames

    def wait(self, connection: Waiting) -> None:
        """Puts ``connection``, which holds frames, into the line."""
        self._line.append(connection)
        if not self._called:
            self._called = True
            self._loop.call_soon(self._next)

    def _next(self) -> None:
        self._turn, self._left = self._loop.time(), FRAMES_A_TURN
        while self._line and self._left > 0:
            self._left -= self._line.popleft().go_on(min(self._left, FRAMES_AT_ONCE))
        self._called = bool(self._line)
        if self._called:
            self._loop.call_soon(self._next)


class Sending:
    """The turns of one listener's streams, for what they send."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._line: deque[tuple[asyncio.Future[None], int]] = deque()
        self._sent = 0
        self._called = False

    async def may_send(self, size: int) -> None:
        """Returns when a piece of ``size`` bytes may be sent."""
        if size <= SENT_AT_ONCE_BYTES:
            return
        if not self._called:
            self._called = True
            self._loop.call_soon(self._next)
        if self._line or self._sent >= SENT_BYTES_A_TURN:
            turn = self._loop.create_future()
            self._line.append((turn, size))
            await turn
        else:
            self._sent += size

    def _next(self) -> None:
        self._sent, self._called = 0, bool(self._line)
        while self._line and self._sent < SENT_BYTES_A_TURN:
            turn, size = self._line.popleft()
            if not turn.done():  # by a cancel
                turn.set_result(None)
                self._sent += size
        if self._called:
            self._loop.call_soon(self._next)
