"""The client without asyncio: its event loop runs in a thread of its own.

    with connect_sync("http://127.0.0.1:7701") as log:
        vlsn = log.append(b"value")

Thread-safe: appends of many threads share batches, as those of many coroutines do.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator
from types import TracebackType
from typing import Any, Self, TypeVar

from repl.api import Acks, Appended
from repl.client.connect import FORKED, Client, connect
from repl.client.tail import DURABLE, Page
from vlsn.embedded.forks import tell_of_forks
from vlsn.embedded.owned_values import owned_keys, owned_list
from vlsn.errors import LogClosed
from vlsn.format.block import Entry
from vlsn.seams import Buffer

T = TypeVar("T")


class SyncClient:
    """``Client``, blocking.  Use it as a context manager; leaving it flushes."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._loop: asyncio.AbstractEventLoop | None = None
        self._gone = "the client is not open; use it inside `with connect_sync(…)`"
        """The reason why there is no loop."""

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="vlsnlog-client", daemon=True)
        self._thread.start()
        tell_of_forks(self)
        self._run(self._client.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(flush=kind is None or issubclass(kind, Exception))

    def close(self, *, flush: bool = True) -> None:
        """Closes as ``Client.close``, and ends the thread."""
        loop = self._loop
        if loop is None:
            return
        try:
            self._run(self._client.close(flush=flush))
        finally:
            self._loop = None
            loop.call_soon_threadsafe(loop.stop)
            self._thread.join()
            loop.close()

    def append(self, value: bytes, *, key: bytes | None = None) -> int:
        """Appends as ``Client.append``."""
        return self._run(self._client.append(value, key=key))

    def append_many(self, values: Iterable[Buffer], *, keys: Iterable[Buffer | None] | None = None) -> tuple[int, int]:
        """Appends as ``Client.append_many``."""
        given = owned_list(values), owned_keys(keys)  # by this thread: an iterator may take long, or append by itself
        return self._run(self._client.append_many(given[0], keys=given[1]))

    def append_batch(
        self,
        values: Iterable[Buffer],
        *,
        keys: Iterable[Buffer | None] | None = None,
        acks: Acks | str | None = None,
    ) -> Appended:
        """Appends as ``Client.append_batch``."""
        given = owned_list(values), owned_keys(keys)
        return self._run(self._client.append_batch(given[0], keys=given[1], acks=acks))

    def read(
        self,
        from_vlsn: int | None = None,
        to_vlsn: int | None = None,
        *,
        all_kinds: bool = False,
        consistency: str = DURABLE,
    ) -> Iterator[Entry]:
        """Reads as ``Client.read``."""
        pages = self._client.read_pages(from_vlsn, to_vlsn, all_kinds=all_kinds, consistency=consistency)
        return self._entries(pages)

    def tail(
        self, from_vlsn: int | None = None, *, after_term: int | None = None, all_kinds: bool = False
    ) -> Iterator[Entry]:
        """Reads as ``Client.tail``."""
        return self._entries(self._client.tail_pages(from_vlsn, after_term=after_term, all_kinds=all_kinds))

    def forked(self) -> None:
        """Closes the client in a child process, which has no threads of its parent; leaves the loop alone."""
        _of_parents.append(self._loop)
        self._loop = None
        self._gone = FORKED

    def _entries(self, pages: AsyncIterator[Page]) -> Iterator[Entry]:
        while (page := self._run(_next(pages))) is not None:
            yield from page.entries

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        if self._loop is None:
            work.close()
            raise LogClosed(self._gone)
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # Ctrl-C in the waiting thread; a no-op when the work itself failed
            raise


_of_parents: list[object] = []
"""Parts of a child process's parents' loops: garbage would be closed."""


async def _next(pages: AsyncIterator[Page]) -> Page | None:
    return await anext(pages, None)


def connect_sync(
    url: str, *, acks: Acks | str = Acks.MAJORITY, timeout_s: float = 10.0, exactly_once: bool = False
) -> SyncClient:
    """Connects as ``connect``, without asyncio. Raises ``BadArgument``."""
    return SyncClient(connect(url, acks=acks, timeout_s=timeout_s, exactly_once=exactly_once))
