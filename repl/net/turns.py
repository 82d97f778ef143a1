"""Limits what one turn of the event loop does for a listener's connections: frames taken in, requests, bytes sent.

A read of 256 KiB may hold 37,000 frames of one byte, and a socket is read up to 32 times in a turn. Without a limit the
loop would be busy for seconds, and heartbeats and votes would wait. So incoming bytes are followed frame by frame.
Bytes beyond the turn's share wait in their connection, whose reading pauses:

    read ─► share left, nobody waits ─► aiohttp's reader
         └► else held ─► the line ─► ``FRAMES_AT_ONCE`` of it when its turn comes ─► the line's end, or read on

1. The line is served in order, a few frames each time, so a connection that floods waits like the others.
2. A small message that arrives alone bypasses the line (``tap.py``), even while other connections flood. At most
   ``SMALL_A_TURN`` messages do so in a turn.
3. At most ``SENT_BYTES_A_TURN`` bytes of streams' pieces are sent in a turn, because one append wakes every tail, and a
   system call copies the bytes sent.
4. Requests are parsed, and begin, for a limited time in each turn, in the order in which they arrived. They are not
   counted, because they differ too much in cost. A connection has one request under way at a time, so clients that
   pipeline take turns with all others.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from time import perf_counter

from vlsn.limits import KIB, MIB

FRAMES_A_TURN = 256
"""Takes about 3 ms for pings, or 10 ms for appends."""
FRAMES_AT_ONCE = 32
"""The most frames taken from one connection while others wait."""

SMALL_A_TURN = 256
"""The most messages in a turn that arrive alone, each on a connection of its own."""
READ_S_A_TURN = 0.005
"""The seconds of a turn in which heads and bodies are parsed; enough for some 500 small requests."""
SERVED_S_A_TURN = 0.005
"""The seconds of a turn in which requests begin, and are answered if they need not wait; enough for some 50 small
requests."""
WOKEN_A_TURN = 64
"""The most waiting requests that are woken in a turn, to see whether there is time for them."""
SENT_BYTES_A_TURN = 2 * MIB
"""Takes about 2 ms. Only pieces over ``SENT_AT_ONCE_BYTES`` count."""
SENT_AT_ONCE_BYTES = 16 * KIB


GoOn = Callable[[int], int]
"""Takes in up to the given number of frames that a connection holds, and returns how many it took. The connection joins
the line again by itself."""


class Turns:
    """Shares the turns of the event loop among one listener's incoming frames."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._line: deque[GoOn] = deque()
        self._turn = -1.0
        self._left = 0
        self._small_turn = -1.0
        self._small_left = 0
        self._called = False

    def small(self) -> bool:
        """Says whether one more message that arrives alone may bypass the line in this turn."""
        now = self._loop.time()
        if now != self._small_turn:
            self._small_turn, self._small_left = now, SMALL_A_TURN
        self._small_left -= 1
        return self._small_left >= 0

    def share(self) -> int:
        """Returns how many frames may be taken in at once; none while a connection waits."""
        if self._line:
            return 0
        now = self._loop.time()  # uvloop's clock does not move within a turn
        if now != self._turn:
            self._turn, self._left = now, FRAMES_A_TURN
        return self._left

    def took(self, frames: int) -> None:
        self._left -= frames

    def wait(self, go_on: GoOn) -> None:
        """Adds a connection that holds frames to the line."""
        self._line.append(go_on)
        if not self._called:
            self._called = True
            self._loop.call_soon(self._next)

    def _next(self) -> None:
        self._turn, self._left = self._loop.time(), FRAMES_A_TURN
        while self._line and self._left > 0:
            self._left -= self._line.popleft()(min(self._left, FRAMES_AT_ONCE))
        self._called = bool(self._line)
        if self._called:
            self._loop.call_soon(self._next)


class _Share:
    """A limited time of each turn, counted from its first use in the turn."""

    def __init__(self, seconds: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._seconds = seconds
        self._until_s = 0.0
        """The time when this turn's share ends; 0.0 while nothing of the share is used."""
        self._called = False

    def _has_time(self) -> bool:
        """Says whether some of the share is left. The first caller in a turn always gets a share."""
        now = perf_counter()
        if not self._called:
            self._call()
        if self._until_s:
            return now < self._until_s
        self._until_s = now + self._seconds
        return True

    def _call(self) -> None:
        self._called = True
        self._loop.call_soon(self._next)

    def _next(self) -> None:
        self._until_s, self._called = 0.0, False
        self._go_on()

    def _go_on(self) -> None:
        """Begins a turn's share with the callers that wait."""


class Reading(_Share):
    """Shares the turns of the event loop among incoming bytes that must be parsed."""

    def __init__(self) -> None:
        super().__init__(READ_S_A_TURN)
        self._line: deque[Callable[[], None]] = deque()

    def share(self) -> bool:
        """Says whether bytes may be parsed at once; false while others wait."""
        return not self._line and self._has_time()

    def wait(self, parse: Callable[[], None]) -> None:
        """Calls ``parse`` when its turn comes. Call this after ``share`` has returned false."""
        self._line.append(parse)

    def _go_on(self) -> None:
        while self._line and self._has_time():
            self._line.popleft()()


class Serving(_Share):
    """Shares the turns of the event loop among requests of all kinds."""

    def __init__(self) -> None:
        super().__init__(SERVED_S_A_TURN)
        self._line: deque[asyncio.Future[None]] = deque()
        self._again: deque[asyncio.Future[None]] = deque()
        """The requests that were woken and for which there was no time. They come before the line."""

    async def turn(self) -> None:
        """Returns when the request may be served. At least one request is served in each turn, whatever else the turn
        does."""
        line = self._line
        if not line and self._has_time():
            return
        while True:
            turn = self._loop.create_future()
            line.append(turn)
            await turn
            if self._has_time():
                return
            line = self._again

    def _go_on(self) -> None:
        line = self._line
        line.extendleft(reversed(self._again))
        self._again.clear()
        if not line:
            return
        for _ in range(min(WOKEN_A_TURN, len(line))):
            turn = line.popleft()
            if not turn.done():  # otherwise a cancel has ended it
                turn.set_result(None)
        self._call()  # the next turn begins after the requests that were woken


class Sending:
    """Shares the turns of the event loop among the pieces that one listener's streams send."""

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
            if not turn.done():  # otherwise a cancel has ended it
                turn.set_result(None)
                self._sent += size
        if self._called:
            self._loop.call_soon(self._next)
