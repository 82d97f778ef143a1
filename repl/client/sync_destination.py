"""Destinations without asyncio, for ``repl.client.sync``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator, Iterator, Sequence
from contextlib import closing, suppress
from typing import Any, overload

from repl.client.destination import WAIT_S, Destination, Message, Messages
from repl.client.destinations import Destinations, Rows
from repl.client.sync_consumer import Runner
from vlsn.errors import LogClosed
from vlsn.format.vlsn_set import Vlsns


class SyncMessage:
    """``Message``, blocking."""

    __slots__ = ("_client", "inner")

    def __init__(self, client: Runner, message: Message) -> None:
        self._client = client
        self.inner = message

    @property
    def vlsn(self) -> int:
        return self.inner.vlsn

    @property
    def attempt(self) -> int:
        return self.inner.attempt

    @property
    def time(self) -> int:
        return self.inner.time

    @property
    def key(self) -> bytes | None:
        return self.inner.key

    @property
    def value(self) -> bytes:
        return self.inner.value

    def ack(self, *, wait: bool = True) -> None:
        """Acknowledges as ``Message.ack``."""
        self._client.run(self.inner.ack(wait=wait))

    def nack(self, reason: str = "given back") -> None:
        """Gives back as ``Message.nack``."""
        self._client.run(self.inner.nack(reason))


class SyncMessages(Sequence[SyncMessage]):
    """``Messages``, blocking."""

    __slots__ = ("_client", "inner")

    def __init__(self, client: Runner, messages: Messages) -> None:
        self._client = client
        self.inner = messages

    @property
    def vlsns(self) -> Vlsns:
        """Their VLSNs, ascending, as an array."""
        return self.inner.vlsns

    def __len__(self) -> int:
        return len(self.inner)

    def __iter__(self) -> Iterator[SyncMessage]:
        return (SyncMessage(self._client, message) for message in self.inner)

    @overload
    def __getitem__(self, at: int) -> SyncMessage: ...

    @overload
    def __getitem__(self, at: slice) -> list[SyncMessage]: ...

    def __getitem__(self, at: int | slice) -> SyncMessage | list[SyncMessage]:
        if isinstance(at, slice):
            return [SyncMessage(self._client, message) for message in self.inner[at]]
        return SyncMessage(self._client, self.inner[at])


class SyncDestination:
    """``Destination``, blocking; made by ``SyncClient.destination``.  For one thread at a time."""

    def __init__(self, client: Runner, destination: Destination) -> None:
        self._client = client
        self._inner = destination

    @property
    def name(self) -> str:
        return self._inner.name

    def __iter__(self) -> Generator[SyncMessage, None]:
        with closing(self.batches()) as batches:
            for batch in batches:
                seen = 0
                try:
                    for message in batch:
                        seen += 1
                        yield message
                finally:
                    batch.inner.left_at(seen)

    def batches(self) -> Generator[SyncMessages, None]:
        """Yields as ``Destination.batches``."""
        batches, turn = self._inner.batches(), asyncio.Lock()
        try:
            while True:
                yield SyncMessages(self._client, self._client.run(_next(batches, turn)))
        finally:
            with suppress(LogClosed):
                self._client.run(_close(batches, turn))

    def take(self, most: int | None = None, wait_s: float = WAIT_S) -> SyncMessages:
        """Takes as ``Destination.take``."""
        return SyncMessages(self._client, self._client.run(self._inner.take(most, wait_s)))

    def ack(self, messages: Sequence[SyncMessage], *, wait: bool = True) -> None:
        """Acknowledges as ``Destination.ack``."""
        self._client.run(self._inner.ack(_inner(messages), wait=wait))

    def nack(self, messages: Sequence[SyncMessage], reason: str = "given back") -> None:
        """Gives back as ``Destination.nack``."""
        self._client.run(self._inner.nack(_inner(messages), reason))

    def flush(self) -> None:
        """Waits as ``Destination.flush``."""
        self._client.run(self._inner.flush())


async def _next(batches: AsyncGenerator[Messages, None], turn: asyncio.Lock) -> Messages:
    async with turn:
        return await anext(batches)


async def _close(batches: AsyncGenerator[Messages, None], turn: asyncio.Lock) -> None:
    async with turn:  # a ``_next`` that Ctrl-C has cancelled is not at its end yet
        await batches.aclose()


def _inner(messages: Sequence[SyncMessage]) -> Sequence[Message]:
    return messages.inner if isinstance(messages, SyncMessages) else [message.inner for message in messages]


class SyncDestinations:
    """``Destinations``, blocking."""

    def __init__(self, client: Runner, destinations: Destinations) -> None:
        self._client = client
        self._destinations = destinations

    def list(self) -> list[dict[str, Any]]:
        """Asks as ``Destinations.list``."""
        return self._client.run(self._destinations.list())

    def get(self, name: str) -> dict[str, Any]:
        """Asks as ``Destinations.get``."""
        return self._client.run(self._destinations.get(name))

    def put(self, name: str, **settings: Any) -> dict[str, Any]:
        """Makes as ``Destinations.put``."""
        return self._client.run(self._destinations.put(name, **settings))

    def drop(self, name: str) -> None:
        """Drops as ``Destinations.drop``."""
        self._client.run(self._destinations.drop(name))

    def pause(self, name: str) -> dict[str, Any]:
        """Pauses as ``Destinations.pause``."""
        return self._client.run(self._destinations.pause(name))

    def resume(self, name: str) -> dict[str, Any]:
        """Resumes as ``Destinations.resume``."""
        return self._client.run(self._destinations.resume(name))

    def retry_dead(self, name: str) -> dict[str, Any]:
        """Retries as ``Destinations.retry_dead``."""
        return self._client.run(self._destinations.retry_dead(name))

    def move(self, name: str, to: int | str) -> dict[str, Any]:
        """Moves as ``Destinations.move``."""
        return self._client.run(self._destinations.move(name, to))

    def peek(self, name: str, most: int) -> Rows:
        """Shows as ``Destinations.peek``."""
        return self._client.run(self._destinations.peek(name, most))
