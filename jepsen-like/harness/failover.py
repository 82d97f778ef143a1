"""Failover: how long a group accepts no appends when its master dies, is stopped, or transfers leadership.

    writers load it ─► SIGKILL or SIGSTOP of the master, or a planned transfer ─► the first append that the new master
      acknowledges ─► the old one comes back, all nodes catch up ─► again

The group has default settings and direct links.  The writers are exactly-once clients, which repeat.  Their results
are part of the outcome: each error, and the longest append of the round.
"""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Literal

from harness.cluster import Say, cluster_of
from harness.orders import order
from harness.values import value_of
from harness.workloads.writing import Appender, producing_appender
from repl.client.endpoints import Endpoints, Status
from repl.cluster import Cluster
from repl.net.network import AiohttpNetwork
from vlsn.errors import VlsnLogError

LOAD_S = 1.0
"""Seconds of load before each loss."""
ROUND_S = 60.0
POLL_S = 0.02
TARGET_S = {"kill": 2.0, "pause": 3.0}
"""The largest allowed median. A stopped master is noticed only after an election timeout."""
TRANSFER_TARGET_S = 0.5
Way = Literal["kill", "pause", "transfer"]
WORDS: Mapping[Way, str] = {
    "kill": "SIGKILL of the master",
    "pause": "SIGSTOP of the master",
    "transfer": "a planned transfer",
}


@dataclass(frozen=True, slots=True)
class Ack:
    """One acknowledged append; seconds of the loop's clock."""

    began: float
    ended: float
    vlsn: int


@dataclass(slots=True)
class Load:
    """The answers that the writers received."""

    acks: list[Ack] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    number: int = 0

    def longest_s(self, since: float) -> float:
        return max((ack.ended - ack.began for ack in self.acks if ack.ended >= since), default=0.0)


@dataclass(frozen=True, slots=True)
class Round:
    """One loss of a master."""

    lost: str
    won: str
    seconds: float
    """Seconds from the loss to the first acknowledgement by the new master."""
    longest_s: float
    """The longest duration of an append in this round."""


@dataclass(slots=True)
class Measured:
    """All rounds."""

    rounds: list[Round] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    acknowledged: int = 0

    @property
    def seconds(self) -> list[float]:
        return [each.seconds for each in self.rounds]


async def measure(directory: Path, *, rounds: int, nodes: int, writers: int, way: Way, say: Say) -> Measured:
    """Runs all rounds. Raises ``TimeoutError`` if a round does not end, ``NodeEnded``, ``BadArgument``."""
    network = AiohttpNetwork()
    measured = Measured()
    try:
        async with cluster_of(directory, "g", nodes) as cluster:
            load = Load()
            stop = asyncio.Event()
            tasks = [asyncio.create_task(_write(cluster, load, stop)) for _ in range(writers)]
            try:
                for number in range(1, rounds + 1):
                    async with asyncio.timeout(ROUND_S):
                        each = await _round(cluster, network, load, way=way)
                    measured.rounds.append(each)
                    say(
                        f"round {number:3}/{rounds}  {each.lost} -> {each.won}  first append after"
                        f" {each.seconds * 1000:7.0f} ms, longest append {each.longest_s * 1000:7.0f} ms"
                    )
            finally:
                stop.set()
                await asyncio.gather(*tasks)
            measured.errors, measured.acknowledged = load.errors, len(load.acks)
            await cluster.stop()
    finally:
        await network.close()
    return measured


async def _write(cluster: Cluster, load: Load, stop: asyncio.Event) -> None:
    while not stop.is_set():
        async with producing_appender(cluster.urls) as appender:
            while not stop.is_set() and await _append(appender, load):
                pass


async def _append(appender: Appender, load: Load) -> bool:
    loop = asyncio.get_running_loop()
    load.number += 1
    began = loop.time()
    try:
        vlsn = await appender.append([value_of(load.number)])
    except VlsnLogError as error:
        load.errors[error.slug] += 1
        return False
    load.acks.append(Ack(began, loop.time(), vlsn))
    return True


async def _round(cluster: Cluster, network: AiohttpNetwork, load: Load, *, way: Way) -> Round:
    loop = asyncio.get_running_loop()
    master, term = await _level(cluster, network)
    await asyncio.sleep(LOAD_S)
    lost_at = loop.time()
    node = cluster.node(master)
    match way:
        case "transfer":
            answer = await order(network, node.url, "transfer", timeout_s=ROUND_S)
            if answer.status != 200:
                raise TimeoutError(f"{master} did not hand over: {bytes(answer.body)[:300]!r}")
        case "pause":
            node.send(signal.SIGSTOP)
        case "kill":
            node.kill()
    try:
        won, first = await _first_of_a_new_term(cluster, network, load, lost_at, term)
    finally:
        if way == "pause":
            node.send(signal.SIGCONT)
    if way == "kill":
        node.start()
    return Round(master, won, first.ended - lost_at, load.longest_s(lost_at))


async def _level(cluster: Cluster, network: AiohttpNetwork) -> tuple[str, int]:
    """Returns the master and its term, once it leads and all the others follow it closely."""
    endpoints = Endpoints(network, cluster.urls)
    while True:
        statuses = [each for each in await endpoints.statuses(cluster.urls) if isinstance(each, Status)]
        leaders = [each for each in statuses if each.document.get("state") == "MASTER"]
        followers = [each for each in statuses if each.document.get("state") == "REPLICA"]
        if len(leaders) == 1 and len(followers) == len(cluster.nodes) - 1:
            lags = [int((each.document.get("replica") or {}).get("lag_vlsns") or 0) for each in followers]
            if max(lags) < 1000:
                return leaders[0].node, leaders[0].term
        await asyncio.sleep(POLL_S)


async def _first_of_a_new_term(
    cluster: Cluster, network: AiohttpNetwork, load: Load, lost_at: float, term: int
) -> tuple[str, Ack]:
    """Returns the new master, and the first append acknowledged after ``lost_at`` whose entry has its term."""
    endpoints = Endpoints(network, cluster.urls)
    while True:
        statuses = [each for each in await endpoints.statuses(cluster.urls) if isinstance(each, Status)]
        new = [each for each in statuses if each.document.get("state") == "MASTER" and each.term > term]
        for status in new:
            for ack in [each for each in load.acks if each.ended >= lost_at]:
                if await _term_at(network, status.url, ack.vlsn) > term:
                    return status.node, ack
        await asyncio.sleep(POLL_S)


async def _term_at(network: AiohttpNetwork, url: str, vlsn: int) -> int:
    answer = await network.request("GET", f"{url}/v1/entries?from={vlsn}&limit=1", timeout_s=5.0)
    if answer.status != 200 or not answer.body:
        return 0
    return int(bytes(answer.body).split(b'"term":')[1].split(b",")[0])


def summary(measured: Measured, *, way: Way) -> list[str]:
    """Formats aligned lines."""
    seconds = measured.seconds
    longest = max(each.longest_s for each in measured.rounds)
    rows = [
        ("rounds", f"{len(seconds)}"),
        (f"from {WORDS[way]} to an append at the new one: median", f"{median(seconds) * 1000:,.0f} ms"),
        ("  longest", f"{max(seconds) * 1000:,.0f} ms"),
        ("  shortest", f"{min(seconds) * 1000:,.0f} ms"),
        ("longest that any append took", f"{longest * 1000:,.0f} ms"),
        ("appends acknowledged", f"{measured.acknowledged:,}"),
        ("errors that writers were told", f"{sum(measured.errors.values())}"),
    ]
    lines = [f"  {label:<58}{value:>12}" for label, value in rows]
    lines += [f"    {slug}: {count}" for slug, count in sorted(measured.errors.items())]
    return lines


def good(measured: Measured, *, way: Way) -> bool:
    """Says whether the group kept its promises."""
    if measured.errors:
        return False
    if way == "transfer":
        return max(each.longest_s for each in measured.rounds) <= TRANSFER_TARGET_S
    return median(measured.seconds) <= TARGET_S[way]
