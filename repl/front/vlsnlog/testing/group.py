"""``Group``: the nodes of one group, as processes or in memory, started and stopped by a thread of their own.

    the test's thread                    the group's thread, with an event loop
    group.kill("n1")            ─►       SIGKILL to n1
    group.partition(["n1"])     ─►       links: pairs of n1 are cut        (every node calls the others through links)
    group.connect_sync()                 —     the client calls the nodes directly, so no partition reaches it

The nodes die with this process, however it ends (``repl.node.lifeline``). With ``disk="memory"`` they are threads of it
(``in_memory``).
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Coroutine, Iterable, Mapping
from concurrent.futures import CancelledError
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeVar

from repl.client.connect import Client, connect
from repl.client.endpoints import Endpoints, Status
from repl.client.sync import SyncClient, connect_sync
from repl.cluster import LOG_FILE, Cluster, Node, free_base_port, prepare
from repl.net.network import AiohttpNetwork
from vlsn.errors import BadArgument
from vlsnlog.testing.fakes.disk import FakeDisk
from vlsnlog.testing.in_memory import NodeInMemory, next_hosts
from vlsnlog.testing.links import Links

NODES_MAX: Final = 7
START_S: Final = 60.0
POLL_S: Final = 0.05
DISKS: Final = ("real", "memory")
SETTINGS: Final[dict[str, Any]] = {"segment_bytes": 4 << 20, "free_bytes_min": 0}
"""Settings of a test's nodes: small segments are made sooner, and a nearly full disk is no matter."""
IN_MEMORY: Final[dict[str, Any]] = {"heartbeat_s": 0.1, "election_timeout_s": 0.5}
"""Further settings of nodes in memory, whose next master leads within about a second."""
T = TypeVar("T")


class NotInTime(TimeoutError):
    """The group did not become as asked within the time. The text has the last line of each node's log."""


class Group:
    """A group of 1 to 7 nodes, ``n1`` and so on; a context manager, for ``with`` and ``async with``.

    With ``disk="real"`` the nodes are processes, and their data are files. With ``disk="memory"`` they are threads,
    each with a disk of 256 MiB in memory that can fail on order (``disk``, ``power_cut``); a group starts within a
    fraction of a second. Its nodes have no CDC consumers.

    ``settings`` are settings of every node (docs/reference/settings.md). ``directory`` keeps the data and the logs
    after the context has ended; by default they are in a temporary directory, which is removed. Any thread may call
    the methods, which return when what they do is done. Raises ``BadArgument`` for a wrong number or setting, and
    ``NotInTime`` if the nodes do not start within ``start_s`` seconds. The data of nodes in memory end with the context
    in any case.
    """

    def __init__(
        self,
        nodes: int = 3,
        *,
        settings: Mapping[str, Any] | None = None,
        directory: str | Path | None = None,
        start_s: float = START_S,
        disk: Literal["real", "memory"] = "real",
    ) -> None:
        if disk not in DISKS:
            raise BadArgument(f"disk: {disk!r} is none of {', '.join(DISKS)}")
        if not 1 <= nodes <= NODES_MAX:
            raise BadArgument(f"nodes: {nodes} is not between 1 and {NODES_MAX}")
        self.names = [f"n{number}" for number in range(1, nodes + 1)]
        self._settings = SETTINGS | (IN_MEMORY if disk == "memory" else {}) | dict(settings or {})
        self._given = None if directory is None else Path(directory)
        self._start_s = start_s
        self._in_memory = disk == "memory"
        self._loop: asyncio.AbstractEventLoop
        self._thread: threading.Thread
        self._opened: _Opened | None = None

    # The context.

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="vlsnlog-testing", daemon=True)
        self._thread.start()
        try:
            self._run(self._open())
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.__enter__)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self._end)

    # For the program under test.

    @property
    def url(self) -> str:
        """The URLs of all nodes, separated by commas, as ``connect`` takes them."""
        return ",".join(self._open_group.urls.values())

    @property
    def urls(self) -> dict[str, str]:
        """The URL of each node, by its name."""
        return dict(self._open_group.urls)

    @property
    def directory(self) -> Path:
        """The directory with one directory for each node."""
        return self._open_group.directory

    def connect(self, **arguments: Any) -> Client[Any]:
        """Makes a client by ``vlsnlog.connect``, with the same arguments but the URL; use it with ``async with``."""
        return connect(self.url, **arguments)

    def connect_sync(self, **arguments: Any) -> SyncClient[Any]:
        """Makes a client by ``vlsnlog.connect_sync``, with the same arguments but the URL; use it with ``with``."""
        return connect_sync(self.url, **arguments)

    def log(self, name: str) -> str:
        """Returns what a node has logged."""
        return (self._node(name).directory / LOG_FILE).read_text(errors="replace")

    # Faults.

    def master(self, timeout_s: float = START_S) -> str:
        """Returns the name of the node that accepts appends. Raises ``NotInTime``."""
        return self._run(self._in_time(self._open_group.cluster.serving(), timeout_s, "no master takes appends"))

    def kill(self, *names: str) -> None:
        """Ends nodes by SIGKILL; without names, all of them at once. Unsynced
        bytes stay in the page cache: only a power cut would lose them."""
        for name in names or self.names:
            self._node(name).send(signal.SIGKILL)
        for name in names or self.names:
            self._node(name).kill()

    def power_cut(self, *names: str) -> None:
        """Kills nodes in memory, and any of their unsynced bytes are lost; without names, all of them at once. Raises
        ``BadArgument`` for nodes on real disks."""
        cut = [self._node_in_memory(name) for name in names or self.names]
        for node in cut:
            node.send(signal.SIGKILL)
        for node in cut:
            node.power_cut()

    def disk(self, name: str) -> FakeDisk:
        """Returns the disk of a node in memory, to make it full (``capacity_bytes``) or its calls fail (``fail_at``).
        Raises ``BadArgument`` for nodes on real disks."""
        return self._node_in_memory(name).disk

    def stop(self, *names: str) -> None:
        """Ends nodes cleanly, by SIGTERM; without names, all of them. A master hands over first."""
        self._run(self._stop(names or tuple(self.names)))

    def start(self, *names: str) -> None:
        """Starts nodes that do not run; without names, all of them. Returns once each answers, which may be before it
        follows a master. Raises ``NotInTime``."""
        self._run(self._start(names or tuple(self.names)))

    def pause(self, *names: str) -> None:
        """Stops nodes by SIGSTOP: they are silent, and their connections stay. In memory the node's loop stands
        still."""
        for name in names:
            self._node(name).send(signal.SIGSTOP)

    def resume(self, *names: str) -> None:
        """Lets paused nodes go on; without names, all of them."""
        for name in names or self.names:
            self._node(name).send(signal.SIGCONT)

    def partition(self, *sides: Iterable[str]) -> None:
        """Cuts every connection between nodes of different sides, until ``heal``. The nodes that no side names form
        one more side: ``partition(["n1"])`` isolates n1. Clients still reach every node."""
        named = [list(side) for side in sides]
        for name in (name for side in named for name in side):
            self._node(name)
        left = [name for name in self.names if not any(name in side for side in named)]
        side_of = {name: number for number, side in enumerate([*named, left]) for name in side}
        pairs = [(one, other) for one in self.names for other in self.names if side_of[one] != side_of[other]]
        self._run(self._open_group.links.block(pairs, "cut"))

    def heal(self) -> None:
        """Ends all partitions."""
        self._run(self._open_group.links.heal())

    def caught_up(self, timeout_s: float = START_S) -> None:
        """Returns once every node serves reads up to the highest durable VLSN that any of them reports. Raises
        ``NotInTime``."""
        self._run(self._in_time(self._caught_up(), timeout_s, "not all nodes have the whole log"))

    # On the group's thread.

    @property
    def _open_group(self) -> _Opened:
        if self._opened is None:
            raise BadArgument("the group is not started: use it in `with Group() as group:`")
        return self._opened

    def _node(self, name: str) -> Node:
        if name not in self.names:
            raise BadArgument(f"{name!r} is none of {', '.join(self.names)}")
        return self._open_group.cluster.node(name)

    def _node_in_memory(self, name: str) -> NodeInMemory:
        node = self._node(name)
        if not isinstance(node, NodeInMemory):
            raise BadArgument('disk: the nodes have real disks; use Group(disk="memory")')
        return node

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        if threading.current_thread() is self._thread:
            raise BadArgument("a group is not used from its own thread")
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _open(self) -> None:
        made = self._given is None
        directory = Path(tempfile.mkdtemp(prefix="vlsnlog-testing-")) if self._given is None else self._given
        network = AiohttpNetwork()
        count = len(self.names)
        base = free_base_port(2 * count)
        cluster = prepare(directory, network, nodes=count, base_port=base, settings=self._settings)
        hosts = next_hosts(self.names) if self._in_memory else dict.fromkeys(self.names, "127.0.0.1")
        by_host = {host: name for name, host in hosts.items()} if self._in_memory else None
        links = Links(lambda: _pids(nodes), own_pid=os.getpid(), hosts=by_host)
        nodes: list[Node] = []
        for at, node in enumerate(cluster.nodes):
            name, host, public, port = node.name, hosts[node.name], base + at, base + count + at
            text = node.config_path.read_text()
            node.config_path.write_text(text.replace(f'listen = "127.0.0.1:{public}"', f'listen = "{host}:{port}"'))
            url = f"http://{host}:{port}"
            if self._in_memory:
                nodes.append(NodeInMemory(name, node.directory, url, host, seed=at))
            else:
                nodes.append(Node(name, node.directory, url))
            await links.open(name, public, port, host=host)
        self._opened = _Opened(Cluster(directory, nodes, network), links, network, directory if made else None)
        await self._start(tuple(self.names))
        await self._in_time(self._opened.cluster.serving(), self._start_s, "no master takes appends")

    async def _start(self, names: tuple[str, ...]) -> None:
        nodes = [self._node(name) for name in names]
        for node in nodes:
            if not node.running:
                node.start()
        cluster = self._open_group.cluster
        answering = asyncio.gather(*(cluster.answering(node) for node in nodes))
        await self._in_time(_all(answering), self._start_s, "not all nodes answer")

    async def _stop(self, names: tuple[str, ...]) -> None:
        nodes = [self._node(name) for name in names]
        await Cluster(self.directory, nodes, self._open_group.network).stop()

    async def _caught_up(self) -> None:
        cluster = self._open_group.cluster
        endpoints = Endpoints(self._open_group.network, cluster.urls)
        durable = 0
        while not durable:
            answers = [each for each in await endpoints.statuses(cluster.urls) if isinstance(each, Status)]
            durable = max((each.durable for each in answers), default=0)
            await asyncio.sleep(POLL_S)
        await cluster.durable(durable)

    async def _in_time(self, work: Coroutine[Any, Any, T], seconds: float, what: str) -> T:
        try:
            async with asyncio.timeout(seconds):
                return await work
        except TimeoutError:
            words = "; ".join(
                f"{each.name}: {each.last_words() or 'nothing'}" for each in self._open_group.cluster.nodes
            )
            raise NotInTime(f"{what} within {seconds:g} s: {words}") from None

    def _end(self) -> None:
        """Kills the nodes, and removes what was made."""
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.cluster.kill()
            try:
                self._run(opened.close())
            except (CancelledError, OSError):
                pass
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class _Opened:
    """A started group. ``temporary`` is the directory to remove at the end, or None."""

    def __init__(self, cluster: Cluster, links: Links, network: AiohttpNetwork, temporary: Path | None) -> None:
        self.cluster = cluster
        self.links = links
        self.network = network
        self.directory = cluster.directory
        self.urls = {node.name: node.url for node in cluster.nodes}
        self._temporary = temporary

    async def close(self) -> None:
        await self.links.close()
        await self.network.close()
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)


def _pids(nodes: Iterable[Node]) -> dict[str, int]:
    return {node.name: node.pid for node in nodes if node.running and node.pid is not None}


async def _all(answers: asyncio.Future[list[Status]]) -> None:
    await answers
