"""A destination without a consumer while more is written than the log keeps; then one comes, and takes all of it.

Entries of 4 KiB at a steady rate into a cluster of three, which keeps ``RETENTION_BYTES`` of log: the rest goes into
pages.  The same appends were measured before, for a part of that time, without the destination.  In the end one bit of
one page on the master's disk is flipped, and the consumer has to be given everything all the same, in order, once.

``slowed`` measures the cost to appends: in turns without, with, with, without such a destination, on one cluster whose
log is cleaned all the time.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from statistics import median

from repl.bench.target import Own
from repl.client.connect import Client, connect
from repl.cluster import Node
from tests.bench.load import median_ms, paced
from tests.bench.process import memory
from tests.bench.report import Aimed, Figures
from vlsn.limits import SEGMENT_BYTES

GIB = 1 << 30
WHOLE_BYTES = 10 * GIB
FREE_BYTES = 30 * GIB
"""Free bytes for the whole of it: three nodes, each with its pages, and what the machine needs."""
TURN_S = 6.0
CLEANING_S = 2.0
"""Seconds between two cleanings of a node: 40 MB are written meanwhile."""
RETENTION_BYTES = GIB
VALUE_BYTES = 4096
RATE_BYTES = 20 << 20
AT_ONCE = 128
"""Entries of one append: 40 appends a second."""
BEFORE = 0.1
"""The share of the bytes that is written before, without the destination."""
SAMPLE_S = 1.0
DRAIN_PAGE = 1000
GROWN_MAX = 1.25
"""The resident memory of the last quarter beside that of the first."""


def affordable(directory: Path) -> int:
    """Returns the bytes to write: 10 GiB where 30 are free, else a share of them."""
    free = shutil.disk_usage(directory).free
    return WHOLE_BYTES if free >= FREE_BYTES else int(WHOLE_BYTES * max(0.0, free - 4 * GIB) / FREE_BYTES)


def retention(total_bytes: int) -> int:
    """Returns the log to keep: a tenth of what is written, four segments at least."""
    return max(4 * SEGMENT_BYTES, min(RETENTION_BYTES, RETENTION_BYTES * total_bytes // WHOLE_BYTES))


@dataclass(slots=True)
class _Looks:
    """Samples of the nodes, second by second."""

    resident: list[int] = field(default_factory=list)
    log_bytes: list[int] = field(default_factory=list)
    page_bytes: list[int] = field(default_factory=list)

    def take(self, nodes: list[Node]) -> None:
        self.resident.append(max(memory(node.pid or 0, "VmRSS") for node in nodes))
        self.log_bytes.append(max(_size(node.directory, "*.vlog") for node in nodes))
        self.page_bytes.append(max(_size(node.directory, "pages/*/*.page") for node in nodes))


async def measured(total_bytes: int) -> Figures:
    """Runs all steps on a cluster of its own."""
    retention_bytes = retention(total_bytes)
    settings = {"retention_bytes": retention_bytes, "cleaning_period_s": CLEANING_S}
    async with Own(settings) as own, connect(own.urls) as client:
        alone = await _append(client, int(total_bytes * BEFORE))
        begin = (await own.master())["range"]["last"] + 1
        await client.destinations.put("late", from_=begin, ack_timeout_s=600.0)
        looks = _Looks()
        looking = asyncio.create_task(_look(own, looks))
        beside = await _append(client, total_bytes)
        looking.cancel()
        flipped = flip(await own.master_node())
        shown = await client.destinations.get("late")
        drained = await _drained(client, beside.entries)
        left = await client.destination("late").take(1, wait_s=0.0)
    quarter = max(1, len(looks.resident) // 4)
    resident_mb = [max(part) >> 20 for part in (looks.resident[:quarter], looks.resident[-quarter:])]
    return {
        "written_mb": beside.entries * VALUE_BYTES >> 20,
        "retention_mb": retention_bytes >> 20,
        "alone_p50_ms": alone.p50_ms,
        "beside_p50_ms": beside.p50_ms,
        "alone_busy": alone.busy,
        "beside_busy": beside.busy,
        "late_s": beside.late_s,
        "resident_mb_of_the_first_quarter": resident_mb[0],
        "resident_mb_of_the_last": Aimed(resident_mb[1], f"≤ {GROWN_MAX * resident_mb[0]:g}"),
        "log_most_mb": Aimed(max(looks.log_bytes) >> 20, f"≤ {1.5 * (retention_bytes >> 20):g}"),
        "pages_most_mb": max(looks.page_bytes) >> 20,
        "shown": {name: shown.get(name) for name in ("mode", "depth", "bytes", "pages")},
        "pages_flipped": Aimed(len(flipped), "= 1"),
        "delivered": Aimed(drained.messages, f"= {beside.entries}"),
        "disordered": Aimed(drained.disordered, "= 0"),
        "again": drained.again,
        "left": Aimed(len(left), "= 0"),
        "delivered_mb_per_s": round(drained.messages * VALUE_BYTES / drained.seconds / 1e6, 1),
    }


@dataclass(slots=True)
class _Drained:
    """A consumer's take: ``disordered`` came behind a higher VLSN, ``again`` were delivered before."""

    messages: int = 0
    disordered: int = 0
    again: int = 0
    seconds: float = 0.0


async def _drained(client: Client, messages: int) -> _Drained:
    """Takes and acknowledges so many; each batch is acknowledged while the next one is asked for."""
    found, last = _Drained(), 0
    consumer = client.destination("late", prefetch=DRAIN_PAGE)
    start = time.perf_counter()
    async for batch in consumer.batches():
        for message in batch:
            found.disordered += message.vlsn < last
            found.again += message.attempt > 1
            last = message.vlsn
        await consumer.ack(batch, wait=False)
        found.messages += len(batch)
        if found.messages >= messages:
            break
    await consumer.flush()
    found.seconds = time.perf_counter() - start
    return found


async def slowed(rounds: int) -> Figures:
    """Measures appends at the rate in turns of ``TURN_S``; medians of the turns, and their ratio."""
    settings = {"retention_bytes": 4 * SEGMENT_BYTES, "cleaning_period_s": CLEANING_S}
    alone, beside = list[float](), list[float]()
    late, paged = 0.0, 0
    async with Own(settings) as own, connect(own.urls) as client:
        await _append(client, 5 * SEGMENT_BYTES, rate=1 << 40)
        for number in range(2 * rounds):
            name = f"late-{number}"
            for turn in "ABBA"[2 * (number % 2) :][:2]:
                if turn == "B":
                    await client.destinations.put(name, from_="start")
                found = await _append(client, int(TURN_S * RATE_BYTES))
                (beside if turn == "B" else alone).append(found.p50_ms)
                late = max(late, found.late_s)
                paged = max([paged, *(_size(node.directory, "pages/*/*.page") for node in own.cluster.nodes)])
                if turn == "B":
                    await client.destinations.drop(name)
    return {
        "alone_p50_ms": round(median(alone), 2),
        "beside_p50_ms": round(median(beside), 2),
        "slowed": Aimed(round(median(beside) / median(alone) - 1, 3), "≤ 0.05"),
        "late_s": late,
        "pages_most_mb": paged >> 20,
    }


@dataclass(frozen=True, slots=True)
class _Appended:
    entries: int
    p50_ms: float
    busy: float
    """The share of the time in which an append was under way."""
    late_s: float
    """The seconds by which the last append came too late for the rate."""


async def _append(client: Client, total_bytes: int, rate: int = RATE_BYTES) -> _Appended:
    """Appends at the rate, one append after the other."""
    values = [os.urandom(VALUE_BYTES // 2).hex().encode()] * AT_ONCE
    appends = max(1, total_bytes // (AT_ONCE * VALUE_BYTES))
    each_s = AT_ONCE * VALUE_BYTES / rate
    start = time.perf_counter()
    samples = await paced(lambda: client.append_many(values), count=appends, each_s=each_s)
    seconds = time.perf_counter() - start
    return _Appended(
        appends * AT_ONCE,
        median_ms(samples),
        round(float(samples.milliseconds().sum()) / 1e3 / seconds, 3),
        round(max(0.0, seconds - appends * each_s), 2),
    )


async def _look(own: Own, looks: _Looks) -> None:
    while True:
        looks.take(own.cluster.nodes)
        await asyncio.sleep(SAMPLE_S)


def flip(node: Node, seed: int = 1) -> list[Path]:
    """Flips one bit of one page on a node's disk. Returns the page; an empty list where there is none."""
    pages = sorted(node.directory.glob("pages/*/*.page"))
    if not pages:
        return []
    rng = Random(seed)
    path = rng.choice(pages)
    with path.open("r+b") as file:
        at = rng.randrange(64, max(65, path.stat().st_size))
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 1]))
    return [path]


def _size(directory: Path, pattern: str) -> int:
    total = 0
    for path in directory.glob(pattern):
        try:
            total += path.stat().st_blocks * 512
        except FileNotFoundError:
            continue  # removed meanwhile
    return total
