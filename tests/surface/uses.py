"""Right uses of all that is public, as a program would make them: type checkers find no fault with any.

Nothing here is run.  Each function takes what it uses as arguments, by the names that a program would import.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from contextlib import aclosing, closing
from datetime import datetime
from typing import Any, assert_type

from vlsn import (
    Checkpoint,
    CleaningReport,
    Fault,
    Log,
    LogHold,
    LogOptions,
    LogStats,
    LogTransaction,
    Owner,
    Retention,
    Term,
    Vlsn,
    VlsnRange,
)
from vlsn import Durability as LocalDurability
from vlsnlog import (
    Acks,
    Appended,
    Begin,
    BlocksPage,
    Buffer,
    Client,
    CodecName,
    Consistency,
    Consumer,
    ConsumerAt,
    ConsumerChange,
    Destination,
    Destinations,
    Durability,
    Endpoints,
    Entry,
    GivenDurability,
    GroupDurability,
    Message,
    Messages,
    NotMaster,
    OutcomeUnknown,
    Page,
    Positions,
    ProducerAt,
    ProducerPlace,
    Rows,
    SinkAt,
    SinkChange,
    Sinks,
    SinkState,
    Span,
    Spans,
    Status,
    SyncClient,
    SyncConsumer,
    SyncDestination,
    SyncDestinations,
    SyncMessage,
    SyncMessages,
    SyncPositions,
    SyncSinks,
    SyncTransaction,
    TlsFiles,
    Transaction,
    Trimmed,
    VlsnLogError,
    connect,
    connect_sync,
    read_arrow,  # pyright: ignore[reportUnknownVariableType]  # of PyArrow no types are told
)

URL = "http://127.0.0.1:7701"


async def connects(url: str = URL) -> None:
    async with connect(url, acks="all", timeout_s=3, exactly_once=True, durability="sync,no_sync") as log:
        assert_type(log, Client[Buffer])
    async with connect(url, codec="utf8", acks=Acks.MAJORITY, durability=Durability.SYNC) as texts:
        assert_type(texts, Client[str])
    async with connect(url, codec="json", tls=TlsFiles(ca="ca.pem", cert="app.pem", key="app.key")) as objects:
        assert_type(objects, Client[Any])
    with connect_sync(url) as blocking:
        assert_type(blocking, SyncClient[Buffer])
    with connect_sync(url, codec="utf8") as blocking_texts:
        assert_type(blocking_texts, SyncClient[str])
    with connect_sync(url, codec="json") as blocking_objects:
        assert_type(blocking_objects, SyncClient[Any])


def handles(log: SyncClient, error: VlsnLogError) -> tuple[bool, bool, str]:
    try:
        log.append(b"value")
    except NotMaster as lost:
        return lost.retry_safe, lost.transient, lost.slug
    except Trimmed as gone:
        assert_type(gone.first, int)
    except OutcomeUnknown:
        pass
    return error.retry_safe, error.transient, error.slug


# Clients.


async def appends(log: Client, given: GivenDurability, asked: GroupDurability) -> None:
    assert_type(await log.append(b"value", key=b"key"), int)
    assert_type(await log.append(bytearray(b"value"), key=memoryview(b"key"), durability=given), int)
    assert_type(await log.append("value", key="key", codec="utf8"), int)
    assert_type(await log.append_many([b"a", b"b"], keys=[b"key", None]), tuple[int, int])
    assert_type(await log.append_many([{"a": 1}], keys=["key"], codec="json"), tuple[int, int])
    assert_type(await log.append_batch([b"a"], keys=[b"key"], acks="none", durability=asked), Appended)
    assert_type(await log.append_batch(["a"], keys=["key"], acks=Acks.ALL, codec="utf8"), Appended)
    assert_type(await log.submit([b"a"], producer=7, sequence=0, born=0, keys=[b"key"]), Appended)
    assert_type(await log.submit(["a"], producer=7, sequence=0, born=0, keys=["key"], codec="utf8"), Appended)
    await log.close(flush=False)


async def appends_texts(log: Client[str], codec: CodecName) -> None:
    await log.append("value", key="key")
    await log.append("value", key=b"key")
    await log.append_many(["a", "b"], keys=["key", None])
    await log.append_batch(["a"], keys=[b"key"])
    await log.append(object(), key="key", codec=codec)
    async with log.transaction() as txn:
        await txn.append("value", key="key")
    async for entry in log.read(key="key"):
        print(entry.text())


async def appends_objects(log: Client[Any]) -> None:
    await log.append({"a": 1}, key="key")
    await log.append_many([1, "b", None], keys=["key", b"key", None])


async def commits(log: Client, txn: Transaction, consumer: Consumer) -> None:
    async with log.transaction(acks="all", durability="sync") as other:
        assert_type(other, Transaction[Buffer])
    await txn.append(b"value", key=b"key")
    await txn.append("value", key="key", codec="utf8")
    await txn.append_many([b"a", b"b"], keys=[b"key", None])
    await txn.append_many(["a"], keys=["key"], codec="utf8")
    await txn.commit_position(consumer)
    assert_type(await txn.commit(), Appended | None)
    assert_type(txn.appended, Appended | None)
    await txn.abort()


async def reads(log: Client, begin: Begin, consistency: Consistency, time: datetime) -> None:
    entries = log.read(begin, 100, key=b"key", limit=10, all_kinds=True, consistency=consistency)
    assert_type(entries, AsyncGenerator[Entry, None])
    async with aclosing(log.read(at=time, key_prefix=b"k", consistency="linearizable")) as some:
        async for entry in some:
            tells(entry)
    await entries.aclose()
    pages = log.read_pages(from_vlsn=1, to_vlsn=2, consistency="durable")
    assert_type(await anext(pages), Page)
    await pages.aclose()
    blocks = log.block_pages("start", after_term=None, at_least=7)
    assert_type(await anext(blocks), BlocksPage)
    await blocks.aclose()
    newer = log.read(at_least=7, lag_max_s=0.5)
    await newer.aclose()
    tail = log.tail(from_vlsn="end", key=b"key", limit=5, after_term=None, at_least=7, lag_max_s=2)
    assert_type(await anext(tail), Entry)
    await tail.aclose()
    tailed = log.tail_pages(7, after_term=3)
    assert_type(await anext(tailed), Page)
    await tailed.aclose()


def tells(entry: Entry) -> tuple[int, int, int, bytes | None, bytes]:
    assert_type(entry.text(), str)
    entry.json()
    return entry.vlsn, entry.term, entry.time, entry.key, entry.value


async def asks(log: Client, endpoints: Endpoints, status: Status) -> None:
    assert_type(await log.durable_vlsn(), int)
    assert_type(await log.durable_vlsn(consistency="linearizable", at_least=7, lag_max_s=None), int)
    assert_type(await log.vlsn_at(datetime(2030, 1, 1)), int)
    assert_type(await log.vlsn_at(1_900_000_000_000_000), int)
    assert_type(await log.first_vlsn(), int)
    assert_type(await log.group_name(), str)
    at = await log.producer_at(7)
    assert_type(at, ProducerAt)
    assert_type(at.place, ProducerPlace)
    spans = await log.spans(1, 100, bytes_each=1 << 20, entries_each=1000, limit=8, after_term=None)
    assert_type(spans, Spans)
    assert_type(spans.spans, tuple[Span, ...])
    assert_type(log.endpoints, Endpoints)
    assert_type(await endpoints.master(), str)
    assert_type(await endpoints.status(URL), Status)
    assert_type(await endpoints.statuses(endpoints.urls), list[Status | VlsnLogError])
    print(status.node, status.master, status.term, status.durable, status.level, status.members)


async def consumes(log: Client, other: Client, consumer: Consumer) -> None:
    assert_type(log.consumer("billing", from_vlsn="end", kept_in=other), Consumer)
    assert_type(log.consumer("billing", at=datetime(2030, 1, 1), at_least=7, lag_max_s=2.0), Consumer)
    async for entry in consumer:
        assert_type(entry, Entry)
        assert_type(await consumer.commit(), ConsumerAt)
    async for page in consumer.pages():
        assert_type(page, Page)
        consumer.given(page.entries[-1])
    assert_type(await consumer.poll(timeout_s=1.5), Entry | None)
    consumer.rewind()
    consumer.seek(7)
    assert_type(await consumer.position(), ConsumerAt | None)
    print(consumer.name, consumer.next_vlsn, consumer.begins_anew)


async def keeps_positions(log: Client, positions: Positions, batch: bytes) -> None:
    assert_type(log.positions, Positions)
    assert_type(await positions.get("billing"), ConsumerAt | None)
    assert_type(await positions.list(), list[ConsumerAt])
    assert_type(await positions.set("billing", ConsumerChange(7, at=None)), ConsumerAt)
    assert_type(await positions.commit("billing", [(batch, 2)], ConsumerChange(7, at=5)), Appended)
    await positions.delete("billing")


async def takes(log: Client, destination: Destination, message: Message, messages: Messages) -> None:
    assert_type(log.destination("orders", prefetch=10), Destination)
    async for each in destination:
        assert_type(each, Message)
        await each.ack()
    async with aclosing(destination.batches()) as batches:
        assert_type(await anext(batches), Messages)
    assert_type(await destination.take(10, wait_s=1.5), Messages)
    await destination.ack(messages, wait=False)
    await destination.nack([message], "no such customer")
    await destination.nack([message], delay_s=2.5)
    await destination.flush()
    await message.ack(wait=False)
    await message.nack("no such customer")
    await message.nack("later", delay_s=2.5)
    print(messages.vlsns.tolist(), len(messages), messages.uuid, message.uuid)
    print(message.vlsn, message.attempt, message.time, message.key, message.value)


async def keeps_destinations(log: Client, destinations: Destinations) -> None:
    assert_type(log.destinations, Destinations)
    assert_type(await destinations.list(), list[dict[str, Any]])
    assert_type(await destinations.get("orders"), dict[str, Any])
    await destinations.put("orders", prefix="order", from_="start", ack_timeout_s=5.0)
    await destinations.put("orders", redelivery_delay_s=1.0, redelivery_factor=2.0, max_out=100)
    await destinations.pause("orders")
    await destinations.resume("orders")
    await destinations.retry_dead("orders")
    await destinations.retry_dead("orders", [7, 9])
    await destinations.delete_dead("orders", [7, 9])
    await destinations.move("orders", "end")
    await destinations.move("orders", 7)
    for vlsn, attempt, time, key, value in await destinations.peek("orders", 10):
        print(vlsn, attempt, time, key, value)
    await destinations.drop("orders")


async def keeps_sinks(log: Client, sinks: Sinks, change: SinkChange, batch: bytes) -> None:
    assert_type(log.sinks, Sinks)
    assert_type(await sinks.get("orders"), SinkAt | None)
    assert_type([each.state for each in await sinks.list()], list[SinkState])
    assert_type(await sinks.commit("orders", [(batch, 2)], change), Appended)
    await sinks.delete("orders")


# Clients of threads.


def blocking_appends(log: SyncClient, given: GivenDurability) -> None:
    assert_type(log.append(b"value", key=b"key", durability=given), int)
    assert_type(log.append("value", key="key", codec="utf8"), int)
    assert_type(log.append_many([b"a", b"b"], keys=[b"key", None]), tuple[int, int])
    assert_type(log.append_many([{"a": 1}], keys=["key"], codec="json"), tuple[int, int])
    assert_type(log.append_batch([b"a"], keys=[b"key"], acks="none"), Appended)
    assert_type(log.append_batch(["a"], keys=["key"], codec="utf8"), Appended)
    assert_type(log.submit([b"a"], producer=7, sequence=0, born=0, keys=[b"key"]), Appended)
    assert_type(log.submit(["a"], producer=7, sequence=0, born=0, keys=["key"], codec="utf8"), Appended)
    log.close(flush=False)


def blocking_commits(log: SyncClient[str], txn: SyncTransaction[str], consumer: SyncConsumer) -> None:
    with log.transaction(acks="all") as other:
        assert_type(other, SyncTransaction[str])
    txn.append("value", key="key")
    txn.append(b"value", key=b"key", codec="bytes")
    txn.append_many(["a", "b"], keys=["key", None])
    txn.append_many([b"a"], keys=[b"key"], codec="bytes")
    txn.commit_position(consumer)
    assert_type(txn.commit(), Appended | None)
    assert_type(txn.appended, Appended | None)
    txn.abort()


def blocking_reads(log: SyncClient[str], consistency: Consistency) -> None:
    with closing(log.read("start", 100, key="key", limit=10, consistency=consistency)) as entries:
        assert_type(entries, Generator[Entry, None])
        assert_type(list(entries), list[Entry])
    log.read(consistency="linearizable").close()
    pages = log.read_pages(from_vlsn=1)
    assert_type(next(pages), Page)
    pages.close()
    blocks = log.block_pages()
    assert_type(next(blocks), BlocksPage)
    blocks.close()
    log.read(at_least=7, lag_max_s=0.5).close()
    tail = log.tail(from_vlsn="end", key_prefix=b"key", at_least=7, lag_max_s=2)
    assert_type(next(tail), Entry)
    tail.close()
    tailed = log.tail_pages(7, after_term=3)
    assert_type(next(tailed), Page)
    tailed.close()


def blocking_asks(log: SyncClient) -> None:
    assert_type(log.durable_vlsn(), int)
    assert_type(log.vlsn_at(datetime(2030, 1, 1)), int)
    assert_type(log.first_vlsn(), int)
    assert_type(log.group_name(), str)
    assert_type(log.producer_at(7), ProducerAt)
    assert_type(log.spans(limit=8), Spans)


def blocking_consumes(log: SyncClient, other: SyncClient, consumer: SyncConsumer) -> None:
    assert_type(log.consumer("billing", from_vlsn="end", kept_in=other), SyncConsumer)
    assert_type(log.consumer("billing", at_least=7, lag_max_s=2.0), SyncConsumer)
    for entry in consumer:
        assert_type(entry, Entry)
        assert_type(consumer.commit(), ConsumerAt)
    for page in consumer.pages():
        assert_type(page, Page)
        consumer.given(page.entries[-1])
    assert_type(consumer.poll(timeout_s=1.5), Entry | None)
    consumer.rewind()
    consumer.seek(7)
    assert_type(consumer.position(), ConsumerAt | None)
    print(consumer.name, consumer.next_vlsn, consumer.begins_anew)


def blocking_positions(log: SyncClient, positions: SyncPositions, batch: bytes) -> None:
    assert_type(log.positions, SyncPositions)
    assert_type(positions.get("billing"), ConsumerAt | None)
    assert_type(positions.list(), list[ConsumerAt])
    assert_type(positions.set("billing", ConsumerChange(7, at=None)), ConsumerAt)
    assert_type(positions.commit("billing", [(batch, 2)], ConsumerChange(7, at=5)), Appended)
    positions.delete("billing")


def blocking_takes(log: SyncClient, destination: SyncDestination, message: SyncMessage, messages: SyncMessages) -> None:
    assert_type(log.destination("orders", prefetch=10), SyncDestination)
    for each in destination:
        assert_type(each, SyncMessage)
        each.ack()
    with closing(destination.batches()) as batches:
        assert_type(next(batches), SyncMessages)
    assert_type(destination.take(10, wait_s=1.5), SyncMessages)
    destination.ack(messages, wait=False)
    destination.nack([message], "no such customer")
    destination.flush()
    message.ack(wait=False)
    message.nack("no such customer")
    print(destination.name, messages.vlsns.tolist(), len(messages))
    print(message.vlsn, message.attempt, message.time, message.key, message.value)


def blocking_destinations(log: SyncClient, destinations: SyncDestinations) -> None:
    assert_type(log.destinations, SyncDestinations)
    assert_type(destinations.list(), list[dict[str, Any]])
    assert_type(destinations.get("orders"), dict[str, Any])
    destinations.put("orders", prefix="order", from_="start")
    destinations.pause("orders")
    destinations.resume("orders")
    destinations.retry_dead("orders")
    destinations.retry_dead("orders", [7, 9])
    destinations.delete_dead("orders", [7, 9])
    destinations.move("orders", "end")
    print(destinations.peek("orders", 10))
    destinations.drop("orders")


def blocking_sinks(log: SyncClient, sinks: SyncSinks, change: SinkChange, batch: bytes) -> None:
    assert_type(log.sinks, SyncSinks)
    assert_type(sinks.get("orders"), SinkAt | None)
    assert_type(sinks.list(), list[SinkAt])
    assert_type(sinks.commit("orders", [(batch, 2)], change), Appended)
    sinks.delete("orders")


# Columns, and the log that is embedded.


def columns(page: BlocksPage) -> None:
    assert_type(page.rows, Rows | None)
    read_arrow(URL, "start", key=b"key", consistency="linearizable", timeout_s=3.0)


def keeps_a_log(directory: str, options: LogOptions) -> None:
    with Log.open(directory, options=options) as log:
        assert_type(log, Log)


def uses_a_log(log: Log, hold: LogHold) -> None:
    assert_type(log.append(b"value", key=b"key"), tuple[Vlsn, Vlsn])
    assert_type(log.append([b"a", b"b"], keys=[b"key", None], durability=LocalDurability.NO_SYNC), tuple[Vlsn, Vlsn])
    assert_type(log.append(b"value", keys=[b"key"]), tuple[Vlsn, Vlsn])
    assert_type(log.sync(), Vlsn)
    with closing(log.read(from_vlsn=1, to_vlsn=7, all_kinds=True)) as entries:
        assert_type(list(entries), list[Entry])
    assert_type(list(log.pairs()), list[tuple[int, bytes]])
    assert_type(log.find_time(datetime(2030, 1, 1)), Vlsn)
    assert_type(log.wait_for(7, timeout_s=1.0), bool)
    assert_type(log.checkpoint(), Checkpoint)
    assert_type(log.rotate(), int)
    assert_type(log.clean(dry_run=True), CleaningReport)
    assert_type(log.hold("billing", 7, owner=Owner.CONSUMER), LogHold)
    assert_type(log.range, VlsnRange)
    assert_type(log.stats, LogStats)
    assert_type(log.term, Term)
    assert_type([each.why for each in log.failing], list[str])
    print(log.durable_vlsn, log.queue_length, log.active_logs, log.synced_length(1))
    log.raise_durable(7)
    log.rollback(7)
    hold.advance(8)
    hold.release()
    print(hold.live, hold.vlsn)
    log.close()


async def appends_to_a_log(log: Log) -> None:
    assert_type(await log.append_async(b"value", key=b"key"), tuple[Vlsn, Vlsn])
    assert_type(await log.append_async([b"a"], keys=[b"key"]), tuple[Vlsn, Vlsn])


def commits_to_a_log(log: Log, txn: LogTransaction) -> None:
    with log.transaction(durability=LocalDurability.SYNC) as other:
        assert_type(other.append(b"value", key=b"key"), LogTransaction)
    txn.append([b"a", b"b"], keys=[b"key", None])
    assert_type(txn.commit(), tuple[Vlsn, Vlsn])
    assert_type((txn.first, txn.last), tuple[Vlsn, Vlsn])
    txn.abort()


def looks_at_a_log(fault: Fault, report: CleaningReport, retention: Retention) -> None:
    print(fault.why, report.blocked, report.bytes, [fate.reason for fate in report.segments], retention.age_s)
