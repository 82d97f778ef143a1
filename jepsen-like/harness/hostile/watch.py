"""Well-behaved clients in a process of their own, which measure the group during an attack.

    each node:  GET /healthz every 20 ms, each on a new connection, as a health check does
    writers:    plain clients, one append after the other
    status:     the master

A probe without an answer holds back later probes, so the time that they would have waited is included: one silence of
a second is fifty probes of 1.00, 0.98, 0.96 … s.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection

import uvloop

from harness.values import value_of
from repl.client.connect import connect
from repl.client.endpoints import Endpoints, Status
from repl.net.network import AiohttpNetwork
from vlsn.errors import VlsnLogError

PERIOD_S = 0.02
PROBE_S_MAX = 60.0
WRITERS = 4
PAUSE_S = 0.02
"""Seconds between a writer's answer and its next append."""
STATUS_PERIOD_S = 0.1
READY_S = 60.0
END_S = 90.0
_REQUEST = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


@dataclass(slots=True)
class Answers:
    """The answers of one node."""

    seconds: list[float] = field(default_factory=list)
    failed: int = 0
    """Probes that were refused, cut off, or never answered."""

    def add(self, seconds: float) -> None:
        self.seconds.append(seconds)
        while (seconds := seconds - PERIOD_S) > 0:
            self.seconds.append(seconds)

    @property
    def p99_s(self) -> float:
        return percentile(self.seconds, 0.99)

    @property
    def longest_s(self) -> float:
        return max(self.seconds, default=0.0)


@dataclass(slots=True)
class Watched:
    """All measurements."""

    answers: dict[str, Answers] = field(default_factory=dict)
    acknowledged: dict[int, bytes] = field(default_factory=dict)
    """Values by their acknowledged VLSNs."""
    append_seconds: list[float] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    leads: list[tuple[int, str]] = field(default_factory=list)
    """Terms, and their leaders."""

    @property
    def append_p99_s(self) -> float:
        return percentile(self.append_seconds, 0.99)


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0


class Watching:
    """A running watch."""

    def __init__(self, end: Connection) -> None:
        self._end = end
        self._watched: Watched | None = None

    def stop(self) -> Watched:
        """Returns the measurements, once its last append is answered."""
        if self._watched is None:
            self._end.send(None)
            if not self._end.poll(END_S):
                raise TimeoutError(f"the watch did not end within {END_S:g} s")
            self._watched = self._end.recv()
        return self._watched


@contextmanager
def watching(urls: dict[str, str]) -> Iterator[Watching]:
    """Watches the nodes at ``urls``; on entry each node has answered, and each writer has appended."""
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_run, args=(urls, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        if not ours.poll(READY_S):
            raise TimeoutError(f"the watch did not begin within {READY_S:g} s")
        ours.recv()
        yield Watching(ours)
    finally:
        ours.close()
        process.kill()
        process.join()
        process.close()


def _run(urls: dict[str, str], end: Connection) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_watch(urls, end))


async def _watch(urls: dict[str, str], end: Connection) -> None:
    watched, stop = Watched({name: Answers() for name in urls}), asyncio.Event()
    network = AiohttpNetwork()
    begun = [asyncio.Event() for _ in range(len(urls) + WRITERS)]
    first = iter(begun)
    tasks = [asyncio.create_task(_probe(url, watched.answers[name], next(first), stop)) for name, url in urls.items()]
    tasks += [asyncio.create_task(_write(urls, number, watched, next(first), stop)) for number in range(WRITERS)]
    tasks += [asyncio.create_task(_who_leads(urls, network, watched, stop))]
    for each in begun:
        await each.wait()
    end.send(None)
    await asyncio.to_thread(end.recv)
    stop.set()
    await asyncio.gather(*tasks)
    await network.close()
    end.send(watched)


async def _probe(url: str, answers: Answers, begun: asyncio.Event, stop: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    host, _, port = url.removeprefix("http://").rpartition(":")
    while not stop.is_set():
        began = loop.time()
        try:
            async with asyncio.timeout(PROBE_S_MAX):
                answered = await _healthy(host, int(port))
        except OSError:  # also a TimeoutError
            answered = False
        took = loop.time() - began
        answers.add(took)
        answers.failed += not answered
        begun.set()
        await asyncio.sleep(max(0.0, PERIOD_S - took))


async def _healthy(host: str, port: int) -> bool:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(_REQUEST)
        return (await reader.read()).startswith(b"HTTP/1.1 200 ")
    finally:
        writer.close()


async def _write(
    urls: dict[str, str], writer: int, watched: Watched, begun: asyncio.Event, stop: asyncio.Event
) -> None:
    loop = asyncio.get_running_loop()
    number = writer + 1
    async with connect(",".join(urls.values())) as log:
        while not stop.is_set():
            value, number = value_of(number), number + WRITERS
            began = loop.time()
            try:
                vlsn = await log.append(value)
            except VlsnLogError as error:
                watched.errors[error.slug] += 1
            else:
                watched.acknowledged[vlsn] = value
            watched.append_seconds.append(loop.time() - began)
            begun.set()
            await asyncio.sleep(PAUSE_S)


async def _who_leads(urls: dict[str, str], network: AiohttpNetwork, watched: Watched, stop: asyncio.Event) -> None:
    endpoints = Endpoints(network, list(urls.values()))
    while not stop.is_set():
        for status in await endpoints.statuses(list(urls.values())):
            if isinstance(status, Status) and status.document.get("state") == "MASTER":
                lead = (status.term, status.node)
                if lead not in watched.leads:
                    watched.leads.append(lead)
        await asyncio.sleep(STATUS_PERIOD_S)
