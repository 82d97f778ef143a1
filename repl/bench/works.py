"""The kinds of work that the benchmark puts on a cluster. Each work is timed until its acknowledgements.

    append     N writers, each awaits its append before the next, through the native client
    bulk       N batches under way at a time on one pipelined connection, each atomic
    http       N connections, one entry a POST; by wrk if it is installed
    catchup    a replica that missed everything comes back; bytes of log a second until it has the whole log
    recover    a killed replica whose log no checkpoint covers; until it has its whole log again
    tail       N writers, and a reader that follows; from before an append until the reader has it
    scan       reads a whole log from its first VLSN

A work stops after its time, or when it has written its limit of bytes (three copies, with framing).
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from ssl import SSLContext

import numpy as np

from repl.bench.http_posts import post_many
from repl.bench.report import Outcome, Samples
from repl.bench.target import NODES, Given, Own, master_url
from repl.bench.wrk import run_wrk, wrk_installed
from repl.client.connect import Client, connect
from repl.cluster import Node
from repl.tls_files import TlsFiles, client_context
from vlsn.errors import Unreachable, VlsnLogError
from vlsn.real.disk import PosixDisk

VALUES = 1024
FRAMING_BYTES = 16
"""The approximate overhead in bytes of an entry that shares its block with many others."""
LONE_FRAMING_BYTES = 120
"""The approximate overhead in bytes of an entry that is alone in its block."""
STAMP_BYTES = 8
CATCHUP_S_MAX = 600
Call = Callable[[], Awaitable[object]]
"""A function that makes one append each time it is called."""
Begin = Callable[[Iterator[bytes]], Call]
"""A function that makes a writer's ``Call``. The iterator argument yields values without end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The load of one work. An append has ``batch`` entries of ``size`` bytes."""

    seconds: float
    writers: int
    size: int
    batch: int
    acks: str
    bytes_max: int
    """The most bytes that are written, over all nodes."""
    durability: str | None = None

    @property
    def entries_max(self) -> int:
        framing = FRAMING_BYTES if self.batch > 1 else LONE_FRAMING_BYTES
        return max(1, self.bytes_max // (NODES * (self.size + framing)))

    def values(self) -> list[bytes]:
        """Makes different values of printable bytes, from which appends choose."""
        return [os.urandom(self.size // 2 + 1).hex()[: self.size].encode() for _ in range(VALUES)]


async def append(target: Given | Own, load: Load) -> Outcome:
    async with connect(
        target.urls, acks=load.acks, durability=load.durability, token=target.token, tls=target.tls
    ) as client:
        return await timed(load, singles(client) if load.batch == 1 else batches(client, load.batch))


def singles(client: Client) -> Begin:
    """Makes calls that append one value each. Appends of several writers share batches."""
    return lambda values: lambda: client.append(next(values))


def batches(client: Client, size: int) -> Begin:
    """Makes calls that append the same atomic batch of ``size`` values again and again."""

    def begin(values: Iterator[bytes]) -> Call:
        batch = list(islice(values, size))
        return lambda: client.append_many(batch)

    return begin


async def timed(load: Load, begin: Begin) -> Outcome:
    """Runs ``load.writers`` coroutines. Each coroutine makes one append at a time, by its call from ``begin``."""
    values = load.values()
    samples = Samples()
    errors = 0
    start = time.perf_counter()
    stop = samples.now() + int(load.seconds * 1e9)
    appends_max = load.entries_max // load.batch

    async def writer(at: int) -> None:
        nonlocal errors
        call = begin(islice(cycle(values), at, None))
        now, take = samples.now, samples.take
        ended = now()
        while ended < stop and len(samples.taken) < appends_max:
            began = ended  # the next append begins as this one ends, so the clock is read once, not three times
            try:
                await call()
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


async def http(target: Given | Own, load: Load) -> Outcome:
    url = await master_url(target)
    path = f"/v1/entries?acks={load.acks}" + (f"&durability={load.durability}" if load.durability else "")
    value = load.values()[0]
    seconds = min(load.seconds, load.entries_max / 50_000 + 1)
    if not wrk_installed():
        outcome = await post_many(
            url, path, body=value, connections=load.writers, seconds=seconds, context=_context(target)
        )
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


def _context(target: Given | Own) -> SSLContext | None:
    """Returns the TLS context of calls to the target that the client does not make; None without https."""
    if not target.urls.startswith("https:"):
        return None
    return client_context(target.tls or TlsFiles.of_environment(), PosixDisk())


async def catchup(target: Given | Own, load: Load) -> Outcome:
    """Measures how fast a node catches up: the last node is killed when the group is founded, and starts again when the
    log is full."""
    assert isinstance(target, Own)
    own, late = target, target.last
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
    """Measures the time from the start of the killed node's process, with the start of the interpreter, until it has
    all of its log again. ``open_entries_per_s`` excludes the time that the same start takes after a clean stop."""
    assert isinstance(target, Own)
    own, node = target, target.last
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
    """Starts the node; returns the seconds until its log reaches ``wanted``."""
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
        connect(target.urls, acks=load.acks, durability=load.durability, token=target.token, tls=target.tls) as client,
        connect(target.urls, token=target.token, tls=target.tls) as reader,
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
    async with connect(target.urls, token=target.token, tls=target.tls) as client:
        start = time.perf_counter()
        began = pages.now()
        async for page in client.read_pages():
            pages.since(began)
            entries += len(page.entries)
            size += sum([len(entry.value) for entry in page.entries])
            began = pages.now()
        elapsed = time.perf_counter() - start
    return Outcome(entries, size, elapsed, pages.milliseconds(), 0, {"pages": len(pages)})


async def _fill(own: Own, load: Load) -> None:
    """Fills the log for the load's time, in atomic batches; a batch may have one entry. Raises ``Unreachable`` if no
    batch was acknowledged."""
    async with connect(own.urls, token=own.token, tls=own.tls) as client:
        filled = await timed(load, batches(client, load.batch))
    if not filled.entries:
        raise Unreachable(
            f"no batch of {load.batch} entries was acknowledged in {filled.seconds:.1f} s ({filled.errors} failed), so"
            " there is no log to measure; raise --seconds or --bytes-max"
        )


def _peak_mb(node: Node) -> float | None:
    """Reads the peak memory (VmHWM) of the node's process."""
    for line in Path(f"/proc/{node.pid}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return round(int(line.split()[1]) * 1024 / 1e6, 1)
    return None


Run = Callable[[Given | Own, Load], Awaitable[Outcome]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A kind of work and its default options."""

    run: Run
    writers: int
    batch: int = 1
    own_only: bool = False
    fills: bool = False
    """True if the work first fills a log. With ``batch`` 1, each entry of that log has its own block."""
    settings: tuple[tuple[str, int], ...] = ()
    """The settings of the nodes of a temporary cluster."""
    cache_bytes_per_s: int = 128_000_000
    """An upper bound for the growth of the operating system's file cache, all nodes together, in bytes per second."""


_BULK_BYTES_PER_S = 1_000_000_000
_NO_CHECKPOINT = (("checkpoint_bytes", 1 << 40), ("checkpoint_period_s", 86_400))

WORKS: dict[str, Work] = {
    "append": Work(run=append, writers=64),
    "bulk": Work(run=append, writers=16, batch=1000, cache_bytes_per_s=_BULK_BYTES_PER_S),
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
    "scan": Work(run=scan, writers=16, batch=1000, fills=True, cache_bytes_per_s=_BULK_BYTES_PER_S),
}
