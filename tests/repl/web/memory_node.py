"""A node in memory: a list of entries and what a node answers, for tests of what lies before it.

It gives VLSNs in order from a TERM entry at 1, makes appends durable one loop turn later (or when a test says
so: ``held``), wakes waiting reads, trims, and refuses what a test sets in ``refuse``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn, cast

from repl.api import (
    LINEARIZABLE,
    Acks,
    Appended,
    BlockPage,
    CommitSets,
    ConsumerAt,
    ConsumerChange,
    DestinationChange,
    Done,
    EntryPage,
    FeedHello,
    Freshness,
    Handle,
    ProducerAt,
    SinkAt,
    Span,
    Spans,
)
from repl.destinations.handed import Holder
from repl.destinations.message_batch import MessageColumns
from repl.node.access import Access
from repl.node.gateway import Services
from vlsn.durability import SYNCED, GroupDurability
from vlsn.errors import (
    BadBody,
    ChannelClosed,
    Damaged,
    NotData,
    NotFound,
    NotInLog,
    NotYet,
    OutcomeUnknown,
    StaleTerm,
    TransactionGone,
    Trimmed,
    VlsnLogError,
    WrongGroup,
)
from vlsn.format.batch import Batch, decode_entries
from vlsn.format.block import Entry, EntryKind, decode_header
from vlsn.format.key_filter import KeyFilter
from vlsn.format.producer_columns import HANDLE_SEQUENCE
from vlsn.format.seal import seal
from vlsn.format.submission import Submission, Transaction, Values
from vlsn.format.vlsn_set import Vlsns
from vlsn.ids import Term, Vlsn
from vlsn.levels import LEVELS, Levels
from vlsn.limits import SEGMENT_BYTES
from vlsn.seams import Channel
from vlsn.state.producers import ProducerPlace

TERM = Term(7)
CLOCK_US = 1_700_000_000_000_000


@dataclass(eq=False)
class MemoryPending:
    node: MemoryNode
    appended: Appended
    done: Done
    answered: bool = False
    doubt: asyncio.Future[None] | None = None

    def finish(self, result: Appended | VlsnLogError) -> None:
        if not self.answered:
            self.answered = True
            self.node.unanswered -= 1
            self.done(result)

    def expire(self) -> None:
        self.finish(OutcomeUnknown("not acknowledged in time"))

    def take_back(self) -> None:
        pass  # in the log from the start


@dataclass(eq=False)
class MemoryNode:
    name: str = "n1"
    group: str = "g"
    founding: str = "00000000000000ab-7"
    incarnation: int = 0xABCD
    levels: Levels = LEVELS
    master: str | None = "http://127.0.0.1:1"
    leads: bool = True
    anonymous: str = "all"
    refuse: VlsnLogError | None = None
    unconfirmed: VlsnLogError | None = None
    refuse_feed: VlsnLogError | None = None
    hold: bool = False
    entries: list[Entry] = field(default_factory=list)
    blocks: list[bytes] = field(default_factory=list)
    first: int = 1
    durable: int = 1
    pending: list[MemoryPending] = field(default_factory=list)
    unanswered: int = 0
    submissions: int = 0
    long_statuses: int = 0
    metrics_texts: int = 0
    """How often each was made."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    reasons: list[str] = field(default_factory=list)
    files: dict[int, bytes] = field(default_factory=dict)
    trimmed_files: int = 0
    feeds: list[tuple[FeedHello, list[bytes]]] = field(default_factory=list)
    waits: set[asyncio.Future[None]] = field(default_factory=set)
    calls: list[str] = field(default_factory=list)
    duplicate: bool = False
    named: list[tuple[int, int, int | None]] = field(default_factory=list)
    """Producer, sequence and birth of each submission."""
    producers: dict[int, ProducerPlace] = field(default_factory=dict)
    stages: dict[Handle, list[Values | Batch]] = field(default_factory=dict)
    positions: dict[str, ConsumerAt] = field(default_factory=dict)
    states: dict[str, SinkAt] = field(default_factory=dict)

    cdc: MemoryCdc = field(default_factory=lambda: MemoryCdc())
    destinations: MemoryDestinations = field(default_factory=lambda: MemoryDestinations())

    def __post_init__(self) -> None:
        self.entries.append(Entry(Vlsn(1), TERM, CLOCK_US, EntryKind.TERM, 0, None, b'{"term":7}'))

    @property
    def member(self) -> Any:
        return self

    seams = config = member

    @property
    def services(self) -> Services:
        itself = cast(Any, self)  # it answers as those classes do, and is none of them
        return Services(
            access=Access(itself),
            appends=itself,
            transactions=itself,
            reads=itself,
            consumers=itself,
            sinks=itself,
            destinations=cast(Any, self.destinations),
            tokens=itself,
            cdc=cast(Any, self.cdc),
            files=itself,
            feeds=itself,
            peers=itself,
            repairs=self,
            administration=itself,
            monitoring=itself,
        )

    # what a node is asked

    def addresses(self) -> list[str]:
        return ["0.0.0.0:7701", "http://n1.example:7701", "http://n2.example:7701", "log.example"]

    def status(self, long: Mapping[str, Any] | None = None) -> dict[str, Any]:
        return {
            "group": self.group,
            "node": self.name,
            "state": "MASTER" if self.leads else "REPLICA",
            "master": self.name,
            "dtvlsn": self.durable,
            **(self.long_status() if long is None else long),
        }

    def long_status(self) -> dict[str, Any]:
        self.long_statuses += 1
        return {"consumers": sorted(self.positions)}

    def check_founding(self, named: str) -> None:
        if named != self.founding:
            raise WrongGroup(f"this log is {self.founding}")

    def events_since(self, number: int, limit: int) -> dict[str, Any]:
        return {"first": 1, "next": number + limit, "events": []}

    def readiness(self) -> list[str]:
        return self.reasons

    async def consumers(self) -> list[ConsumerAt]:
        return [self.positions[name] for name in sorted(self.positions)]

    async def consumer(self, name: str) -> ConsumerAt:
        if name not in self.positions:
            raise NotFound(f"consumer {name} has no position")
        return self.positions[name]

    async def set_consumer(self, name: str, change: ConsumerChange, timeout_s: float) -> ConsumerAt:
        before = self.positions.get(name)
        if change.at not in (None, before.at if before is not None else 0):
            raise StaleTerm(f"consumer {name} has another position")
        at = max([0, *(each.at for each in self.positions.values())]) + 1
        self.positions[name] = ConsumerAt(name, change.next, change.term, at, 0, 0.0, change.by)
        return self.positions[name]

    async def delete_consumer(self, name: str, at: int | None, timeout_s: float) -> None:
        await self.consumer(name)
        del self.positions[name]

    async def spans(
        self, from_vlsn: int | None, to_vlsn: int, *, bytes_each: int, entries_each: int, limit: int
    ) -> Spans:
        self.calls.append(f"spans {from_vlsn} {to_vlsn} {bytes_each} {entries_each} {limit}")
        if self.refuse is not None:
            raise self.refuse
        return Spans(1, self.durable, (Span(self.durable + 1, TERM, 64),))

    def sinks(self) -> list[SinkAt]:
        return [self.states[name] for name in sorted(self.states)]

    def sink(self, name: str) -> SinkAt:
        if name not in self.states:
            raise NotFound(f"sink {name} has no state")
        return self.states[name]

    async def delete_sink(self, name: str, at: int | None, timeout_s: float) -> None:
        if at not in (None, self.sink(name).at):
            raise StaleTerm(f"sink {name} has another state")
        del self.states[name]

    async def producer(self, producer: int, timeout_s: float) -> ProducerAt:
        await self.confirm(timeout_s)
        return ProducerAt(self.producers.get(producer, ProducerPlace()), self.durable, 0)

    def is_master(self) -> bool:
        return self.leads

    def master_url(self) -> str | None:
        return self.master

    def dtvlsn(self) -> int:
        return self.durable

    def begin(self, id: int | None) -> tuple[Handle, int]:
        if self.refuse is not None:
            raise self.refuse
        handle = Handle(id or len(self.stages) + 1, self.durable, TERM)
        self.stages[handle] = []
        return handle, SEGMENT_BYTES

    async def stage(self, handle: Handle, part: Values | Batch, after: int | None, rewinds: int) -> int:
        parts = self._stage_of(handle)
        if self.refuse is not None:
            raise self.refuse
        staged = sum(each.count for each in parts)
        if after is not None and after + part.count == staged:
            return staged
        parts.append(part)
        return staged + part.count

    async def commit(
        self,
        handle: Handle,
        acks: Acks,
        done: Done,
        *,
        name: tuple[int, int] | None,
        born: int | None,
        sets: CommitSets | None,
        durability: GroupDurability | None,
        after: int | None,
        rewinds: int,
    ) -> MemoryPending:
        parts = self._stage_of(handle)
        pending = self.submit(
            Transaction(parts, b"", name or (handle.id, HANDLE_SEQUENCE)), acks, done, born, durability, sets
        )
        del self.stages[handle]
        return pending

    async def abort(self, handle: Handle) -> None:
        self.stages.pop(handle, None)

    def _stage_of(self, handle: Handle) -> list[Values | Batch]:
        if handle not in self.stages:
            raise TransactionGone(f"nothing of {handle} is staged")
        return self.stages[handle]

    def submit(
        self,
        submission: Submission,
        acks: Acks,
        done: Done,
        born: int | None = None,
        durability: GroupDurability | None = None,
        sets: CommitSets | None = None,
    ) -> MemoryPending:
        self.submissions += 1
        if self.refuse is not None:
            raise self.refuse
        is_transaction = isinstance(submission, Transaction)
        parts = submission.parts if isinstance(submission, Transaction) else [submission]
        first = len(self.entries) + 1
        for vlsn, (key, value) in enumerate((pair for part in parts for pair in _pairs_of(part)), first):
            txn = first if is_transaction else 0
            self.entries.append(Entry(Vlsn(vlsn), TERM, CLOCK_US + vlsn, EntryKind.DATA, txn, key, value))
        if is_transaction:
            vlsn = len(self.entries) + 1
            self.entries.append(Entry(Vlsn(vlsn), TERM, CLOCK_US + vlsn, EntryKind.COMMIT, first, None, b""))
        sealed = seal([submission], term=TERM, first_vlsn=first, dtvlsn=self.durable, clock_us=CLOCK_US)
        self.blocks += [block.data for block in sealed]
        last = Vlsn(len(self.entries))
        for consumer, change in sets.positions.items() if sets is not None else ():
            self.positions[consumer] = ConsumerAt(consumer, change.next, change.term, last, by=change.by)
        for sink, wanted in sets.sinks.items() if sets is not None else ():
            self.states[sink] = SinkAt(sink, last, wanted.state)
        durable = acks is not Acks.NONE and not (durability or SYNCED).lower
        appended = Appended(
            Vlsn(first), last, TERM, durable, 2 if durable else 1, acks, self.duplicate, durability or SYNCED
        )
        self.named.append((submission.producer, submission.sequence, born))
        if submission.producer:
            self.producers[submission.producer] = ProducerPlace(submission.sequence + 1, first, last, TERM)
        one = MemoryPending(self, appended, done)
        self.unanswered += 1
        self.changed.set()
        self.pending.append(one)
        if not self.hold:
            asyncio.get_running_loop().call_soon(self.release)
        return one

    def release(self, count: int | None = None) -> None:
        """Makes the next ``count`` appends (all) durable and answers them."""
        for one in self.pending[:count]:
            self.durable = max(self.durable, one.appended.last)
            one.finish(one.appended)
        del self.pending[:count]
        self.wake()

    async def until_unanswered(self, count: int) -> None:
        """Returns once ``count`` appends wait for their answers."""
        while self.unanswered < count:
            self.changed.clear()
            await self.changed.wait()

    async def until_waits(self, count: int = 1) -> None:
        """Returns once ``count`` reads wait."""
        while len(self.waits) < count:
            self.changed.clear()
            await self.changed.wait()

    def append(self, *values: bytes) -> None:
        """Entries from elsewhere, durable at once."""
        first = len(self.entries) + 1
        for vlsn, value in enumerate(values, first):
            self.entries.append(Entry(Vlsn(vlsn), TERM, CLOCK_US + vlsn, EntryKind.DATA, 0, None, value))
        self.durable = len(self.entries)
        self.wake()

    def wake(self, error: VlsnLogError | None = None) -> None:
        for wait in self.waits:
            if not wait.done():
                if error is None:
                    wait.set_result(None)
                else:
                    wait.set_exception(error)

    def end(self) -> int:
        return self.durable + 1

    def term_before(self, vlsn: int) -> int:
        return int(self.entries[vlsn - 2].term) if 1 < vlsn <= self.durable + 1 else 0

    async def until(self, vlsn: int) -> None:
        while self.durable < vlsn:
            await self._wait()

    async def read(
        self,
        from_vlsn: int | None,
        *,
        limit: int,
        bytes_max: int,
        all_kinds: bool,
        keys: KeyFilter | None = None,
    ) -> EntryPage:
        start = self.first if from_vlsn is None else from_vlsn
        self._check(start)
        page: list[Entry] = []
        size, next_vlsn = 0, start
        for entry in self.entries[start - 1 : self.durable]:
            if (entry.kind == EntryKind.DATA or all_kinds) and (keys is None or keys.has(entry.key)):
                size += len(entry.value)
                if len(page) == limit or (page and size > bytes_max):
                    break
                page.append(entry)
            next_vlsn = entry.vlsn + 1
        return EntryPage(page, next_vlsn, self.durable, self.term_before(next_vlsn))

    async def read_blocks(self, from_vlsn: int | None, *, bytes_max: int) -> BlockPage:
        start = self.first if from_vlsn is None else from_vlsn
        self._check(start)
        held = [b for b in self.blocks if decode_header(b).last_vlsn >= start]
        return BlockPage([b + bytes(-len(b) % 8) for b in held], max(start, self.durable + 1), self.durable)

    async def _wait(self) -> None:
        wait: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waits.add(wait)
        self.changed.set()
        try:
            await wait
        finally:
            self.waits.discard(wait)

    def _check(self, vlsn: int) -> None:
        if vlsn < self.first:
            raise Trimmed(f"VLSN {vlsn} is gone", first=self.first)

    async def find_time(self, time_us: int) -> int:
        self._check(self.first)
        found = (entry.vlsn for entry in self.entries[self.first - 1 : self.durable] if entry.time >= time_us)
        return next(found, self.end())

    async def read_one(self, vlsn: int) -> Entry:
        self._check(vlsn)
        if vlsn > self.durable:
            raise NotYet(f"VLSN {vlsn} is above {self.durable}")
        entry = self.entries[vlsn - 1]
        if entry.kind != EntryKind.DATA:
            raise NotData(f"VLSN {vlsn} is a {EntryKind(entry.kind).name}")
        return entry

    def check_place(self, vlsn: int, term: int) -> None:
        found = self.entries[min(vlsn, self.durable) - 1].term
        if found > term or (found != term and vlsn <= self.durable):
            raise NotInLog(f"VLSN {vlsn} is of term {found}, not {term}", vlsn=vlsn, term=term, found=found)

    async def confirm(self, timeout_s: float, asked: Freshness = LINEARIZABLE) -> int:
        more = "" if asked == LINEARIZABLE else f", {asked.at_least} and {asked.lag_max_s} s"
        self.calls.append(f"confirm in {timeout_s:g} s{more}")
        if self.unconfirmed is not None:
            raise self.unconfirmed
        return self.durable

    async def begun(self, body: dict[str, Any]) -> dict[str, Any]:
        return {"sender": "n1", "file": body["file"]}

    async def read_index(self, body: dict[str, Any]) -> dict[str, Any]:
        return {"asked": body["to"], "vlsn": self.durable}

    async def check_feed(self, hello: FeedHello) -> None:
        if hello.group != self.group:
            raise WrongGroup(f"this is {self.group}, not {hello.group}")
        if self.refuse_feed is not None:
            raise self.refuse_feed

    async def serve_feed(self, hello: FeedHello, channel: Channel) -> None:
        """Sends each message back, and keeps it."""
        messages: list[bytes] = []
        self.feeds.append((hello, messages))
        try:
            while True:
                message = await channel.receive()
                messages.append(message)
                await channel.send(message)
        except ChannelClosed:
            self.calls.append("feed ended")

    def segments(self) -> list[dict[str, Any]]:
        return [{"number": number, "end": len(data)} for number, data in self.files.items()]

    def segment_end(self, number: int) -> int:
        if number <= self.trimmed_files:
            raise Trimmed(f"segment {number} was cleaned away", first=self.first)
        if number not in self.files:
            raise NotFound(f"there is no segment {number}")
        return len(self.files[number])

    async def read_segment(self, number: int, start: int, end: int) -> bytes:
        if number not in self.files:
            raise Damaged("gone meanwhile")
        return self.files[number][start:end]

    async def checkpoint(self) -> dict[str, Any]:
        self.calls.append("checkpoint")
        return {"id": 1}

    async def rotate(self) -> dict[str, Any]:
        self.calls.append("rotate")
        return {"segment": 2}

    async def clean(self, *, dry_run: bool) -> dict[str, Any]:
        self.calls.append("dry run" if dry_run else "clean")
        return {"segments": []}

    async def hello(self, body: dict[str, Any]) -> dict[str, Any]:
        if "group" not in body:
            raise BadBody("no group")
        return {"heard": body["group"]}

    async def restore(self) -> dict[str, Any]:
        self.calls.append("restore")
        return {"state": "RESTORING"}

    async def offer(self, body: dict[str, Any]) -> bytes:
        if "group" not in body:
            raise BadBody("no group")
        return b'{"asked":"%s"}' % body["group"].encode()

    async def block(self, asked: Mapping[str, str], term: int, first: int) -> bytes:
        if asked["group"] != self.group:
            raise WrongGroup("another group")
        return b"block %d of term %d" % (first, term)

    async def messages(self, asked: Mapping[str, str], uuid: str, since: int, first: int, last: int) -> bytes:
        if asked["group"] != self.group:
            raise WrongGroup("another group")
        return b"messages of %s from %d to %d" % (uuid.encode(), first, last)

    async def copy(self, asked: Mapping[str, str], vlsn: int) -> dict[str, Any]:
        if asked["group"] != self.group:
            raise WrongGroup("another group")
        return {"last": vlsn}

    async def range(self, session: str, number: int, start: int, end: int, have: int) -> tuple[bytes, int]:
        if session != "good":
            raise NotFound("the restore is over")
        return bytes(range(256))[start:end], 3

    async def change_settings(self, body: dict[str, Any]) -> dict[str, Any]:
        self.calls.append(f"settings {body}")
        return {"vlsn": 9}

    async def transfer(self, to: str | None) -> dict[str, Any]:
        self.calls.append(f"transfer to {to}")
        return {"to": to}

    def group_document(self) -> dict[str, Any]:
        return {"group": self.group, "members": []}

    async def change_group(self, body: dict[str, Any]) -> dict[str, Any]:
        self.calls.append(f"group {body}")
        return {"vlsn": 9}

    async def stand(self, body: dict[str, Any]) -> dict[str, Any]:
        return {"stands": body["to"]}

    async def vote(self, body: dict[str, Any]) -> dict[str, Any]:
        return {"asked": body["term"]}

    def metrics_text(self) -> Generator[int, None, bytes]:
        self.metrics_texts += 1
        last = len(self.entries)
        for _ in range(3):
            yield 1 << 20  # a turn of the loop each
        return b"# TYPE vlsnlog_last_vlsn gauge\nvlsnlog_last_vlsn %d\n" % last


def _pairs_of(part: Values | Batch) -> list[tuple[bytes | None, bytes]]:
    return decode_entries(part) if isinstance(part, Batch) else _pairs(part.values, part.keys)


def _pairs(values: list[bytes], keys: list[bytes] | None) -> list[tuple[bytes | None, bytes]]:
    return [(key or None, value) for key, value in zip(keys or [b""] * len(values), values, strict=True)]


@dataclass
class MemoryMessages:
    """``repl.destinations.delivered.Delivered``."""

    columns: MessageColumns
    attempts: dict[int, int]
    uuid: str = "00000000000000aa"


class MemoryDestinations:
    """``NodeDestinations``, with one that is called ``orders``; notes what it was told to do."""

    def __init__(self) -> None:
        self.leads = True
        self.orders: list[tuple[object, ...]] = []

    @property
    def member(self) -> Any:
        return self

    def is_master(self) -> bool:
        return self.leads

    def master_url(self) -> str | None:
        return "http://n2.example:7701"

    async def destinations(self) -> list[dict[str, Any]]:
        return [await self.destination("orders")]

    async def destination(self, name: str) -> dict[str, Any]:
        if name != "orders":
            raise NotFound(f"there is no destination {name}")
        return {"name": name}

    async def set_destination(
        self, name: str, change: DestinationChange, timeout_s: float
    ) -> tuple[dict[str, Any], bool]:
        self.orders.append(("set", name, change))
        return {"name": name}, name != "orders"

    async def drop_destination(self, name: str, timeout_s: float) -> None:
        await self.destination(name)
        self.orders.append(("drop", name))

    async def order(
        self, name: str, order: str, to: int | str | None, vlsns: Vlsns | None, timeout_s: float
    ) -> dict[str, Any]:
        self.orders.append((order, name, to if vlsns is None else tuple(vlsns)))
        return await self.destination(name)

    async def worker(self, name: str) -> NoReturn:
        raise NotFound(f"there is no worker of {name} here")

    async def messages(self, name: str, most: int, wait_s: float, room: Holder) -> MemoryMessages:
        self.orders.append(("messages", name, most, wait_s))
        keyed = Entry(Vlsn(7), TERM, CLOCK_US, EntryKind.DATA, 0, b"k", b"a")
        odd = Entry(Vlsn(9), TERM, CLOCK_US, EntryKind.DATA, 0, None, b"\xff")
        return MemoryMessages(MessageColumns.of([keyed, odd]), {9: 3})

    async def peek(self, name: str, most: int) -> MemoryMessages:
        self.orders.append(("peek", name, most))
        return MemoryMessages(MessageColumns(), {})

    async def ack(self, name: str, vlsns: Vlsns, uuid: str, wait_s: float) -> None:
        self.orders.append(("ack", name, tuple(vlsns), uuid, wait_s))

    async def nack(self, name: str, vlsns: Vlsns, uuid: str, reason: str, delay_s: float | None) -> None:
        self.orders.append(("nack", name, tuple(vlsns), uuid, reason, delay_s))


class MemoryCdc:
    """``repl.cdc.consumers.CdcConsumers``, one consumer, ``orders``; notes what it was told to do."""

    name = "n1"

    def __init__(self) -> None:
        self.orders: list[tuple[object, ...]] = []

    def told(self) -> list[dict[str, Any]]:
        return [self.told_of("orders")]

    def told_of(self, name: str) -> dict[str, Any]:
        if name != "orders":
            raise NotFound(f"no CDC consumer is called {name}")
        return {"name": name}

    async def pause(self, name: str) -> dict[str, Any]:
        return self._ordered("pause", name)

    async def resume(self, name: str) -> dict[str, Any]:
        return self._ordered("resume", name)

    async def reset(self, name: str, to: int | str) -> dict[str, Any]:
        return self._ordered("reset", name, to)

    async def skip(self, name: str, to: int) -> dict[str, Any]:
        return self._ordered("skip", name, to)

    async def resend(self, name: str, first: int, last: int) -> dict[str, Any]:
        return self._ordered("resend", name, first, last)

    def _ordered(self, *order: object) -> dict[str, Any]:
        told = self.told_of(str(order[1]))
        self.orders.append(order)
        return told
