"""The client of a group: appends, reads, tails, consumers, destinations. ``connect`` makes a client.

Any number of coroutines of one event loop may share a client. When many coroutines append at once, their appends share
batches.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from operator import index
from types import TracebackType
from typing import Any, Generic, Self, overload

from repl.api import Acks, Appended
from repl.client.bearing import Bearing
from repl.client.codec import BYTES, Codec, CodecName, V, codec_of
from repl.client.consumer import Consumer, Keeper
from repl.client.destination import PREFETCH, Destination
from repl.client.destinations import Destinations
from repl.client.endpoints import Endpoints
from repl.client.group import Identity
from repl.client.identity import HandleNames
from repl.client.page import Page, VlsnPlace
from repl.client.positions import Positions
from repl.client.produce import Producer
from repl.client.reader import DURABLE, Reader, freshness_of
from repl.client.reads import NOT_OPEN, Reads
from repl.client.sinks import Sinks
from repl.client.staging import Stages
from repl.client.starting import Begin, check_begin
from repl.client.transaction import Transaction
from repl.credentials.bearer import Bearer
from repl.tls_files import TlsFiles
from repl.web.types import Network
from vlsn.durability import GivenDurability, GroupDurability, group_durability
from vlsn.embedded.forks import tell_of_forks
from vlsn.errors import BadArgument, LogClosed
from vlsn.format.producer_columns import SEQUENCE_MAX
from vlsn.ids import NUMBER_MAX, U64_MAX
from vlsn.real.clock import SystemRandom
from vlsn.seams import Buffer
from vlsn.state.consumers import is_of_another_group, key_of

FORKED = "the client was opened before this process was forked; connect again behind the fork"
LAST_ANSWERS_S = 5.0
"""The most seconds that a close waits for the answers that are still due after a refusal. A node that is alive sends
them at once."""


class Client(Reads[V], Generic[V]):
    """A connection to a group, whose values are of type ``V``. Use the client as an async context manager; the end of
    the block waits for the appends that are not answered yet.

    Import the errors from ``repl``. An error has two attributes that advise on retries. ``retry_safe``: sending the
    same append again cannot log the append twice. ``transient``: trying again may succeed; before the client raises
    such an error, it has tried again until the append's deadline.
    """

    def __init__(
        self,
        urls: Sequence[str],
        *,
        acks: Acks,
        timeout_s: float,
        exactly_once: bool,
        network: Network | None,
        tls: TlsFiles | None = None,
        bearer: Bearer | None = None,
        codec: Codec = BYTES,
        durability: GroupDurability | None = None,
    ) -> None:
        super().__init__(codec, timeout_s)
        self._urls = urls
        self._acks = acks
        self._durability = durability
        self._names = HandleNames(SystemRandom())
        self._random = SystemRandom() if exactly_once else None
        self._given_network = network
        self._tls = tls
        self._bearer = bearer
        self._put: Callable[[Any, Any], Awaitable[int]] = self._refuse
        self._consuming: set[asyncio.Task[None]] = set()
        """The background tasks that read for this client's consumers."""

    async def __aenter__(self) -> Self:
        network = real_network(self._tls) if self._given_network is None else self._given_network
        self._network = network if self._bearer is None else Bearing(network, self._bearer, learns=True)
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
        self._gone = ""
        tell_of_forks(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close(flush=kind is None or issubclass(kind, Exception))

    async def close(self, *, flush: bool = True) -> None:
        """Closes the client. With ``flush`` the call first waits for unanswered appends, until their deadlines. Without
        ``flush`` unanswered appends fail at once: an append that was sent already raises ``OutcomeUnknown``."""
        if self._gone:
            return
        producer = self._producer
        try:
            if flush:
                await producer.flush()
        finally:
            self._gone, self._put = NOT_OPEN, self._refuse
            producer.stop()
            try:
                with suppress(TimeoutError):
                    async with asyncio.timeout(LAST_ANSWERS_S):
                        await producer.last_answers()
            finally:  # these steps also run after a cancel, because they take only a few turns of the event loop
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
        """The nodes that this client knows. ``Endpoints`` can request the nodes' statuses."""
        self._check_open()
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
        """Appends one entry and returns the entry's VLSN, once the ack policy is met (by default: the entry is durable
        on a majority). ``codec`` names the codec of ``value`` and ``key``, if it differs from the client's.
        ``durability`` works as in ``append_batch``.

        Appends of many coroutines share batches. Raises ``TypeError`` for a value that the codec does not accept,
        and ``TooLarge`` for a value over 1 MiB or a key over 64 KiB. After its deadline, an append that was sent
        raises ``OutcomeUnknown``. An append that was not sent raises the reason why it had to wait (``NotMaster``,
        ``InsufficientReplicas``, ``QueueFull``, ``Unreachable`` …). A cancelled append may still be logged.
        """
        if durability is None and codec is None:
            return await self._put(value, key)
        if durability is not None:
            names = None if key is None else [key]
            return (await self._append_batch([value], names, None, codec, group_durability(durability))).first
        given = self.codec if codec is None else codec_of(codec)
        return await self._open().queue.put(given.value(value), given.key(key))

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
        """Appends all of ``values`` or none, on consecutive VLSNs. Returns the first and the last VLSN.

        A call takes at most 65 536 entries and 16 MiB. ``keys`` must have as many items as ``values``. Several calls
        may wait for their answers at once; their entries are logged in the order of the calls. Raises the same
        errors as ``append``, and ``BadBody``.
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
        """Appends like ``append_many``, and returns all fields of the node's answer (``Appended``). ``durable`` says
        whether a majority had synced the append, ``synced`` how many nodes had. ``duplicate`` says that the append was
        in the log already.

        ``acks`` replaces the client's policy for this append. With ``none`` the answer comes once the master alone
        has synced the append. While ``durable`` is false in an answer, the append may still be rolled back.

        ``durability`` is ``sync``, ``write_no_sync`` or ``no_sync``. With ``write_no_sync`` the append is written to
        the operating system: a crash of the nodes' processes does not lose the append, a crash of their machines may.
        With ``no_sync`` the append is in the nodes' memory only. Two values as in ``sync,no_sync`` are for the master
        and for the replicas. ``durability`` may be less than the group's setting, which is ``sync`` by default; more
        raises ``StrongerDurability``. An append that is answered early becomes durable, and visible to readers, a
        fraction of a second later, unless the nodes that have it fail first. Raises the same errors as ``append_many``.
        """
        policy = None if acks is None else acks_of(acks)
        return await self._append_batch(values, keys, policy, codec, _given(durability))

    def transaction(
        self, *, acks: Acks | str | None = None, durability: GivenDurability | None = None
    ) -> Transaction[V]:
        """Begins a transaction. The transaction's entries are logged together when the ``async with`` block ends, or
        none of them is logged. Beginning a transaction sends nothing to a node. ``acks`` and ``durability`` replace the
        client's policy for this transaction.

            async with log.transaction() as txn: await txn.append(b"a"); await txn.append(b"b")

        A transaction holds up to 65 535 entries and 16 MiB. The client keeps up to 1 MiB of entries, which survive any
        change of master. Further entries are staged (kept in memory) at the master. If that master is lost, the commit
        raises ``TransactionGone`` and nothing is logged. If that happens, run the ``async with`` block again.
        """
        producer = self._open()
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
        """Appends submission ``sequence`` of ``producer``, for a program that chooses its own producer ids. A
        submission that is sent again, by any process, is logged only once. Append one submission for each sequence
        number, in order, from 0 on. ``producer_at`` returns the sequence that is due. ``born`` is the ``durable``
        that ``producer_at`` returned before the first submission.

        Only a client with ``exactly_once`` may call this. Raises the same errors as ``append_many``, and
        ``UnknownProducer`` and ``DuplicateForgotten``. Raises ``OutOfSequence`` if another sequence is due, or if
        this sequence was used for other entries.
        """
        if self._random is None:
            raise BadArgument("only a client with exactly_once=True names its submissions")
        if not 1 <= index(producer) <= U64_MAX or not 0 <= index(sequence) <= SEQUENCE_MAX:
            raise BadArgument(f"producer {producer:#x}, sequence {sequence}: a u64 from 1 on, and a number from 0 on")
        if not 0 <= index(born) <= NUMBER_MAX:
            raise BadArgument(f"born: {born} is no VLSN")
        name = Identity(index(producer), index(born), fixed=True), index(sequence)
        put_many = self._open().queue.put_many
        given = self.codec if codec is None else codec_of(codec)
        return await put_many(given.values(values), given.keys(keys), name=name)

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
        """Makes a worker of the consumer ``name`` (1–64 characters of ``[A-Za-z0-9._-]``). Iterate over the worker,
        which reads from the last committed position on, without end.

        A consumer without a position begins where ``from_vlsn`` or ``at`` says, as for ``read``. ``kept_in`` is the
        client of another group, whose transactions commit the position. ``at_least`` and ``lag_max_s`` work as for
        ``tail``. Raises ``BadArgument``.
        """
        self._check_open()
        key_of(name)
        if is_of_another_group(name):
            raise BadArgument(
                f"{name!r}: name the consumer alone; the group is added if another group stores its position"
            )
        check_begin(from_vlsn, at)
        by = f"{SystemRandom().u64():016x}"
        positions = (kept_in or self).positions
        wanted = freshness_of(DURABLE, at_least, lag_max_s)

        async def follow(place: VlsnPlace) -> Page | None:
            self._check_open()
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
        """Makes a worker of the destination ``name``. Iterate over the worker, which takes at most ``prefetch``
        messages at once. A message that is not acknowledged in time is delivered again, to this worker or to another
        one. Raises ``BadArgument``."""
        self._check_open()
        return Destination(self._destinations, name, prefetch=prefetch)

    @property
    def destinations(self) -> Destinations:
        """The destinations of the group, for programs that administer destinations."""
        self._check_open()
        return self._destinations

    @property
    def positions(self) -> Positions:
        """The positions of all consumers, for programs that administer consumers."""
        self._check_open()
        return self._positions

    @property
    def sinks(self) -> Sinks:
        """The sinks of the group. A sink stores the number of the last batch that a writer of numbered batches has
        written."""
        self._check_open()
        return self._sinks

    def forked(self) -> None:
        """Drops the connection and the event loop in a child process, because both belong to the parent process. The
        child's copies are not closed: closing the loop's poll object in the child would close it in the parent, too."""
        _of_parents.append([getattr(self, name, None) for name in ("_producer", "_task", "_network")])
        self._gone, self._put = FORKED, self._refuse

    async def _append_batch(
        self,
        values: Iterable[Any],
        keys: Iterable[Any] | None,
        acks: Acks | None,
        codec: CodecName | None,
        durability: GroupDurability | None,
    ) -> Appended:
        put_many = self._open().queue.put_many
        given = self.codec if codec is None else codec_of(codec)
        return await put_many(given.values(values), given.keys(keys), acks=acks, durability=durability)

    def _put_encoded(self, value: Any, key: Any) -> Awaitable[int]:
        return self._open().queue.put(self.codec.value(value), self.codec.key(key))

    def _refuse(self, value: Any, key: Any) -> Awaitable[int]:
        raise LogClosed(self._gone)

    def _open(self) -> Producer:
        self._check_open()
        return self._producer


_of_parents: list[object] = []
"""The clients that a parent process opened. The list prevents the clients' garbage collection, which would close the
parent's sockets."""


def _given(durability: GivenDurability | None) -> GroupDurability | None:
    return None if durability is None else group_durability(durability)


def acks_of(policy: Acks | str) -> Acks:
    """Returns the ack policy with this name. Raises ``BadArgument``."""
    try:
        return Acks(policy)
    except ValueError:
        raise BadArgument(f"acks: {policy!r} is not one of {', '.join(Acks)}") from None


def real_network(tls: TlsFiles | None = None) -> Network:
    """Makes a network of real sockets; the caller closes it. ``tls`` has the files for calls of https; the default
    files are named by environment variables."""
    from repl.net.client_network import ClientNetwork  # imported on first use, because aiohttp takes long to load

    return ClientNetwork(tls=tls)
