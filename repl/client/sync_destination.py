"""Destinations without asyncio, for ``repl.client.sync``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator, Iterator, Sequence
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any, overload

from repl.client.blocking import Blocking, inner_of, waited
from repl.client.destination import WAIT_S, Destination, Message, Messages
from repl.client.destinations import Destinations
from vlsn.errors import LogClosed

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


class SyncMessage(Blocking[Message]):
    """The blocking form of ``Message``."""

    __slots__ = ()

    @property
    def vlsn(self) -> int:
        return self._inner.vlsn

    @property
    def attempt(self) -> int:
        return self._inner.attempt

    @property
    def time(self) -> int:
        return self._inner.time

    @property
    def key(self) -> bytes | None:
        return self._inner.key

    @property
    def value(self) -> bytes:
        return self._inner.value

    ack = waited(Message.ack)
    nack = waited(Message.nack)


class SyncMessages(Blocking[Messages], Sequence[SyncMessage]):
    """The blocking form of ``Messages``."""

    __slots__ = ()

    @property
    def vlsns(self) -> npt.NDArray[np.int64]:
        """The VLSNs of the messages, ascending, as an array. Raises ``ModuleNotFoundError`` without NumPy."""
        return self._inner.vlsns

    def __len__(self) -> int:
        return len(self._inner)

    def __iter__(self) -> Iterator[SyncMessage]:
        return (SyncMessage(self._client, message) for message in self._inner)

    @overload
    def __getitem__(self, at: int) -> SyncMessage: ...

    @overload
    def __getitem__(self, at: slice) -> list[SyncMessage]: ...

    def __getitem__(self, at: int | slice) -> SyncMessage | list[SyncMessage]:
        if isinstance(at, slice):
            return [SyncMessage(self._client, message) for message in self._inner[at]]
        return SyncMessage(self._client, self._inner[at])


class SyncDestination(Blocking[Destination]):
    """The blocking form of ``Destination``; ``SyncClient.destination`` makes it. Only one thread at a time may use
    it."""

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
                    inner_of(batch).left_at(seen)

    def batches(self) -> Generator[SyncMessages, None]:
        """Yields batches of messages as ``Destination.batches`` does."""
        batches, turn = self._inner.batches(), asyncio.Lock()
        try:
            while True:
                yield SyncMessages(self._client, self._run(_next(batches, turn)))
        finally:
            with suppress(LogClosed):
                self._run(_close(batches, turn))

    def take(self, most: int | None = None, wait_s: float = WAIT_S) -> SyncMessages:
        """Takes messages as ``Destination.take`` does."""
        return SyncMessages(self._client, self._run(self._inner.take(most, wait_s)))

    def ack(self, messages: Sequence[SyncMessage], *, wait: bool = True) -> None:
        """Acknowledges messages as ``Destination.ack`` does."""
        self._run(self._inner.ack(_inner(messages), wait=wait))

    def nack(
        self, messages: Sequence[SyncMessage], reason: str = "given back", *, delay_s: float | None = None
    ) -> None:
        """Returns messages as ``Destination.nack`` does."""
        self._run(self._inner.nack(_inner(messages), reason, delay_s=delay_s))

    flush = waited(Destination.flush)


async def _next(batches: AsyncGenerator[Messages, None], turn: asyncio.Lock) -> Messages:
    async with turn:
        return await anext(batches)


async def _close(batches: AsyncGenerator[Messages, None], turn: asyncio.Lock) -> None:
    async with turn:  # the lock is needed because a ``_next`` that Ctrl-C has cancelled may still run
        await batches.aclose()


def _inner(messages: Sequence[SyncMessage]) -> Sequence[Message]:
    return inner_of(messages) if isinstance(messages, SyncMessages) else [inner_of(message) for message in messages]


class SyncDestinations(Blocking[Destinations]):
    """The blocking form of ``Destinations``."""

    list = waited(Destinations.list)
    get = waited(Destinations.get)
    drop = waited(Destinations.drop)
    pause = waited(Destinations.pause)
    resume = waited(Destinations.resume)
    retry_dead = waited(Destinations.retry_dead)
    delete_dead = waited(Destinations.delete_dead)
    move = waited(Destinations.move)
    peek = waited(Destinations.peek)

    def put(self, name: str, **settings: Any) -> dict[str, Any]:
        """Creates or changes a destination as ``Destinations.put`` does."""
        return self._run(self._inner.put(name, **settings))
