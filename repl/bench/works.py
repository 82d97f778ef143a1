"""The works: what a benchmark does to a cluster, each timed until its acknowledgements.

    append     N writers, each awaits its append before the next, through the native client
    bulk       N batches under way at a time on one pipelined connection, each atomic
    transactions  N writers, a transaction of a batch each, and as many plain batches, by turns: both rates, their ratio
    positions  N workers, a transaction of a batch each with the position of a consumer, beside the same without, plain
               batches and positions alone, by turns: all rates, their ratios
    linearizable  N readers of an entry each, without and beside idle transactions (as many as a batch), by turns
    http       N connections, a POST an entry; by wrk where it is installed
    catchup    a replica that missed everything comes back; bytes of log a second until it has all
    recover    a replica killed with a log that no checkpoint covers; until it has all of it again
    tail       N writers, and a reader who follows; from before an append until the reader has it
    scan       reading a whole log from its first VLSN
    beside-scan  N writers, without and beside a full scan of every node's segments, by turns: both rates, their ratio

A work stops at its seconds, or when the bytes it may write are used up (three copies and their framing
counted).
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from repl.bench import linearizable_reads
from repl.bench.appends_beside_scan import TURNS as SCAN_TURNS
from repl.bench.appends_beside_scan import beside_scan
from repl.bench.http_posts import post_many
from repl.bench.report import Outcome, Samples
from repl.bench.target import NODES, Given, Own, master_url, own_only
from repl.bench.wrk import run_wrk, wrk_installed
from repl.client.connect import Client, connect
from repl.client.consumer import Consumer
from repl.cluster import Node
from vlsn.errors import BadArgument, Unreachable, VlsnLogError
from vlsn.format.block import Entry
from vlsn.state.consumers import CONSUMERS_MAX

VALUES = 1024
FRAMING_BYTES = 16
"""Bytes that an entry costs in the log beside its value, about, in blocks of many."""
LONE_FRAMING_BYTES = 120
"""The same in a block of its own."""
STAMP_BYTES = 8
CATCHUP_S_MAX = 600
TURNS = 4
SCAN_FILL_S = 3.0
"""Seconds that an own cluster's log is filled for before it is scanned, in large batches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The load of a work; ``batch`` entries of ``size`` bytes an append."""

    seconds: float
    writers: int
    size: int
    batch: int
    acks: str
    bytes_max: int
    """The bytes over all nodes."""
    durability: str | None = None

    @property
    def entries_max(self) -> int:
        framing = FRAMING_BYTES if self.batch > 1 else LONE_FRAMING_BYTES
        return max(1, self.bytes_max // (NODES * (self.size + framing)))

    def values(self) -> list[bytes]:
        """Makes different values to choose from, of printable bytes."""
        return [os.urandom(self.size // 2 + 1).hex()[: self.size].encode() for _ in range(VALUES)]


async def append(target: Given | Own, load: Load) -> Outcome:
    async with connect(target.urls, acks=load.acks, durability=load.durability) as client:
        return await _append(client, load)


async def transactions(target: Given | Own, load: Load) -> Outcome:
    """Runs transactions and plain batches by turns, so that whatever the machine does beside meets both."""
    turn = replace(load, seconds=load.seconds / (2 * TURNS), bytes_max=load.bytes_max // (2 * TURNS))
    async with connect(target.urls, acks=load.acks, durability=load.durability) as client:
        plain, done = [], []
        for _ in range(TURNS):
            plain.append(await _append(client, turn, atomic=True))
            done.append(await _append(client, turn, transactions=True))
    rates = [sum(each.entries for each in side) / sum(each.seconds for each in side) for side in (plain, done)]
    return Outcome(
        sum(each.entries for each in done),
        sum(each.bytes for each in done),
        sum(each.seconds for each in done),
        np.concatenate([each.latencies_ms for each in done]),
        sum(each.errors for each in (*plain, *done)),
        {"plain_entries_per_s": round(rates[0], 1), "ratio": round(rates[1] / max(rates[0], 1e-9), 3)},
    )


async def positions(target: Given | Own, load: Load) -> Outcome:
    """Runs transactions with a position, transactions, plain batches and positions alone by turns."""
    if load.writers > CONSUMERS_MAX:
        raise BadArgument(f"writers: {load.writers} is more than a log's {CONSUMERS_MAX} consumers")
    turn = replace(load, seconds=load.seconds / (4 * TURNS), bytes_max=load.bytes_max // (4 * TURNS))
    async with connect(target.urls, acks=load.acks, durability=load.durability) as client:
        first = await client.append(b"in")
        await client.append(b"in")
        consumers = [client.consumer(f"bench-{number}", from_vlsn=first) for number in range(load.writers)]
        read = [[entry async for entry in _two(consumer)] for consumer in consumers]
        done, whole, plain, alone = [], [], [], []
        for _ in range(TURNS):
            done.append(await _append(client, turn, transactions=True, consumers=consumers))
            whole.append(await _append(client, turn, transactions=True))
            plain.append(await _append(client, turn, atomic=True))
            alone.append(await _commit(consumers, read, turn.seconds))
    with_position, without, batches = (
        sum(each.entries for each in side) / sum(each.seconds for each in side) for side in (done, whole, plain)
    )
    return Outcome(
        sum(each.entries for each in done),
        sum(each.bytes for each in done),
        sum(each.seconds for each in done),
        np.concatenate([each.latencies_ms for each in done]),
        sum(each.errors for each in (*done, *whole, *plain)),
        {
            "transaction_entries_per_s": round(without, 1),
            "plain_entries_per_s": round(batches, 1),
            "ratio": round(with_position / max(without, 1e-9), 3),
            "transaction_ratio": round(without / max(batches, 1e-9), 3),
            "commits_per_s": round(sum(alone) / len(alone), 1),
        },
    )


async def _two(consumer: Consumer) -> AsyncIterator[Entry]:
    """Reads two entries, for a position that goes to and fro between them."""
    count = 0
    async for entry in consumer:
        count += 1
        yield entry
        if count == 2:
            break


async def _commit(consumers: Sequence[Consumer], read: Sequence[Sequence[Entry]], seconds: float) -> float:
    """Commits positions alone, one at a time each; how many a second."""
    start, done = time.perf_counter(), 0

    async def worker(consumer: Consumer, entries: Sequence[Entry]) -> None:
        nonlocal done
        while time.perf_counter() < start + seconds:
            for entry in entries:
                consumer.given(entry)
                await consumer.commit()
                done += 1

    await asyncio.gather(*map(worker, consumers, read))
    return done / (time.perf_counter() - start)


async def _append(
    client: Client,
    load: Load,
    *,
    atomic: bool = False,
    transactions: bool = False,
    consumers: Sequence[Consumer] = (),
) -> Outcome:
    """Runs ``load.writers`` coroutines, one append at a time each. ``atomic`` keeps single entries apart, which else
    share batches; ``transactions``: each append is one, with the position of one of ``consumers`` each."""
    values = load.values()
    samples = Samples()
    errors = 0
    start = time.perf_counter()
    stop = samples.now() + int(load.seconds * 1e9)
    appends_max = load.entries_max // load.batch

    async def writer(at: int) -> None:
        nonlocal errors
        batch = [values[(at + each) % VALUES] for each in range(load.batch)]
        alone = load.batch == 1 and not atomic and not transactions
        append, now, take = client.append, samples.now, samples.take

        consumer = consumers[at] if consumers else None

        async def transact(values: list[bytes]) -> None:
            async with client.transaction() as transaction:
                await transaction.append_many(values)
                if consumer is not None:
                    await transaction.commit_position(consumer)

        append_many = transact if transactions else client.append_many
        ended = now()
        while ended < stop and len(samples.taken) < appends_max:
            began = ended  # the next append begins as the one before ends: one look at the clock, not three
            try:
                if alone:
                    at += 1
                    await append(values[at % VALUES])
                else:
                    await append_many(batch)
            except VlsnLogError:
                errors += 1
                await asyncio.sleep(0.01)
                ended = now()
            else:
                ended = now()
                take(ended - began)

    async with asyncio.TaskGroup() as group:
        for at in range(load.writers):
            group.create_task(writer(at))
    elapsed = time.perf_counter() - start
    done = len(samples) * load.batch
    return Outcome(done, done * load.size, elapsed, samples.milliseconds(), errors)


async def linearizable(target: Given | Own, load: Load) -> Outcome:
    value = load.values()[0]
    return await linearizable_reads.linearizable(
        target, seconds=load.seconds, readers=load.writers, stages=load.batch, value=value
    )


async def http(target: Given | Own, load: Load) -> Outcome:
    url = await master_url(target.urls)
    path = f"/v1/entries?acks={load.acks}" + (f"&durability={load.durability}" if load.durability else "")
    value = load.values()[0]
    seconds = min(load.seconds, load.entries_max / 50_000 + 1)
    if not wrk_installed():
        outcome = await post_many(url, path, body=value, connections=load.writers, seconds=seconds)
        outcome.more["client"] = "own asyncio client"
        return outcome
    script = f"""
wrk.method = "POST"
wrk.path = "{path}"
wrk.body = "{value.decode()}"
wrk.headers["Content-Type"] = "application/octet-stream"
"""
    done = await run_wrk(url, script=script, connections=load.writers, seconds=seconds)
    times = np.array([done.p50_ms] * 98 + [done.p99_ms] * 2)
    return Outcome(done.requests, done.requests * load.size, done.seconds, times, done.errors, {"client": "wrk"})


async def catchup(target: Given | Own, load: Load) -> Outcome:
    """Measures a catch-up: the last node dies as the group is founded, and comes back to a full log."""
    own = own_only(target, "catchup")
    late = own.last
    late.kill()
    await _fill(own, load)
    master = await own.master()
    wanted, log_bytes = master["range"]["last_sync"], master["log"]["bytes"]
    start_s = await own.start(late)
    seen = [(time.perf_counter(), (await own.status(late.url))["range"]["last_sync"])]
    while seen[-1][1] < wanted:
        await asyncio.sleep(0.01)
        seen.append((time.perf_counter(), (await own.status(late.url))["range"]["last_sync"]))
        if seen[-1][0] - seen[0][0] > CATCHUP_S_MAX:
            raise Unreachable(f"{late.name} is at VLSN {seen[-1][1]} of {wanted} after {CATCHUP_S_MAX} s")
    begin = max((at for at, vlsn in seen if vlsn == seen[0][1]), default=seen[0][0])
    more = {"log_bytes": log_bytes, "node_start_s": round(start_s, 3), "node_vmhwm_mb": _peak_mb(late)}
    return Outcome(wanted - seen[0][1], log_bytes, seen[-1][0] - begin, np.empty(0), 0, more)


async def recover(target: Given | Own, load: Load) -> Outcome:
    """Measures from the start of the process until the killed node has all of its log again. The interpreter's start is
    included; ``open_entries_per_s`` is what is left of it beside the same start after a clean stop."""
    own = own_only(target, "recover")
    node = own.last
    await _fill(own, load)
    wanted = (await own.master())["range"]["last_sync"]
    await own.synced(node, wanted)
    log_bytes = (await own.status(node.url))["log"]["bytes"]
    node.kill()
    after_kill = await _open(own, node, wanted)
    peak_mb = _peak_mb(node)
    await own.stop(node)
    after_stop = await _open(own, node, wanted)
    more = {
        "log_bytes": log_bytes,
        "start_after_stop_s": round(after_stop, 3),
        "open_entries_per_s": round(wanted / (after_kill - after_stop)) if after_kill - after_stop > 0.05 else None,
        "node_vmhwm_mb": peak_mb,
    }
    return Outcome(wanted, log_bytes, after_kill, np.empty(0), 0, more)


async def _open(own: Own, node: Node, wanted: int) -> float:
    """Starts the node; seconds until its log reaches ``wanted``."""
    began = time.perf_counter()
    await own.start(node)
    await own.synced(node, wanted)
    return time.perf_counter() - began


async def tail(target: Given | Own, load: Load) -> Outcome:
    samples = Samples()
    errors = 0
    start = time.perf_counter()
    stop = start + load.seconds
    filler = load.values()[0][STAMP_BYTES:]

    async with (
        connect(target.urls, acks=load.acks, durability=load.durability) as client,
        connect(target.urls) as reader,
    ):
        begin = await client.append(b"begin")

        async def writer() -> None:
            nonlocal errors
            while time.perf_counter() < stop and len(samples) < load.entries_max:
                try:
                    await client.append(samples.now().to_bytes(STAMP_BYTES, "little") + filler)
                except VlsnLogError:
                    errors += 1
                    await asyncio.sleep(0.01)

        async def follow() -> None:
            async for entry in reader.tail(from_vlsn=begin + 1):
                if entry.value == b"end":
                    return
                samples.since(int.from_bytes(entry.value[:STAMP_BYTES], "little"))

        following = asyncio.create_task(follow())
        try:
            await asyncio.gather(*(writer() for _ in range(load.writers)))
            await client.append(b"end")
            await asyncio.wait_for(following, 60)
        finally:
            following.cancel()
    elapsed = time.perf_counter() - start
    size = max(load.size, STAMP_BYTES)
    return Outcome(len(samples), len(samples) * size, elapsed, samples.milliseconds(), errors)


async def scan(target: Given | Own, load: Load) -> Outcome:
    if isinstance(target, Own):
        await _fill(target, load)
    entries = size = 0
    pages = Samples()
    async with connect(target.urls) as client:
        start = time.perf_counter()
        began = pages.now()
        async for page in client.read_pages():
            pages.since(began)
            entries += len(page.entries)
            size += sum([len(entry.value) for entry in page.entries])
            began = pages.now()
        elapsed = time.perf_counter() - start
    return Outcome(entries, size, elapsed, pages.milliseconds(), 0, {"pages": len(pages)})


async def appends_beside_scan(target: Given | Own, load: Load) -> Outcome:
    if isinstance(target, Own):
        await _fill(target, replace(load, seconds=SCAN_FILL_S, writers=16, batch=1000, bytes_max=load.bytes_max // 2))
    runs = 2 * SCAN_TURNS
    turn = replace(load, seconds=load.seconds / runs, bytes_max=load.bytes_max // (2 * (runs + 1)))
    async with connect(target.urls, acks=load.acks, durability=load.durability) as client:
        return await beside_scan(target.urls, lambda: _append(client, turn))


async def _fill(own: Own, load: Load) -> None:
    """Writes for the load's seconds: atomic batches, also when they are of one entry."""
    async with connect(own.urls) as client:
        await _append(client, load, atomic=True)


def _peak_mb(node: Node) -> float | None:
    """Reads the node's peak memory (VmHWM)."""
    for line in Path(f"/proc/{node.pid}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return round(int(line.split()[1]) * 1024 / 1e6, 1)
    return None


Run = Callable[[Given | Own, Load], Awaitable[Outcome]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A work and what it takes when nothing else is asked for."""

    run: Run
    writers: int
    batch: int = 1
    own_only: bool = False
    fills: bool = False
    """Makes itself a log to work on: of one-entry blocks when ``batch`` is 1."""
    settings: tuple[tuple[str, int], ...] = ()
    """Settings of the own cluster's nodes."""
    cache_bytes_per_s: int = 128_000_000
    """More than it ever made the page cache grow by, all nodes together."""


_BULK_BYTES_PER_S = 1_000_000_000
_NO_CHECKPOINT = (("checkpoint_bytes", 1 << 40), ("checkpoint_period_s", 86_400))

WORKS: dict[str, Work] = {
    "append": Work(run=append, writers=64),
    "bulk": Work(run=append, writers=16, batch=1000, cache_bytes_per_s=_BULK_BYTES_PER_S),
    "transactions": Work(run=transactions, writers=64, batch=10),
    "positions": Work(run=positions, writers=64, batch=10),
    "linearizable": Work(run=linearizable, writers=3, batch=100),
    "http": Work(run=http, writers=64),
    "catchup": Work(
        run=catchup, writers=16, batch=1000, own_only=True, fills=True, cache_bytes_per_s=_BULK_BYTES_PER_S
    ),
    "recover": Work(
        run=recover,
        writers=16,
        batch=1000,
        own_only=True,
        fills=True,
        settings=_NO_CHECKPOINT,
        cache_bytes_per_s=_BULK_BYTES_PER_S,
    ),
    "tail": Work(run=tail, writers=16),
    "beside-scan": Work(run=appends_beside_scan, writers=64, cache_bytes_per_s=_BULK_BYTES_PER_S),
    "scan": Work(run=scan, writers=16, batch=1000, fills=True, cache_bytes_per_s=_BULK_BYTES_PER_S),
}
