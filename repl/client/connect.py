"""The client: ``connect`` and what it gives.

    async with connect("http://127.0.0.1:7701,http://127.0.0.1:7702") as log:
        vlsn = await log.append(b"value", key=b"k")

One client serves any number of coroutines of one event loop; the more append at once, the larger the
batches.  URLs need not name the master: the client asks any node for it, and again after a loss.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from operator import index
from types import TracebackType
from typing import Any, Generic, Literal, Self, cast, overload

from repl.api import Acks, Appended, ProducerAt, Spans
from repl.client.block_pages import BlockReader, BlocksPage
from repl.client.codec import BYTES, Codec, CodecName, V, codec_of
from repl.client.consumer import Consumer, Keeper
from repl.client.destination import PREFETCH, Destination
from repl.client.destinations import Destinations
from repl.client.endpoints import Endpoints
from repl.client.identity import HandleNames, Identity
from repl.client.positions import Positions
from repl.client.produce import Producer
from repl.client.sinks import Sinks
from repl.client.staging import Stages
from repl.client.starting import Begin, check_begin, keys_of, limited, started
from repl.client.tail import DURABLE, Consistency, Page, Reader, VlsnPlace, freshness_of
from repl.client.transaction import Transaction
from repl.config import split_urls
from repl.http.types import Network
from vlsn.durability import GivenDurability, GroupDurability, group_durability
from vlsn.embedded.forks import tell_of_forks
from vlsn.errors import BadArgument, LogClosed
from vlsn.format.block import Entry
from vlsn.format.producer_columns import SEQUENCE_MAX
from vlsn.ids import NUMBER_MAX, U64_MAX
from vlsn.real.clock import SystemRandom
from vlsn.seams import Buffer
from vlsn.state.consumers import is_of_another_group, key_of
from vlsn.times import time_us as microseconds

FORKED = "the client was opened before this process was forked; connect again behind the fork"
_NOT_OPEN = "the client is not open; use it inside `async with connect(…)`"
LAST_ANSWERS_S = 5.0
"""Seconds that a close waits for answers behind a refusal; a node that lives has them ready."""


class Client(Generic[V]):
    """A connection to a group, whose values are of type ``V``.  Use it as an async context manager; leaving it flushes.

    Errors are imported from ``repl``; each says by ``retry_safe`` that sending the same append again cannot double it,
    and by ``transient`` that it may help: that has been tried until the append's deadline before it is raised.
    """

    def __init__(
        self,
        urls: Sequence[str],
        *,
        acks: Acks,
        timeout_s: float,
        exactly_once: bool,
        network: Network | None,
        codec: Codec = BYTES,
        durability: GroupDurability | None = None,
    ) -> None:
        self._urls = urls
        self.codec = codec
        """The codec of appends that name no other."""
        self._acks = acks
        self._durability = durability
        self._timeout_s = timeout_s
        self._names = HandleNames(SystemRandom())
        self._random = SystemRandom() if exactly_once else None
        self._given_network = network
        self._producer: Producer | None = None
        self._put: Callable[[Any, Any], Awaitable[int]] = _not_open
        self._gone = _NOT_OPEN
        """The reason why there is no producer."""
        self._consuming: set[asyncio.Task[None]] = set()
        """The reads of its consumers."""

    async def __aenter__(self) -> Self:
        if self._given_network is not None:
            self._network = self._given_network
        else:
            self._network = real_network()
        self._endpoints = Endpoints(self._network, self._urls)
        self._reader = Reader(self._endpoints, give_up_s=self._timeout_s)
        self._stages = Stages(self._endpoints, self._network, self._names, timeout_s=self._timeout_s)
        self._sinks = Sinks(self._reader, self._stages)
        self._destinations = Destinations(self._endpoints, self._network, timeout_s=self._timeout_s)
        self._positions = Positions(self._reader, self._stages)
        self._producer = Producer(
            self._endpoints,
            self._network,
            acks=self._acks,
            timeout_s=self._timeout_s,
            random=self._random,
            durability=self._durability,
        )
        self._put = self._producer.queue.put if self.codec is BYTES else self._put_encoded
        self._task = asyncio.create_task(self._producer.run(), name="vlsnlog-producer")
        tell_of_forks(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close(flush=kind is None or issubclass(kind, Exception))

    async def close(self, *, flush: bool = True) -> None:
        """Ends the client.  ``flush`` first gives appends under way the time to their deadlines; without
        it they fail at once, those already sent with ``OutcomeUnknown``."""
        producer = self._producer
        if producer is None:
            return
        try:
            if flush:
                await producer.flush()
        finally:
            self._producer = None
            self._put = _not_open
            producer.stop()
            try:
                with suppress(TimeoutError):
                    async with asyncio.timeout(LAST_ANSWERS_S):
                        await producer.last_answers()
            finally:  # after a cancel too: each of these is one turn of the loop or few
                producer.close()
                self._endpoints.close()
                tasks = [self._task, *self._consuming]
                for task in tasks:
                    task.cancel()
                try:
                    await asyncio.gather(*tasks, self._stages.close(), return_exceptions=True)
                finally:
                    if self._given_network is None:
                        await self._network.close()

    @property
    def endpoints(self) -> Endpoints:
        """The nodes known, for asking them about themselves."""
        self._open_producer()
        return self._endpoints

    @overload
    async def append(
        self,
        value: V,
        *,
        key: V | Buffer | None = None,
        durability: GivenDurability | None = None,
        codec: None = None,
    ) -> int: ...
    @overload
    async def append(
        self,
        value: Any,
        *,
        key: str | Buffer | None = None,
        durability: GivenDurability | None = None,
        codec: CodecName,
    ) -> int: ...
    async def append(
        self,
        value: Any,
        *,
        key: Any = None,
        durability: GivenDurability | None = None,
        codec: CodecName | None = None,
    ) -> int:
        """Appends one entry and returns its VLSN once the ack policy is met (by default: durable on a
        majority). ``codec`` says what the value is, where it is another than the client's; ``durability`` as for
        ``append_batch``.

        Appends of many coroutines share batches.  Raises ``TypeError`` for what the codec does not take, ``TooLarge``
        (over 1 MiB, key over 64 KiB); past the deadline ``OutcomeUnknown`` if it was sent, else what kept it waiting
        (``NotMaster``, ``InsufficientReplicas``, ``QueueFull``, ``Unreachable`` …).  A cancel leaves it possibly
        logged.
        """
        if durability is None and codec is None:
            return await self._put(value, key)
        if durability is not None:
            names = None if key is None else [key]
            return (await self._append_batch([value], names, None, codec, group_durability(durability))).first
        given = self.codec if codec is None else codec_of(codec)
        return await self._open_producer().queue.put(given.value(value), given.key(key))

    @overload
    async def append_many(
        self,
        values: Iterable[V],
        *,
        keys: Iterable[V | Buffer | None] | None = None,
        durability: GivenDurability | None = None,
        codec: None = None,
    ) -> tuple[int, int]: ...
    @overload
    async def append_many(
        self,
        values: Iterable[Any],
        *,
        keys: Iterable[str | Buffer | None] | None = None,
        durability: GivenDurability | None = None,
        codec: CodecName,
    ) -> tuple[int, int]: ...
    async def append_many(
        self,
        values: Iterable[Any],
        *,
        keys: Iterable[Any] | None = None,
        durability: GivenDurability | None = None,
        codec: CodecName | None = None,
    ) -> tuple[int, int]:
        """Appends all of ``values`` or none, on consecutive VLSNs, and returns the first and the last.

        At most 65 536 entries and 16 MiB; ``keys`` as many as values.  Several calls may be under way at
        once and are logged in the order of the calls.  Raises as ``append``, and ``BadBody``.
        """
        appended = await self._append_batch(values, keys, None, codec, _given(durability))
        return appended.first, appended.last

    @overload
    async def append_batch(
        self,
        values: Iterable[V],
        *,
        keys: Iterable[V | Buffer | None] | None = None,
        acks: Acks | str | None = None,
        durability: GivenDurability | None = None,
        codec: None = None,
    ) -> Appended: ...
    @overload
    async def append_batch(
        self,
        values: Iterable[Any],
        *,
        keys: Iterable[str | Buffer | None] | None = None,
        acks: Acks | str | None = None,
        durability: GivenDurability | None = None,
        codec: CodecName,
    ) -> Appended: ...
    async def append_batch(
        self,
        values: Iterable[Any],
        *,
        keys: Iterable[Any] | None = None,
        acks: Acks | str | None = None,
        durability: GivenDurability | None = None,
        codec: CodecName | None = None,
    ) -> Appended:
        """Appends as ``append_many``, and returns all that the node's answer says. That is first and last VLSN,
        ``term``, ``durable`` (a majority had synced it), ``synced`` (how many nodes had), ``durability``, and whether
        it was a ``duplicate``.

        ``acks``: this append's policy where it is another than the client's.  With ``none`` the answer comes once the
        master alone has synced it, and it may still be rolled back while ``durable`` is false.

        ``durability``: ``sync``, ``write_no_sync`` (written: a crash of these processes does not lose it, one of the
        machines may) or ``no_sync`` (in memory), or two of them as in ``sync,no_sync``: the master's and the replicas'.
        It may ask for less than the group's setting, which is ``sync`` unless that was changed; ``StrongerDurability``
        refuses more. What is answered early becomes durable, and visible to readers, a fraction of a second later, or
        is lost with the machines that had it.  Raises as ``append_many``."""
        policy = None if acks is None else acks_of(acks)
        return await self._append_batch(values, keys, policy, codec, _given(durability))

    def transaction(
        self, *, acks: Acks | str | None = None, durability: GivenDurability | None = None
    ) -> Transaction[V]:
        """Begins a transaction, whose entries are logged together as its block is left, or not at all. Nothing is sent
        before; ``acks`` and ``durability``: its own where they are others than the client's.

            async with log.transaction() as txn: await txn.append(b"a"); await txn.append(b"b")

        Up to 65 535 entries and 16 MiB.  Up to 1 MiB is kept here and survives any change of master; of more, what was
        staged at a master that is gone is ``TransactionGone``, nothing logged: run the block again."""
        producer = self._open_producer()
        policy = self._acks if acks is None else acks_of(acks)
        return Transaction(
            self._stages,
            producer,
            codec=self.codec,
            acks=policy,
            durability=self._durability if durability is None else group_durability(durability),
            names=self._names,
            positions=self._positions,
        )

    @overload
    async def submit(
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
    async def submit(
        self,
        values: Iterable[Any],
        *,
        producer: int,
        sequence: int,
        born: int,
        keys: Iterable[str | Buffer | None] | None = None,
        codec: CodecName,
    ) -> Appended: ...
    async def submit(
        self,
        values: Iterable[Any],
        *,
        producer: int,
        sequence: int,
        born: int,
        keys: Iterable[Any] | None = None,
        codec: CodecName | None = None,
    ) -> Appended:
        """Appends submission ``sequence`` of ``producer``, for a program that keeps its own names. Sent again, by
        whichever process, it is one submission. One for each sequence, in their order, from 0 on; ``producer_at`` says
        which is due, and ``born``: its ``durable`` as it was before the first one.

        A client of ``exactly_once`` only.  Raises as ``append_many``, ``OutOfSequence`` where the sequence is not due,
        or was another submission, ``UnknownProducer``, ``DuplicateForgotten``."""
        if self._random is None:
            raise BadArgument("only a client with exactly_once=True names its submissions")
        if not 1 <= index(producer) <= U64_MAX or not 0 <= index(sequence) <= SEQUENCE_MAX:
            raise BadArgument(f"producer {producer:#x}, sequence {sequence}: a u64 from 1 on, and a number from 0 on")
        if not 0 <= index(born) <= NUMBER_MAX:
            raise BadArgument(f"born: {born} is no VLSN")
        name = Identity(index(producer), index(born), fixed=True), index(sequence)
        put_many = self._open_producer().queue.put_many
        given = self.codec if codec is None else codec_of(codec)
        return await put_many(given.values(values), given.keys(keys), name=name)

    async def producer_at(self, producer: int) -> ProducerAt:
        """Tells how far ``producer`` has come in what is durable. That is all that was acknowledged to it before the
        call, at least.

        Raises ``Unreachable``, and ``NotMaster`` or ``NotYet`` when no majority has confirmed it for ``timeout_s``."""
        self._open_producer()
        return await self._reader.producer(index(producer))

    async def durable_vlsn(
        self, *, consistency: Consistency = DURABLE, at_least: int = 0, lag_max_s: float | None = None
    ) -> int:
        """Returns the highest VLSN that a node calls durable which is as new as that, or that this client was told is;
        what makes one new is said as for ``read``. Raises ``Unreachable``, and as ``read``."""
        self._open_producer()
        return await self._reader.durable_vlsn(freshness_of(consistency, at_least, lag_max_s))

    async def vlsn_at(self, time_us: datetime | int) -> int:
        """Finds the first VLSN at which the highest block time so far is at or past ``time_us``: a ``datetime`` (UTC
        where it has no zone) or µs since the epoch. It is one past the durable end where none is. Entries bear their
        master's clock, so the answer is exact however far clocks of masters are apart. One question to a node, which
        reads about a MiB. Raises ``Unreachable``, ``Damaged``."""
        self._open_producer()
        return await self._reader.vlsn_at(microseconds(time_us))

    async def read(
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
        at_least: int = 0,
        lag_max_s: float | None = None,
    ) -> AsyncGenerator[Entry, None]:
        """Yields DATA entries from ``from_vlsn`` (default: the first there is) to ``to_vlsn``, both included. The
        default end is what is durable when it starts. VLSNs rise, with gaps where the log keeps entries of its own.
        What this client was told is durable is waited for, also where a node lags.

        ``from_vlsn`` may be ``"start"`` or ``"end"``; ``at``, in its place, begins at a time as ``vlsn_at`` finds it.
        ``key`` or ``key_prefix``: only entries with that key, or one that begins so, chosen by the node; an empty
        ``key`` stands for entries without one. Entries that come by a key do not tell their transaction (``txn`` is 0).
        ``limit``: at most so many.

        ``consistency="linearizable"``: also what anybody else was told before the call, at the cost of a round trip
        between the nodes before the first page.  ``at_least``: also that VLSN, which somebody was told is durable.
        ``lag_max_s``: also what anybody was told until so many seconds before the call; nodes confirm that with one
        another once in such a time, whoever reads.

        Raises ``Trimmed``, ``Damaged``, ``Unreachable``, ``BadArgument``; ``TooFarBehind`` when no node has got as far
        for ``timeout_s``; and with ``linearizable`` ``NotMaster`` or ``NotYet`` when no majority has confirmed it.
        """
        pages = self.read_pages(
            from_vlsn,
            to_vlsn,
            at=at,
            key=key,
            key_prefix=key_prefix,
            limit=limit,
            all_kinds=all_kinds,
            consistency=consistency,
            at_least=at_least,
            lag_max_s=lag_max_s,
        )
        async for page in pages:
            for entry in page.entries:
                yield entry

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
        at_least: int = 0,
        lag_max_s: float | None = None,
    ) -> AsyncGenerator[Page, None]:
        """Yields pages as they come from a node, as ``read`` does entries: less work an entry."""
        self._open_producer()
        keys = keys_of(self.codec.key(key), self.codec.key(key_prefix))
        wanted = freshness_of(consistency, at_least, lag_max_s)

        def pages(first: int | None) -> AsyncGenerator[Page, None]:
            return self._reader.pages(first, to_vlsn, consistency=wanted, all_kinds=all_kinds, keys=keys)

        return limited(started(self._reader, from_vlsn, at, pages), limit)

    def block_pages(
        self,
        from_vlsn: Begin = None,
        to_vlsn: int | None = None,
        *,
        at: datetime | int | None = None,
        consistency: Consistency = DURABLE,
        after_term: int | None = None,
        at_least: int = 0,
        lag_max_s: float | None = None,
    ) -> AsyncGenerator[BlocksPage, None]:
        """Yields pages of whole blocks, checked, with what ``read`` gives and the log's own entries among it: for who
        takes columns (``page.rows``), not entries. Blocks are not cut where ``from_vlsn`` or ``to_vlsn`` lies within
        one. ``after_term`` as for ``tail``. ``read_arrow`` makes tables of them. Raises as ``read``, and
        ``NotInLog``."""
        self._open_producer()
        wanted = freshness_of(consistency, at_least, lag_max_s)
        if after_term is not None and not isinstance(from_vlsn, int):
            raise BadArgument("after_term is of the VLSN before from_vlsn, which must be a number")
        reader = BlockReader(self._endpoints, give_up_s=self._timeout_s)

        def pages(first: int | None) -> AsyncGenerator[Page, None]:
            return reader.pages(first, to_vlsn, consistency=wanted, after_term=after_term or 0)

        return cast("AsyncGenerator[BlocksPage, None]", started(self._reader, from_vlsn, at, pages))

    async def spans(
        self,
        from_vlsn: int | None = None,
        to_vlsn: int | None = None,
        *,
        bytes_each: int = NUMBER_MAX,
        entries_each: int = NUMBER_MAX,
        limit: int = 1,
        after_term: int | None = None,
        at_least: int = 0,
        lag_max_s: float | None = None,
    ) -> Spans:
        """Cuts what is durable of a range, both ends included, into ``limit`` runs at most, of about ``bytes_each``
        bytes of files and ``entries_each`` VLSNs at most: for readers that share it out. Nothing is read for it.
        ``at_least`` and ``lag_max_s`` as for ``read``.  Raises ``Trimmed``, ``NotInLog``, ``Unreachable``,
        ``TooFarBehind``, ``BadArgument``."""
        self._open_producer()
        return await self._reader.spans(
            from_vlsn,
            to_vlsn,
            bytes_each=bytes_each,
            entries_each=entries_each,
            limit=limit,
            after_term=after_term or 0,
            consistency=freshness_of(DURABLE, at_least, lag_max_s),
        )

    async def tail(
        self,
        from_vlsn: Begin = None,
        *,
        at: datetime | int | None = None,
        key: V | Buffer | None = None,
        key_prefix: V | Buffer | None = None,
        limit: int | None = None,
        after_term: int | None = None,
        all_kinds: bool = False,
        at_least: int = 0,
        lag_max_s: float | None = None,
    ) -> AsyncGenerator[Entry, None]:
        """Yields DATA entries from ``from_vlsn`` (default: the first there is) on, for ever, each as soon as it is
        durable. It goes on through the loss of nodes and changes of the master, with no gap and no repeat. What to
        begin at and which entries are wanted is said as for ``read``; behind ``limit`` entries it ends.  ``"end"`` is
        behind all that was acknowledged to anybody before the first entry is asked for: the nodes confirm it.

        ``at_least`` and ``lag_max_s``: it reads from nodes alone that have that VLSN, and that lag no more, whenever
        they are asked for more; it waits for one.
        ``after_term``: the term of the entry at ``from_vlsn - 1``, for whoever goes on from what was read before.
        Raises ``Trimmed``, and ``NotInLog`` when what was read is in the log no more, which takes a person who gave
        durable entries up."""
        pages = self.tail_pages(
            from_vlsn,
            at=at,
            key=key,
            key_prefix=key_prefix,
            limit=limit,
            after_term=after_term,
            all_kinds=all_kinds,
            at_least=at_least,
            lag_max_s=lag_max_s,
        )
        async for page in pages:
            for entry in page.entries:
                yield entry

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
        at_least: int = 0,
        lag_max_s: float | None = None,
    ) -> AsyncGenerator[Page, None]:
        """Yields pages, as ``tail`` does entries."""
        self._open_producer()
        keys = keys_of(self.codec.key(key), self.codec.key(key_prefix))
        wanted = freshness_of(DURABLE, at_least, lag_max_s)
        if after_term is not None and not isinstance(from_vlsn, int):
            raise BadArgument("after_term is of the VLSN before from_vlsn, which must be a number")

        def pages(first: int | None) -> AsyncGenerator[Page, None]:
            return self._reader.follow(first, after_term=after_term, all_kinds=all_kinds, keys=keys, consistency=wanted)

        return limited(started(self._reader, from_vlsn, at, pages), limit)

    def consumer(
        self,
        name: str,
        *,
        from_vlsn: Begin = None,
        at: datetime | int | None = None,
        kept_in: Keeper | None = None,
        at_least: int = 0,
        lag_max_s: float | None = None,
    ) -> Consumer:
        """Makes a worker of the consumer ``name`` (1–64 of ``[A-Za-z0-9._-]``): iterated over it reads on from where
        that was last committed, for ever. ``from_vlsn`` and ``at`` say where it begins when it has no position yet, as
        for ``read``.  ``kept_in``: the client of another group, whose transactions commit it.  ``at_least`` and
        ``lag_max_s`` as for ``tail``.  Raises ``BadArgument``."""
        self._open_producer()
        key_of(name)
        if is_of_another_group(name):
            raise BadArgument(f"{name!r}: the group goes in front by itself, where the position lies in another one")
        check_begin(from_vlsn, at)
        by = f"{SystemRandom().u64():016x}"
        positions = (kept_in or self).positions
        wanted = freshness_of(DURABLE, at_least, lag_max_s)

        async def follow(place: VlsnPlace) -> Page | None:
            self._open_producer()
            return await self._reader.next_page(place, consistency=wanted)

        return Consumer(
            self._reader,
            self._positions,
            name,
            from_vlsn=from_vlsn,
            at=at,
            kept_in=positions,
            by=by,
            follow=follow,
            tasks=self._consuming,
        )

    def destination(self, name: str, *, prefetch: int = PREFETCH) -> Destination:
        """Makes a worker of the destination ``name``: iterated over it takes messages, ``prefetch`` at once at most,
        each of which is acknowledged in time, or delivered again, to this one or another. Raises ``BadArgument``."""
        self._open_producer()
        return Destination(self._destinations, name, prefetch=prefetch)

    @property
    def destinations(self) -> Destinations:
        """The destinations of the group, for programs that look after them."""
        self._open_producer()
        return self._destinations

    @property
    def positions(self) -> Positions:
        """The positions of all consumers, for programs that look after them."""
        self._open_producer()
        return self._positions

    @property
    def sinks(self) -> Sinks:
        """The sinks of the group: how far writers of numbered batches have come."""
        self._open_producer()
        return self._sinks

    async def group_name(self) -> str:
        """Returns the name of the group that the nodes are of. Raises ``Unreachable``."""
        self._open_producer()
        return await self._reader.group()

    async def first_vlsn(self) -> int:
        """Returns the first VLSN that a node still has; one past the durable end where there is none. Raises
        ``Unreachable``."""
        self._open_producer()
        return await self._reader.first_vlsn()

    def forked(self) -> None:
        """Lets go of the connection and its loop in a child process: they are its parent's. What is left of them here
        stays as it is: to close the loop's poll would close it to the parent, too."""
        _of_parents.append((self._producer, getattr(self, "_task", None), getattr(self, "_network", None)))
        self._producer = None
        self._put = _forked
        self._gone = FORKED

    async def _append_batch(
        self,
        values: Iterable[Any],
        keys: Iterable[Any] | None,
        acks: Acks | None,
        codec: CodecName | None,
        durability: GroupDurability | None,
    ) -> Appended:
        put_many = self._open_producer().queue.put_many
        given = self.codec if codec is None else codec_of(codec)
        return await put_many(given.values(values), given.keys(keys), acks=acks, durability=durability)

    def _put_encoded(self, value: Any, key: Any) -> Awaitable[int]:
        return self._open_producer().queue.put(self.codec.value(value), self.codec.key(key))

    def _open_producer(self) -> Producer:
        if self._producer is None:
            raise LogClosed(self._gone)
        return self._producer


def _not_open(value: bytes, key: bytes | None) -> Awaitable[int]:
    raise LogClosed(_NOT_OPEN)


def _forked(value: bytes, key: bytes | None) -> Awaitable[int]:
    raise LogClosed(FORKED)


_of_parents: list[object] = []
"""Parts of a child process's parents' clients: garbage would be closed."""


@overload
def connect(
    url: str,
    *,
    acks: Acks | str = ...,
    timeout_s: float = ...,
    exactly_once: bool = ...,
    durability: GivenDurability | None = ...,
    codec: Literal["bytes"] = ...,
    network: Network | None = ...,
) -> Client[Buffer]: ...
@overload
def connect(
    url: str,
    *,
    acks: Acks | str = ...,
    timeout_s: float = ...,
    exactly_once: bool = ...,
    durability: GivenDurability | None = ...,
    codec: Literal["utf8"],
    network: Network | None = ...,
) -> Client[str]: ...
@overload
def connect(
    url: str,
    *,
    acks: Acks | str = ...,
    timeout_s: float = ...,
    exactly_once: bool = ...,
    durability: GivenDurability | None = ...,
    codec: Literal["json"],
    network: Network | None = ...,
) -> Client[Any]: ...
def connect(
    url: str,
    *,
    acks: Acks | str = Acks.MAJORITY,
    timeout_s: float = 10.0,
    exactly_once: bool = False,
    durability: GivenDurability | None = None,
    codec: CodecName = "bytes",
    network: Network | None = None,
) -> Client[Any]:
    """Makes a client of the group that ``url`` names: one or more ``http://HOST:PORT``, separated by commas.

    ``acks``: ``none``, ``majority`` or ``all``; ``timeout_s``: each append's deadline.  ``exactly_once``: what got no
    answer is sent again, and the log takes it once, whatever becomes of connections and masters; ``OutcomeUnknown``
    then means that no answer came until the deadline, or until the client was closed.  Appends stay in their order.
    A log forgets whoever was heard of longest ago of more than 65,536 such clients (the group's setting ``producers``);
    a client that this befalls goes on under another name.
    ``durability``: what appends are to be answered for, as ``append_batch`` says; by default the group's setting.
    ``codec``: what appends are given, ``bytes``, ``utf8`` (str) or ``json``; readers ask each entry for its ``text()``
    or ``json()``.  Nothing is opened before ``async with``.  Raises ``BadArgument``.
    """
    policy = acks_of(acks)
    if not 0 < timeout_s <= 3600:
        raise BadArgument(f"timeout_s: {timeout_s} is out of range; it must be above 0 and at most 3600")
    return Client(
        split_urls(url),
        acks=policy,
        timeout_s=timeout_s,
        exactly_once=exactly_once,
        network=network,
        codec=codec_of(codec),
        durability=_given(durability),
    )


def _given(durability: GivenDurability | None) -> GroupDurability | None:
    return None if durability is None else group_durability(durability)


def acks_of(policy: Acks | str) -> Acks:
    """Raises ``BadArgument``."""
    try:
        return Acks(policy)
    except ValueError:
        raise BadArgument(f"acks: {policy!r} is not one of {', '.join(Acks)}") from None


def real_network() -> Network:
    """Sockets; the caller closes it."""
    from repl.net.network import AiohttpNetwork  # on first use: aiohttp takes long to load

    return AiohttpNetwork()
