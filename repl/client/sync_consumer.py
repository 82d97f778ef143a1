"""Consumers and their positions without asyncio, for ``repl.client.sync``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

from repl.api import Appended, ConsumerAt, ConsumerChange
from repl.client.consumer import Consumer
from repl.client.positions import Positions
from repl.client.tail import Page
from vlsn.format.block import Entry

T = TypeVar("T")


class Runner(Protocol):
    """A client with a loop of its own."""

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs ``work`` on that loop, and waits for it in the calling thread."""
        ...


class SyncConsumer:
    """``Consumer``, blocking; made by ``SyncClient.consumer``.  For one thread at a time."""

    def __init__(self, client: Runner, consumer: Consumer) -> None:
        self._client = client
        self.inner = consumer

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def next_vlsn(self) -> int:
        """As ``Consumer.next_vlsn``."""
        return self.inner.next_vlsn

    @property
    def begins_anew(self) -> bool:
        """As ``Consumer.begins_anew``."""
        return self.inner.begins_anew

    def __iter__(self) -> Iterator[Entry]:
        self._client.run(_done(self.inner.turn))
        while True:
            if (entry := self.inner.take()) is not None:
                yield entry
            else:
                self._client.run(self.inner.fill())

    def pages(self) -> Iterator[Page]:
        """Yields as ``Consumer.pages``."""
        self._client.run(_done(self.inner.turn))
        while True:
            if (page := self.inner.take_page()) is not None:
                yield page
            else:
                self._client.run(self.inner.fill())

    def poll(self, timeout_s: float | None = None) -> Entry | None:
        """Gives as ``Consumer.poll``."""
        if (entry := self.inner.take()) is None:
            entry = self._client.run(self.inner.poll(timeout_s))
            self.inner.hold()
        return entry

    def given(self, entry: Entry) -> None:
        """Notes as ``Consumer.given``."""
        self.inner.given(entry)

    def rewind(self) -> None:
        """Goes back as ``Consumer.rewind``."""
        self._client.run(_done(self.inner.rewind))

    def seek(self, vlsn: int) -> None:
        """Goes as ``Consumer.seek``."""
        self._client.run(_done(partial(self.inner.seek, vlsn)))

    def commit(self) -> ConsumerAt:
        """Commits as ``Consumer.commit``."""
        return self._client.run(self.inner.commit())

    def position(self) -> ConsumerAt | None:
        """Asks as ``Consumer.position``."""
        return self._client.run(self.inner.position())


class SyncPositions:
    """``Positions``, blocking."""

    def __init__(self, client: Runner, positions: Positions) -> None:
        self._client = client
        self._positions = positions

    def get(self, name: str) -> ConsumerAt | None:
        """Asks as ``Positions.get``."""
        return self._client.run(self._positions.get(name))

    def list(self) -> list[ConsumerAt]:
        """Asks as ``Positions.list``."""
        return self._client.run(self._positions.list())

    def set(self, name: str, change: ConsumerChange) -> ConsumerAt:
        """Sets as ``Positions.set``."""
        return self._client.run(self._positions.set(name, change))

    def commit(self, name: str, parts: Sequence[tuple[bytes, int]], change: ConsumerChange) -> Appended:
        """Commits as ``Positions.commit``."""
        return self._client.run(self._positions.commit(name, parts, change))

    def delete(self, name: str) -> None:
        """Deletes as ``Positions.delete``."""
        self._client.run(self._positions.delete(name))


class OfAnotherLoop:
    """The positions of a client whose loop is another one."""

    def __init__(self, loop: asyncio.AbstractEventLoop, positions: Positions) -> None:
        self._loop = loop
        self._positions = positions

    @property
    def positions(self) -> OfAnotherLoop:
        return self

    @property
    def group(self) -> object:
        return self._positions

    async def get(self, name: str) -> ConsumerAt | None:
        return await self._there(self._positions.get(name))

    async def set(self, name: str, change: ConsumerChange) -> ConsumerAt:
        return await self._there(self._positions.set(name, change))

    async def _there(self, work: Coroutine[Any, Any, T]) -> T:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))


async def _done(act: Callable[[], None]) -> None:
    act()
