"""Works on a cluster whose sides run by turns, so that whatever the machine does beside meets all of them.

    transactions  N writers, a transaction of a batch each, and as many plain batches: both rates, their ratio
    positions     the same with the position of a consumer in each transaction, and positions alone
    linearizable  N readers of an entry each, without and beside idle transactions (as many as a batch)
    beside-scan   N writers, without and beside a full scan of every node's segments
    networks      N writers, one writer, and a reader: each by a client's network, and by a node's

They are works as ``repl.bench`` has them, with its options and its report.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from itertools import cycle, islice
from typing import Any

import numpy as np

from repl.bench.report import Outcome
from repl.bench.run import BenchOptions, run_bench
from repl.bench.target import Given, Own, master_url
from repl.bench.works import Begin, Call, Load, Work, batches, singles, timed
from repl.client.connect import Client, connect
from repl.client.consumer import Consumer
from repl.net.client_network import ClientNetwork
from repl.net.network import AiohttpNetwork
from tests.bench.load import call, rate, ratio, together
from tests.bench.process import command, environment
from tests.bench.report import Sections
from vlsn.errors import BadArgument
from vlsn.format.block import Entry
from vlsn.state.consumers import CONSUMERS_MAX

TURNS = 4
READ_TURNS = 10
SCAN_TURNS = 10
"""Pairs; each begins with the side that the pair before has ended with."""
NETWORK_PAIRS = 40
READ_ENTRIES = 20_000
SCAN_FILL_S = 3.0
"""Seconds that an own cluster's log is filled for before it is scanned, in large batches."""


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--url", help="URLs of nodes; default: an own cluster in a temporary directory")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--writers", type=int)
    parser.add_argument("--size", type=int, default=100, help="bytes of an entry")
    parser.add_argument("--batch", type=int, help="entries of an append, or idle transactions")
    parser.add_argument("--no-touch-memory", dest="touch_memory", action="store_false")


def measured(options: argparse.Namespace) -> Sections:
    yield options.work, run_bench(BenchOptions(**vars(options)), WORKS).json()


def _transactions(client: Client, size: int, consumers: Sequence[Consumer] = ()) -> Begin:
    """Each append is a transaction of ``size`` values, with the position of one of ``consumers``."""
    left = iter(consumers)

    def begin(values: Iterator[bytes]) -> Call:
        batch, consumer = list(islice(values, size)), next(left, None)

        async def transact() -> None:
            async with client.transaction() as transaction:
                await transaction.append_many(batch)
                if consumer is not None:
                    await transaction.commit_position(consumer)

        return transact

    return begin


def _turn(load: Load, turns: int) -> Load:
    """Returns the load of one of so many turns."""
    return replace(load, seconds=load.seconds / turns, bytes_max=load.bytes_max // turns)


async def transactions(target: Given | Own, load: Load) -> Outcome:
    turn = _turn(load, 2 * TURNS)
    async with connect(target.urls, acks=load.acks, durability=load.durability) as client:
        plain, done = [], []
        for _ in range(TURNS):
            plain.append(await timed(turn, batches(client, load.batch)))
            done.append(await timed(turn, _transactions(client, load.batch)))
    more = {"plain_entries_per_s": rate(plain), "ratio": ratio(rate(done), rate(plain))}
    return together(done, more, plain)


async def positions(target: Given | Own, load: Load) -> Outcome:
    if load.writers > CONSUMERS_MAX:
        raise BadArgument(f"writers: {load.writers} is more than a log's {CONSUMERS_MAX} consumers")
    turn = _turn(load, 4 * TURNS)
    async with connect(target.urls, acks=load.acks, durability=load.durability) as client:
        first = await client.append(b"in")
        await client.append(b"in")
        consumers = [client.consumer(f"bench-{number}", from_vlsn=first) for number in range(load.writers)]
        read = [[await anext(entries), await anext(entries)] for entries in map(aiter, consumers)]
        done, whole, plain, alone = [], [], [], []
        for _ in range(TURNS):
            done.append(await timed(turn, _transactions(client, load.batch, consumers)))
            whole.append(await timed(turn, _transactions(client, load.batch)))
            plain.append(await timed(turn, batches(client, load.batch)))
            alone.append(await _commits_per_s(consumers, read, turn.seconds))
    more = {
        "transaction_entries_per_s": rate(whole),
        "plain_entries_per_s": rate(plain),
        "ratio": ratio(rate(done), rate(whole)),
        "transaction_ratio": ratio(rate(whole), rate(plain)),
        "commits_per_s": round(sum(alone) / len(alone), 1),
    }
    return together(done, more, (*whole, *plain))


async def _commits_per_s(consumers: Sequence[Consumer], read: Sequence[list[Entry]], seconds: float) -> float:
    """Commits positions alone, to and fro between two entries, one at a time for each consumer."""
    start, done = time.perf_counter(), 0

    async def worker(consumer: Consumer, entries: list[Entry]) -> None:
        nonlocal done
        while time.perf_counter() < start + seconds:
            for entry in entries:
                consumer.given(entry)
                await consumer.commit()
                done += 1

    await asyncio.gather(*map(worker, consumers, read))
    return done / (time.perf_counter() - start)


async def linearizable(target: Given | Own, load: Load) -> Outcome:
    """Reads an entry again and again while nothing is written: a read waits for the majority's word alone."""
    value, urls = load.values()[0], target.urls.split(",")
    turn = replace(load, seconds=load.seconds / (2 * READ_TURNS), batch=1)
    network = AiohttpNetwork()
    async with connect(target.urls) as client:
        vlsn = await client.append(value)

    def reading() -> Begin:
        nodes = cycle(urls)

        def begin(_: Iterator[bytes]) -> Call:
            url = f"{next(nodes)}/v1/entries/{vlsn}?consistency=linearizable"
            return lambda: call(network, "GET", url)

        return begin

    without, beside = list[Outcome](), list[Outcome]()
    try:
        await timed(turn, reading())  # connections are made, and what is read first is read
        for _ in range(READ_TURNS):
            without.append(await timed(turn, reading()))
            async with _staged(network, f"{await master_url(target)}/v1/transactions", load.batch, value):
                beside.append(await timed(turn, reading()))
    finally:
        await network.close()
    before = together(without, {}).percentile(50) or 0.0
    done = together(beside, {"stages": load.batch, "p50_ms_without": before}, without)
    done.more["ratio"] = ratio(done.percentile(50) or 0.0, before)
    return done


@asynccontextmanager
async def _staged(network: AiohttpNetwork, url: str, count: int, value: bytes) -> AsyncIterator[None]:
    """Holds so many transactions open at the master, an entry in each."""
    handles = [f"{url}/{(await call(network, 'POST', url))['transaction']}" for _ in range(count)]
    for handle in handles:
        await call(network, "POST", f"{handle}/entries", body=value)
    yield
    for handle in handles:
        await call(network, "DELETE", handle)


class Scan:
    """A process that reads segments as tasks of Spark do, as fast as the nodes' budget (``scan_bytes_per_s``) allows.

    ``read`` counts the bytes that it got so far.  It is stopped while a turn is without it.
    """

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        self._process, self._lines = process, process.stdout
        self.read = 0

    @classmethod
    @asynccontextmanager
    async def of(cls, urls: str) -> AsyncIterator[Scan]:
        """Starts it, stopped, and ends it with the block."""
        process = await asyncio.create_subprocess_exec(
            *command("segment_reads", *urls.split(",")), stdout=asyncio.subprocess.PIPE, env=environment()
        )
        scan = cls(process)
        counting: asyncio.Task[None] | None = None
        try:
            if await scan._lines.readline():
                process.send_signal(signal.SIGSTOP)
            counting = asyncio.create_task(scan._count())
            yield scan
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            if counting is not None:
                await counting

    async def _count(self) -> None:
        async for line in self._lines:
            self.read += int(line)

    @asynccontextmanager
    async def beside(self) -> AsyncIterator[None]:
        """Lets it read as long as the block lasts."""
        self._process.send_signal(signal.SIGCONT)
        yield
        self._process.send_signal(signal.SIGSTOP)


async def beside_scan(target: Given | Own, load: Load) -> Outcome:
    if isinstance(target, Own):
        async with connect(target.urls) as client:
            fill = replace(load, seconds=SCAN_FILL_S, writers=16, batch=1000, bytes_max=load.bytes_max // 2)
            await timed(fill, batches(client, fill.batch))
    turn = replace(
        load, seconds=load.seconds / (2 * SCAN_TURNS), bytes_max=load.bytes_max // (2 * (2 * SCAN_TURNS + 1))
    )
    alone, done, read = list[Outcome](), list[Outcome](), 0
    async with connect(target.urls, acks=load.acks, durability=load.durability) as client, Scan.of(target.urls) as scan:
        begin = singles(client) if load.batch == 1 else batches(client, load.batch)
        await timed(turn, begin)  # connections are made
        for number in range(SCAN_TURNS):
            for beside in (False, True) if number % 2 == 0 else (True, False):
                if not beside:
                    alone.append(await timed(turn, begin))
                    continue
                before = scan.read
                async with scan.beside():
                    done.append(await timed(turn, begin))
                read += scan.read - before
    more = {
        "ratio": ratio(rate(done), rate(alone)),
        "pairs": [
            round(rate([with_it]) / max(rate([without]), 1e-9), 2) for with_it, without in zip(done, alone, strict=True)
        ],
        "entries_per_s_without": rate(alone),
        "p50_ms_without": together(alone, {}).percentile(50),
        "scanned_mb_per_s": round(read / 1e6 / sum(each.seconds for each in done), 1),
    }
    return together(done, more, alone)


async def networks(target: Given | Own, load: Load) -> Outcome:
    """Each pair of turns begins with the network that the pair before has ended with."""
    turn = _turn(load, 2 * 3 * NETWORK_PAIRS)
    done: dict[str, tuple[list[Outcome], list[Outcome]]] = {}
    ours, theirs = ClientNetwork(), AiohttpNetwork()
    async with (
        connect(target.urls, acks=load.acks, durability=load.durability, network=ours) as public,
        connect(target.urls, acks=load.acks, durability=load.durability, network=theirs) as private,
    ):
        clients = (public, private)
        runs: dict[str, Callable[[Client], Awaitable[Outcome]]] = {
            "many": lambda client: timed(turn, singles(client)),
            "one": lambda client: timed(replace(turn, writers=1), singles(client)),
            "read": lambda client: _read(client, turn.seconds, load.size),
        }
        for name, run in runs.items():
            sides = done[name] = ([], [])
            for client in clients:  # connections are made, and what is read first is read
                await run(client)
            for number in range(NETWORK_PAIRS):
                for side in (0, 1) if number % 2 == 0 else (1, 0):
                    sides[side].append(await run(clients[side]))
    await ours.close()
    await theirs.close()
    more: dict[str, Any] = {}
    for name, (client_s, node_s) in done.items():
        pairs = sorted(ratio(rate([new]), rate([old])) for new, old in zip(client_s, node_s, strict=True))
        more[f"{name}_ratio"] = pairs[len(pairs) // 2]
        more[f"{name}_total_ratio"] = ratio(rate(client_s), rate(node_s))
        more[f"{name}_per_s"] = (rate(client_s), rate(node_s))
        more[f"{name}_pairs"] = pairs
    return together(done["many"][0], more, done["many"][1])


async def _read(client: Client, seconds: float, size: int) -> Outcome:
    """Reads the log from its start again and again."""
    start, entries = time.perf_counter(), 0
    while time.perf_counter() < start + seconds:
        async for _ in client.read(limit=READ_ENTRIES):
            entries += 1
    elapsed = time.perf_counter() - start
    return Outcome(entries, entries * size, elapsed, np.empty(0), 0, {})


WORKS = {
    "networks": Work(run=networks, writers=256),
    "transactions": Work(run=transactions, writers=64, batch=10),
    "positions": Work(run=positions, writers=64, batch=10),
    "linearizable": Work(run=linearizable, writers=3, batch=100),
    "beside-scan": Work(run=beside_scan, writers=64, cache_bytes_per_s=1_000_000_000),
}
