"""The nodes under test: real processes, each known to the others by its link alone, to the clients directly.

Whoever stops or pauses a node gives a reason; it runs again when no reason is left, so that faults may overlap.  A node
that ends by itself is noted, and started again after ``AGAIN_S``, as whatever runs a node would do.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path

from harness.group.links import Links
from harness.group.namespaces import Namespaces, Refused
from harness.group.partitions import Partitions
from repl.cluster import Cluster, Node, NodeEnded, free_base_port, prepare
from repl.http.types import Network

AGAIN_S = 1.0
WATCH_S = 0.1
GONE_POLL_S = 0.01
START_S = 60.0
PORT = 7701
"""Of every node, where each has an address of its own."""

SETTINGS: Mapping[str, str | int | float] = {
    "segment_bytes": 1 << 20,
    "ring_bytes_max": 1 << 18,
    "checkpoint_bytes": 1 << 20,
    "checkpoint_period_s": 5.0,
    "scrub_period_s": 1.0,
}
"""Small, so that rolling, checkpoints, feeds from segments and looks for rot happen while a run lasts."""


class Group:
    """n1 … nN under ``directory``.  Everything on one event loop, started from its main thread."""

    def __init__(self, cluster: Cluster, links: Partitions) -> None:
        self.cluster = cluster
        self.links = links
        self.names = [node.name for node in cluster.nodes]
        self.urls = {node.name: node.url for node in cluster.nodes}
        self.may_end: set[str] = set()
        """Nodes whose disk fails, which therefore may end by themselves."""
        self._closed = False
        self._stopped: dict[str, set[str]] = {name: set() for name in self.names}
        self._paused: dict[str, set[str]] = {name: set() for name in self.names}
        self._started: set[str] = set()

    @property
    def majority(self) -> int:
        return len(self.names) // 2 + 1

    def node(self, name: str) -> Node:
        return self.cluster.node(name)

    def running(self, name: str) -> bool:
        return self.node(name).running

    def directory(self, name: str) -> Path:
        return self.node(name).directory

    # Life and death.

    async def start(self, *, seconds: float = START_S) -> str:
        """Starts all of them; the master's name once it takes appends on a majority.  Raises ``NodeEnded``,
        ``TimeoutError``."""
        for name in self.names:
            self._start(name)
        async with asyncio.timeout(seconds):
            await asyncio.gather(*(self.cluster.answering(node) for node in self.cluster.nodes))
            return await self.cluster.serving()

    async def stop(self, names: list[str], reason: str) -> list[str]:
        """SIGKILL, all at once, and they stay down while anybody has a reason; those that were running.  Returns when
        they are gone, which may take seconds where a disk is busy."""
        running = [name for name in names if self.running(name)]
        for name in names:
            self._stopped[name].add(reason)
            self._started.discard(name)
        for name in running:
            self.node(name).send(signal.SIGKILL)
        while any(self.running(name) for name in running):  # noqa: ASYNC110  what is waited for is another process's
            await asyncio.sleep(GONE_POLL_S)
        return running

    def start_again(self, names: list[str], reason: str) -> None:
        for name in names:
            self._stopped[name].discard(reason)
            if not self._stopped[name] and not self.running(name):
                self._start(name)

    def pause(self, names: list[str], reason: str) -> list[str]:
        """SIGSTOP; those that were running."""
        running = [name for name in names if self.running(name)]
        for name in running:
            self._paused[name].add(reason)
            self.node(name).send(signal.SIGSTOP)
        return running

    def go_on(self, names: list[str], reason: str) -> None:
        for name in names:
            self._paused[name].discard(reason)
            if not self._paused[name] and self.running(name):
                self.node(name).send(signal.SIGCONT)

    def release(self) -> None:
        """No reason holds any node down or still any more."""
        for name in self.names:
            self._paused[name].clear()
            self._stopped[name].clear()
            if self.running(name):
                self.node(name).send(signal.SIGCONT)
            else:
                self._start(name)

    async def watch(self, told: Callable[[str, int, str], None]) -> None:
        """Notes nodes that end by themselves, ``told`` of each, and starts them again; for ever."""
        while True:
            await asyncio.sleep(WATCH_S)
            for name in self.names:
                status = self.node(name).ended
                if status is not None and name in self._started:
                    self._started.discard(name)
                    told(name, status, self.node(name).last_words())
                    asyncio.get_running_loop().call_later(AGAIN_S, self.start_again, [name], "itself")

    async def close(self) -> None:
        """Ends every node cleanly, then the links."""
        self._closed = True
        self._started.clear()
        await self.cluster.stop()
        await self.links.close()

    def pids(self) -> dict[str, int]:
        return {node.name: node.pid for node in self.cluster.nodes if node.running and node.pid is not None}

    def _start(self, name: str) -> None:
        if self._closed:
            return
        self.node(name).start()
        self._started.add(name)
        self._paused[name].clear()


async def make_group(
    directory: Path,
    network: Network,
    *,
    nodes: int,
    settings: Mapping[str, str | int | float],
    between: str = "proxies",
) -> Group:
    """A group that is not started yet.  ``between`` its nodes: ``proxies``, or ``namespaces``, networks of their own.
    Raises ``BadArgument``, ``Refused``."""
    if between == "proxies":
        return await _by_proxies(directory, network, nodes, settings)
    return await _in_namespaces(directory, network, nodes, settings)


async def _by_proxies(
    directory: Path, network: Network, nodes: int, settings: Mapping[str, str | int | float]
) -> Group:
    base = free_base_port(2 * nodes)
    cluster = prepare(directory, network, nodes=nodes, base_port=base, settings=settings)
    links = Links(lambda: group.pids(), harness_pid=os.getpid())
    direct = []
    for at, node in enumerate(cluster.nodes):
        public, port = base + at, base + nodes + at
        text = node.config_path.read_text()
        node.config_path.write_text(text.replace(f'listen = "127.0.0.1:{public}"', f'listen = "127.0.0.1:{port}"'))
        direct.append(Node(node.name, node.directory, f"http://127.0.0.1:{port}"))
        await links.open(node.name, public, port)
    group = Group(Cluster(cluster.directory, direct, network), links)
    return group


async def _in_namespaces(
    directory: Path, network: Network, nodes: int, settings: Mapping[str, str | int | float]
) -> Group:
    base = free_base_port(nodes)
    cluster = prepare(directory, network, nodes=nodes, base_port=base, settings=settings)
    spaces = await Namespaces.open([node.name for node in cluster.nodes])
    addresses = {
        f"127.0.0.1:{base + at}": f"{spaces.address(node.name)}:{PORT}" for at, node in enumerate(cluster.nodes)
    }
    moved = []
    for node in cluster.nodes:
        text = node.config_path.read_text()
        for old, new in addresses.items():
            text = text.replace(old, new)
        node.config_path.write_text(text)
        url = f"http://{spaces.address(node.name)}:{PORT}"
        moved.append(Node(node.name, node.directory, url, launcher=spaces.launcher(node.name)))
    return Group(Cluster(cluster.directory, moved, network), spaces)


__all__ = ["SETTINGS", "Group", "NodeEnded", "Refused", "make_group"]
