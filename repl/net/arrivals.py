"""Counts the WebSocket bytes that nobody has received yet, frame by frame, and bounds them for all connections
together.

aiohttp delivers whole messages only. So connections that each send half of a large message could take any amount of
memory, beyond the gateway's budget for bodies. Here the headers of frames are followed as they arrive. A message that
announces more than ``FREE_BYTES`` must take its bytes from ``ARRIVING_BYTES_MAX`` before more of it is read:

    header: 16 MiB to come ─► room: read on          ─► whole ─► received by the gateway: its place is given back
                           └► none: reading pauses   ─► room ─► read on

1. A message in one frame takes its bytes once, for the whole message. A message in several frames takes the most that a
   message may take. A connection that waits keeps bytes only for messages that are whole. So every message that has
   begun can end, and waiting connections do not block one another.
2. Once a message has taken its bytes, the rest of the message must arrive within ``WHOLE_S``; otherwise its connection
   is closed. So a silent sender cannot keep bytes.
3. At most ``ARRIVING_BYTES_MAX`` bytes are held, plus ``FREE_BYTES`` and one read for each connection.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from repl.net.frames import NO_LIMIT, Frames
from vlsn.limits import KIB, MIB
from vlsn.seams import Buffer

ARRIVING_BYTES_MAX = 48 * MIB
FREE_BYTES = 64 * KIB
WHOLE_S = 60.0


class Arrivals:
    """The budget of bytes of one listener."""

    def __init__(self, bytes_max: int = ARRIVING_BYTES_MAX) -> None:
        self.used = 0
        self._bytes_max = bytes_max
        self._waiting: deque[Arrival] = deque()

    def take(self, arrival: Arrival, size: int) -> bool:
        """Takes ``size`` bytes, and says whether that was possible. If not, ``arrival`` waits in line for them."""
        if self._waiting or not self._fits(size):
            self._waiting.append(arrival)
            return False
        self.used += size
        return True

    def give(self, size: int) -> None:
        self.used -= size
        assert self.used >= 0, self.used
        while self._waiting and self._fits(self._waiting[0].due):
            first = self._waiting.popleft()
            self.used += first.due
            first.granted()

    def leave(self, arrival: Arrival) -> None:
        if arrival in self._waiting:
            self._waiting.remove(arrival)
            self.give(0)

    def _fits(self, size: int) -> bool:
        return not self.used or self.used + size <= self._bytes_max


class Arrival:
    """The arriving bytes of one connection. ``pause`` and ``resume`` its reading; ``abort`` closes it."""

    def __init__(
        self,
        arrivals: Arrivals,
        message_bytes_max: int,
        *,
        pause: Callable[[], None],
        resume: Callable[[], None],
        abort: Callable[[], None],
    ) -> None:
        self.due = 0
        """The bytes that the connection waits for."""
        self._arrivals = arrivals
        self._message_bytes_max = message_bytes_max
        self._pause, self._resume, self._abort = pause, resume, abort
        self.frames = Frames()
        self._whole: deque[int] = deque()
        self._whole_bytes = 0
        self._taken = 0
        self._timer: asyncio.TimerHandle | None = None

    def arrived(self, data: Buffer, frames_max: int = NO_LIMIT) -> int:
        """Counts ``data`` up to the end of the ``frames_max``th frame, or all of ``data`` if there are fewer frames.
        Returns how many bytes were counted."""
        for size in self.frames.feed(data, frames_max):
            self._whole.append(size)
            self._whole_bytes += size
        self._settle()
        return self.frames.end

    def received(self) -> None:
        """Notes that the gateway has received the oldest whole message."""
        if self._whole:
            self._whole_bytes -= self._whole.popleft()
            self._settle()

    def granted(self) -> None:
        self._taken += self.due
        self.due = 0
        self._resume()
        self._settle()

    def close(self) -> None:
        self._stop_timer()
        self._arrivals.leave(self)
        taken, self._taken = self._taken, 0
        self._arrivals.give(taken)

    def _settle(self) -> None:
        frames = self.frames
        under_way = min(frames.announced, self._message_bytes_max) if not frames.fragmented else self._message_bytes_max
        held = self._whole_bytes + under_way
        if self.due:  # it waits for the message under way, and keeps no bytes for messages that were received meanwhile
            given = max(0, self._taken - self._whole_bytes)
            self._taken -= given
            self.due = held - self._taken
            self._arrivals.give(given)
            return
        wanted = held if held > FREE_BYTES else 0
        if wanted > self._taken:
            if not self._arrivals.take(self, wanted - self._taken):
                self.due = wanted - self._taken
                self._pause()
                return
            self._taken = wanted
        elif wanted < self._taken:
            given, self._taken = self._taken - wanted, wanted
            self._arrivals.give(given)
        if not under_way:
            self._stop_timer()
        elif wanted and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(WHOLE_S, self._abort)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
