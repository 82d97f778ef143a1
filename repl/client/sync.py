"""The client without asyncio: its event loop runs in a thread of its own.

    with connect_sync("http://127.0.0.1:7701") as log:
        vlsn = log.append(b"value")

Thread-safe: appends of many threads share batches, as those of many coroutines do.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterable, Sequence
from concurrent.futures import CancelledError, Future
from datetime import datetime
from types import TracebackType
from typing import Any, Generic, Literal, Self, TypeVar, overload

from repl.api import Acks, Appended, ProducerAt, Spans
from repl.client.block_pages import BlocksPage
from repl.client.codec import BYTES, Codec, CodecName, V, codec_of
from repl.client.connect import FORKED, Client, connect
from repl.client.destination import PREFETCH
from repl.client.starting import Begin
from repl.client.sync_consumer import OfAnotherLoop, SyncConsumer, SyncPositions
from repl.client.sync_destination import SyncDestination, SyncDestinations
from repl.client.sync_sinks import SyncSinks
from repl.client.tail import DURABLE, Consistency, Page
from repl.client.transaction import Transaction
from vlsn.durability import GivenDurability
from vlsn.embedded.forks import tell_of_forks
from vlsn.errors import LogClosed
from vlsn.format.block import Entry
from vlsn.ids import NUMBER_MAX
from vlsn.seams import Buffer

T = TypeVar("T")
P = TypeVar("P", bound=Page)


class SyncClient(Generic[V]):
    """``Client``, blocking.  Use it as a context manager; leaving it flushes."""

    def __init__(self, client: Client[V]) -> None:
        self._client = client
        self._loop: asyncio.AbstractEventLoop | None = None
        self._gone = "the client is not open; use it inside `with connect_sync(…)`"
        """The reason why there is no loop."""
        self._beginning = threading.Lock()
        """Held while work is given to the loop: what was given to it before its end is known to its end."""

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
            with self._beginning:
                self._loop = None
            asyncio.run_coroutine_threadsafe(_end_all(), loop).result()
            loop.call_soon_threadsafe(loop.stop)
            self._thread.join()
            loop.close()

    @overload
    def append(
        self,
        value: V,
        *,
        key: V | Buffer | None = None,
        durability: GivenDurability | None = None,
        codec: None = None,
    ) -> int: ...
    @overload
    def append(
        self,
        value: Any,
        *,
        key: str | Buffer | None = None,
        durability: GivenDurability | None = None,
        codec: CodecName,
    ) -> int: ...
    def append(
        self,
        value: Any,
        *,
        key: Any = None,
        durability: GivenDurability | None = None,
        codec: CodecName | None = None,
    ) -> int:
        """Appends as ``Client.append``."""
        given = self._codec_of(codec)
        if given is not BYTES:
            value, key = given.value(value), given.key(key)
        return self._run(self._client.append(value, key=key, durability=durability, codec="bytes"))

    @overload
    def append_many(
        self,
        values: Iterable[V],
        *,
        keys: Iterable[V | Buffer | None] | None = None,
        durability: GivenDurability | None = None,
        codec: None = None,
    ) -> tuple[int, int]: ...
    @overload
    def append_many(
        self,
        values: Iterable[Any],
        *,
        keys: Iterable[str | Buffer | None] | None = None,
        durability: GivenDurability | None = None,
        codec: CodecName,
    ) -> tuple[int, int]: ...
    def append_many(
        self,
        values: Iterable[Any],
        *,
        keys: Iterable[Any] | None = None,
        durability: GivenDurability | None = None,
        codec: CodecName | None = None,
    ) -> tuple[int, int]:
        """Appends as ``Client.append_many``."""
        data, names = self._encoded(values, keys, codec)
        return self._run(self._client.append_many(data, keys=names, durability=durability, codec="bytes"))

    @overload
    def append_batch(
        self,
        values: Iterable[V],
        *,
        keys: Iterable[V | Buffer | None] | None = None,
        acks: Acks | str | None = None,
        durability: GivenDurability | None = None,
        codec: None = None,
    ) -> Appended: ...
    @overload
    def append_batch(
        self,
        values: Iterable[Any],
        *,
        keys: Iterable[str | Buffer | None] | None = None,
        acks: Acks | str | None = None,
        durability: GivenDurability | None = None,
        codec: CodecName,
    ) -> Appended: ...
    def append_batch(
        self,
        values: Iterable[Any],
        *,
        keys: Iterable[Any] | None = None,
        acks: Acks | str | None = None,
        durability: GivenDurability | None = None,
        codec: CodecName | None = None,
    ) -> Appended:
        """Appends as ``Client.append_batch``."""
        data, names = self._encoded(values, keys, codec)
        return self._run(self._client.append_batch(data, keys=names, acks=acks, durability=durability, codec="bytes"))

    def transaction(
        self, *, acks: Acks | str | None = None, durability: GivenDurability | None = None
    ) -> SyncTransaction[V]:
        """Begins one as ``Client.transaction``."""

        async def begin() -> Transaction[V]:
            return self._client.transaction(acks=acks, durability=durability)

        return SyncTransaction(self._run(begin()), self._run, self._client.codec)

    @overload
    def submit(
        self,
        values: Iterable[V],
        *,
        producer: int,
        sequence: int,
        born: int,
        keys: Iterable[V | Buffer | None] | None = None,
        codec: None = None,
    ) -> Appended: ...
    @overload
    def submit(
        self,
        values: Iterable[Any],
        *,
        producer: int,
        sequence: int,
        born: int,
        keys: Iterable[str | Buffer | None] | None = None,
        codec: CodecName,
    ) -> Appended: ...
    def submit(
        self,
        values: Iterable[Any],
        *,
        producer: int,
        sequence: int,
        born: int,
        keys: Iterable[Any] | None = None,
        codec: CodecName | None = None,
    ) -> Appended:
        """Appends as ``Client.submit``."""
        data, names = self._encoded(values, keys, codec)
        return self._run(
            self._client.submit(data, producer=producer, sequence=sequence, born=born, keys=names, codec="bytes")
        )

    def producer_at(self, producer: int) -> ProducerAt:
        """Tells as ``Client.producer_at``."""
        return self._run(self._client.producer_at(producer))

    def durable_vlsn(self) -> int:
        """Returns as ``Client.durable_vlsn``."""
        return self._run(self._client.durable_vlsn())

    def vlsn_at(self, time_us: datetime | int) -> int:
        """Finds as ``Client.vlsn_at``."""
        return self._run(self._client.vlsn_at(time_us))

    def read(
        self,
        from_vlsn: Begin = None,
        to_vlsn: int | None = None,
        *,
        at: datetime | int | None = None,
        key: V | Buffer | None = None,
        key_prefix: V | Buffer | None = None,
        limit: int | None = None,
        all_kinds: bool = False,
        consistency: Consistency = DURABLE,
    ) -> Generator[Entry, None]:
        """Reads as ``Client.read``."""
        pages = self.read_pages(
            from_vlsn,
            to_vlsn,
            at=at,
            key=key,
            key_prefix=key_prefix,
            limit=limit,
            all_kinds=all_kinds,
            consistency=consistency,
        )
        return _entries(pages)

    def read_pages(
        self,
        from_vlsn: Begin = None,
        to_vlsn: int | None = None,
        *,
        at: datetime | int | None = None,
        key: V | Buffer | None = None,
        key_prefix: V | Buffer | None = None,
        limit: int | None = None,
        all_kinds: bool = False,
        consistency: Consistency = DURABLE,
    ) -> Generator[Page, None]:
        """Reads as ``Client.read_pages``."""
        pages = self._client.read_pages(
            from_vlsn,
            to_vlsn,
            at=at,
            key=key,
            key_prefix=key_prefix,
            limit=limit,
            all_kinds=all_kinds,
            consistency=consistency,
        )
        return self._pages(pages)

    def block_pages(
        self,
        from_vlsn: Begin = None,
        to_vlsn: int | None = None,
        *,
        at: datetime | int | None = None,
        consistency: Consistency = DURABLE,
        after_term: int | None = None,
        at_least: int = 0,
    ) -> Generator[BlocksPage, None]:
        """Reads as ``Client.block_pages``. The next page is on its way while one is worked on."""
        pages = self._client.block_pages(
            from_vlsn, to_vlsn, at=at, consistency=consistency, after_term=after_term, at_least=at_least
        )
        return self._ahead(pages)

    def spans(
        self,
        from_vlsn: int | None = None,
        to_vlsn: int | None = None,
        *,
        bytes_each: int = NUMBER_MAX,
        entries_each: int = NUMBER_MAX,
        limit: int = 1,
        after_term: int | None = None,
    ) -> Spans:
        """Cuts as ``Client.spans``."""
        return self._run(
            self._client.spans(
                from_vlsn,
                to_vlsn,
                bytes_each=bytes_each,
                entries_each=entries_each,
                limit=limit,
                after_term=after_term,
            )
        )

    def tail(
        self,
        from_vlsn: Begin = None,
        *,
        at: datetime | int | None = None,
        key: V | Buffer | None = None,
        key_prefix: V | Buffer | None = None,
        limit: int | None = None,
        after_term: int | None = None,
        all_kinds: bool = False,
    ) -> Generator[Entry, None]:
        """Reads as ``Client.tail``."""
        pages = self.tail_pages(
            from_vlsn,
            at=at,
            key=key,
            key_prefix=key_prefix,
            limit=limit,
            after_term=after_term,
            all_kinds=all_kinds,
        )
        return _entries(pages)

    def tail_pages(
        self,
        from_vlsn: Begin = None,
        *,
        at: datetime | int | None = None,
        key: V | Buffer | None = None,
        key_prefix: V | Buffer | None = None,
        limit: int | None = None,
        after_term: int | None = None,
        all_kinds: bool = False,
    ) -> Generator[Page, None]:
        """Reads as ``Client.tail_pages``."""
        pages = self._client.tail_pages(
            from_vlsn,
            at=at,
            key=key,
            key_prefix=key_prefix,
            limit=limit,
            after_term=after_term,
            all_kinds=all_kinds,
        )
        return self._pages(pages)

    def consumer(
        self,
        name: str,
        *,
        from_vlsn: Begin = None,
        at: datetime | int | None = None,
        kept_in: SyncClient[Any] | None = None,
    ) -> SyncConsumer:
        """Makes a worker as ``Client.consumer``; iterate over it."""
        other = kept_in.elsewhere() if kept_in is not None and kept_in is not self else None
        return SyncConsumer(self, self._client.consumer(name, from_vlsn=from_vlsn, at=at, kept_in=other))

    def destination(self, name: str, *, prefetch: int = PREFETCH) -> SyncDestination:
        """Makes a worker as ``Client.destination``; iterate over it."""
        return SyncDestination(self, self._client.destination(name, prefetch=prefetch))

    @property
    def destinations(self) -> SyncDestinations:
        """The destinations of the group, as ``Client.destinations``."""
        return SyncDestinations(self, self._client.destinations)

    @property
    def positions(self) -> SyncPositions:
        """The positions of all consumers, as ``Client.positions``."""
        return SyncPositions(self, self._client.positions)

    @property
    def sinks(self) -> SyncSinks:
        """The sinks of the group, as ``Client.sinks``."""
        return SyncSinks(self, self._client.sinks)

    def group_name(self) -> str:
        """Returns as ``Client.group_name``."""
        return self._run(self._client.group_name())

    def first_vlsn(self) -> int:
        """Returns as ``Client.first_vlsn``."""
        return self._run(self._client.first_vlsn())

    def elsewhere(self) -> OfAnotherLoop:
        """Returns the positions of this group for a client with another loop."""
        if self._loop is None:
            raise LogClosed(self._gone)
        return OfAnotherLoop(self._loop, self._client.positions)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a call of the asynchronous client, and waits for it. Raises ``LogClosed``."""
        return self._run(work)

    def forked(self) -> None:
        """Closes the client in a child process, which has no threads of its parent; leaves the loop alone."""
        _of_parents.append(self._loop)
        self._loop = None
        self._gone = FORKED
        self._beginning = threading.Lock()  # another thread of the parent may have had it

    def _codec_of(self, codec: CodecName | None) -> Codec:
        return self._client.codec if codec is None else codec_of(codec)

    def _encoded(
        self, values: Iterable[Any], keys: Iterable[Any] | None, codec: CodecName | None
    ) -> tuple[list[Any], Sequence[bytes | None] | None]:
        """Encodes in the caller's thread: an iterator may take long, or append by itself."""
        given = self._codec_of(codec)
        return given.values(values), given.keys(keys)

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

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        future = self._begin(work)
        try:
            return future.result()
        except CancelledError:
            if self._loop is None:
                raise LogClosed("the client was closed by another thread") from None
            raise
        except BaseException:
            future.cancel()  # Ctrl-C in the waiting thread; a no-op when the work itself failed
            raise

    def _begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        with self._beginning:
            if self._loop is not None:
                return asyncio.run_coroutine_threadsafe(work, self._loop)
        work.close()
        raise LogClosed(self._gone)


class SyncTransaction(Generic[V]):
    """``Transaction``, blocking."""

    def __init__(
        self, transaction: Transaction[V], run: Callable[[Coroutine[Any, Any, Any]], Any], codec: Codec
    ) -> None:
        self._transaction = transaction
        self._run = run
        self._codec = codec

    @property
    def appended(self) -> Appended | None:
        return self._transaction.appended

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._run(self._transaction.__aexit__(kind, error, trace))

    @overload
    def append(self, value: V, *, key: V | Buffer | None = None, codec: None = None) -> None: ...
    @overload
    def append(self, value: Any, *, key: str | Buffer | None = None, codec: CodecName) -> None: ...
    def append(self, value: Any, *, key: Any = None, codec: CodecName | None = None) -> None:
        """Adds as ``Transaction.append``."""
        given = self._codec if codec is None else codec_of(codec)
        self._run(self._transaction.append(given.value(value), key=given.key(key), codec="bytes"))

    @overload
    def append_many(
        self, values: Iterable[V], *, keys: Iterable[V | Buffer | None] | None = None, codec: None = None
    ) -> None: ...
    @overload
    def append_many(
        self, values: Iterable[Any], *, keys: Iterable[str | Buffer | None] | None = None, codec: CodecName
    ) -> None: ...
    def append_many(
        self, values: Iterable[Any], *, keys: Iterable[Any] | None = None, codec: CodecName | None = None
    ) -> None:
        """Adds as ``Transaction.append_many``."""
        given = self._codec if codec is None else codec_of(codec)
        self._run(self._transaction.append_many(given.values(values), keys=given.keys(keys), codec="bytes"))

    def commit_position(self, consumer: SyncConsumer) -> None:
        """Commits as ``Transaction.commit_position``."""
        self._run(self._transaction.commit_position(consumer.inner))

    def commit(self) -> Appended | None:
        """Commits as ``Transaction.commit``."""
        appended: Appended | None = self._run(self._transaction.commit())
        return appended

    def abort(self) -> None:
        """Aborts as ``Transaction.abort``."""
        self._run(self._transaction.abort())


_of_parents: list[object] = []
"""Parts of a child process's parents' loops: garbage would be closed."""


def _entries(pages: Generator[Page, None]) -> Generator[Entry, None]:
    for page in pages:
        yield from page.entries


async def _end_all() -> None:
    """Cancels what other threads wait for yet: a loop that has stopped would let them wait for ever."""
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
) -> SyncClient[Any]: ...
def connect_sync(
    url: str,
    *,
    acks: Acks | str = Acks.MAJORITY,
    timeout_s: float = 10.0,
    exactly_once: bool = False,
    durability: GivenDurability | None = None,
    codec: CodecName = "bytes",
) -> SyncClient[Any]:
    """Connects as ``connect``, without asyncio. Raises ``BadArgument``."""
    client: Client[Any] = connect(
        url, acks=acks, timeout_s=timeout_s, exactly_once=exactly_once, durability=durability, codec=codec
    )
    return SyncClient(client)
