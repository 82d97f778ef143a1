"""A group of real nodes in one process: fake disks, stores, clocks, threads and network, virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from repl.auth import group_key
from repl.auth.group_key import GroupKeys
from repl.config import NodeConfig
from repl.node.node import Node
from tests.fakes.children import FakeChildren
from tests.fakes.machine import Machine, Process
from tests.fakes.net import FakeNet
from tests.fakes.random import SeededRandom
from vlsn.ids import NodeName
from vlsn.levels import LEVEL_1, SIGNED, Levels
from vlsn.limits import KIB
from vlsnlog.testing.fakes.disk import StopHere

PORT = 7701
KEY = "/group.key"
JSON = {"Content-Type": "application/json"}
SEGMENT = 64 * KIB
BIG = b"." * 4000
"""A large value, so that few entries fill a segment."""
CLEANS: dict[str, Any] = {
    "segment_bytes": SEGMENT,
    "checkpoint_bytes": SEGMENT,
    "checkpoint_period_s": 1.0,
    "cleaning_period_s": 0.5,
    "ring_bytes_max": SEGMENT,
}
"""Settings of nodes that soon have segments to clean."""


class Group:
    """The machines n1 … and the node that runs on each."""

    node_class = Node

    def __init__(
        self, seed: int, size: int = 3, *, levels: Levels = LEVEL_1, keyed: bool | None = None, **settings: Any
    ) -> None:
        """``levels`` are the levels that the binaries support: the group is founded at the highest. Most tests count
        VLSNs from a founding at level 1, whose block is one entry shorter. ``keyed``: the members have a key; by
        default they do if they support the level that needs one."""
        self.loop = asyncio.get_running_loop()
        self.rng = Random(seed)
        self.net = FakeNet(self.loop, Random(f"net/{seed}"))
        self.names = [f"n{number}" for number in range(1, size + 1)]
        self.levels = levels
        self.keys: GroupKeys | None = None
        """The key file of each node that starts; None: they have none."""
        if levels.max >= SIGNED if keyed is None else keyed:
            self.keys = GroupKeys((group_key.new_key(SeededRandom(f"key/{seed}"), "one"),))
        self.machines = {name: Machine(name, self.loop, self.net, Random(f"{name}/{seed}")) for name in self.names}
        for machine in self.machines.values():
            machine.levels = levels
        self.children = {name: self.made_children(name) for name in self.names}
        self.client = self.net.host("client")
        self.nodes: dict[str, Node] = {}
        self.fatal: list[tuple[str, BaseException]] = []
        self.settings: dict[str, Any] = {
            "insecure": True,
            "segment_bytes": SEGMENT,
            "checkpoint_period_s": 5.0,
            **settings,
        }

    def machine(self, name: str) -> Machine:
        """Makes a machine with an empty disk: of a newcomer, or in the place of a removed one."""
        assert name not in self.nodes, f"{name} is up"
        made = self.machines[name] = Machine(name, self.loop, self.net, Random(f"{name}/{self.rng.random()}"))
        made.levels = self.levels
        self.children[name] = self.made_children(name)
        return made

    def made_children(self, name: str) -> FakeChildren:
        """Makes the object that starts children on that machine."""
        return FakeChildren()

    def url(self, name: str) -> str:
        return f"http://{name}:{PORT}"

    def config(self, name: str) -> NodeConfig:
        return NodeConfig(
            name=NodeName(name),
            dir=Path(f"/{name}"),
            listen=f"{name}:{PORT}",
            members={NodeName(each): self.url(each) for each in dict.fromkeys([*self.names, name])},
            group="sim",
            group_key=Path(KEY) if self.keys is not None else None,
            **self.settings,
        )

    def write_key(self, name: str, keys: GroupKeys) -> None:
        """Writes that node's key file."""
        self.machines[name].disk.write_content(KEY, group_key.encode(keys), mode=0o600)

    async def start(self, *names: str) -> None:
        for name in names or self.names:
            process, node = self._boot(name)
            self.nodes[name] = node
            process.start(node.start())
        await asyncio.sleep(0)

    def made(self, name: str) -> Node:
        """Makes a node whose start the caller awaits."""
        return self._boot(name)[1]

    def _boot(self, name: str) -> tuple[Process, Node]:
        process = self.machines[name].boot()
        if self.keys is not None:
            self.write_key(name, self.keys)
        node = self.node_class(
            self.config(name),
            process.seams,
            process.network,
            self.children[name],
            on_fatal=partial(self._ended, name),
        )
        return process, node

    def _ended(self, name: str, error: BaseException) -> None:
        """Handles a node that ended itself.  A process that its disk stopped is killed, not ended, on any thread."""
        if not _stopped_here(error):
            self.fatal.append((name, error))

    def kill(self, *names: str, power: bool = False) -> None:
        for name in names:
            node = self.nodes.pop(name)
            for task in node._tasks:
                task.cancel()
            self.children[name].kill_all()
            if power:
                self.machines[name].power_cut(tear=True)
            else:
                self.machines[name].kill()

    async def until(self, holds: Callable[[], bool], what: str, limit_s: float = 30.0, *, poll_s: float = 0.01) -> None:
        """Waits in virtual time until ``holds``; a failure shows every node's status."""
        deadline = self.loop.time() + limit_s
        while not holds():
            if self.loop.time() > deadline:
                states = {name: (node.state, node.member.reason) for name, node in self.nodes.items()}
                raise AssertionError(f"not within {limit_s} s: {what}; {states}; fatal {self.fatal}")
            await asyncio.sleep(poll_s)

    @property
    def master(self) -> str:
        """The leader of the highest term known to the nodes; the first by name while no node leads."""
        leading = {
            name: node.opened().log.node_file.record.term
            for name, node in self.nodes.items()
            if node.member.is_master()
        }
        return max(leading, key=lambda name: leading[name], default=self.names[0])

    async def serving(self, master: str = "") -> None:
        """Waits until ``master``, or any node, leads, and its own first block is durable."""

        def ready() -> bool:
            node = self.nodes.get(master or self.master)
            return (
                node is not None and node.member.is_master() and node.dtvlsn() >= node.opened().log.view.range.last > 0
            )

        await self.until(ready, f"{master or 'a master'} serves")

    def state(self, name: str) -> str:
        return self.nodes[name].state

    async def append(self, value: bytes, *, to: str = "", acks: str = "majority") -> tuple[int, dict[str, Any]]:
        response = await self.client.request(
            "POST",
            f"{self.url(to or self.master)}/v1/entries?acks={acks}",
            headers={"Content-Type": "application/octet-stream"},
            body=value,
            timeout_s=12.0,
        )
        return response.status, msgspec.json.decode(bytes(response.body))

    async def appended(self, value: bytes, *, to: str = "") -> int:
        """Appends, again and again until a node accepts it; returns its VLSN once durable."""
        while True:
            status, answer = await self.append(value, to=to)
            if status == 200:
                return int(answer["first"])
            assert answer["type"] in ("no-master", "insufficient-replicas"), answer
            await asyncio.sleep(0.05)

    async def read(self, name: str, begins: int = 0) -> dict[int, bytes]:
        """Reads one node's log as a client, from the first VLSN to its durable end. With ``begins`` it reads from that
        VLSN on, and the node may clean meanwhile."""
        found: dict[int, bytes] = {}
        at = begins or 1
        while True:
            response = await self.client.request("GET", f"{self.url(name)}/v1/entries?from={at}", timeout_s=10.0)
            if begins and response.status == 410:
                at = msgspec.json.decode(bytes(response.body))["first"]
                continue
            assert response.status == 200, bytes(response.body)
            lines = bytes(response.body).splitlines()
            if not lines:
                return found
            for line in lines:
                entry = msgspec.json.decode(line)
                found[entry["vlsn"]] = entry["value"].encode()
            at = int(response.headers["Vlsnlog-Next"])

    async def stop(self) -> None:
        await asyncio.gather(*(node.stop() for node in self.nodes.values()))


def _stopped_here(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return any(_stopped_here(each) for each in error.exceptions)
    return isinstance(error, StopHere)
