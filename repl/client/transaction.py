"""Transactions of a client: entries that are logged whole, or not at all.

    async with log.transaction() as txn:
        await txn.append(b"a", key=b"k")
        await txn.append_many([b"b", b"c"])
    print(txn.appended.first, txn.appended.last)

1. Up to ``KEPT_BYTES_MAX`` of entries are kept here and go out with the commit, in one message: one round trip, and a
   commit whose answer was lost is sent again with them, to whoever leads.
2. More than that is staged at the master, piece by piece.  A master that is no more takes it along: the commit is
   refused with ``TransactionGone``, nothing logged, and the block is to be run again.
3. Every transaction has a name of its own in the log, so its commit is made once however often it is asked for.
4. One that commits the position of a consumer is staged too: its entries and the position are in one block, or neither.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeVar, overload

import msgspec
from tenacity import AsyncRetrying, retry_if_exception

from repl.api import Acks, Appended, ConsumerChange, SinkChange
from repl.client.backoff import Backoff
from repl.client.codec import Codec, CodecName, V, codec_of
from repl.client.consumer import Consumer, Positions, in_hand
from repl.client.endpoints import Endpoints
from repl.client.group import Key, check_longest
from repl.client.identity import HandleNames, Identity
from repl.client.produce import Producer
from repl.http import problem
from repl.http.types import Network
from vlsn.durability import GroupDurability
from vlsn.errors import (
    BadArgument,
    BadBody,
    NotMaster,
    OutcomeUnknown,
    StaleTerm,
    TransactionClosed,
    TransactionGone,
    Unreachable,
    VlsnLogError,
    WrongVersion,
)
from vlsn.format.batch import encode
from vlsn.format.producer_columns import HANDLE_SEQUENCE
from vlsn.format.records import JSON_FAULTS
from vlsn.levels import TRANSACTIONS
from vlsn.limits import MIB
from vlsn.seams import Buffer

T = TypeVar("T")
KEPT_BYTES_MAX: Final = MIB
"""Bytes of entries that a transaction keeps until its commit."""
ENTRY_COST_BYTES: Final = 17
"""Bytes that each entry is counted with beside its own."""
ATTEMPT_S: Final = 3.0
"""Seconds after which a silent master is asked again, or the next one."""
ABORT_S: Final = 2.0
GRACE_S: Final = 1.0
"""Seconds past a commit's time that the node's own answer is waited for."""

_JSON: Final = {"Content-Type": "application/json"}
_BATCH: Final = {"Content-Type": "application/x-vlsnlog-batch"}


class _Begun(msgspec.Struct):
    transaction: str


class _Staged(msgspec.Struct):
    staged: int


class Transaction(Generic[V]):
    """One transaction: an async context manager that commits as it is left, and aborts where an exception leaves it.

    Several coroutines may append to it.  After ``OutcomeUnknown`` ``commit`` may be called again, for the same one."""

    def __init__(
        self,
        endpoints: Endpoints,
        network: Network,
        producer: Producer,
        *,
        codec: Codec,
        acks: Acks,
        durability: GroupDurability | None,
        timeout_s: float,
        names: HandleNames,
        positions: Positions,
    ) -> None:
        self.appended: Appended | None = None
        """Where it lies, its COMMIT at ``last``; None before it is committed, and where nothing was appended."""
        self._staging: Staging | None = None
        """Made once something is staged, or its position is committed."""
        self._endpoints = endpoints
        self._network = network
        self._timeout_s = timeout_s
        self._producer = producer
        self._codec = codec
        self._acks = acks
        self._durability = durability
        self._names = names
        self._positions = positions
        self._consumers: dict[str, tuple[Consumer, ConsumerChange]] = {}
        """The consumers whose positions it commits, by their names in this group."""
        self._values: list[bytes] = []
        self._keys: list[Key] = []
        self._bytes = 0
        self._turn = asyncio.Lock()
        self._identity: Identity | None = None
        """Its name, once it went out in one message."""
        self._over = ""
        """The reason why nothing more is appended."""
        self._may_be_logged = False
        """A commit is on its way, or had no certain answer."""
        self._committing = False
        """A commit takes what there is: nothing more is taken beside it."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            if not self._over:
                await self.commit()
        elif issubclass(kind, Exception):
            await self.abort()
        else:
            self._end("it was cancelled")  # what is staged of it ends by itself

    @overload
    async def append(self, value: V, *, key: V | Buffer | None = None, codec: None = None) -> None: ...
    @overload
    async def append(self, value: Any, *, key: str | Buffer | None = None, codec: CodecName) -> None: ...
    async def append(self, value: Any, *, key: Any = None, codec: CodecName | None = None) -> None:
        """Adds one entry, which is in no log before the commit. Raises ``TypeError``, ``TooLarge``; what the master
        refuses a piece with, once there is more than is kept here; ``TransactionGone``."""
        given = self._codec if codec is None else codec_of(codec)
        await self._add([given.value(value)], [given.key(key)])

    @overload
    async def append_many(
        self, values: Iterable[V], *, keys: Iterable[V | Buffer | None] | None = None, codec: None = None
    ) -> None: ...
    @overload
    async def append_many(
        self, values: Iterable[Any], *, keys: Iterable[str | Buffer | None] | None = None, codec: CodecName
    ) -> None: ...
    async def append_many(
        self, values: Iterable[Any], *, keys: Iterable[Any] | None = None, codec: CodecName | None = None
    ) -> None:
        """Adds entries in their order; ``keys`` as many as values. Raises as ``append``, and ``BadBody``."""
        given = self._codec if codec is None else codec_of(codec)
        data, names = given.values(values), given.keys(keys)
        if names is not None and len(names) != len(data):
            raise BadBody(f"{len(data)} values and {len(names)} keys")
        await self._add(data, [None] * len(data) if names is None else names)

    async def commit_position(self, consumer: Consumer) -> None:
        """Commits with it where ``consumer`` is now: behind the last entry that it has given. Raises ``BadArgument``
        for one that has read nothing, or whose position lies in another group (``kept_in``)."""
        self._check_not_committing()
        if not consumer.lies_in(self._positions):
            raise BadArgument(f"the position of consumer {consumer.name} lies in another group than this transaction")
        name, change = consumer.change()
        self._consumers[name] = consumer, change

    async def commit(self) -> Appended | None:
        """Logs all of it, and returns where it lies once the ack policy is met; None where there is nothing to log.

        Raises, nothing logged, what an append is refused with (and may be called again), ``TransactionGone``, and
        ``StaleTerm`` where another worker has replaced the position of a consumer, ``WrongVersion`` where the group's
        level has no transactions; ``OutcomeUnknown`` where no answer came, or where none had come before and this one
        is no certain one either."""
        async with self._turn:
            if self.appended is not None:
                return self.appended
            self._check_open()
            unsure, self._committing, done = self._may_be_logged, True, False
            try:
                if self._consumers or (self._staging is not None and self._staging.handle):
                    await self._stage()
                    staging = self._staged()
                    await staging.begin()
                    self._may_be_logged = True
                    changes = {name: change for name, (_, change) in self._consumers.items()}
                    self.appended = await staging.commit(self._acks, {"positions": changes}, self._durability)
                elif self._values:
                    self._may_be_logged = True
                    if self._endpoints.level < TRANSACTIONS:
                        await self._staged().find_level()
                    self.appended = await self._put_whole()
                done = True
            except (TransactionGone, StaleTerm) as error:
                self._may_be_logged = False
                self._end(str(error))
                raise
            except VlsnLogError as error:
                self._may_be_logged = unsure or (self._may_be_logged and not error.retry_safe)
                if unsure and error.retry_safe:  # of this commit alone: the one before may be in the log
                    raise OutcomeUnknown(f"asked again, and not acknowledged: {error}; it may be logged") from error
                raise
            finally:
                self._committing = False
                if not done:
                    self._not_committed()
            if self.appended is not None:
                for consumer, change in self._consumers.values():
                    consumer.committed_by(change, self.appended.last)
            self._end("it is committed", committed=True)
            return self.appended

    async def abort(self) -> None:
        """Forgets it. Where nothing can be told to the master, what is staged there ends by itself."""
        if self.appended is not None:
            raise TransactionClosed("the transaction is committed")
        if not self._over:
            self._end("it was aborted")
            if self._staging is not None:
                with suppress(VlsnLogError, TimeoutError):
                    await self._staging.abort()

    # Entries.

    async def _add(self, values: list[bytes], keys: Sequence[Key]) -> None:
        self._check_not_committing()
        if not values:
            return
        check_longest(values, keys)
        self._values += values
        self._keys += keys
        self._bytes += sum(map(len, values)) + sum(map(len, filter(None, keys))) + ENTRY_COST_BYTES * len(values)
        if self._bytes > KEPT_BYTES_MAX:
            async with self._turn:
                if self._bytes > KEPT_BYTES_MAX:
                    await self._stage()

    async def _stage(self) -> None:
        """Stages what is kept. What others append meanwhile is kept behind it."""
        count, size = len(self._values), self._bytes
        if not count:
            return
        try:
            await self._staged().stage(encode(self._values, self._keys), count)
        except TransactionGone as gone:
            self._end(str(gone))
            raise
        del self._values[:count], self._keys[:count]
        self._bytes -= size

    def _staged(self) -> Staging:
        if self._staging is None:
            self._staging = Staging(self._endpoints, self._network, self._timeout_s)
        return self._staging

    def _put_whole(self) -> Awaitable[Appended]:
        """Sends all of it as one message, and gives it its name before."""
        if self._identity is None:
            self._identity = Identity(self._names.next(), self._endpoints.durable, fixed=True)
        name = self._identity, HANDLE_SEQUENCE
        return self._producer.queue.put_transaction(
            self._values, self._keys, acks=self._acks, durability=self._durability, name=name
        )

    def _check_open(self) -> None:
        if self._over:
            raise TransactionClosed(f"the transaction takes nothing more: {self._over}")

    def _check_not_committing(self) -> None:
        self._check_open()
        if self._committing or self._may_be_logged:
            raise TransactionClosed(
                "the transaction's commit is under way, or may be in the log: commit it again, or let go of it"
            )

    def _end(self, why: str, *, committed: bool = False) -> None:
        self._over = why
        if not committed:
            self._not_committed()
        self._values, self._keys, self._bytes = [], [], 0

    def _not_committed(self) -> None:
        """Has its consumers, and those in whose loop it was, give again what no commit has passed."""
        for consumer in {*in_hand(), *(consumer for consumer, _ in self._consumers.values())}:
            consumer.not_committed()


class Staging:
    """A transaction that is staged at the master, by its HTTP calls.  Each is asked again until ``timeout_s`` is over:
    what was lost on the way is known again there."""

    def __init__(self, endpoints: Endpoints, network: Network, timeout_s: float) -> None:
        self.handle = ""
        self._endpoints = endpoints
        self._network = network
        self._timeout_s = timeout_s
        self._staged = 0
        self._url = ""

    async def begin(self) -> None:
        """Begins it, where it has not begun yet."""
        if not self.handle:
            deadline = self._deadline()
            begun = await self._retried(lambda: self._call("POST", "", deadline, _Begun), deadline)
            self.handle = begun.transaction

    async def stage(self, batch: bytes, count: int) -> None:
        """Stages a batch of ``count`` entries; begins the transaction before the first one."""
        await self.begin()
        deadline = self._deadline()
        path = f"/{self.handle}/entries?after={self._staged}"
        await self._retried(lambda: self._call("POST", path, deadline, _Staged, batch), deadline)
        self._staged += count

    async def commit(
        self,
        acks: Acks,
        sets: Mapping[str, Mapping[str, ConsumerChange | SinkChange]],
        durability: GroupDurability | None = None,
    ) -> Appended:
        """Commits it, with the positions and the states of sinks that it ``sets``."""
        asked = "" if durability is None else f"&durability={durability}"
        deadline = self._deadline()
        body = msgspec.json.encode(sets) if any(sets.values()) else b""
        unsure = False

        async def ask() -> Appended:
            nonlocal unsure
            left_s = max(0.001, min(ATTEMPT_S, deadline - asyncio.get_running_loop().time()))
            path = f"/{self.handle}/commit?acks={acks}&timeout={left_s:.3f}{asked}"
            url = await self._master()
            try:
                return await self._request(url, "POST", path, left_s + GRACE_S, Appended, body, _JSON)
            except (Unreachable, OutcomeUnknown):
                unsure = True
                raise

        try:
            return await self._retried(ask, deadline)
        except VlsnLogError as error:
            if unsure and not isinstance(error, TransactionGone | OutcomeUnknown):
                raise OutcomeUnknown(f"asked, but not acknowledged: {error}; it may have been logged") from error
            raise

    async def abort(self) -> None:
        if self.handle:
            async with asyncio.timeout(ABORT_S):
                url = await self._master()
                await self._endpoints.request("DELETE", f"{url}/v1/transactions/{self.handle}", timeout_s=ABORT_S)

    async def find_level(self) -> None:
        """Raises ``WrongVersion`` where the group has no transactions."""
        await self._retried(self._endpoints.master, self._deadline())
        if self._endpoints.level < TRANSACTIONS:
            raise WrongVersion(
                f"transactions need level {TRANSACTIONS}, the group is at level {self._endpoints.level}: once "
                "all members run a vlsnlog that speaks it, `vlsnlog group upgrade`"
            )

    async def _master(self) -> str:
        """Returns who was the master at the last call, until that has failed: it has what is staged."""
        if not self._url:
            self._url = await self._endpoints.master()
        return self._url

    def _deadline(self) -> float:
        return asyncio.get_running_loop().time() + self._timeout_s

    async def _retried(self, ask: Callable[[], Awaitable[T]], deadline: float) -> T:
        loop = asyncio.get_running_loop()

        async def once() -> T:
            return await ask()

        retrying = AsyncRetrying(
            wait=Backoff(),
            stop=lambda _: loop.time() >= deadline,
            retry=retry_if_exception(may_pass),
            sleep=asyncio.sleep,
            reraise=True,
        )
        return await retrying(once)

    async def _call(self, method: str, path: str, deadline: float, said: type[T], batch: bytes = b"") -> T:
        left_s = max(0.001, min(ATTEMPT_S, deadline - asyncio.get_running_loop().time()))
        return await self._request(await self._master(), method, path, left_s, said, batch)

    async def _request(
        self,
        url: str,
        method: str,
        path: str,
        timeout_s: float,
        said: type[T],
        body: Buffer = b"",
        headers: Mapping[str, str] = _BATCH,
    ) -> T:
        try:
            response = await self._endpoints.request(
                method,
                f"{url}/v1/transactions{path}",
                headers=headers if body else _JSON,
                body=body,
                timeout_s=timeout_s,
            )
            if response.status != 200:
                raise problem.error_of(bytes(response.body))
        except (NotMaster, Unreachable, OutcomeUnknown):
            self._url = ""
            raise
        try:
            return msgspec.json.decode(response.body, type=said)
        except JSON_FAULTS:
            raise BadBody(f"{url} answered nothing of a transaction; is it a vlsnlog node?") from None


def may_pass(error: BaseException) -> bool:
    """Says whether a call that is known again may be made again."""
    return isinstance(error, VlsnLogError) and (error.transient or isinstance(error, OutcomeUnknown))
