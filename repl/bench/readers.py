"""``python -m repl.bench.readers``: what waiting readers cost a group, and how soon they have what comes.

Three nodes of its own, appends at a steady rate, and N readers (``reader_load``) in a process of their own: half of
them tails, half long-polls, unless told otherwise.  The appends run first without readers, then with them; with
``--die`` a third time, beginning with a SIGKILL of the last node, whose readers go to the others.

A delivery is an answer or a piece of a tail that brings entries to one reader.  Its cost is the processor time of all
nodes beside that of the appends alone; memory is what the nodes' resident sets grew by.  A wake-up lasts from before
the append until the reader has the entry, so it holds the append too.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import uvloop

from repl.bench.reader_load import VALUE, Asked, Found
from repl.bench.report import Samples
from repl.bench.target import Own
from repl.client.connect import Client, connect
from repl.cluster import Node

SETTLE_S = 2.0
_TICKS = os.sysconf("SC_CLK_TCK")


class _Appends:
    """Appends at a steady rate, numbered through; an append that is late does not hold up the next one's time."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.number = 0

    async def run(self, rate: float, seconds: float) -> float:
        """Appends for ``seconds``; the median's milliseconds."""
        samples = Samples()
        began = time.perf_counter()
        for each in range(int(rate * seconds)):
            await asyncio.sleep(max(0.0, began + each / rate - time.perf_counter()))
            start = samples.now()
            await self._client.append(VALUE % (self.number, start))
            samples.since(start)
            self.number += 1
        return float(np.percentile(samples.milliseconds(), 50))


async def measured(options: argparse.Namespace) -> dict[str, Any]:
    """Runs all of it on a cluster of its own, and returns what is printed."""
    settings = {name: value for name, _, value in (each.partition("=") for each in options.setting)}
    async with Own(settings) as own, connect(own.urls) as client:
        appends = _Appends(client)
        await appends.run(options.rate, SETTLE_S)
        nodes = own.cluster.nodes
        before = _cpu_s(nodes)
        alone_ms = await appends.run(options.rate, options.seconds)
        alone_s = _cpu_s(nodes) - before
        resident = sum(_resident(node) for node in nodes)
        name = (await own.master())["node"]
        master = [node for node in nodes if node.name == name]
        chosen = {"all": nodes, "master": master, "replica": [node for node in nodes if node not in master][:1]}
        urls = [node.url for node in chosen[options.node]]
        first = await client.append(b"the readers come")
        load = await _Load.start(Asked(urls, options.tails, options.readers - options.tails, first + 1, appends.number))
        try:
            await appends.run(options.rate, SETTLE_S)
            await asyncio.sleep(1)
            held = sum(_resident(node) for node in nodes) - resident
            await load.found()
            before, of_master, began = _cpu_s(nodes), _cpu_s(master), time.perf_counter()
            beside_ms = await appends.run(options.rate, options.seconds)
            await asyncio.sleep(0.5)
            used_s, of_master = _cpu_s(nodes) - before, _cpu_s(master) - of_master
            seconds = time.perf_counter() - began
            found = await load.found()
            more = {}
            if options.die:
                (dying,) = (node for node in nodes if node is own.last)
                dying.kill()
                await appends.run(options.rate, options.seconds)
                await asyncio.sleep(0.5)
                after = await load.found()
                more = {"died": msgspec.to_builtins(after)}
        finally:
            await load.end()
    return {
        "readers": options.readers,
        "tails": options.tails,
        "rate": options.rate,
        "nodes": len(urls),
        "deliveries_per_s": round(found.deliveries / seconds),
        "us_a_delivery": round((used_s - alone_s) / max(found.deliveries, 1) * 1e6, 1),
        "cores": round(used_s / seconds, 3),
        "cores_without": round(alone_s / options.seconds, 3),
        "cores_of_the_master": round(of_master / seconds, 3),
        "bytes_a_reader": round(held / options.readers),
        "append_p50_ms": round(beside_ms, 3),
        "append_p50_ms_without": round(alone_ms, 3),
        "seen": msgspec.to_builtins(found),
        **more,
    }


class _Load:
    """The process of the readers."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        assert process.stdin is not None and process.stdout is not None
        self._to, self._from = process.stdin, process.stdout

    @classmethod
    async def start(cls, asked: Asked) -> _Load:
        pipe = asyncio.subprocess.PIPE
        load = cls(
            await asyncio.create_subprocess_exec(
                sys.executable, "-m", "repl.bench.reader_load", stdin=pipe, stdout=pipe
            )
        )
        load._to.write(msgspec.json.encode(asked) + b"\n")
        if await load._from.readline() != b"ready\n":
            raise RuntimeError("the readers did not start")
        return load

    async def found(self) -> Found:
        self._to.write(b"\n")
        return msgspec.json.decode(await self._from.readline(), type=Found)

    async def end(self) -> None:
        self._process.kill()
        await self._process.wait()


def _cpu_s(nodes: list[Node]) -> float:
    """Reads the processor time of all nodes that run."""
    used = 0
    for node in nodes:
        if node.running:
            fields = Path(f"/proc/{node.pid}/stat").read_text().rpartition(")")[2].split()
            used += int(fields[11]) + int(fields[12])
    return used / _TICKS


def _resident(node: Node) -> int:
    return int(Path(f"/proc/{node.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m repl.bench.readers", description=__doc__)
    parser.add_argument("--readers", type=int, default=1_000)
    parser.add_argument("--tails", type=int, help="how many of them are tails; default: half")
    parser.add_argument("--node", choices=("all", "master", "replica"), default="all", help="where the readers are")
    parser.add_argument("--rate", type=float, default=10.0, help="appends a second")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--die", action="store_true", help="kills a node at the end, and goes on as long")
    parser.add_argument("--setting", action="append", default=[], metavar="NAME=VALUE", help="of the nodes")
    options = parser.parse_args()
    if options.tails is None:
        options.tails = options.readers // 2
    print(msgspec.json.format(msgspec.json.encode(uvloop.run(measured(options)))).decode())


if __name__ == "__main__":
    main()
