"""WebSocket bytes that nobody has received yet: counted by the frame, and bounded for all together.

aiohttp hands over whole messages. So connections that each send half of a large one could hold any amount of memory,
past the gateway's budget for bodies. Here the headers of frames are followed as they come. A message that announces
more than ``FREE_BYTES`` needs a place among ``ARRIVING_BYTES_MAX`` before more of it is read:

    header: 16 MiB to come ─► room: read on          ─► whole ─► received by the gateway: its place is given back
                           └► none: reading pauses   ─► room ─► read on

1. A message in one frame takes its place once, for all of it; one in several frames takes the largest place there is. A
   connection that waits keeps places for whole messages only. So every message that has begun can end, and waiting
   connections do not block one another.
2. A message that has its place gets ``WHOLE_S`` for its rest, then its connection ends: a silent sender cannot keep a
   place.
3. At most ``ARRIVING_BYTES_MAX`` are held, and for each connection ``FREE_BYTES`` and one read more.
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
    """The places of one listener."""

    def __init__(self, bytes_max: int = ARRIVING_BYTES_MAX) -> None:
        self.used = 0
        self._bytes_max = bytes_max
        self._waiting: deque[Arrival] = deque()

    def take(self, arrival: Arrival, size: int) -> bool:
        """Takes ``size``, and says whether that was possible; if not, ``arrival`` stands in the line."""
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
    """One connection.  ``pause`` and ``resume`` its reading; ``abort`` ends it."""

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
        """Bytes that it waits for."""
        self._arrivals = arrivals
        self._message_bytes_max = message_bytes_max
        self._pause, self._resume, self._abort = pause, resume, abort
        self.frames = Frames()
        self._whole: deque[int] = deque()
        self._whole_bytes = 0
        self._taken = 0
        self._timer: asyncio.TimerHandle | None = None

    def arrived(self, data: Buffer, frames_max: int = NO_LIMIT) -> int:
        """Counts ``data`` up to where its ``frames_max``th frame ends, or all of it; returns how much that is."""
        for size in self.frames.feed(data, frames_max):
            self._whole.append(size)
            self._whole_bytes += size
        self._settle()
        return self.frames.end

    def received(self) -> None:
        """Notes that the gateway has the oldest whole message now."""
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
        if self.due:  # it waits for the message under way, and keeps nothing for those that were received meanwhile
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
