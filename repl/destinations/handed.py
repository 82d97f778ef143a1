"""Messages that are handed out and that no socket has taken yet: their bytes, over all workers of a node.

    handed out: counted ─► confirmed, encoded ─► taken by its worker's socket: not counted any more
    no room ─► a send has been under way for ``STALLED_S`` ─► that worker is given up, the longest first
           └► none has ─► who takes messages waits

A worker that does not read is handed ``WORKER_BYTES_MAX`` and less than one answer more, so others go on.  Many of them
could fill the memory, so all share ``HANDED_BYTES_MAX``, which is passed by an answer of each destination at most. The
connection of a worker that is given up is reset. Messages that it was not sent whole come back at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from repl.web.limits import ANSWERS_MAX, HANDED_BYTES_MAX, STALLED_S, WORKER_BYTES_MAX
from vlsn.errors import ChannelClosed


class Handed:
    """The count of one node."""

    def __init__(self, bytes_max: int = HANDED_BYTES_MAX) -> None:
        self.bytes = 0
        self.given_up = 0
        """Workers given up so far."""
        self._bytes_max = bytes_max
        self._sending: dict[Holder, tuple[float, asyncio.Timeout]] = {}
        """The workers that are being sent a message, and since when; the longest first."""
        self._freed: asyncio.Future[None] | None = None

    async def wait(self, until: float) -> bool:
        """Waits for room, to ``until`` of the loop's time at most, and says whether there is some."""
        loop = asyncio.get_running_loop()
        while self.bytes >= self._bytes_max and (now := loop.time()) < until:
            due = self._look(now)
            if due > now:
                self._freed = self._freed or loop.create_future()
                await asyncio.wait([self._freed], timeout=min(until, due) - now)
        return self.bytes < self._bytes_max

    def _look(self, now: float) -> float:
        """Gives up the worker whose send is under way longest, where that is too long; returns when to look again."""
        if not self._sending:
            return now + STALLED_S
        holder, (since, sending) = next(iter(self._sending.items()))
        if since + STALLED_S > now:
            return since + STALLED_S
        del self._sending[holder]
        self.given_up += 1
        holder.leave()
        sending.reschedule(now)
        return now

    def count(self, size: int) -> None:
        """Counts so many more, or less."""
        self.bytes += size
        if self._freed is not None and self.bytes < self._bytes_max:
            self._freed.set_result(None)
            self._freed = None

    async def send(self, holder: Holder, sending: Coroutine[Any, Any, object]) -> None:
        self._sending[holder] = asyncio.get_running_loop().time(), asyncio.timeout(None)
        try:
            async with self._sending[holder][1]:  # it knows this task, and is not to be known to this frame
                await sending
        except TimeoutError:
            raise ChannelClosed("it does not take its messages, and others need the room") from None
        finally:
            self._sending.pop(holder, None)


class Holder:
    """The messages of one worker, or of one request that asks once: their room in memory."""

    def __init__(self, handed: Handed) -> None:
        self.answers: dict[int, int] = {}
        """The bytes of each answer that no socket has yet, the first first."""
        self._handed = handed
        self._bytes = 0

    @property
    def is_full(self) -> bool:
        return self._bytes >= WORKER_BYTES_MAX or len(self.answers) >= ANSWERS_MAX

    async def wait(self, until: float) -> bool:
        """Waits for room, to ``until`` of the loop's time at most, and says whether there is."""
        return await self._handed.wait(until)

    def take(self, answer: int, size: int) -> None:
        """Takes room for an answer of so many bytes; ``sent`` or ``leave`` gives it back."""
        self.answers[answer] = size
        self._count(size)

    async def send(self, sending: Coroutine[Any, Any, object]) -> None:
        """Waits until the worker's socket has taken a message. Raises ``ChannelClosed``, also where the worker is given
        up."""
        await self._handed.send(self, sending)

    def sent(self) -> None:
        """Notes that the first answer is with the socket."""
        self._count(-self.answers.pop(next(iter(self.answers))))

    def leave(self) -> None:
        """Gives all of the worker's room back. ``answers`` stay, so that the caller can recall them."""
        self._count(-self._bytes)
        self.answers = dict.fromkeys(self.answers, 0)

    def _count(self, size: int) -> None:
        self._bytes += size
        self._handed.count(size)
