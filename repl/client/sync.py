"""The client without asyncio: its event loop runs in a background thread.

    with connect_sync("http://127.0.0.1:7701") as log:
        vlsn = log.append(b"value")

The client is thread-safe: appends of many threads share batches, as appends of many coroutines do. The functions
here are made from those of the asynchronous client (``repl.client.blocking``), so both clients have the same
arguments and results.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Coroutine, Generator
from concurrent.futures import CancelledError, Future
from datetime import datetime
from types import TracebackType
from typing import Any, Generic, Literal, Self, TypeVar, overload

from repl.api import Acks, Appended
from repl.client.blocking import Blocking, encoding_many, encoding_one, entries_of, inner_of, paged, waited
from repl.client.client import FORKED, Client
from repl.client.codec import CodecName, V
from repl.client.connect import connect
from repl.client.destination import PREFETCH
from repl.client.page import Page
from repl.client.sinks import Sinks
from repl.client.starting import Begin
from repl.client.sync_consumer import OfAnotherLoop, SyncConsumer, SyncPositions
from repl.client.sync_destination import SyncDestination, SyncDestinations
from repl.client.transaction import Transaction
from repl.tls_files import TlsFiles
from vlsn.durability import GivenDurability
from vlsn.embedded.forks import tell_of_forks
from vlsn.errors import LogClosed
from vlsn.seams import Buffer

T = TypeVar("T")
P = TypeVar("P", bound=Page)


class SyncClient(Generic[V]):
    """The blocking form of ``Client``. Use it as a context manager; the end of the block waits for the appends that
    are not answered yet."""

    def __init__(self, client: Client[V]) -> None:
        self._inner = client
        self._loop: asyncio.AbstractEventLoop | None = None
        self._gone = "the client is not open; use it inside `with connect_sync(…)`"
        """The reason why the client has no event loop; empty while it has one."""
        self._beginning = threading.Lock()
        """A lock, held while a thread passes work to the event loop. The closing of the loop takes the lock too, so
        it sees all work that was passed before."""

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="vlsnlog-client", daemon=True)
        self._thread.start()
        tell_of_forks(self)
        self._run(self._inner.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(flush=kind is None or issubclass(kind, Exception))

    def close(self, *, flush: bool = True) -> None:
        """Closes the client as ``Client.close`` does, and ends the thread."""
        loop = self._loop
        if loop is None:
            return
        try:
            self._run(self._inner.close(flush=flush))
        finally:
            with self._beginning:
                self._loop = None
            asyncio.run_coroutine_threadsafe(_end_all(), loop).result()
            loop.call_soon_threadsafe(loop.stop)
            self._thread.join()
            loop.close()

    append = encoding_one(Client[V].append)
    append_many = encoding_many(Client[V].append_many)
    append_batch = encoding_many(Client[V].append_batch)
    submit = encoding_many(Client[V].submit)
    producer_at = waited(Client.producer_at)
    durable_vlsn = waited(Client.durable_vlsn)
    vlsn_at = waited(Client.vlsn_at)
    read_pages = paged(Client[V].read_pages)
    read = entries_of(read_pages, Client[V].read)
    block_pages = paged(Client.block_pages, ahead=True)
    spans = waited(Client.spans)
    tail_pages = paged(Client[V].tail_pages)
    tail = entries_of(tail_pages, Client[V].tail)
    group_name = waited(Client.group_name)
    first_vlsn = waited(Client.first_vlsn)

    def transaction(
        self, *, acks: Acks | str | None = None, durability: GivenDurability | None = None
    ) -> SyncTransaction[V]:
        """Begins a transaction as ``Client.transaction`` does."""

        async def begin() -> Transaction[V]:
            return self._inner.transaction(acks=acks, durability=durability)

        return SyncTransaction(self, self._run(begin()))

    def consumer(
        self,
        name: str,
        *,
        from_vlsn: Begin = None,
        at: datetime | int | None = None,
        kept_in: SyncClient[Any] | None = None,
        at_least: int = 0,
        lag_max_s: float | None = None,
    ) -> SyncConsumer:
        """Makes a worker as ``Client.consumer`` does. Iterate over the worker."""
        other = kept_in.elsewhere() if kept_in is not None and kept_in is not self else None
        consumer = self._inner.consumer(
            name, from_vlsn=from_vlsn, at=at, kept_in=other, at_least=at_least, lag_max_s=lag_max_s
        )
        return SyncConsumer(self, consumer)

    def destination(self, name: str, *, prefetch: int = PREFETCH) -> SyncDestination:
        """Makes a worker as ``Client.destination`` does. Iterate over the worker."""
        return SyncDestination(self, self._inner.destination(name, prefetch=prefetch))

    @property
    def destinations(self) -> SyncDestinations:
        """The destinations of the group, as in ``Client.destinations``."""
        return SyncDestinations(self, self._inner.destinations)

    @property
    def positions(self) -> SyncPositions:
        """The positions of all consumers, as in ``Client.positions``."""
        return SyncPositions(self, self._inner.positions)

    @property
    def sinks(self) -> SyncSinks:
        """The sinks of the group, as in ``Client.sinks``."""
        return SyncSinks(self, self._inner.sinks)

    def elsewhere(self) -> OfAnotherLoop:
        """Returns the positions of this group, for use by a client with another event loop."""
        if self._loop is None:
            raise LogClosed(self._gone)
        return OfAnotherLoop(self._loop, self._inner.positions)

    def forked(self) -> None:
        """Closes the client in a forked child process, which has none of the parent's threads. This method does not
        touch the event loop."""
        _of_parents.append(self._loop)
        self._loop = None
        self._gone = FORKED
        # a new lock is needed, because a thread of the parent process may hold the old one
        self._beginning = threading.Lock()

    def _pages(self, pages: AsyncGenerator[Page, None]) -> Generator[Page, None]:
        while (page := self._run(_next(pages))) is not None:
            yield page

    def _ahead(self, pages: AsyncGenerator[P, None]) -> Generator[P, None]:
        coming = self._begin(_next(pages))
        try:
            while (page := coming.result()) is not None:
                coming = self._begin(_next(pages))
                yield page
        finally:
            coming.cancel()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine of the asynchronous client, and waits for its result. Raises ``LogClosed``."""
        future = self._begin(work)
        try:
            return future.result()
        except CancelledError:
            if self._loop is None:
                raise LogClosed("the client was closed by another thread") from None
            raise
        except BaseException:
            # Ctrl-C came in the waiting thread; if the work has already failed by itself, the cancel does nothing
            future.cancel()
            raise

    _run = run

    def _begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        with self._beginning:
            if self._loop is not None:
                return asyncio.run_coroutine_threadsafe(work, self._loop)
        work.close()
        raise LogClosed(self._gone)


class SyncTransaction(Blocking[Transaction[V]]):
    """The blocking form of ``Transaction``."""

    @property
    def appended(self) -> Appended | None:
        return self._inner.appended

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._run(self._inner.__aexit__(kind, error, trace))

    append = encoding_one(Transaction[V].append)
    append_many = encoding_many(Transaction[V].append_many)
    commit = waited(Transaction.commit)
    abort = waited(Transaction.abort)

    def commit_position(self, consumer: SyncConsumer) -> None:
        """Commits a consumer's position as ``Transaction.commit_position`` does."""
        self._run(self._inner.commit_position(inner_of(consumer)))


class SyncSinks(Blocking[Sinks]):
    """The blocking form of ``Sinks``."""

    get = waited(Sinks.get)
    list = waited(Sinks.list)
    delete = waited(Sinks.delete)
    commit = waited(Sinks.commit)


_of_parents: list[object] = []
"""The event loops of a parent process. The list prevents the loops' garbage collection, which would close them."""


async def _end_all() -> None:
    """Cancels the work for which other threads still wait. Once the loop has stopped, such threads would wait without
    end."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()


async def _next(pages: AsyncGenerator[P, None]) -> P | None:
    return await anext(pages, None)


@overload
def connect_sync(
    url: str,
    *,
    acks: Acks | str = ...,
    timeout_s: float = ...,
    exactly_once: bool = ...,
    durability: GivenDurability | None = ...,
    codec: Literal["bytes"] = ...,
    tls: TlsFiles | None = ...,
    token: str | None = ...,
    token_file: str | None = ...,
) -> SyncClient[Buffer]: ...
@overload
def connect_sync(
    url: str,
    *,
    acks: Acks | str = ...,
    timeout_s: float = ...,
    exactly_once: bool = ...,
    durability: GivenDurability | None = ...,
    codec: Literal["utf8"],
    tls: TlsFiles | None = ...,
    token: str | None = ...,
    token_file: str | None = ...,
) -> SyncClient[str]: ...
@overload
def connect_sync(
    url: str,
    *,
    acks: Acks | str = ...,
    timeout_s: float = ...,
    exactly_once: bool = ...,
    durability: GivenDurability | None = ...,
    codec: Literal["json"],
    tls: TlsFiles | None = ...,
    token: str | None = ...,
    token_file: str | None = ...,
) -> SyncClient[Any]: ...
def connect_sync(
    url: str,
    *,
    acks: Acks | str = Acks.MAJORITY,
    timeout_s: float = 10.0,
    exactly_once: bool = False,
    durability: GivenDurability | None = None,
    codec: CodecName = "bytes",
    tls: TlsFiles | None = None,
    token: str | None = None,
    token_file: str | None = None,
) -> SyncClient[Any]:
    """Makes a blocking client with the same arguments as ``connect``. Raises ``BadArgument``."""
    client: Client[Any] = connect(
        url,
        acks=acks,
        timeout_s=timeout_s,
        exactly_once=exactly_once,
        durability=durability,
        codec=codec,
        tls=tls,
        token=token,
        token_file=token_file,
    )
    return SyncClient(client)
