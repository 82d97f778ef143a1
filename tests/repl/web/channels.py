"""Two ends of a channel in memory."""

from __future__ import annotations

import asyncio

from vlsn.errors import ChannelClosed
from vlsn.seams import Buffer, Channel

WINDOW_MESSAGES = 64


class MemoryChannel(Channel):
    """One end; messages come out at the other in their order, each a copy."""

    def __init__(self) -> None:
        self.peer = self
        self.sent: list[bytes] = []
        self._incoming: asyncio.Queue[bytes | None] = asyncio.Queue(WINDOW_MESSAGES)
        self._closed = False
        self.close_code = 0
        self._received = 0

    async def send(self, message: Buffer) -> None:
        if self._closed or self.peer._closed:
            raise ChannelClosed("the other end is gone")
        self.sent.append(bytes(message))
        await self.peer._incoming.put(bytes(message))

    def send_now(self, message: Buffer) -> bool:
        if self._closed or self.peer._closed or self.peer._incoming.full():
            return False
        self.sent.append(bytes(message))
        self.peer._incoming.put_nowait(bytes(message))
        return True

    def received_bytes(self) -> int:
        return self._received

    async def receive(self) -> bytes:
        if self._closed:
            raise ChannelClosed("this end is closed")
        message = await self._incoming.get()
        if message is None:
            raise ChannelClosed("the other end is gone")
        self._received += len(message)
        return message

    async def close(self, code: int = 1000) -> None:
        if not self._closed:
            self._closed = True
            self.close_code = code
            await self.peer._incoming.put(None)

    @property
    def unread(self) -> int:
        """Messages that this end has not received yet."""
        return self._incoming.qsize()


def pair() -> tuple[MemoryChannel, MemoryChannel]:
    one, other = MemoryChannel(), MemoryChannel()
    one.peer, other.peer = other, one
    return one, other
