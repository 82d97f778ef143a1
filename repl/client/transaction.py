"""Transactions of a client. The entries of a transaction are logged either all together or not at all.

    async with log.transaction() as txn:
        await txn.append(b"a", key=b"k")
        await txn.append_many([b"b", b"c"])
    print(txn.appended.first, txn.appended.last)

1. The client keeps up to ``KEPT_BYTES_MAX`` of entries, and sends them with the commit, in one message. If the answer
   to a commit is lost, the commit is sent again with its entries, to any later master.
2. More entries than that are staged (kept in the master's memory), piece by piece (``staging.py``). If that master is
   lost, the staged entries are lost, too: the commit is refused with ``TransactionGone``, nothing is logged, and the
   block must be run again.
3. Every transaction has a name of its own in the log, so it is committed once, however often its commit is sent.
4. A transaction may commit positions of consumers. The transaction's entries and the positions are logged in one block,
   or none of them is logged. A transaction with positions is also sent in one message or staged. A master of an older
   vlsnlog accepts positions only with a staged transaction.
5. An append that raises an error or is cancelled is not in the transaction; the entries before it are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, Final, Generic, Self, overload

import msgspec

from repl.api import Acks, Appended, ConsumerChange
from repl.client.codec import Codec, CodecName, V, codec_of
from repl.client.consumer import Consumer, in_hand
from repl.client.group import Identity, Key, check_longest
from repl.client.identity import HandleNames
from repl.client.positions import Positions
from repl.client.produce import NoSets, Producer
from repl.client.staging import Stage, Stages
from vlsn.durability import GroupDurability
from vlsn.errors import (
    BadArgument,
    BadBody,
    OutcomeUnknown,
    StaleTerm,
    TransactionClosed,
    TransactionGone,
    VlsnLogError,
)
from vlsn.format.batch import encode
from vlsn.format.producer_columns import HANDLE_SEQUENCE
from vlsn.levels import TRANSACTIONS
from vlsn.limits import MIB
from vlsn.seams import Buffer

KEPT_BYTES_MAX: Final = MIB
"""The most bytes of entries that a transaction keeps until its commit."""
ENTRY_COST_BYTES: Final = 17
"""The overhead in bytes that is counted for each entry."""
POSITION_COST_BYTES: Final = 256
"""The overhead in bytes that is counted for each position."""


class _Answer:
    """The answer to a commit that was sent in one message; this object outlives the commit's caller, which may be
    cancelled."""

    __slots__ = ("_waiting", "appended", "failed")

    def __init__(self) -> None:
        self.appended: Appended | None = None
        self.failed = False
        self._waiting: asyncio.Future[Appended] | None = None

    def wait(self) -> asyncio.Future[Appended]:
        """Returns a future of the answer. If the commit has already failed, the future raises that error."""
        waiting = self._waiting = asyncio.get_running_loop().create_future()
        if self.appended is not None:
            waiting.set_result(self.appended)
        return waiting

    def done(self) -> bool:
        return self.appended is not None or self.failed

    def set_result(self, appended: Appended) -> None:
        self.appended = appended
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(appended)

    def set_exception(self, error: VlsnLogError) -> None:
        self.failed = True
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(error)


class Transaction(Generic[V]):
    """One transaction, an async context manager. The end of the ``async with`` block commits; an exception in the block
    aborts. Several coroutines may append to a transaction. After ``OutcomeUnknown`` or a cancel you may call ``commit``
    again; the transaction is still committed only once."""

    def __init__(
        self,
        stages: Stages,
        producer: Producer,
        *,
        codec: Codec,
        acks: Acks,
        durability: GroupDurability | None,
        names: HandleNames,
        positions: Positions,
    ) -> None:
        self.appended: Appended | None = None
        """The VLSNs of the committed transaction, with the COMMIT at ``last``. None before the commit, and if
        nothing was appended."""
        self._stages = stages
        self._stage: Stage | None = None
        """The staged transaction, made when entries are staged, or when a position is committed."""
        self._producer = producer
        self.codec = codec
        """The codec of appends that name no codec."""
        self._acks = acks
        self._durability = durability
        self._names = names
        self._positions = positions
        self._consumers: dict[str, tuple[Consumer, ConsumerChange]] = {}
        """The consumers whose positions the transaction commits, by the name of the position."""
        self._values: list[bytes] = []
        self._keys: list[Key] | None = None
        """The keys of the entries kept by the client, or None while no entry has a key."""
        self._bytes = 0
        """The bytes of the entries kept by the client, including ``ENTRY_COST_BYTES`` for each."""
        self._entries, self._size = 0, 0
        """The number of entries in the transaction and their bytes. Entries that are being staged are included."""
        self._turn = asyncio.Lock()
        self._identity: Identity | None = None
        """The transaction's name in the log, once the transaction was sent in one message."""
        self._answer: _Answer | None = None
        """The answer to the message with the whole transaction, if the commit was cancelled or got no certain
        answer."""
        self._over = ""
        """The reason why the transaction accepts no more entries."""
        self._may_be_logged = False
        """True if a commit waits for its answer, or got no certain answer."""
        self._committing = False
        """True while a commit collects the entries; no entry is added meanwhile."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            if not self._over:
                try:
                    await self.commit()
                except asyncio.CancelledError:
                    self._cancelled()
                    raise
        elif issubclass(kind, Exception):
            try:
                await self.abort()
            except OutcomeUnknown:
                # ``OutcomeUnknown`` already says that the commit may be logged
                if not issubclass(kind, OutcomeUnknown):
                    raise
        else:
            self._cancelled()

    @overload
    async def append(self, value: V, *, key: V | Buffer | None = None, codec: None = None) -> None: ...
    @overload
    async def append(self, value: Any, *, key: str | Buffer | None = None, codec: CodecName) -> None: ...
    async def append(self, value: Any, *, key: Any = None, codec: CodecName | None = None) -> None:
        """Adds one entry to the transaction; it is not logged before the commit. Raises ``TypeError``, ``TooLarge``,
        ``TransactionClosed``. If the entries exceed what the client keeps, also raises the master's refusal of a piece.
        After an error this entry is not in the transaction. The earlier entries stay in the transaction, unless the
        error is ``TransactionGone``."""
        given = self.codec if codec is None else codec_of(codec)
        entry, name = [given.value(value)], None if key is None else [given.key(key)]
        if not self._kept(entry, name):
            await self._staged(entry, name)

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
        """Adds entries in their order, either all or none. ``keys`` must have as many items as ``values``. Raises the
        same errors as ``append``, and ``BadBody``."""
        given = self.codec if codec is None else codec_of(codec)
        data, names = given.values(values), given.keys(keys)
        if names is not None and len(names) != len(data):
            raise BadBody(f"{len(data)} values and {len(names)} keys")
        if data and not self._kept(data, names):
            await self._staged(data, names)

    async def commit_position(self, consumer: Consumer) -> None:
        """Commits the current position of ``consumer`` with the transaction: the place after the last entry that the
        consumer has delivered. Raises ``TooLarge``. Raises ``BadArgument`` if the consumer has read nothing, or if
        another group stores its position (``kept_in``)."""
        self._check_not_committing()
        if not consumer.lies_in(self._positions):
            raise BadArgument(f"the position of consumer {consumer.name} is stored in another group")
        name, change = consumer.change()
        if name not in self._consumers:
            self._count(0, POSITION_COST_BYTES + len(name))
        self._consumers[name] = consumer, change

    async def commit(self) -> Appended | None:
        """Logs the whole transaction. Returns its VLSNs once the ack policy is met, or None if there is nothing to log.

        Raises ``TransactionGone``, or the refusal of an append, after which you may call ``commit`` again. Raises
        ``StaleTerm`` if another worker has replaced the position of a consumer, and ``WrongVersion`` if the group's
        level has no transactions. With each of these errors nothing is logged.

        Raises ``OutcomeUnknown`` if neither this call nor an earlier one got a certain answer. A commit that is
        cancelled may still be logged. If it was logged, a second call returns the first commit's answer, as a
        ``duplicate``.
        """
        async with self._turn:
            if self.appended is not None:
                return self.appended
            self._check_open()
            unsure, self._committing, done = self._may_be_logged, True, False
            try:
                if self._stage is not None and self._stage.staged:
                    appended = await self._commit_staged()
                elif self._values or self._consumers:
                    appended = await self._commit_whole()
                else:
                    appended = None
                done = True
            except (TransactionGone, StaleTerm) as error:
                self._may_be_logged = False
                self._end(str(error))
                raise
            except VlsnLogError as error:
                self._may_be_logged = unsure or (self._may_be_logged and not error.retry_safe)
                # only this commit was refused; an earlier commit of the transaction may be in the log
                if unsure and error.retry_safe:
                    raise OutcomeUnknown(f"asked again, and not acknowledged: {error}; it may be logged") from error
                if not self._may_be_logged:
                    self._identity = self._answer = None
                raise
            finally:
                self._committing = False
                if not done:
                    self._not_committed()
            self._committed(appended)
            return appended

    async def abort(self) -> None:
        """Abandons the transaction, so that it is never logged. Entries staged at a silent master time out at that
        master. Raises ``TransactionClosed`` while a commit waits for its answer, and after a commit that succeeded.
        Raises ``OutcomeUnknown`` after a commit without a certain answer: only another call of ``commit`` can settle
        it."""
        if self.appended is None and self._answer is not None and self._answer.appended is not None:
            self._committed(self._answer.appended)
        if self.appended is not None:
            raise TransactionClosed("the transaction is committed")
        if self._committing:
            raise TransactionClosed("the transaction's commit is under way")
        if self._may_be_logged:
            raise OutcomeUnknown(
                "the transaction may be logged, by a commit that had no certain answer: commit it again"
            )
        if not self._over:
            giving_back = self._end("it was aborted")
            if giving_back is not None:
                await asyncio.wait([giving_back])

    # Entries.

    def _kept(self, values: list[bytes], keys: Sequence[Key] | None) -> bool:
        """Keeps the entries in the client if they are small enough. Returns whether the entries were kept."""
        self._check_not_committing()
        check_longest(values, keys)
        size = _size(values, keys)
        if self._bytes + size > KEPT_BYTES_MAX:
            return False
        self._count(len(values), size)
        if keys is not None and self._keys is None:
            self._keys = [None] * len(self._values)
        if self._keys is not None:
            self._keys += keys if keys is not None else [None] * len(values)
        self._values += values
        self._bytes += size
        return True

    async def _staged(self, values: list[bytes], keys: Sequence[Key] | None) -> None:
        """Stages entries at the master. The entries that the client has kept are staged first."""
        async with self._turn:
            if not self._kept(values, keys):
                await self._stage_with(values, keys, _size(values, keys))

    async def _stage_with(self, values: list[bytes], keys: Sequence[Key] | None, size: int) -> None:
        """Stages the entries that the client has kept, then ``values``. Entries appended meanwhile are kept, and
        follow after ``values``."""
        stage = self._stage = self._stage or self._stages.stage()
        counted = False
        try:
            await stage.begin()
            self._count(len(values), size)
            counted = True
            kept, kept_bytes = len(self._values), self._bytes
            names = [*(self._keys or [None] * kept), *(keys or [None] * len(values))]
            await stage.stage(encode([*self._values, *values], names), kept + len(values))
            self._check_open()
        except BaseException as error:
            if counted:
                self._entries -= len(values)
                self._size -= size
            if isinstance(error, TransactionGone):
                self._end(str(error))
            elif self._over:  # the transaction was aborted meanwhile, and may have begun again
                self._stages.give_back(stage)
            raise
        del self._values[:kept]
        if self._keys is not None:
            del self._keys[:kept]
        self._bytes -= kept_bytes

    def _count(self, entries: int, size: int) -> None:
        """Counts entries that are added. If the entries do not fit, raises ``TooLarge`` and counts none of them."""
        if self._stage is not None:
            self._stage.check_fits(self._entries + entries, self._size + size)
        self._entries += entries
        self._size += size

    # Commits.

    async def _commit_staged(self) -> Appended:
        if self._values:
            await self._stage_with([], None, 0)
        stage = self._stage = self._stage or self._stages.stage()
        await stage.begin()
        self._may_be_logged = True
        return await stage.commit(self._acks, {"positions": self._changes()}, self._durability)

    async def _commit_whole(self) -> Appended:
        """Sends the whole transaction as one message. If a cancelled call has sent the transaction before, first waits
        for the answer to that message. Otherwise the log could forget the transaction's name before the message is sent
        again."""
        if self._answer is not None and not self._answer.failed:
            try:
                return msgspec.structs.replace(await self._answer.wait(), duplicate=True)
            except VlsnLogError:
                pass  # the first message has timed out, so the transaction is sent again under the same name
        queue, sets = self._producer.queue, b""
        if self._consumers:
            sets = msgspec.json.encode({"positions": self._changes()})
        if self._stages.endpoints.level < TRANSACTIONS:
            await self._stages.check_level()
        if queue.full:
            await queue.room()
        name = self._identity
        if name is None:
            name = self._identity = Identity(self._names.next(), self._stages.endpoints.durable, fixed=True)
        unsure, self._may_be_logged = self._may_be_logged, True
        answer = self._answer = _Answer()
        queue.put_transaction(
            self._values,
            self._keys,
            answer,
            acks=self._acks,
            durability=self._durability,
            name=(name, HANDLE_SEQUENCE),
            sets=sets,
        )
        try:
            return await answer.wait()
        except NoSets:
            if unsure:
                raise
        self._may_be_logged, self._identity, self._answer = False, None, None
        return await self._commit_staged()

    def _changes(self) -> dict[str, ConsumerChange]:
        return {name: change for name, (_, change) in self._consumers.items()}

    def _committed(self, appended: Appended | None) -> None:
        self.appended = appended
        if appended is not None:
            for consumer, change in self._consumers.values():
                consumer.committed_by(change, appended.last)
        self._end("it is committed", committed=True)

    def _cancelled(self) -> None:
        """Ends a transaction whose block was cancelled. A transaction that may be in the log can still be committed
        again."""
        if not self._over and not self._committing and not self._may_be_logged:
            self._end("it was cancelled")

    def _check_open(self) -> None:
        if self._over:
            raise TransactionClosed(f"the transaction takes nothing more: {self._over}")

    def _check_not_committing(self) -> None:
        self._check_open()
        if self._committing or self._may_be_logged:
            raise TransactionClosed(
                "the transaction's commit is under way, or may be in the log: commit it again, or abandon it"
            )

    def _end(self, why: str, *, committed: bool = False) -> asyncio.Task[None] | None:
        """Ends the transaction, and aborts its staged entries. Returns the task of the abort."""
        self._over = why
        if not committed:
            self._not_committed()
        self._values, self._keys, self._bytes = [], None, 0
        return self._stages.give_back(self._stage) if self._stage is not None else None

    def _not_committed(self) -> None:
        """Makes consumers deliver again the entries that no commit has passed. The consumers are the transaction's own,
        and those in whose loop the transaction was made."""
        for consumer in {*in_hand(), *(consumer for consumer, _ in self._consumers.values())}:
            consumer.not_committed()


def _size(values: Sequence[bytes], keys: Sequence[Key] | None) -> int:
    size = sum(map(len, values)) + ENTRY_COST_BYTES * len(values)
    return size if keys is None else size + sum(map(len, filter(None, keys)))
