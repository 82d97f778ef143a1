"""Consumers and their positions without asyncio, for ``repl.client.sync``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

from repl.api import ConsumerAt, ConsumerChange
from repl.client.blocking import Blocking, on_loop, waited
from repl.client.consumer import Consumer
from repl.client.page import Page
from repl.client.positions import Positions
from vlsn.format.block import Entry

T = TypeVar("T")


class SyncConsumer(Blocking[Consumer]):
    """The blocking form of ``Consumer``; ``SyncClient.consumer`` makes it. Only one thread at a time may use it."""

    @property
    def name(self) -> str:
        return self._inner.name

    @property
    def next_vlsn(self) -> int:
        """See ``Consumer.next_vlsn``."""
        return self._inner.next_vlsn

    @property
    def begins_anew(self) -> bool:
        """See ``Consumer.begins_anew``."""
        return self._inner.begins_anew

    def __iter__(self) -> Iterator[Entry]:
        return self._each(self._inner.take)

    def pages(self) -> Iterator[Page]:
        """Yields pages as ``Consumer.pages`` does."""
        return self._each(self._inner.take_page)

    def _each(self, take: Callable[[], T | None]) -> Iterator[T]:
        self._turn()
        while True:
            if (found := take()) is not None:
                yield found
            else:
                self._fill()

    def poll(self, timeout_s: float | None = None) -> Entry | None:
        """Returns the next entry as ``Consumer.poll`` does."""
        if (entry := self._inner.take()) is None:
            entry = self._run(self._inner.poll(timeout_s))
            self._inner.hold()
        return entry

    def given(self, entry: Entry) -> None:
        """Reports the last processed entry, as ``Consumer.given`` does."""
        self._inner.given(entry)

    rewind = on_loop(Consumer.rewind)
    seek = on_loop(Consumer.seek)
    commit = waited(Consumer.commit)
    position = waited(Consumer.position)
    _turn = on_loop(Consumer.turn)
    _fill = waited(Consumer.fill)


class SyncPositions(Blocking[Positions]):
    """The blocking form of ``Positions``."""

    get = waited(Positions.get)
    list = waited(Positions.list)
    set = waited(Positions.set)
    commit = waited(Positions.commit)
    delete = waited(Positions.delete)


class OfAnotherLoop(Positions):
    """The positions of a client that runs on another event loop."""

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
