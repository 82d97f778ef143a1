"""The nodes under test: real processes; the other nodes reach each by its link only, clients reach it directly.

Every stop or pause of a node has a reason. The node runs again when no reason is left, so that faults may overlap.  A
node that ends by itself is noted, and started again after ``AGAIN_S``, as an operator's supervisor would do.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from harness.group.namespaces import Namespaces, Refused
from repl.cluster import Cluster, Node, NodeEnded, free_base_port, prepare
from repl.web.types import Network
from vlsnlog.testing.links import Links
from vlsnlog.testing.partitions import UNSHAPED, Partitions, Shape

AGAIN_S = 1.0
WATCH_S = 0.1
GONE_POLL_S = 0.01
START_S = 300.0
"""Seconds that a busy machine may need; the start is not checked, only what follows."""
PORT = 7701
"""The port of every node, if each has an address of its own."""
SPARE = "spare"
"""The reason why a node that is not a member yet is down."""

SETTINGS: Mapping[str, str | int | float] = {
    "segment_bytes": 1 << 20,
    "ring_bytes_max": 1 << 18,
    "checkpoint_bytes": 1 << 20,
    "checkpoint_period_s": 5.0,
    "scrub_period_s": 1.0,
}
"""Small, so that rolling, checkpoints, feeds from segments and scrubs happen during a run."""


class SomeUrls(Mapping[str, str]):
    """The URLs of some nodes in an order, as they are at each look."""

    def __init__(self, urls: Mapping[str, str], names: Sequence[str]) -> None:
        self._urls = urls
        self._names = names

    def __getitem__(self, name: str) -> str:
        return self._urls[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class Group:
    """n1 … nN under ``directory``, and the spares after them.  All run on one event loop, started from its main thread.

    ``member_urls`` are the URLs in the members' list; the last ``spares`` nodes are no founders.
    """

    def __init__(
        self, cluster: Cluster, links: Partitions, member_urls: Mapping[str, str] | None = None, *, spares: int = 0
    ) -> None:
        self.cluster = cluster
        self.links = links
        self.names = [node.name for node in cluster.nodes]
        self.urls = {node.name: node.url for node in cluster.nodes}
        self.member_urls = dict(member_urls or self.urls)
        self.founders = self.names[: len(self.names) - spares]
        self.listed = list(self.founders)
        """The known members."""
        self.electable = list(self.founders)
        """The known members with a vote."""
        self.may_end: set[str] = set()
        """Nodes whose disk fails, which therefore may end by themselves."""
        self.gone: Callable[[str], None] = lambda name: None
        """Called with each node whose process has ended, before it is started again."""
        self.starting: Callable[[str], None] = lambda name: None
        """Called with each node before its process is started."""
        self._closed = False
        self._stopped: dict[str, set[str]] = {name: set() for name in self.names}
        for name in self.names[len(self.founders) :]:
            self._stopped[name].add(SPARE)
        self._paused: dict[str, set[str]] = {name: set() for name in self.names}
        self._started: set[str] = set()

    def node(self, name: str) -> Node:
        return self.cluster.node(name)

    def running(self, name: str) -> bool:
        return self.node(name).running

    def directory(self, name: str) -> Path:
        return self.node(name).directory

    def used(self, name: str) -> bool:
        """Says whether the node has ever been started."""
        return SPARE not in self._stopped[name]

    # Members.

    def are_members(self, listed: Iterable[str], electable: Iterable[str]) -> None:
        """Lets faults hit these members from now on; every node's next start names them, and itself."""
        self.listed, self.electable = list(listed), list(electable)
        for name in self.names:
            self._name_members(name, self.listed)

    def found(self) -> None:
        """Writes the founders into the settings: no node has a log yet."""
        self.are_members(self.founders, self.founders)

    def _name_members(self, name: str, members: Iterable[str]) -> None:
        path = self.node(name).config_path
        named = sorted({*members, name}, key=self.names.index)
        lines = [f"{each} = {json.dumps(self.member_urls[each])}" for each in named]
        before = path.read_text()
        text = "\n".join([before.partition("[members]")[0] + "[members]", *lines, ""])
        if text != before:
            new = path.with_suffix(".new")
            new.write_text(text)
            new.rename(path)  # the node may just be starting

    # Starts and stops.

    async def start(self, *, seconds: float = START_S) -> str:
        """Starts the founders; returns the master's name once it accepts appends on a majority.  Raises ``NodeEnded``,
        and ``TimeoutError`` with each node's last output."""
        for name in self.founders:
            self._start(name)
        try:
            async with asyncio.timeout(seconds):
                await asyncio.gather(*(self.cluster.answering(self.node(name)) for name in self.founders))
                return await self.cluster.serving()
        except TimeoutError:
            words = "; ".join(f"{name}: {self.node(name).last_words() or 'nothing'}" for name in self.founders)
            raise TimeoutError(f"no master takes appends {seconds:.0f} s after the start: {words}") from None

    async def stop(self, names: list[str], reason: str, by: signal.Signals = signal.SIGKILL) -> list[str]:
        """Ends all of them at once; they stay down while there is a reason. Returns those that were running. Returns
        when they are gone, which may take seconds where a disk is busy."""
        running = [name for name in names if self.running(name)]
        for name in names:
            self._stopped[name].add(reason)
            self._started.discard(name)
        for name in running:
            self.node(name).send(by)
        while any(self.running(name) for name in running):  # noqa: ASYNC110  what is waited for is another process's
            await asyncio.sleep(GONE_POLL_S)
        for name in running:
            self.gone(name)
        return running

    def start_again(self, names: list[str], reason: str) -> None:
        for name in names:
            self._stopped[name].discard(reason)
            if not self._stopped[name] and not self.running(name):
                self._start(name)

    def pause(self, names: list[str], reason: str) -> list[str]:
        """Stops them by SIGSTOP, and returns those that were running."""
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
        """Drops all reasons that keep nodes down or paused, but for spares that were never used."""
        for name in filter(self.used, self.names):
            self._paused[name].clear()
            self._stopped[name].clear()
            if self.running(name):
                self.node(name).send(signal.SIGCONT)
            else:
                self._start(name)

    async def watch(self, told: Callable[[str, int, str], None]) -> None:
        """Notes nodes that end by themselves, calls ``told`` for each, and starts them again, until cancelled."""
        while True:
            await asyncio.sleep(WATCH_S)
            for name in self.names:
                status = self.node(name).ended
                if status is not None and name in self._started:
                    self._started.discard(name)
                    self.gone(name)
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
        self.starting(name)
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
    spares: int = 0,
    shape: Shape = UNSHAPED,
) -> Group:
    """Makes a group that is not started yet. ``between`` its nodes are ``proxies``, or ``namespaces``, their own
    networks; ``spares`` more nodes may become members. Raises ``BadArgument``, ``Refused``."""
    making = _by_proxies if between == "proxies" else _in_namespaces
    base = free_base_port(2 * (nodes + spares))
    cluster = prepare(directory, network, nodes=nodes + spares, base_port=base, settings=settings)
    made, member_urls, links = await making(cluster, base, shape)
    group = Group(Cluster(cluster.directory, made, network), links, member_urls, spares=spares)
    if isinstance(links, Links):
        links.pids = group.pids
    group.found()
    return group


async def _by_proxies(cluster: Cluster, base: int, shape: Shape) -> tuple[list[Node], dict[str, str], Partitions]:
    links = Links(dict, own_pid=os.getpid(), shape=shape)
    direct = []
    for at, node in enumerate(cluster.nodes):
        public, port = base + at, base + len(cluster.nodes) + at
        text = node.config_path.read_text()
        node.config_path.write_text(text.replace(f'listen = "127.0.0.1:{public}"', f'listen = "127.0.0.1:{port}"'))
        direct.append(Node(node.name, node.directory, f"http://127.0.0.1:{port}"))
        await links.open(node.name, public, port)
    return direct, {node.name: node.url for node in cluster.nodes}, links


async def _in_namespaces(cluster: Cluster, base: int, shape: Shape) -> tuple[list[Node], dict[str, str], Partitions]:
    spaces = await Namespaces.open([node.name for node in cluster.nodes], shape=shape)
    moved = []
    for at, node in enumerate(cluster.nodes):
        listen = f"{spaces.address(node.name)}:{PORT}"
        text = node.config_path.read_text()
        text = text.replace(f'listen = "127.0.0.1:{base + at}"', f'listen = "{listen}"')
        node.config_path.write_text("insecure = true\n" + text)
        moved.append(Node(node.name, node.directory, f"http://{listen}", launcher=spaces.launcher(node.name)))
    return moved, {node.name: node.url for node in moved}, spaces


__all__ = ["SETTINGS", "Group", "NodeEnded", "Refused", "SomeUrls", "make_group"]
