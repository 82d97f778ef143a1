"""A destination without a consumer while more is written than the log keeps; then one comes, and takes all of it.

Entries of 4 KiB at a steady rate into a cluster of three, which keeps ``RETENTION_BYTES`` of log: the rest goes into
pages.  The same appends were measured before, for a part of that time, without the destination.  In the end one bit of
one page on the master's disk is flipped, and the consumer has to be given everything all the same, in order, once.

What appends lose by it is measured apart (``slowed``): in turns without, with, with, without such a destination, on
one cluster whose log is cleaned all the time.
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
from typing import Any

import numpy as np

from repl.bench.destinations.subscription import Subscription
from repl.bench.report import Samples
from repl.bench.target import Own
from repl.client.connect import Client, connect
from repl.cluster import Node
from repl.net.network import AiohttpNetwork
from vlsn.limits import SEGMENT_BYTES

GIB = 1 << 30
WHOLE_BYTES = 10 * GIB
FREE_BYTES = 30 * GIB
"""Free bytes for the whole of it: three nodes, each with its pages, and what the machine needs."""
TURN_S = 6.0
CLEANING_S = 2.0
"""Seconds between two looks of a node for what to clean: 40 MB are written meanwhile."""
RETENTION_BYTES = GIB
VALUE_BYTES = 4096
RATE_BYTES = 20 << 20
AT_ONCE = 128
"""Entries of one append: 40 appends a second."""
BEFORE = 0.1
"""The share of the bytes that is written before, without the destination."""
SAMPLE_S = 1.0
DRAIN_PAGE = 1000


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
        self.resident.append(max(_resident(node) for node in nodes))
        self.log_bytes.append(max(_size(node.directory, "*.vlog") for node in nodes))
        self.page_bytes.append(max(_size(node.directory, "pages/*/*.page") for node in nodes))


async def measured(total_bytes: int) -> dict[str, Any]:
    """Runs it all on a cluster of its own."""
    network, retention_bytes = AiohttpNetwork(), retention(total_bytes)
    settings = {"retention_bytes": retention_bytes, "cleaning_period_s": CLEANING_S}
    try:
        async with Own(settings) as own, connect(own.urls) as client:
            alone = await _append(client, int(total_bytes * BEFORE))
            made = Subscription(own, network, "late")
            await made.make(**{"from": (await own.master())["range"]["last"] + 1, "ack_timeout_s": 600.0})
            looks = _Looks()
            looking = asyncio.create_task(_look(own, looks))
            beside = await _append(client, total_bytes)
            looking.cancel()
            flipped = flip(await own.master_node())
            shown = await made.show()
            drained = await made.consume(beside.entries, DRAIN_PAGE)
            left = await made.page(1, wait_s=0.0)
            quarter = max(1, len(looks.resident) // 4)
            return {
                "written_bytes": beside.entries * VALUE_BYTES,
                "retention_bytes": retention_bytes,
                "alone_p50_ms": round(alone.p50_ms, 2),
                "beside_p50_ms": round(beside.p50_ms, 2),
                "alone_busy": alone.busy,
                "beside_busy": beside.busy,
                "late": round(beside.late_s, 2),
                "resident_quarter_mb": max(looks.resident[:quarter]) >> 20,
                "resident_end_mb": max(looks.resident[-quarter:]) >> 20,
                "log_most_mb": max(looks.log_bytes) >> 20,
                "pages_most_mb": max(looks.page_bytes) >> 20,
                "shown": {name: shown.get(name) for name in ("mode", "depth", "bytes", "pages")},
                "flipped": flipped,
                "delivered": drained.messages,
                "expected": beside.entries,
                "disordered": drained.disordered,
                "again": drained.again,
                "left": len(left),
                "delivered_mb_per_s": round(drained.messages * VALUE_BYTES / drained.seconds / 1e6, 1),
            }
    finally:
        await network.close()


async def slowed(rounds: int) -> dict[str, Any]:
    """Measures appends at the rate in turns of ``TURN_S``; medians of the turns, and their ratio."""
    network = AiohttpNetwork()
    settings = {"retention_bytes": 4 * SEGMENT_BYTES, "cleaning_period_s": CLEANING_S}
    alone, beside = list[float](), list[float]()
    late, paged = 0.0, 0
    try:
        async with Own(settings) as own, connect(own.urls) as client:
            await _append(client, 5 * SEGMENT_BYTES, rate=0)
            for number in range(2 * rounds):
                made = None
                for turn in "ABBA"[2 * (number % 2) :][:2]:
                    if turn == "B" and made is None:
                        made = Subscription(own, network, f"late-{number}")
                        await made.make(**{"from": "start"})
                    elif turn == "A" and made is not None:
                        await made.drop()
                        made = None
                    found = await _append(client, int(TURN_S * RATE_BYTES))
                    (beside if turn == "B" else alone).append(found.p50_ms)
                    late = max(late, found.late_s)
                    paged = max([paged, *(_size(node.directory, "pages/*/*.page") for node in own.cluster.nodes)])
                if made is not None:
                    await made.drop()
    finally:
        await network.close()
    return {
        "alone_p50_ms": round(median(alone), 2),
        "beside_p50_ms": round(median(beside), 2),
        "slowed": round(median(beside) / median(alone) - 1, 3),
        "late_s": round(late, 2),
        "pages_most_mb": paged >> 20,
    }


@dataclass(slots=True)
class _Appended:
    entries: int = 0
    p50_ms: float = 0.0
    busy: float = 0.0
    """The share of the time in which an append was under way."""
    late_s: float = 0.0
    """The seconds by which the last append came too late for the rate."""


async def _append(client: Client, total_bytes: int, rate: int = RATE_BYTES) -> _Appended:
    """Appends at the rate, one append after the other; 0: as fast as it goes."""
    samples, found = Samples(), _Appended()
    value = os.urandom(VALUE_BYTES // 2).hex().encode()
    appends = max(1, total_bytes // (AT_ONCE * VALUE_BYTES))
    each_s = AT_ONCE * VALUE_BYTES / rate if rate else 0.0
    start, busy = time.perf_counter(), 0.0
    for number in range(appends):
        await asyncio.sleep(max(0.0, start + number * each_s - time.perf_counter()))
        began = samples.now()
        at = time.perf_counter()
        await client.append_many([value] * AT_ONCE)
        busy += time.perf_counter() - at
        samples.since(began)
        found.entries += AT_ONCE
    seconds = time.perf_counter() - start
    found.p50_ms = float(np.percentile(samples.milliseconds(), 50))
    found.busy = round(busy / seconds, 3)
    found.late_s = max(0.0, seconds - appends * each_s)
    return found


async def _look(own: Own, looks: _Looks) -> None:
    while True:
        looks.take(own.cluster.nodes)
        await asyncio.sleep(SAMPLE_S)


def flip(node: Node, seed: int = 1) -> str:
    """Flips one bit of one page on a node's disk; which, or "" where there is none."""
    pages = sorted(node.directory.glob("pages/*/*.page"))
    if not pages:
        return ""
    rng = Random(seed)
    path = rng.choice(pages)
    with path.open("r+b") as file:
        at = rng.randrange(64, max(65, path.stat().st_size))
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 1]))
    return f"{path.name} byte {at} on {node.name}"


def _resident(node: Node) -> int:
    return int(Path(f"/proc/{node.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _size(directory: Path, pattern: str) -> int:
    total = 0
    for path in directory.glob(pattern):
        try:
            total += path.stat().st_blocks * 512
        except FileNotFoundError:
            continue  # removed meanwhile
    return total
