"""Groups of real processes for the fault tests: starts them, reads their status, appends, and kills masters."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from repl import connect
from repl.client.endpoints import Endpoints, Status
from repl.cluster import Cluster, ending_with, free_base_port, prepare
from repl.net.network import AiohttpNetwork

NODES = 3
START_S = 60.0
WRITE_S = 600.0
"""Seconds for which a writer repeats one append."""
Say = Callable[[str], None]


class ClusterFailed(Exception):
    """The cluster did not do what the fault test presupposes; this is no verdict on the log."""


def vlsnlog() -> list[str]:
    """Returns the command ``vlsnlog`` of the environment that runs this."""
    return [str(Path(sys.executable).with_name("vlsnlog"))]


@asynccontextmanager
async def cluster_of(directory: Path, group: str, nodes: int, tables: str = "") -> AsyncIterator[Cluster]:
    """Runs a cluster; ``tables`` are appended to each node's settings."""
    network = AiohttpNetwork()
    directory.mkdir(parents=True, exist_ok=True)
    made = prepare(directory, network, nodes=nodes, base_port=free_base_port(nodes), group=group)
    try:
        with ending_with(made) as cluster:
            for node in cluster.nodes:
                with node.config_path.open("a") as file:
                    file.write(tables)
                node.start()
            try:
                async with asyncio.timeout(START_S):
                    await cluster.serving()
            except TimeoutError:
                raise ClusterFailed(f"{directory}: no master within {START_S:.0f} s") from None
            yield cluster
    finally:
        await network.close()


async def statuses_of(cluster: Cluster) -> list[Status]:
    """Returns the statuses of the nodes that answer."""
    network = AiohttpNetwork()
    try:
        found = await Endpoints(network, cluster.urls).statuses(cluster.urls)
    finally:
        await network.close()
    return [each for each in found if isinstance(each, Status)]


async def is_whole(cluster: Cluster) -> bool:
    """Says whether every node leads or follows."""
    states = [each.document.get("state") for each in await statuses_of(cluster)]
    return len(states) == len(cluster.nodes) and set(states) <= {"MASTER", "REPLICA"}


async def kill_master(cluster: Cluster, *, within_s: float, away_s: float) -> bool:
    """Kills the master and starts it again after ``away_s``. Returns False if no node leads ``within_s``."""
    try:
        async with asyncio.timeout(within_s):
            node = cluster.node(await cluster.serving())
    except TimeoutError:
        return False
    node.kill()
    await asyncio.sleep(away_s)
    node.start()
    return True


async def write(
    cluster: Cluster, number: int, stop: asyncio.Event, key: Callable[[int], bytes], pause_s: float = 0.0
) -> list[tuple[int, bytes]]:
    """Appends until ``stop``, each entry with the ``key`` of its index; returns VLSN and value of each."""
    found: list[tuple[int, bytes]] = []
    async with connect(",".join(cluster.urls), timeout_s=WRITE_S, exactly_once=True) as log:
        while not stop.is_set():
            value = f"{number}/{len(found)}".encode()
            found.append((await log.append(value, key=key(len(found))), value))
            if pause_s:
                await asyncio.sleep(pause_s)
    return found
