"""The works of ``vlsnlog bench cdc``; each says what it found beside what it aims at.

buffer     the same entries out of the ring, by a consumer and by the plain tail, in turns on one node: both rates
latency    a steady load; from durable to ``on_events``
ten        the same load with no, one and ten consumers on a node, in turns: that node's own processor time
bad        64 writers without and with a consumer on each node that does what it must not, in turns
"""

from __future__ import annotations

import asyncio
import statistics
import time
from array import array
from collections.abc import Callable, Coroutine
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
import uvloop

from repl.bench.cdc.group import CdcGroup, cpu_s
from repl.bench.report import Samples
from repl.client.connect import Client, connect
from repl.cluster import Node
from vlsn.errors import BadArgument
from vlsn.limits import MIB

MODULE: Final = "repl.bench.cdc.consumers"
RING_BYTES: Final = 256 * MIB
BATCH: Final = 1000
TICK_S: Final = 0.001
"""Between two parts of a steady load."""
TEN: Final = 10
CONSUMER_MEMORY_BYTES: Final = 256 * MIB
BAD: Final = ("Spins", "Eats", "Exits", "Prints", "NeverReads")
BAD_TIMEOUT_S: Final = 5.0
"""``events_timeout_s`` of a bad consumer: soon replaced, and replaced again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CdcOptions:
    """``seconds`` of each window; ``rate`` in entries a second."""

    seconds: float = 4.0
    rounds: int = 5
    size: int = 100
    entries: int = 400_000
    """The entries that ``buffer`` has read."""
    rate: int = 20_000
    writers: int = 64
    role: str = "master"
    """Where ``ten`` and ``latency`` look: at the master, or at a replica."""
    kinds: tuple[str, ...] = BAD


@dataclass(frozen=True, slots=True)
class Figure:
    """One aim and what was found; ``met`` where it holds."""

    name: str
    found: float
    aim: str
    met: bool


@dataclass(frozen=True, slots=True)
class CdcOutcome:
    work: str
    figures: list[Figure]
    more: dict[str, Any]

    @property
    def met(self) -> bool:
        return all(each.met for each in self.figures)

    def json(self) -> dict[str, Any]:
        return {**asdict(self), "met": self.met}

    def lines(self) -> list[str]:
        return [
            f"{self.work}:",
            *(f"  {each.name}: {each.found:g} ({each.aim}){'' if each.met else '  MISSED'}" for each in self.figures),
            *(f"    {name.replace('_', ' ')}: {_said(value)}" for name, value in self.more.items()),
        ]


def _said(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name.replace('_', ' ')} {_said(each)}" for name, each in value.items())
    return " ".join(f"{each:,}" for each in value) if isinstance(value, list) else f"{value}"


def _table(name: str = "Counts", **more: Any) -> dict[str, Any]:
    return {"consumer": f"{MODULE}:{name}", **more}


# BUFFER beside the plain tail.


async def buffer(options: CdcOptions) -> CdcOutcome:
    settings = {"cdc_buffer_bytes": RING_BYTES}
    async with CdcGroup(settings, {"one": _table()}) as group, connect(group.urls) as client:
        node = await _node(group, options.role)
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
                began = cpu_s(node)
                drain = _tailed(node.url, first, last) if side == "tail" else _consumed(group, node, first, last)
                rates[side] = options.entries / await drain
                cpu[side] = cpu_s(node) - began
            pairs.append((rates["consumer"], rates["tail"]))
            used.append((cpu["consumer"], cpu["tail"]))
        told = await group.told(node, "one")
    ratio = statistics.median(consumer / tail for consumer, tail in pairs)
    only_buffer = told["mode"] in (None, "BUFFER") and told["switches"]["to_archive"] == 0
    return CdcOutcome(
        "buffer",
        [
            Figure("rate of BUFFER / rate of the plain tail", round(ratio, 2), "≥ 0.8", ratio >= 0.8),
            Figure("changes to ARCHIVE", told["switches"]["to_archive"], "0", only_buffer),
        ],
        {
            "entries": options.entries,
            "consumer_entries_per_s": [round(consumer) for consumer, _ in pairs],
            "tail_entries_per_s": [round(tail) for _, tail in pairs],
            "node_cpu_s_consumer": [round(consumer, 2) for consumer, _ in used],
            "node_cpu_s_tail": [round(tail, 2) for _, tail in used],
        },
    )


async def _filled(client: Client, options: CdcOptions) -> int:
    """Appends the entries of ``buffer``; the first VLSN."""
    values = [b"%0*d" % (options.size, number) for number in range(BATCH)]
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


async def latency(options: CdcOptions) -> CdcOutcome:
    stamps = int(options.rate * options.seconds * 2) + 100_000
    async with CdcGroup({}, {"one": _table(options={"stamps": stamps})}) as group, connect(group.urls) as client:
        node = await _node(group, options.role)
        for each in group.cluster.nodes:
            if each is not node:
                await group.order(each, "one", "pause")
        await _steady(client, options.rate, 1.0, options.size)
        sent = await _steady(client, options.rate, options.seconds, options.size)
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
    figures = {
        "from_before_the_append_ms": _percentiles(since_sent),
        "from_the_acknowledgement_ms": _percentiles(since_durable),
        "append_ms": _percentiles((acknowledged - began) / 1e6),
    }
    rate = len(vlsns) / sent.seconds
    p99 = figures["from_the_acknowledgement_ms"]["p99"]
    return CdcOutcome(
        "latency",
        [
            Figure("p99 from durable to on_events, ms", p99, "< 10", p99 < 10),
            Figure("entries a second", round(rate), f"≥ {0.98 * options.rate:.0f}", rate >= 0.98 * options.rate),
        ],
        {"node": options.role, "entries": len(vlsns), **figures},
    )


@dataclass(frozen=True, slots=True)
class _Sent:
    columns: tuple[array[int], array[int], array[int]]
    """VLSN, when the append began, when it was acknowledged (ns)."""
    seconds: float


async def _steady(client: Client, rate: int, seconds: float, size: int) -> _Sent:
    """Appends at a steady rate, entry by entry; what is late does not hold up what comes after it."""
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


async def ten(options: CdcOptions) -> CdcOutcome:
    names = [f"c{number}" for number in range(TEN)]
    async with CdcGroup({}, {name: _table() for name in names}) as group, connect(group.urls) as client:
        node = await _node(group, options.role)
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
                await _steady(client, options.rate, 0.5, options.size)
                began, start = cpu_s(node), time.perf_counter()
                before = [group.seen(node, name).entries for name in names[:count]]
                sent = await _steady(client, options.rate, options.seconds, options.size)
                seconds = time.perf_counter() - start
                used[count].append((cpu_s(node) - began) / seconds)
                rates[count].append(round(len(sent.columns[0]) / seconds))
                if count:
                    after = [group.seen(node, name).entries for name in names[:count]]
                    given[count].append(round(min(b - a for a, b in zip(before, after, strict=True)) / seconds))
    none, one, all_ten = (statistics.median(used[count]) for count in (0, 1, TEN))
    ratio, added = all_ten / one, (all_ten - none) / max(one - none, 1e-3)
    return CdcOutcome(
        "ten",
        [
            Figure("node's processor time with ten / with one", round(ratio, 2), "≤ 3", ratio <= 3),
            Figure("what ten add / what one adds", round(added, 2), "≤ 3", added <= 3),
        ],
        {
            "node": options.role,
            "rate": options.rate,
            "cores_with_none": [round(each, 3) for each in used[0]],
            "cores_with_one": [round(each, 3) for each in used[1]],
            "cores_with_ten": [round(each, 3) for each in used[TEN]],
            "entries_per_s_with_none": rates[0],
            "entries_per_s_with_one": rates[1],
            "entries_per_s_with_ten": rates[TEN],
            "given_per_s_to_one": given[1],
            "given_per_s_to_the_last_of_ten": given[TEN],
        },
    )


# Consumers that do what they must not.


async def bad(options: CdcOptions) -> CdcOutcome:
    figures, more = [], {}
    for kind in options.kinds:
        found, told = await _beside(kind, options)
        figures += found
        more[kind] = told
    return CdcOutcome("bad", figures, more)


async def _beside(kind: str, options: CdcOptions) -> tuple[list[Figure], dict[str, Any]]:
    """Measures 64 writers without and with one such consumer on each node, in turns."""
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
        await _writing(client, options, 1.0)
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
                sides[side].append((*await _writing(client, options, options.seconds), 0.0))
            finally:
                looking.cancel()
            rate, p99, _ = sides[side][-1]
            sides[side][-1] = rate, p99, float(np.percentile(lags, 99)) if lags else 0.0
        elections = (await group.master())["term"] - term
        starts = [(await group.told(node, "bad"))["starts"] for node in nodes]
        for node in nodes:
            await group.caught_up(node, "good")
    rate = statistics.median(each[0] for each in sides["with"]) / statistics.median(
        each[0] for each in sides["without"]
    )
    p99 = statistics.median(each[1] for each in sides["with"]) / statistics.median(each[1] for each in sides["without"])
    lag = [statistics.median(each[2] for each in sides[side]) for side in ("without", "with")]
    return [
        Figure(f"{kind}: rate of {options.writers} writers, with / without", round(rate, 2), "≥ 0.9", rate >= 0.9),
        Figure(f"{kind}: their p99, with / without", round(p99, 2), "≤ 4", p99 <= 4),
        Figure(f"{kind}: elections", elections, "0", elections == 0),
    ], {
        "appends_per_s_without": [round(each[0]) for each in sides["without"]],
        "appends_per_s_with": [round(each[0]) for each in sides["with"]],
        "p99_ms_without": [round(each[1], 2) for each in sides["without"]],
        "p99_ms_with": [round(each[1], 2) for each in sides["with"]],
        "lag_of_the_others_p99_vlsns": [round(each) for each in lag],
        "starts_of_the_bad_ones": starts,
    }


async def _look(group: CdcGroup, lags: list[float]) -> None:
    """Notes how far the good ones are behind, over and over."""
    while True:
        for node in group.cluster.nodes:
            told = await group.told(node, "good")
            lags.append(float(told["lag_vlsns"] or 0))
        await asyncio.sleep(0.2)


async def _writing(client: Client, options: CdcOptions, seconds: float) -> tuple[float, float]:
    """Has the writers append for so long; appends a second, and the p99 in milliseconds."""
    samples = Samples()
    value = b"x" * options.size
    stop = time.perf_counter() + seconds

    async def writer() -> None:
        while time.perf_counter() < stop:
            began = samples.now()
            await client.append(value)
            samples.since(began)

    start = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for _ in range(options.writers):
            tasks.create_task(writer())
    rate = len(samples) / (time.perf_counter() - start)
    return rate, float(np.percentile(samples.milliseconds(), 99))


# Common.


async def _given(group: CdcGroup, node: Node, last: int) -> None:
    """Waits until the consumer was given VLSN ``last``."""
    while group.seen(node, "one").last < last:  # noqa: ASYNC110 (another process: there is no event)
        await asyncio.sleep(0.01)


async def _node(group: CdcGroup, role: str) -> Node:
    master = (await group.master())["node"]
    return next(node for node in group.cluster.nodes if (node.name == master) == (role == "master"))


def _percentiles(milliseconds: np.ndarray[Any, Any]) -> dict[str, float]:
    return {f"p{each}": round(float(np.percentile(milliseconds, each)), 3) for each in (50, 99)} | {
        "max": round(float(milliseconds.max()), 3)
    }


WORKS: Final[dict[str, Callable[[CdcOptions], Coroutine[Any, Any, CdcOutcome]]]] = {
    "buffer": buffer,
    "latency": latency,
    "ten": ten,
    "bad": bad,
}


def run_work(work: str, options: CdcOptions) -> CdcOutcome:
    """Runs on an event loop of its own. Raises ``BadArgument``."""
    if options.seconds <= 0 or options.rounds < 1 or options.rate < 1 or options.entries < BATCH:
        raise BadArgument(f"seconds, rounds and rate: above 0; entries: {BATCH} or more")
    return uvloop.run(WORKS[work](options))
