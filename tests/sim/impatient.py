"""Impatient clients of the library: they cancel calls at any moment and repeat them, abort, and fail in loops.

    txn.append       cancelled or refused: is repeated, or left out
    txn.commit       cancelled, out of time, or with an abort at once: is repeated, aborted, or abandoned
    submit           cancelled: the same submission again, until it is acknowledged
    consumer.commit  cancelled: repeated at once; the loop continues with its next entry
    a loop's body    fails before or after ``commit_position``, and the loop continues; or it rewinds

The answers of each are compared with the nodes' logs.  Three faults have names:

* *Doubled*: an entry of one call or one transaction is logged twice.
* *Lost*: an acknowledged entry is missing; a finished read misses an entry that this client knows to be durable; a
  consumer's position has passed an entry that was not handled.
* *Lied*: an abort returned, or an error said that nothing was logged, but the entry is in the log.

All draws are from separate streams, so that other clients, and seeds without these, run as before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from random import Random
from typing import TYPE_CHECKING, Any

from repl import connect
from repl.api import Appended, ConsumerAt, ConsumerChange
from repl.client.connect import Client
from repl.client.consumer import Consumer
from repl.client.identity import HandleNames
from repl.client.transaction import Transaction
from tests.fakes.random import SeededRandom
from tests.sim.durability import is_the_groups
from tests.sim.pipeline import BY_LIBRARY, MADE, next_of
from tests.sim.transactions import FORGOTTEN, Sent
from vlsn.errors import OutcomeUnknown, TransactionClosed, TransactionGone, Trimmed, VlsnLogError
from vlsn.format.block import Entry
from vlsn.state.consumers import key_of
from vlsn.together import failure_of

if TYPE_CHECKING:
    from tests.sim.clients import Clients
    from tests.sim.watch import Watch

RATE = 0.5
"""The share of the seeds with such clients."""
TRANSACTORS, WORKERS = 2, 2
READERS = ("audit", "billing")
"""The consumers without transactions, each with one worker."""
TIMEOUTS_S = (0.8, 4.0)
SIZES = (12, 12, 150, 900, 2500)
VALUES_MAX = 4
CANCELS = 0.4
"""The share of calls that are cancelled before they are done."""
STEPS_MAX, CANCELS_S = 60, (0.001, 0.01, 0.1, 1.0)
"""A cancel comes after at most so many turns of the loop, or after one of these numbers of seconds."""
PAUSES_S = (0.0, 0.01, 0.1, 0.5, 2.0)
AGAIN_MAX = 6
OTHERS_MAX = 12
"""The most transactions made before a commit is repeated: more than the log remembers, in some seeds."""
FAILS = 0.3
"""The share of a loop's bodies that fail."""
LOOP_S, READ_S = 6.0, 20.0
PRODUCER = 0x6000
CANCELLED = "cancelled"


def are_there(seed: int) -> bool:
    return not is_the_groups(seed) and Random(f"impatient/{seed}").random() < RATE


class OnPurpose(Exception):
    """The failure of a loop's body."""


class Impatient:
    """The calls of all these clients: calls that may be cancelled, and reads of their acknowledged entries."""

    def __init__(self, clients: Clients, name: str) -> None:
        self._clients, self._group, self._report = clients, clients.group, clients.report
        self._watch, self._books = clients.group.watch, clients.group.watch.transactions
        self._name = name
        self._rng = Random(f"impatient/{name}/{clients.report.seed}")

    def _connect(self, *, exactly_once: bool = False) -> Client:
        urls = ",".join(self._group.url(name) for name in self._group.names)
        timeout_s = self._rng.choice(TIMEOUTS_S)
        log = connect(urls, timeout_s=timeout_s, exactly_once=exactly_once, network=self._group.client)
        names = SeededRandom(Random(f"impatient/{self._name}/names/{self._report.seed}"))
        log._names = HandleNames(names)
        if exactly_once:
            log._random = names  # type: ignore[assignment]
        return log

    async def _call(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Returns the result of a call, the error that it raises, or ``CANCELLED``."""
        self._report.operations += 1
        task = asyncio.ensure_future(work)
        task.add_done_callback(failure_of)  # also if the caller is cancelled
        try:
            await self._over(task)
        finally:
            task.cancel()
        if task.cancelled():
            return CANCELLED
        error = task.exception()
        if error is not None and not isinstance(error, VlsnLogError):
            raise error
        return task.result() if error is None else error

    async def _over(self, task: asyncio.Task[Any]) -> None:
        if self._rng.random() < CANCELS:
            if self._rng.random() < 0.5:
                for _ in range(self._rng.randrange(STEPS_MAX)):
                    if task.done():
                        break
                    await asyncio.sleep(0)
            else:
                await asyncio.wait([task], timeout=self._rng.choice(CANCELS_S))
            task.cancel()
        await asyncio.wait([task])

    async def _pause(self) -> None:
        await asyncio.sleep(self._rng.choice(PAUSES_S))

    async def _shows(self, log: Client, first: int, last: int) -> None:
        """Reads the entries that this client knows to be durable: a read that reaches its end must have all of them."""
        found: set[int] = set()
        try:
            async with asyncio.timeout(READ_S):
                async for entry in log.read(first, last, all_kinds=True):
                    found.add(entry.vlsn)
        except (VlsnLogError, TimeoutError):
            return
        self._report.met["a read of what was told as durable"] += 1
        lacking = [vlsn for vlsn in range(first, last + 1) if vlsn not in found]
        said = f"lost: {self._name} was told that VLSN {first} to {last} are durable, and a read of its own lacks"
        self._watch.hold(not lacking, f"{said} {lacking[:5]}")

    # Transactions.

    async def _committed(self, log: Client, sent: Sent, appended: Appended) -> None:
        watch, values = self._watch, sent.values
        watch.hold(appended.durable, f"lied: {self._name} was told of what is not durable: {appended}")
        said = f"{self._name} committed {values[0][:20]!r} … ({len(values)} entries) and was told {appended}"
        watch.hold(appended.last - appended.first == len(values), f"lied: {said}")
        watch.hold(sent.first in (0, appended.first), f"doubled: {said}; it was told {sent.first} before")
        watch.hold(not sent.nowhere, f"lied: {said}; before that, {sent.nowhere}")
        sent.first = appended.first
        self._books.is_whole(self._name, appended.first, values)
        self._report.committed += 1
        for vlsn, value in enumerate(values, appended.first):
            self._clients.acknowledge(vlsn, value)
        if self._rng.random() < 0.5:
            await self._shows(log, appended.first, appended.last)

    def _nowhere(self, sent: Sent, why: str) -> None:
        sent.nowhere = f"{self._name} was told: {why}"
        self._clients.refused.update(sent.values)

    async def _end(self, log: Client, txn: Transaction, sent: Sent) -> bool:
        """Commits until it has an answer, unless it aborts or abandons it. Says whether it is known to be logged."""
        rng, met = self._rng, self._report.met
        sent.nowhere = ""
        for asked in range(AGAIN_MAX):
            beside = asyncio.ensure_future(self._abort(txn, rng.choice(CANCELS_S))) if rng.random() < 0.15 else None
            outcome = await self._call(txn.commit())
            met["a commit cancelled, and asked again"] += asked > 0
            if beside is not None:
                met["an abort beside a commit"] += 1
                if await beside is None:
                    self._watch.hold(
                        not isinstance(outcome, Appended), f"lied: an abort of {outcome}, beside its commit, returned"
                    )
                    self._nowhere(sent, "an abort beside a commit returned")
                    return False
            if isinstance(outcome, Appended):
                await self._committed(log, sent, outcome)
                return True
            self._watch.hold(outcome is not None, f"lied: {self._name} has committed, and was told that it was nothing")
            closed = isinstance(outcome, TransactionClosed)  # it leaves open whether a commit is logged
            if isinstance(outcome, VlsnLogError) and outcome.retry_safe and not closed and rng.random() < 0.5:
                self._nowhere(sent, f"{outcome.slug}: {outcome}")
                return False
            drawn = rng.random()
            if drawn < 0.2:
                met["an abort behind a commit without an answer"] += 1
                if await self._call(txn.abort()) is None:
                    self._nowhere(sent, "an abort behind a commit returned")
                    return False
            elif drawn < 0.5:
                await self._others(log)
            else:
                await self._pause()
        self._report.unknown += 1
        return False

    async def _abort(self, txn: Transaction, after_s: float) -> VlsnLogError | None:
        await asyncio.sleep(after_s * self._rng.random())
        try:
            await txn.abort()
        except VlsnLogError as error:
            return error
        return None

    async def _others(self, log: Client) -> None:
        """Makes other transactions, so that the log may forget the earlier one."""


class Transactor(Impatient):
    """Transactions, large enough to be staged or small enough for one message."""

    def __init__(self, clients: Clients, number: int) -> None:
        super().__init__(clients, f"it{number}")
        self._count = 0

    async def run(self) -> None:
        async with self._connect() as log:
            while not self._clients.over:
                await self._one(log)
                await self._pause()

    async def _one(self, log: Client) -> None:
        rng = self._rng
        self._count += 1
        sent = Sent([], nowhere="no commit was asked for")
        txn = log.transaction(acks=rng.choice(("majority", "majority", "all")))
        for each in range(rng.randint(1, VALUES_MAX)):
            value = f"{self._name}.{self._count}.{each}:".encode().ljust(rng.choice(SIZES), b"i")
            if not await self._added(txn, value, sent):
                self._clients.refused.add(value)
        if not sent.values:
            return
        self._books.sent.append(sent)
        if rng.random() < 0.1:
            outcome = await self._call(txn.abort())
            self._watch.hold(outcome in (None, CANCELLED), f"an abort without a commit raised {outcome!r}")
            if outcome is None:
                self._nowhere(sent, "an abort returned")
                return
        await self._end(log, txn, sent)

    async def _added(self, txn: Transaction, value: bytes, sent: Sent) -> bool:
        """Appends until a call succeeds. Calls that raised are not in the transaction."""
        for asked in range(AGAIN_MAX):
            outcome = await self._call(txn.append(value, key=b"k"))
            if outcome is None:
                sent.values.append(value)
                self._report.met["an append to a transaction raised, and made again"] += asked > 0
                return True
            if isinstance(outcome, TransactionGone) or self._rng.random() < 0.3:
                return False
            await self._pause()
        return False

    async def _others(self, log: Client) -> None:
        for _ in range(self._rng.randrange(OTHERS_MAX)):
            self._count += 1
            value = f"{self._name}.{self._count}:".encode()
            sent = Sent([value])
            self._books.sent.append(sent)
            try:
                async with log.transaction() as txn:
                    await txn.append(value)
            except OutcomeUnknown:
                continue
            except VlsnLogError as error:
                if error.retry_safe:
                    self._nowhere(sent, f"{error.slug}: {error}")
                continue
            assert txn.appended is not None
            await self._committed(log, sent, txn.appended)


class Submitter(Impatient):
    """Submissions of a producer that numbers them itself."""

    def __init__(self, clients: Clients) -> None:
        super().__init__(clients, "is")

    async def run(self) -> None:
        rng = self._rng
        producer, sequence, born, lives = PRODUCER, 0, 0, 0
        async with self._connect(exactly_once=True) as log:
            while not self._clients.over:
                values = [
                    f"{self._name}.{lives}.{sequence}.{each}:".encode().ljust(rng.choice(SIZES), b"s")
                    for each in range(rng.choice((1, 1, 3)))
                ]
                asked = 0
                while not self._clients.over:
                    outcome = await self._call(log.submit(values, producer=producer, sequence=sequence, born=born))
                    self._report.met["a submission cancelled, and sent again"] += asked > 0
                    asked += 1
                    if isinstance(outcome, Appended):
                        self._acknowledged(values, outcome)
                        sequence += 1
                        break
                    if isinstance(outcome, VlsnLogError) and outcome.slug in FORGOTTEN:
                        self._watch.hold(self._clients.few_producers, f"{self._name} hears {outcome!r}")
                        lives += 1
                        producer, sequence, born = PRODUCER + 0x10 * lives, 0, self._clients.latest
                        break
                    await self._pause()
                await self._pause()

    def _acknowledged(self, values: list[bytes], appended: Appended) -> None:
        said = f"lied: {self._name} submitted {len(values)} entries and was told {appended}"
        self._watch.hold(appended.durable and appended.last - appended.first == len(values) - 1, said)
        for vlsn, value in enumerate(values, appended.first):
            self._clients.acknowledge(vlsn, value)


class Loop(Impatient):
    """A client that reads by a consumer; its loop continues after a body that fails."""

    consumer_name: str

    def _begun(self, log: Client) -> Consumer:
        return log.consumer(self.consumer_name, from_vlsn=1)

    async def run(self) -> None:
        async with self._connect() as log:
            consumer = self._begun(log)
            while not self._clients.over:
                try:
                    async with asyncio.timeout(LOOP_S * self._rng.random()):
                        await self._loop(log, consumer)
                except TimeoutError:
                    self._report.met["a consumer's loop cancelled"] += 1
                except Trimmed as gone:
                    await self._passes(log, gone.first)
                    consumer = self._begun(log)
                except VlsnLogError:
                    await self._pause()
                if self._rng.random() < 0.2:
                    consumer = self._begun(log)

    async def _loop(self, log: Client, consumer: Consumer) -> None:
        async for entry in consumer:
            if not entry.value.startswith(MADE):
                await self._body(log, consumer, entry)
            if self._clients.over:
                return

    async def _body(self, log: Client, consumer: Consumer, entry: Entry) -> None:
        raise NotImplementedError

    async def _passes(self, log: Client, first: int) -> None:
        """Continues after entries that were cleaned before they were read."""
        try:
            placed = await log.positions.get(self.consumer_name)
            if placed is not None and placed.next < first:
                self._books.passes(self.consumer_name, placed.next, first)
                await log.positions.set(self.consumer_name, ConsumerChange(first, placed.at))
        except VlsnLogError:
            await self._pause()

    async def _placed(self, log: Client, placed: ConsumerAt) -> None:
        self._books.placed(self._name, key_of(self.consumer_name), placed.at, placed.next)
        if self._rng.random() < 0.5:
            await self._shows(log, placed.at, placed.at)


class Worker(Loop):
    """One of several workers of one consumer: an output for each entry, in a transaction with the next position."""

    consumer_name = BY_LIBRARY.consumer

    def __init__(self, clients: Clients, number: int) -> None:
        super().__init__(clients, f"iw{number}")
        self._made = 0

    async def _body(self, log: Client, consumer: Consumer, entry: Entry) -> None:
        self._made += 1
        output = BY_LIBRARY.output + b"%d:%s.%d" % (entry.vlsn, self._name.encode(), self._made)
        sent = Sent([output], nowhere="its block has failed")
        self._books.sent.append(sent)
        txn = log.transaction()
        try:
            await txn.append(output)
            self._may_fail()
            await self._pause()
            await txn.commit_position(consumer)
            self._may_fail()
        except OnPurpose:
            await txn.abort()  # as at the end of its block; the loop continues
            self._report.met["an error caught in a consumer's loop"] += 1
        else:
            self._report.met["a position committed by an impatient client"] += await self._end(log, txn, sent)

    def _may_fail(self) -> None:
        if self._rng.random() < FAILS / 2:
            raise OnPurpose


class Reader(Loop):
    """The only worker of a consumer, which notes the entries that it has handled, and commits now and then."""

    def __init__(self, clients: Clients, consumer: str) -> None:
        super().__init__(clients, f"ir-{consumer}")
        self.consumer_name = consumer
        self.handled: set[int] = set()

    async def _body(self, log: Client, consumer: Consumer, entry: Entry) -> None:
        rng = self._rng
        if rng.random() < FAILS / 2:
            self._report.met["a consumer rewound"] += 1
            consumer.rewind()
            return
        self.handled.add(entry.vlsn)
        if rng.random() < 0.3:
            for _ in range(rng.randint(1, 3)):
                outcome = await self._call(consumer.commit())
                if isinstance(outcome, ConsumerAt):
                    await self._placed(log, outcome)
                    break

    def check(self) -> None:
        """Checks at the end that it has handled every entry below its position."""
        ends, passed = next_of(self._watch, self.consumer_name), self._books.passed(self.consumer_name)
        wanted = {vlsn for vlsn, value in self._watch.values.items() if vlsn < ends and not value.startswith(MADE)}
        lacking = sorted(wanted - self.handled - passed)
        said = f"lost: the position of {self.consumer_name} is {ends}, and nobody has handled VLSNs {lacking[:5]}"
        self._watch.hold(not lacking, said)


class ImpatientClients:
    """All impatient clients."""

    def __init__(self, clients: Clients) -> None:
        self.readers = [Reader(clients, name) for name in READERS]
        self._every: list[Any] = [
            *(Transactor(clients, number) for number in range(TRANSACTORS)),
            Submitter(clients),
            *(Worker(clients, number) for number in range(WORKERS)),
            *self.readers,
        ]

    def jobs(self) -> list[Coroutine[Any, Any, None]]:
        return [each.run() for each in self._every]

    def check(self, watch: Watch) -> None:
        for each in self.readers:
            each.check()
        BY_LIBRARY.check(watch)
