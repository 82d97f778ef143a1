"""Children that are no processes: the child's own code on the loop, over a connection of messages in memory.

A fake child is killed, hangs and exits like a process: unsent and unread messages are lost.  Its consumers are classes
that a test registers by name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context

from repl.cdc.child.capture import Capture
from repl.cdc.consumer import CdcConsumer
from repl.shared import undisturbed
from vlsn.errors import ChannelClosed
from vlsn.seams import Buffer

EXIT_KILLED = -9
EXIT_TERMINATED = -15


class DiesHere(BaseException):
    """Raised inside a consumer's method, and kills the child's process there."""


class FakeChild:
    """One child (``repl.cdc.children.Child``)."""

    def __init__(self, owner: FakeChildren, pid: int, load: Callable[[str], CdcConsumer]) -> None:
        self.pid = pid
        self._owner = owner
        loop = asyncio.get_running_loop()
        self.hangs = False
        """True if it reads and sends nothing until it ends."""
        self.delay_s: float | None = None
        """Seconds from a message's arrival to its effect; None: as in ``owner``."""
        self.demoted = False
        self.lingers = False
        """True if a kill takes effect only once ``lets_go`` is called, as inside a call of the kernel."""
        self._loop = loop
        self._said: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._ended: asyncio.Future[int] = loop.create_future()
        self._capture = Capture(self._said.put_nowait, load, sleep=lambda seconds: None, monotonic_s=loop.time)
        self._heard: asyncio.Queue[bytes] = asyncio.Queue()
        self._life = loop.create_task(self._live(), name=f"child-{pid}", context=Context())  # none of its node's tasks

    async def send(self, message: Buffer) -> None:
        await asyncio.sleep(0)
        if self._ended.done():
            raise ChannelClosed("the child has ended")
        self._heard.put_nowait(bytes(message))

    async def receive(self) -> bytes:
        said = await self._said.get()
        if said is None:
            self._said.put_nowait(None)
            raise ChannelClosed("the child has ended")
        return said

    async def ended(self) -> int:
        return await undisturbed(self._ended)

    def demote(self) -> None:
        self.demoted = True

    def terminate(self) -> None:
        self._end(EXIT_TERMINATED)

    def kill(self) -> None:
        if not self.lingers:
            self._end(EXIT_KILLED)

    def lets_go(self) -> None:
        self.lingers = False
        self._end(EXIT_KILLED)

    def exit(self, status: int) -> None:
        """Exits as if the consumer itself had called for it."""
        self._end(status)

    async def _live(self) -> None:
        while not self._capture.over:
            message = await self._heard.get()
            await asyncio.sleep(self._owner.delay_s if self.delay_s is None else self.delay_s)
            if self.hangs:
                await self._ended
                return
            try:
                self._capture.heard(message)
            except DiesHere:
                self._end(EXIT_KILLED)
                return
        self._end(1 if self._capture.failed else 0)

    def _end(self, status: int) -> None:
        if not self._ended.done():
            self._ended.set_result(status)
            self._said.put_nowait(None)
            self._loop.call_soon(self._life.cancel)


class FakeChildren:
    """The children of one machine; ``classes`` are the consumers that can be imported there."""

    def __init__(self) -> None:
        self.classes: dict[str, Callable[[], CdcConsumer]] = {}
        self.alive: dict[str, FakeChild] = {}
        self.starts = 0
        self.delay_s = 0.0001
        """Seconds from a message's arrival to its effect."""
        self.start_s = 0.001
        """Seconds from a start to the running process."""
        self.fails: Exception | None = None
        """The error of each start; None if it succeeds."""

    async def start(self, name: str) -> FakeChild:
        await asyncio.sleep(self.start_s)
        self.starts += 1
        if self.fails is not None:
            raise self.fails
        child = FakeChild(self, 1000 + self.starts, self._load)
        self.alive[name] = child
        return child

    def kill_all(self) -> None:
        """Ends all of them, as after the end of their node's process."""
        for child in self.alive.values():
            child.kill()
        self.alive.clear()

    def _load(self, name: str) -> CdcConsumer:
        return self.classes[name]()


__all__ = ["DiesHere", "FakeChild", "FakeChildren"]
