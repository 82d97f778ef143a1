"""A worker of a destination: takes messages, and acknowledges each, or gives it back.

    async for message in log.destination("orders"):
        …
        await message.ack()

1. Messages are taken ``prefetch`` at once at most, and given out one by one; the next ones are on their way meanwhile
   where the worker is quick.  What is neither acknowledged nor given
   back in time is delivered again, to whichever worker asks.
2. Acknowledgements that come while one call is on its way go together with the next.  ``ack`` returns once it is
   durable; with ``wait=False`` at once: what is lost then is delivered again.
3. A worker of a destination that was dropped and made anew acknowledges nothing of the new one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Final

from repl.client.destinations import Destinations
from vlsn.errors import BadArgument, VlsnLogError
from vlsn.state.destinations import key_of

PREFETCH: Final = 100
PREFETCH_MAX: Final = 10_000
QUICK_S: Final = 0.5
"""A worker that is done with what it took in so many seconds is given the next messages ahead."""
WAIT_S: Final = 20.0
"""Seconds that one call waits for messages; then it is made again."""
ACKS_MAX: Final = 10_000
"""Messages that one call acknowledges."""


class Message:
    """A message as it was delivered; ``attempt`` counts deliveries from 1."""

    __slots__ = ("_of", "attempt", "key", "time", "uuid", "value", "vlsn")

    def __init__(
        self, of: Destination, uuid: str, vlsn: int, attempt: int, time: int, key: bytes | None, value: bytes
    ) -> None:
        self._of = of
        self.uuid = uuid
        self.vlsn = vlsn
        self.attempt = attempt
        self.time = time
        self.key = key
        self.value = value

    def __repr__(self) -> str:
        return f"Message(vlsn={self.vlsn}, attempt={self.attempt}, key={self.key!r}, {len(self.value)} bytes)"

    async def ack(self, *, wait: bool = True) -> None:
        """Acknowledges it: durable on return, with ``wait``. Raises ``NotFound`` where the destination is gone; past
        the client's time ``Unreachable``, ``NotMaster``, ``OutcomeUnknown``."""
        await self._of.ack([self], wait=wait)

    async def nack(self, reason: str = "given back") -> None:
        """Gives it back, to be delivered again at once; after its last attempt it is dead, for this ``reason``."""
        await self._of.nack([self], reason)


class Destination:
    """One worker of a destination; made by ``Client.destination``.  Iterate over it, again after a fault too."""

    def __init__(self, destinations: Destinations, name: str, *, prefetch: int = PREFETCH) -> None:
        key_of(name)
        if not 1 <= prefetch <= PREFETCH_MAX:
            raise BadArgument(f"prefetch: {prefetch} is not in 1–{PREFETCH_MAX}")
        self.name = name
        self._destinations = destinations
        self._prefetch = prefetch
        self._gathered: list[Message] = []
        self._told: asyncio.Future[None] | None = None
        """Done when what is gathered is acknowledged, durable."""
        self._sending: asyncio.Task[None] | None = None

    def __aiter__(self) -> AsyncIterator[Message]:
        return self._messages()

    async def _messages(self) -> AsyncIterator[Message]:
        async for batch in self.batches():
            for message in batch:
                yield message

    async def batches(self) -> AsyncIterator[list[Message]]:
        """Yields messages as they were taken together, one or more."""
        loop = asyncio.get_running_loop()
        ahead: asyncio.Task[list[Message]] | None = None
        quick = False
        try:
            while True:
                found = await (ahead if ahead is not None else self.take())
                ahead = asyncio.create_task(self.take()) if quick and found else None
                if found:
                    began = loop.time()
                    yield found
                    quick = loop.time() - began < QUICK_S
        finally:
            if ahead is not None:
                ahead.cancel()

    async def take(self, most: int | None = None, wait_s: float = WAIT_S) -> list[Message]:
        """Takes up to ``most`` messages, waiting so long for the first; none where none has come."""
        uuid, rows = await self._destinations.take(self.name, most or self._prefetch, wait_s)
        return [Message(self, uuid, *row) for row in rows]

    async def ack(self, messages: Sequence[Message], *, wait: bool = True) -> None:
        """Acknowledges messages, as ``Message.ack`` does one."""
        if not messages:
            return
        self._gathered += messages
        if self._told is None:
            self._told = asyncio.get_running_loop().create_future()
        told = self._told
        if self._sending is None:
            self._sending = asyncio.create_task(self._send(), name=f"acks of {self.name}")
        if wait:
            await asyncio.shield(told)

    async def nack(self, messages: Sequence[Message], reason: str = "given back") -> None:
        """Gives messages back, as ``Message.nack`` does one."""
        for uuid in dict.fromkeys(message.uuid for message in messages):
            mine = [message.vlsn for message in messages if message.uuid == uuid]
            await self._destinations.nack(self.name, mine, reason, uuid)

    async def flush(self) -> None:
        """Returns once everything acknowledged so far is durable. Raises as ``Message.ack`` for the last of it."""
        while (told := self._told) is not None or self._sending is not None:
            if told is not None:
                await asyncio.shield(told)
            else:
                await asyncio.sleep(0)

    async def _send(self) -> None:
        while self._gathered and self._told is not None:
            messages, told = self._gathered, self._told
            self._gathered, self._told = [], None
            try:
                for at in range(0, len(messages), ACKS_MAX):
                    part = messages[at : at + ACKS_MAX]
                    for uuid in dict.fromkeys(message.uuid for message in part):
                        mine = [message.vlsn for message in part if message.uuid == uuid]
                        await self._destinations.ack(self.name, mine, uuid)
            except VlsnLogError as error:
                told.set_exception(error)
                told.exception()  # who has not waited for it is not asked
            except BaseException:
                self._sending = None
                told.cancel()
                raise
            else:
                told.set_result(None)
        self._sending = None
