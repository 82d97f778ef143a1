"""Exactly-once producers in turns, against a group of three real nodes.

Each submits one entry, and again only when all others have: a node that knew only some of them would refuse one.  While
they do, every node checkpoints again and again, with all that changed.  Then one replica is killed and started, one
restored, and each made the master: whatever it has lost of a producer, the next turn's submission of that one tells.

    turns ─► SIGKILL of a replica, its start ─► it leads: a turn ─► a restore of the next one ─► it leads: a turn
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress

from repl.bench.target import Own
from repl.cli.signing import SigningNetwork
from repl.client.connect import Client, connect
from repl.cluster import Node
from tests.bench.load import ANSWER_S, call
from tests.bench.report import Aimed, Section
from vlsn.errors import VlsnLogError

LOOK_S = 0.05
UNDER_WAY = 512
"""Submissions at a time."""


class _Turns:
    """The producers: ``count`` of them, each at the same sequence."""

    def __init__(self, client: Client, count: int, born: int) -> None:
        self._client, self._count, self._born = client, count, born
        self._sequence = 0
        self.submissions = 0
        self.refused: Counter[str] = Counter()

    async def run(self) -> float:
        """Lets each of them submit once; submissions a second."""
        began, numbers = time.perf_counter(), iter(range(1, self._count + 1))
        async with asyncio.TaskGroup() as group:
            for _ in range(UNDER_WAY):
                group.create_task(self._submit(numbers))
        self._sequence += 1
        return self._count / (time.perf_counter() - began)

    async def _submit(self, numbers: Iterator[int]) -> None:
        for number in numbers:
            self.submissions += 1
            try:
                await self._client.submit(
                    [b"%d/%d" % (number, self._sequence)], producer=number, sequence=self._sequence, born=self._born
                )
            except VlsnLogError as error:
                self.refused[error.slug] += 1


class _Checkpoints:
    """Checkpoints, as nodes tell of them while producers submit."""

    def __init__(self, own: Own) -> None:
        self._own = own
        self.home_ms: dict[tuple[str, int], float] = {}
        """By node and number."""

    async def watch(self) -> None:
        while True:
            for node in self._own.cluster.nodes:
                with suppress(VlsnLogError):
                    told = (await self._own.status(node.url))["checkpoint"]
                    if told is not None:
                        self.home_ms[node.name, told["id"]] = told["home_ms"]
            await asyncio.sleep(LOOK_S)


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--producers", type=int, default=50_000)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--period", type=float, default=1.0, help="seconds between checkpoints")


async def measured(options: argparse.Namespace) -> AsyncIterator[Section]:
    settings = {"checkpoint_period_s": options.period}
    async with Own(settings) as own, connect(own.urls, exactly_once=True, timeout_s=ANSWER_S) as client:
        seen = _Checkpoints(own)
        turns = _Turns(client, options.producers, await client.append(b"the producers come"))
        watching = asyncio.create_task(seen.watch())
        try:
            rates = [await turns.run() for _ in range(options.turns)]
            first = await _replica(own)
            last = (await own.master())["range"]["last_sync"]
            first.kill()
            opened_s = await own.start(first)
            await own.synced(first, last)
            await _lead(own, first)
            rates.append(await turns.run())
            second = await _replica(own)
            began = time.perf_counter()
            await _restore(own, second)
            restored_s = time.perf_counter() - began
            await _lead(own, second)
            rates.append(await turns.run())
        finally:
            watching.cancel()
    home = sorted(seen.home_ms.values())
    yield (
        f"{options.producers:,} producers",
        {
            "submissions": turns.submissions,
            "refused": Aimed(turns.refused.total(), "= 0"),
            "refused_as": dict(turns.refused),
            "submissions_per_s": [round(rate) for rate in rates],
            "checkpoints": len(home),
            "checkpoint_home_ms": {"p50": home[len(home) // 2], "longest": home[-3:]},
            "opened_s": round(opened_s, 3),
            "restored_s": round(restored_s, 3),
        },
    )


async def _replica(own: Own) -> Node:
    """Returns the last node that does not lead."""
    master = await own.master_node()
    return [node for node in own.cluster.nodes if node is not master][-1]


async def _lead(own: Own, node: Node) -> None:
    """Hands the lead to ``node``."""
    async with asyncio.timeout(ANSWER_S):
        while (master := await own.master_node()) is not node:
            with suppress(VlsnLogError):
                await call(SigningNetwork(own.network), "POST", f"{master.url}/v1/admin/transfer?to={node.name}")
            await asyncio.sleep(LOOK_S)


async def _restore(own: Own, node: Node) -> None:
    """Has ``node`` give up its log, and waits until it has another's."""
    before = (await own.status(node.url))["restore"]["history"]
    await call(SigningNetwork(own.network), "POST", f"{node.url}/v1/admin/restore")
    wanted = (await own.master())["range"]["last_sync"]
    async with asyncio.timeout(ANSWER_S):
        while True:
            with suppress(VlsnLogError, KeyError):
                told = await own.status(node.url)
                if told["restore"]["history"] != before and told["range"]["last_sync"] >= wanted:
                    return
            await asyncio.sleep(LOOK_S)
