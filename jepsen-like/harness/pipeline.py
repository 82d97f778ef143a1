"""A pipeline under SIGKILL: entries are read, transformed and appended, each once, within one group or between two.

    writers ─► input's group ─► workers of one consumer ─► transaction {outputs, position} ─► output's group
                    │                      │                                                     │
                 SIGKILL of a node      SIGKILL or SIGSTOP of a worker                       SIGKILL of a node

Two workers run at any time, each a process that believes it is the only one, so they compete for every page.  In the
end the output must be the input: every acknowledged entry once, in its order, and nothing else.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

from harness.cluster import ClusterFailed, Say, cluster_of, is_whole, write
from repl import connect
from repl.client.connect import Client
from repl.cluster import Cluster
from vlsn.errors import VlsnLogError

END_S = 300.0
WORKERS = 2
WRITERS = 4
BY_FAULT_S = (1.0, 4.0)
PAUSE_S = (0.5, 3.0)
NAME = "copier"
TRANSFORMED = b"copy of "
INPUT, OUTPUT = b"in", b"out"
PAGE_MAX = 50


@dataclass(slots=True)
class Verdict:
    """The findings of a run."""

    acknowledged: int = 0
    outputs: int = 0
    killed_nodes: int = 0
    killed_workers: int = 0
    paused_workers: int = 0
    differences: list[str] = field(default_factory=list)

    @property
    def valid(self) -> bool:
        return self.acknowledged > 0 and not self.differences


async def run_pipeline(directory: Path, *, groups: int, nodes: int, time_s: float, seed: int, say: Say) -> Verdict:
    """Runs and checks.  Raises ``ClusterFailed`` if there can be no verdict."""
    chance, verdict = random.Random(seed), Verdict()
    async with AsyncExitStack() as stack:
        clusters = [
            await stack.enter_async_context(cluster_of(directory / f"g{number}", f"g{number}", nodes))
            for number in range(1, groups + 1)
        ]
        source, sink = clusters[0], clusters[-1]
        workers = _Workers(source, sink, directory)
        stack.callback(workers.end)
        workers.start(WORKERS)
        stop = asyncio.Event()
        writing = [asyncio.create_task(write(source, number, stop, lambda _: INPUT)) for number in range(WRITERS)]
        await _disturb(clusters, workers, verdict, chance, time_s, say)
        stop.set()
        written = [each for found in await asyncio.gather(*writing) for each in found]
        faults = f"{verdict.killed_nodes} nodes and {verdict.killed_workers} workers killed"
        say(f"{len(written):,} entries acknowledged; {faults}, {verdict.paused_workers} paused; now the rest is copied")
        await _judge(source, sink, written, verdict)
    return verdict


class _Workers:
    """Processes that run ``work``."""

    def __init__(self, source: Cluster, sink: Cluster, directory: Path) -> None:
        self._urls = ",".join(source.urls), ",".join(sink.urls)
        self._log = directory / "workers.log"
        self.running: list[subprocess.Popen[bytes]] = []

    def start(self, count: int) -> None:
        with self._log.open("ab") as log:
            for _ in range(count):
                command = [sys.executable, "-m", "harness.pipeline", *self._urls]
                root = Path(__file__).parents[1]
                self.running.append(subprocess.Popen(command, cwd=root, stdin=subprocess.DEVNULL, stderr=log))

    def kill(self, worker: subprocess.Popen[bytes]) -> None:
        worker.kill()
        worker.wait()
        self.running.remove(worker)

    def end(self) -> None:
        for worker in list(self.running):
            self.kill(worker)


async def _disturb(
    clusters: list[Cluster], workers: _Workers, verdict: Verdict, chance: random.Random, time_s: float, say: Say
) -> None:
    loop = asyncio.get_running_loop()
    end, told = loop.time() + time_s, loop.time()
    while loop.time() < end:
        await asyncio.sleep(chance.uniform(*BY_FAULT_S))
        match chance.choice(("node", "worker", "worker", "pause")):
            case "node":
                cluster = chance.choice(clusters)
                if not await is_whole(cluster):
                    continue  # one node at a time: a group without a majority is not tested here
                node = chance.choice(cluster.nodes)
                node.kill()
                verdict.killed_nodes += 1
                await asyncio.sleep(chance.uniform(0.0, 2.0))
                node.start()
            case "worker":
                workers.kill(chance.choice(workers.running))
                verdict.killed_workers += 1
                workers.start(1)
            case _:
                sleeper = chance.choice(workers.running)
                sleeper.send_signal(signal.SIGSTOP)
                verdict.paused_workers += 1
                await asyncio.sleep(chance.uniform(*PAUSE_S))
                sleeper.send_signal(signal.SIGCONT)
        for worker in [each for each in workers.running if each.poll() is not None]:
            raise ClusterFailed(f"a worker ended with {worker.returncode}: see workers.log")
        if loop.time() - told > 10:
            told = loop.time()
            killed = f"{verdict.killed_nodes} nodes, {verdict.killed_workers} workers killed"
            say(f"{end - loop.time():5.0f} s left  {killed}")


async def _judge(source: Cluster, sink: Cluster, written: list[tuple[int, bytes]], verdict: Verdict) -> None:
    expected = [TRANSFORMED + value for _, value in sorted(written)]
    verdict.acknowledged = len(expected)
    async with connect(",".join(source.urls)) as log:
        inputs = [entry.value async for entry in log.read(consistency="linearizable", key=INPUT)]
    if inputs != [value for _, value in sorted(written)]:
        verdict.differences.append("the input itself is not what was acknowledged")
    found: list[bytes] = []
    try:
        async with asyncio.timeout(END_S), connect(",".join(sink.urls)) as log:
            while len(found) < len(expected):
                found = [entry.value async for entry in log.read(consistency="linearizable", key=OUTPUT)]
                await asyncio.sleep(0.5)
    except TimeoutError:
        verdict.differences.append(f"{len(found)} of {len(expected)} outputs after {END_S:.0f} s")
    verdict.outputs = len(found)
    for at, (is_there, wanted) in enumerate(zip(found, expected, strict=False)):
        if is_there != wanted:
            verdict.differences.append(f"output {at} is {is_there!r}, not {wanted!r}")
            break
    if len(found) > len(expected):
        verdict.differences.append(f"{len(found)} outputs of {len(expected)} inputs")


# The process of a worker.


async def work(source_url: str, sink_url: str) -> None:
    """Copies new entries until cancelled."""
    async with AsyncExitStack() as stack:
        source = await stack.enter_async_context(connect(source_url))
        sink = source if sink_url == source_url else await stack.enter_async_context(connect(sink_url))
        while True:
            try:
                await _copy(source, sink)
            except VlsnLogError as error:  # StaleTerm: the other worker was faster
                print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
                await asyncio.sleep(0.05)


async def _copy(source: Client, sink: Client) -> None:
    consumer = source.consumer(NAME, from_vlsn="start", kept_in=sink)
    async for page in consumer.pages():
        entries = [entry for entry in page.entries if entry.key == INPUT]
        for start in range(0, len(entries), PAGE_MAX):
            some = entries[start : start + PAGE_MAX]
            async with sink.transaction() as txn:
                await txn.append_many([TRANSFORMED + entry.value for entry in some], keys=[OUTPUT] * len(some))
                consumer.given(some[-1])
                await txn.commit_position(consumer)


async def _until_orphaned(parent: int) -> None:
    while os.getppid() == parent:  # noqa: ASYNC110
        await asyncio.sleep(1.0)


async def _worker(source_url: str, sink_url: str) -> None:
    """Works until its parent has ended, in whatever way."""
    working = asyncio.create_task(work(source_url, sink_url))
    orphaned = asyncio.create_task(_until_orphaned(os.getppid()))
    await asyncio.wait((working, orphaned), return_when=asyncio.FIRST_COMPLETED)
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(_worker(*sys.argv[1:]))
