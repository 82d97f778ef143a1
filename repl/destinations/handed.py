"""Limits the bytes of messages that workers were handed and that no socket has accepted yet, for all workers of a node.

    handed out: counted ─► confirmed, encoded ─► accepted by the worker's socket: no longer counted
    no room ─► a send has taken ``STALLED_S`` ─► the worker with the longest send is disconnected
           └► no send has taken so long       ─► calls that take messages wait

A worker that does not read is handed at most ``WORKER_BYTES_MAX`` and less than one answer more. So one worker that
does not read cannot stop the other workers. All workers together share ``HANDED_BYTES_MAX``, because many workers that
do not read could fill the memory. Each destination may exceed the shared limit by one answer. A disconnected worker's
connection is reset. Messages that were not sent completely to a disconnected worker come back at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from repl.web.limits import ANSWERS_MAX, HANDED_BYTES_MAX, STALLED_S, WORKER_BYTES_MAX
from vlsn.errors import ChannelClosed


class Handed:
    """The bytes of messages handed out by one node."""

    def __init__(self, bytes_max: int = HANDED_BYTES_MAX) -> None:
        self.bytes = 0
        self.given_up = 0
        """The number of workers that were disconnected because they did not read."""
        self._bytes_max = bytes_max
        self._sending: dict[Holder, tuple[float, asyncio.Timeout]] = {}
        """For each worker to which a send is under way, the start of the send; the longest send comes first."""
        self._freed: asyncio.Future[None] | None = None

    async def wait(self, until: float) -> bool:
        """Waits for room until ``until`` (the loop's time). Returns whether there is room."""
        loop = asyncio.get_running_loop()
        while self.bytes >= self._bytes_max and (now := loop.time()) < until:
            due = self._look(now)
            if due > now:
                self._freed = self._freed or loop.create_future()
                await asyncio.wait([self._freed], timeout=min(until, due) - now)
        return self.bytes < self._bytes_max

    def _look(self, now: float) -> float:
        """Disconnects the worker with the longest send, if that send has taken too long. Returns the time of the
        next check."""
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
        """Adds ``size`` bytes to the bytes handed out. A negative ``size`` removes bytes."""
        self.bytes += size
        if self._freed is not None and self.bytes < self._bytes_max:
            self._freed.set_result(None)
            self._freed = None

    async def send(self, holder: Holder, sending: Coroutine[Any, Any, object]) -> None:
        self._sending[holder] = asyncio.get_running_loop().time(), asyncio.timeout(None)
        try:
            # the timeout refers to this task; if the task's frame referred to the timeout, there would be a cycle
            async with self._sending[holder][1]:
                await sending
        except TimeoutError:
            raise ChannelClosed("the worker does not read its messages, and others need the room") from None
        finally:
            self._sending.pop(holder, None)


class Holder:
    """The room in memory for the messages of one worker, or of one request."""

    def __init__(self, handed: Handed) -> None:
        self.answers: dict[int, int] = {}
        """The bytes of each answer that no socket has accepted yet, the oldest first."""
        self._handed = handed
        self._bytes = 0

    @property
    def is_full(self) -> bool:
        return self._bytes >= WORKER_BYTES_MAX or len(self.answers) >= ANSWERS_MAX

    async def wait(self, until: float) -> bool:
        """Waits for room until ``until`` (the loop's time). Returns whether there is room."""
        return await self._handed.wait(until)

    def take(self, answer: int, size: int) -> None:
        """Takes room for an answer of ``size`` bytes; ``sent`` or ``leave`` releases the room."""
        self.answers[answer] = size
        self._count(size)

    async def send(self, sending: Coroutine[Any, Any, object]) -> None:
        """Waits until the worker's socket has accepted a message. Raises ``ChannelClosed``, also when the worker is
        disconnected for reading too slowly."""
        await self._handed.send(self, sending)

    def sent(self) -> None:
        """Notes that the socket has accepted the oldest answer."""
        self._count(-self.answers.pop(next(iter(self.answers))))

    def leave(self) -> None:
        """Releases all room of the worker. ``answers`` stays as it is, so that the caller can recall the answers."""
        self._count(-self._bytes)
        self.answers = dict.fromkeys(self.answers, 0)

    def _count(self, size: int) -> None:
        self._bytes += size
        self._handed.count(size)
