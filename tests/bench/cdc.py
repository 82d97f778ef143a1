"""CDC consumers: their rate, their delay behind durable entries, their cost, and the harm of bad ones.

buffer     the same entries out of the ring, by a consumer and by the plain tail, in turns on one node: both rates
latency    a steady load; from durable to ``on_events``
ten        the same load with no, one and ten consumers on a node, in turns: that node's own processor time
bad        64 writers without and with a consumer on each node that does what it must not, in turns
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from array import array
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from repl.bench.works import singles, timed
from repl.client.connect import Client, connect
from repl.cluster import Node
from tests.bench.cdc_group import CdcGroup
from tests.bench.load import plain_load
from tests.bench.process import cpu_s
from tests.bench.report import Aimed, Figures, Section
from vlsn.errors import BadArgument
from vlsn.limits import MIB

MODULE: Final = "tests.bench.cdc_consumers"
RING_BYTES: Final = 256 * MIB
BATCH: Final = 1000
TICK_S: Final = 0.001
"""Between two parts of a steady load."""
TEN: Final = 10
CONSUMER_MEMORY_BYTES: Final = 256 * MIB
BAD: Final = ("Spins", "Eats", "Exits", "Prints", "NeverReads")
BAD_TIMEOUT_S: Final = 5.0
"""``events_timeout_s`` of a bad consumer: soon replaced, and replaced again."""


SIZE: Final = 100
"""Bytes of an entry."""
WRITERS: Final = 64
Options = argparse.Namespace


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("works", nargs="*", metavar="WORK", help="buffer, latency, ten, bad; default: all")
    parser.add_argument("--node", choices=("master", "replica"), default="master", help="where ten and latency look")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each window")
    parser.add_argument("--rounds", type=int, default=5, help="windows of each side, in turns")
    parser.add_argument("--rate", type=int, default=20_000, help="entries a second, of latency and ten")
    parser.add_argument("--entries", type=int, default=400_000, help="of buffer")
    parser.add_argument("--kind", nargs="+", choices=BAD, default=BAD, help="of the bad ones")


async def measured(options: Options) -> AsyncIterator[Section]:
    """Raises ``BadArgument``."""
    if options.seconds <= 0 or options.rounds < 1 or options.rate < 1 or options.entries < BATCH:
        raise BadArgument(f"seconds, rounds and rate: above 0; entries: {BATCH} or more")
    works = {"buffer": _buffer, "latency": _latency, "ten": _ten}
    for work in options.works or (*works, "bad"):
        if work in works:
            yield work, await works[work](options)
        elif work == "bad":
            for kind in options.kind:
                yield f"bad: {kind}", await _beside(kind, options)
        else:
            raise BadArgument(f"work: {work!r} is not one of {', '.join(works)}, bad")


def _table(name: str = "Counts", **more: Any) -> dict[str, Any]:
    return {"consumer": f"{MODULE}:{name}", **more}


# BUFFER beside the plain tail.


async def _buffer(options: Options) -> Figures:
    settings = {"cdc_buffer_bytes": RING_BYTES}
    async with CdcGroup(settings, {"one": _table()}) as group, connect(group.urls) as client:
        node = await _node(group, options.node)
        for each in group.cluster.nodes:
            await group.order(each, "one", "pause")
        first = await _filled(client, options)
        last = first + options.entries - 1
        await group.synced(node, last)
        await asyncio.sleep(1.0)
        pairs, used = [], []
        for turn in range(options.rounds):
            rates, cpu = {}, {}
            for side in ("tail", "consumer") if turn % 2 else ("consumer", "tail"):
                began = cpu_s([node.pid])
                drain = _tailed(node.url, first, last) if side == "tail" else _consumed(group, node, first, last)
                rates[side] = options.entries / await drain
                cpu[side] = cpu_s([node.pid]) - began
            pairs.append((rates["consumer"], rates["tail"]))
            used.append((cpu["consumer"], cpu["tail"]))
        told = await group.told(node, "one")
    ratio = statistics.median(consumer / tail for consumer, tail in pairs)
    return {
        "rate_beside_the_tail": Aimed(round(ratio, 2), "≥ 0.8"),
        "changes_to_ARCHIVE": Aimed(told["switches"]["to_archive"], "= 0"),
        "entries": options.entries,
        "consumer_entries_per_s": [round(consumer) for consumer, _ in pairs],
        "tail_entries_per_s": [round(tail) for _, tail in pairs],
        "node_cpu_s_consumer": [round(consumer, 2) for consumer, _ in used],
        "node_cpu_s_tail": [round(tail, 2) for _, tail in used],
    }


async def _filled(client: Client, options: Options) -> int:
    """Appends the entries of ``buffer``; the first VLSN."""
    values = [b"%0*d" % (SIZE, number) for number in range(BATCH)]
    first, _ = await client.append_many(values)
    under_way: set[asyncio.Task[tuple[int, int]]] = set()
    for _ in range(options.entries // BATCH - 1):
        while len(under_way) >= 16:
            _, under_way = await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
        under_way.add(asyncio.create_task(client.append_many(values)))
    await asyncio.gather(*under_way)
    return first


async def _tailed(url: str, first: int, last: int) -> float:
    """Reads by the plain tail of one node; seconds from the first entry to the last."""
    began = 0.0
    async with connect(url) as reader:
        async for entry in reader.tail(from_vlsn=first):
            began = began or time.perf_counter()
            if entry.vlsn >= last:
                break
    return time.perf_counter() - began


async def _consumed(group: CdcGroup, node: Node, first: int, last: int) -> float:
    """Has the consumer take it all; seconds from its first call to the end of its last."""
    await group.order(node, "one", "reset", to=first)
    before = group.seen(node, "one")
    await group.order(node, "one", "resume")
    while (seen := group.seen(node, "one")).last < last or seen.began_ns == before.began_ns:  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    await group.order(node, "one", "pause")
    return (seen.now_ns - seen.began_ns) / 1e9


# A steady load.


async def _latency(options: Options) -> Figures:
    stamps = int(options.rate * options.seconds * 2) + 100_000
    async with CdcGroup({}, {"one": _table(options={"stamps": stamps})}) as group, connect(group.urls) as client:
        node = await _node(group, options.node)
        for each in group.cluster.nodes:
            if each is not node:
                await group.order(each, "one", "pause")
        await _steady(client, options.rate, 1.0, SIZE)
        sent = await _steady(client, options.rate, options.seconds, SIZE)
        await _given(group, node, max(sent.columns[0]))
        given = np.frombuffer(group.stamps(node, "one"), dtype=np.int64).reshape(-1, 2)
    given = given[given[:, 0] > 0]
    vlsns, began, acknowledged = (np.asarray(column, dtype=np.int64) for column in sent.columns)
    order = np.argsort(vlsns)
    at = np.searchsorted(given[:, 0], vlsns[order])
    came = given[at, 1]
    if not np.array_equal(given[at, 0], vlsns[order]):
        raise RuntimeError("the consumer was not given each entry once")
    since_sent = (came - began[order]) / 1e6
    since_durable = np.maximum(0, came - acknowledged[order]) / 1e6
    durable = _percentiles(since_durable)
    return {
        "p99_ms_from_durable_to_on_events": Aimed(durable["p99"], "< 10"),
        "entries_per_s": Aimed(round(len(vlsns) / sent.seconds), f"≥ {0.98 * options.rate:.0f}"),
        "node": options.node,
        "entries": len(vlsns),
        "from_before_the_append_ms": _percentiles(since_sent),
        "from_the_acknowledgement_ms": durable,
        "append_ms": _percentiles((acknowledged - began) / 1e6),
    }


@dataclass(frozen=True, slots=True)
class _Sent:
    columns: tuple[array[int], array[int], array[int]]
    """VLSN, when the append began, when it was acknowledged (ns)."""
    seconds: float


async def _steady(client: Client, rate: int, seconds: float, size: int) -> _Sent:
    """Appends at a steady rate, entry by entry; a late append does not hold up the next one."""
    columns = array("q"), array("q"), array("q")
    vlsns, begins, ends = columns
    value = b"x" * size
    under_way: set[asyncio.Task[None]] = set()

    async def append() -> None:
        began = time.perf_counter_ns()
        vlsn = await client.append(value)
        ends.append(time.perf_counter_ns())
        vlsns.append(vlsn)
        begins.append(began)

    start = time.perf_counter()
    done = 0
    while (now := time.perf_counter() - start) < seconds:
        due = int(now * rate)
        for _ in range(due - done):
            task = asyncio.create_task(append())
            under_way.add(task)
            task.add_done_callback(under_way.discard)
        done = due
        await asyncio.sleep(TICK_S)
    took = time.perf_counter() - start
    while under_way:
        await asyncio.wait(under_way)
    return _Sent(columns, took)


async def _ten(options: Options) -> Figures:
    names = [f"c{number}" for number in range(TEN)]
    async with CdcGroup({}, {name: _table() for name in names}) as group, connect(group.urls) as client:
        node = await _node(group, options.node)
        for each in group.cluster.nodes:
            if each is not node:
                for name in names:
                    await group.order(each, name, "pause")
        used: dict[int, list[float]] = {0: [], 1: [], TEN: []}
        rates: dict[int, list[int]] = {0: [], 1: [], TEN: []}
        given: dict[int, list[int]] = {1: [], TEN: []}
        for turn in range(options.rounds):
            for count in (0, 1, TEN) if turn % 2 else (TEN, 1, 0):
                for number, name in enumerate(names):
                    await group.order(node, name, "resume" if number < count else "pause")
                for name in names[:count]:
                    await group.state(node, name, "running")
                await group.caught_up(node, *names[:count])
                await _steady(client, options.rate, 0.5, SIZE)
                began, start = cpu_s([node.pid]), time.perf_counter()
                before = [group.seen(node, name).entries for name in names[:count]]
                sent = await _steady(client, options.rate, options.seconds, SIZE)
                seconds = time.perf_counter() - start
                used[count].append((cpu_s([node.pid]) - began) / seconds)
                rates[count].append(round(len(sent.columns[0]) / seconds))
                if count:
                    after = [group.seen(node, name).entries for name in names[:count]]
                    given[count].append(round(min(b - a for a, b in zip(before, after, strict=True)) / seconds))
    none, one, all_ten = (statistics.median(used[count]) for count in (0, 1, TEN))
    ratio, added = all_ten / one, (all_ten - none) / max(one - none, 1e-3)
    return {
        "node's_cpu_with_ten_by_that_with_one": Aimed(round(ratio, 2), "≤ 3"),
        "what_ten_add_by_what_one_adds": Aimed(round(added, 2), "≤ 3"),
        "node": options.node,
        "rate": options.rate,
        **{f"cores_with_{count}": [round(each, 3) for each in used[count]] for count in used},
        **{f"entries_per_s_with_{count}": rates[count] for count in rates},
        **{f"least_given_per_s_of_{count}": given[count] for count in given},
    }


# Consumers that do what they must not.


async def _beside(kind: str, options: Options) -> Figures:
    """Measures ``WRITERS`` without and with one such consumer on each node, in turns."""
    tables = {
        "good": _table(),
        "bad": _table(
            kind,
            events_timeout_s=BAD_TIMEOUT_S,
            retries_max=1_000_000,
            memory_bytes_max=CONSUMER_MEMORY_BYTES,
        ),
    }
    async with CdcGroup({}, tables) as group, connect(group.urls) as client:
        nodes = group.cluster.nodes
        await _writing(client, 1.0)
        term = (await group.master())["term"]
        sides: dict[str, list[tuple[float, float, float]]] = {"without": [], "with": []}
        for turn in range(2 * options.rounds):
            side = ("without", "with", "with", "without")[turn % 4]
            order = "resume" if side == "with" else "pause"  # which a bad one holds up for as long as it may
            await asyncio.gather(*(group.order(node, "bad", order) for node in nodes))
            if side == "with":
                await asyncio.gather(*(group.state(node, "bad", "running", "backoff") for node in nodes))
            lags: list[float] = []
            looking = asyncio.create_task(_look(group, lags))
            try:
                rate, p99 = await _writing(client, options.seconds)
            finally:
                looking.cancel()
            sides[side].append((rate, p99, float(np.percentile(lags, 99)) if lags else 0.0))
        elections = (await group.master())["term"] - term
        starts = [(await group.told(node, "bad"))["starts"] for node in nodes]
        for node in nodes:
            await group.caught_up(node, "good")
    rates, p99s, lags_p99 = (
        {side: statistics.median(each[at] for each in sides[side]) for side in sides} for at in range(3)
    )
    return {
        "rate_with_by_without": Aimed(round(rates["with"] / rates["without"], 2), "≥ 0.9"),
        "p99_with_by_without": Aimed(round(p99s["with"] / p99s["without"], 2), "≤ 4"),
        "elections": Aimed(elections, "= 0"),
        **{f"appends_per_s_{side}": [round(each[0]) for each in sides[side]] for side in sides},
        **{f"p99_ms_{side}": [round(each[1], 2) for each in sides[side]] for side in sides},
        "lag_of_the_others_p99_vlsns": [round(each) for each in lags_p99.values()],
        "starts_of_the_bad_ones": starts,
    }


async def _look(group: CdcGroup, lags: list[float]) -> None:
    """Notes how far the good ones are behind, over and over."""
    while True:
        for node in group.cluster.nodes:
            told = await group.told(node, "good")
            lags.append(float(told["lag_vlsns"] or 0))
        await asyncio.sleep(0.2)


async def _writing(client: Client, seconds: float) -> tuple[float, float]:
    """Has the writers append for so long; appends a second, and the p99 in milliseconds."""
    done = await timed(plain_load(seconds, WRITERS), singles(client))
    return done.entries / done.seconds, done.percentile(99) or 0.0


# Common.


async def _given(group: CdcGroup, node: Node, last: int) -> None:
    """Waits until the consumer was given VLSN ``last``."""
    while group.seen(node, "one").last < last:  # noqa: ASYNC110 (another process: there is no event)
        await asyncio.sleep(0.01)


async def _node(group: CdcGroup, role: str) -> Node:
    master = await group.master_node()
    return next(node for node in group.cluster.nodes if (node is master) == (role == "master"))


def _percentiles(milliseconds: np.ndarray[Any, Any]) -> dict[str, float]:
    return {f"p{each}": round(float(np.percentile(milliseconds, each)), 3) for each in (50, 99)} | {
        "max": round(float(milliseconds.max()), 3)
    }
