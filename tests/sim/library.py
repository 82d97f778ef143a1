"""The client library in a simulation: ``repl.connect`` over ``WS /v1/produce``, several appends under way at once.

Every append is in the log at most once, acknowledged ones in the order of the calls; a failed one that is safe to
repeat is absent.  One of the two clients is exactly-once, the other one plain.

The library draws its names from the seed, and its pauses from Python's own generator, which the seed sets too.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from functools import partial
from random import Random
from typing import TYPE_CHECKING

import pytest

import vlsn.state.handles
import vlsn.state.producers
from repl import connect
from repl.api import Appended
from repl.client.connect import Client
from tests.fakes.random import SeededRandom
from vlsn.errors import UnknownProducer, VlsnLogError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.sim.clients import Clients

RATE = 0.5
"""The share of the seeds with two such clients."""
UNDER_WAY_MAX = 4
TIMEOUT_S = 4.0
PAUSES_S = (0.0, 0.05, 0.4, 1.0, 2.0)
SIZES = (12, 300, 4000)
FEW_PRODUCERS = 2
FEW_HANDLES = 6
FEW_RATE = 0.3
"""The share of the seeds whose log remembers fewer producers, and transactions, than there are."""


@contextmanager
def few_producers(seed: int) -> Iterator[bool]:
    """Lets the log forget producers that were silent for long, in some seeds."""
    few = Random(f"few/{seed}").random() < FEW_RATE
    limits, handles = vlsn.state.producers.ProducerLimits, vlsn.state.handles.REMEMBERED
    if few:
        vlsn.state.handles.REMEMBERED = FEW_HANDLES
        vlsn.state.producers.ProducerLimits = partial(limits, producers=FEW_PRODUCERS)  # type: ignore[assignment,misc]
    try:
        yield few
    finally:
        vlsn.state.producers.ProducerLimits = limits  # type: ignore[misc]
        vlsn.state.handles.REMEMBERED = handles


@contextmanager
def seeded_names(seed: int) -> Iterator[None]:
    """Makes clients draw the names of producers, handles and workers from the seed, since the log has their bytes."""
    names = SeededRandom(f"names/{seed}")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("repl.client.client.SystemRandom", lambda: names)
        yield


class LibraryClient:
    def __init__(self, clients: Clients, number: int) -> None:
        self._clients, self._group = clients, clients.group
        self._name = f"lib{number}"
        self._rng = Random(f"{self._name}/{clients.report.seed}")
        self._exactly_once = number % 2 == 0
        self._told: list[int] = []
        """VLSNs by the number of the call, 0 if it was never acknowledged."""

    async def run(self) -> None:
        urls = ",".join(self._group.url(name) for name in self._group.names)
        log = connect(urls, timeout_s=TIMEOUT_S, exactly_once=self._exactly_once, network=self._group.client)
        if self._exactly_once:
            names = Random(f"{self._name}/names/{self._clients.report.seed}")
            log._random = SeededRandom(names)  # type: ignore[assignment]
        async with log:
            under_way: set[asyncio.Task[None]] = set()
            while not self._clients.over:
                under_way.add(asyncio.create_task(self._append(log, len(self._told))))
                self._told.append(0)
                await asyncio.sleep(self._rng.choice(PAUSES_S))
                if len(under_way) >= UNDER_WAY_MAX:
                    done, under_way = await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
                    for task in done:
                        task.result()
            await asyncio.gather(*under_way)
        self._in_order()

    async def _append(self, log: Client, number: int) -> None:
        rng, clients = self._rng, self._clients
        values = [f"{self._name}.{number}.{each}:".encode().ljust(rng.choice(SIZES), b"z") for each in range(1, 3)]
        values = values[: rng.choice((1, 1, 2))]
        acks = rng.choice(("majority", "majority", "all"))
        listed = self._group.books.listed_so_far()
        clients.report.operations += 1
        try:
            appended = await log.append_batch(values, acks=acks)
        except VlsnLogError as error:
            self._failed(error, values)
            return
        if acks == "all":
            self._group.books.all_have({"term": appended.term, "last": appended.last}, listed)
        self._acknowledged(appended, number, values)

    def _failed(self, error: VlsnLogError, values: list[bytes]) -> None:
        clients = self._clients
        if isinstance(error, UnknownProducer):
            clients.report.met["a producer that is forgotten"] += 1
        if error.retry_safe:
            clients.report.refused += 1
            clients.refused.update(values)
        else:
            clients.report.unknown += 1

    def _acknowledged(self, appended: Appended, number: int, values: list[bytes]) -> None:
        watch = self._group.watch
        watch.hold(appended.durable, f"{self._name} was told of what is not durable: {appended}")
        said = f"{self._name} appended {len(values)} entries at once and was told {appended}"
        watch.hold(appended.last - appended.first == len(values) - 1, said)
        self._told[number] = appended.first
        self._clients.report.by_library += 1
        for each, value in enumerate(values):
            self._clients.acknowledge(appended.first + each, value)

    def _in_order(self) -> None:
        told = [vlsn for vlsn in self._told if vlsn]
        self._group.watch.hold(told == sorted(told), f"{self._name} was told VLSNs out of its order: {told}")
