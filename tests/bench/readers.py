"""The cost of waiting readers to a group, and how soon they have what comes.

Three nodes of its own, appends at a steady rate, and N readers (``reader_load``) in a process of their own: by default
half of them tails, half long-polls.  The appends run first without readers, then with them; with ``--die`` a third
time, beginning with a SIGKILL of the last node, whose readers go to the others.

A delivery is an answer or a piece of a tail that brings entries to one reader.  Its cost is the processor time of all
nodes beside that of the appends alone; memory is what the nodes' resident sets grew by.  A wake-up lasts from before
the append until the reader has the entry, so it holds the append too.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import AsyncIterator
from itertools import count

import msgspec

from repl.bench.target import Own
from repl.client.connect import Client, connect
from tests.bench.load import median_ms, paced
from tests.bench.process import command, cpu_s, environment, memory
from tests.bench.reader_load import VALUE, Asked, Found
from tests.bench.report import Aimed, Figures, Section

SETTLE_S = 2.0


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--readers", type=int, default=1_000)
    parser.add_argument("--tails", type=int, help="how many of them are tails; default: half")
    parser.add_argument("--node", choices=("all", "master", "replica"), default="all", help="where the readers are")
    parser.add_argument("--rate", type=float, default=10.0, help="appends a second")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--die", action="store_true", help="kills a node at the end, and goes on as long")
    parser.add_argument("--setting", action="append", default=[], metavar="NAME=VALUE", help="of the nodes")


class _Appends:
    """Appends at a steady rate, numbered through."""

    def __init__(self, client: Client, rate: float) -> None:
        self._client, self._rate = client, rate
        self._numbers = count()
        self.number = 0
        """That of the next one."""

    async def run(self, seconds: float) -> float:
        """Returns the median's milliseconds."""
        samples = await paced(self._append, count=int(self._rate * seconds), each_s=1 / self._rate)
        return median_ms(samples)

    async def _append(self) -> None:
        number = next(self._numbers)
        self.number = number + 1
        await self._client.append(VALUE % (number, time.perf_counter_ns()))


async def measured(options: argparse.Namespace) -> AsyncIterator[Section]:
    tails = options.readers // 2 if options.tails is None else options.tails
    settings = {name: value for name, _, value in (each.partition("=") for each in options.setting)}
    async with Own(settings) as own, connect(own.urls) as client:
        appends = _Appends(client, options.rate)
        await appends.run(SETTLE_S)
        nodes, master = own.cluster.nodes, await own.master_node()

        def used() -> float:
            return cpu_s(node.pid for node in nodes if node.running)

        def resident() -> int:
            return sum(memory(node.pid or 0, "VmRSS") for node in nodes)

        before = used()
        alone_ms = await appends.run(options.seconds)
        alone_s, held = used() - before, resident()
        chosen = {"all": nodes, "master": [master], "replica": [node for node in nodes if node is not master][:1]}
        urls = [node.url for node in chosen[options.node]]
        first = await client.append(b"the readers come")
        load = await _Load.start(Asked(urls, tails, options.readers - tails, first + 1, appends.number))
        try:
            await appends.run(SETTLE_S)
            await asyncio.sleep(1)
            held = resident() - held
            await load.found()
            before, of_master, began = used(), cpu_s([master.pid]), time.perf_counter()
            beside_ms = await appends.run(options.seconds)
            await asyncio.sleep(0.5)
            used_s, of_master = used() - before, cpu_s([master.pid]) - of_master
            seconds = time.perf_counter() - began
            found = await load.found()
            yield (
                f"{options.readers:,} readers, {tails:,} of them tails, at {options.rate:g} appends/s",
                {
                    "nodes": len(urls),
                    "deliveries_per_s": round(found.deliveries / seconds),
                    "us_a_delivery": round((used_s - alone_s) / max(found.deliveries, 1) * 1e6, 1),
                    "cores": round(used_s / seconds, 3),
                    "cores_without": round(alone_s / options.seconds, 3),
                    "cores_of_the_master": round(of_master / seconds, 3),
                    "bytes_a_reader": round(held / options.readers),
                    "append_p50_ms": beside_ms,
                    "append_p50_ms_without": alone_ms,
                    **_seen(found),
                },
            )
            if options.die:
                own.last.kill()
                await appends.run(options.seconds)
                await asyncio.sleep(0.5)
                yield "after SIGKILL of a node, whose readers go to the others", _seen(await load.found())
        finally:
            await load.end()


def _seen(found: Found) -> Figures:
    return msgspec.structs.asdict(found) | {name: Aimed(getattr(found, name), "= 0") for name in ("wrong", "refused")}


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
            await asyncio.create_subprocess_exec(*command("reader_load"), stdin=pipe, stdout=pipe, env=environment())
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
