"""A group of an earlier release is upgraded, one node after the other: it serves the same bytes before and after.

    all earlier ─► append, keep what each node serves ─► start n1, n2 with this release; n3 stays earlier
                     serves the same; appends on all; each leads in turn; no transaction, no position, no upgrade
                ─► n3, too ─► `group upgrade` ─► a transaction, everywhere; n3 with the earlier release refuses its log

A release without levels refuses unknown fields in a hello: all of its nodes are stopped, and then started with this
release. Each expected state is awaited for at most ``WAIT_S``.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TypeVar

import msgspec

from harness.cluster import ClusterFailed, Say
from harness.orders import order
from repl import connect
from repl.cluster import Cluster, Node, free_base_port, prepare
from repl.net.network import AiohttpNetwork
from vlsn.errors import VlsnLogError
from vlsn.levels import TRANSACTIONS

WAIT_S = 60.0
POLL_S = 0.05
JSON = {"Content-Type": "application/json"}
BLOCKS = {"Accept": "application/x-vlsnlog-blocks"}
SEGMENT_BYTES = 1 << 20
T = TypeVar("T")


async def mixed(directory: Path, *, earlier: Path, python: str, say: Say) -> list[str]:
    """Runs all steps; returns the statements that did not hold. Raises ``ClusterFailed`` if it does not finish."""
    network = AiohttpNetwork()
    settings = {"segment_bytes": SEGMENT_BYTES}
    cluster = prepare(directory, network, base_port=free_base_port(), settings=settings)
    for node in cluster.nodes:
        node.python, node.environment["PYTHONPATH"] = python, str(earlier)
    story = _Story(cluster, network, say)
    try:
        await story.of_an_earlier_release()
        if (earlier / "vlsn" / "levels.py").exists():
            await story.with_one_of_it_left(cluster.node("n3"))
            await story.upgraded(cluster.node("n3"))
            await story.and_not_back(cluster.node("n3"), python, earlier)
        else:
            await story.upgraded(*cluster.nodes)
    except (TimeoutError, VlsnLogError) as error:
        raise ClusterFailed(f"{type(error).__name__}: {error}") from None
    finally:
        cluster.kill()
        await network.close()
    return story.findings


class _Story:
    def __init__(self, cluster: Cluster, network: AiohttpNetwork, say: Say) -> None:
        self.cluster = cluster
        self.findings: list[str] = []
        self._network = network
        self._say = say
        self._served = b"", b""
        """The lines and the blocks that every node served before the first upgrade."""
        self._last = 0

    def hold(self, holds: bool, said: str) -> None:
        self._say(f"{'ok ' if holds else 'NOT'} {said}")
        if not holds:
            self.findings.append(said)

    # The parts.

    async def of_an_earlier_release(self) -> None:
        for node in self.cluster.nodes:
            node.start()
        await self._within(self.cluster.serving())
        async with connect(",".join(self.cluster.urls), exactly_once=True) as log:
            for number in range(20):
                keys = [b"k%d" % each if each % 3 else None for each in range(50)]
                await log.append_many([b"%d/%d" % (number, each) * 100 for each in range(50)], keys=keys)
            await log.append(b"")
            self._last = await log.append("späte Zeile".encode(), key=b"\x00\xff")
        for url in self.cluster.urls:
            await order(self._network, url, "checkpoint", timeout_s=WAIT_S)
        async with connect(",".join(self.cluster.urls)) as log:
            self._last = await log.append(b"behind the checkpoint")
        await self._within(self.cluster.durable(self._last))
        pages = [await self._pages(node) for node in self.cluster.nodes]
        self._served = pages[0]
        size = sum(map(len, self._served))
        self.hold(
            pages[1:] == pages[:-1] and size > 200_000, f"3 nodes of the earlier release serve the same {size:,} bytes"
        )

    async def with_one_of_it_left(self, left: Node) -> None:
        for node in self.cluster.nodes:
            if node is not left:
                await self._upgrade(node)
        await self._same("with one of the earlier release left")
        for leader in self.cluster.nodes:
            await self._lead(leader)
            last = await self._append(f"{leader.name} leads".encode(), acks="all")
            await self._within(self.cluster.durable(last))
            seen = [(await self._get(node, f"/v1/entries/{last}")).decode() for node in self.cluster.nodes]
            self.hold(seen == [f"{leader.name} leads"] * 3, f"{leader.name} leads, and all acknowledge")
            if leader is not left:
                await self._refuses_transactions(leader)
        leader = self.cluster.node("n1")
        await self._lead(leader)
        leader.kill()
        last = await self._append(b"n1 is killed")
        leader.start()
        await self._within(self.cluster.durable(last))
        self.hold(True, "n1 killed while it leads: another one does, and n1 has all of it again")

    async def upgraded(self, *left: Node) -> None:
        await self._upgrade(*left)
        await self._same("all of this release")
        await self._lead(self.cluster.node("n1"))

        async def raised() -> bool:
            status, _ = await self._ordered("group/settings", {"level": TRANSACTIONS})
            return status == 200

        await self._until(raised, f"the group is raised to level {TRANSACTIONS}")
        async with connect(",".join(self.cluster.urls)) as log:
            async with log.transaction() as transaction:
                await transaction.append_many([b"debit", b"credit"])
            appended = transaction.appended
        assert appended is not None
        await self._within(self.cluster.durable(appended.last))
        path = f"/v1/entries?from={appended.first}&limit=10"
        seen = [await self._get(node, path) for node in self.cluster.nodes]
        self.hold(seen[0].count(b"\n") == 2 and seen[1:] == seen[:-1], "upgraded: a transaction, on every node")
        await self._same("and of level 2")

    async def and_not_back(self, node: Node, python: str, earlier: Path) -> None:
        """Checks that the earlier release does not open a log of the group's new level."""
        await self._end(node)
        before = _contents(node.directory)
        node.python, node.environment["PYTHONPATH"] = python, str(earlier)
        node.start()
        await self._until(_true_once(lambda: not node.running), "n3 refuses its log")
        same = _contents(node.directory) == before
        self.hold(node.ended == 2 and same, f"the earlier release does not open that log: {node.last_words()}")

    # Helpers.

    async def _upgrade(self, *nodes: Node) -> None:
        for node in nodes:
            await self._end(node)
        for node in nodes:
            fresh = Node(node.name, node.directory, node.url)
            node.python, node.environment = fresh.python, fresh.environment
            node.start()
        await self._within(self.cluster.durable(self._last))

    async def _end(self, node: Node) -> None:
        node.send(signal.SIGTERM)
        await self._until(_true_once(lambda: not node.running), f"{node.name} has ended")

    async def _refuses_transactions(self, leader: Node) -> None:
        url = leader.url
        status, body = await self._call("POST", f"{url}/v1/transactions")
        self.hold(
            (status, _slug(body)) == (400, "wrong-version"), f"{leader.name} refuses a transaction: {_said(body)}"
        )
        put = msgspec.json.encode({"next": 1})
        status, body = await self._call("PUT", f"{url}/v1/consumers/billing", put)
        self.hold((status, _slug(body)) == (400, "wrong-version"), f"{leader.name} refuses a position: {_said(body)}")
        status, body = await self._ordered("group/settings", {"level": TRANSACTIONS})
        named = status == 400 and "n3" in _said(body)
        self.hold(named, f"{leader.name} refuses the level, and names who does not speak it: {_said(body)}")

    async def _same(self, when: str) -> None:
        served = [await self._pages(node) for node in self.cluster.nodes]
        lines, blocks = self._served
        same = all(each[0] == lines and each[1].startswith(blocks) for each in served)
        self.hold(same, f"{when}: every node serves the same bytes as before")

    async def _pages(self, node: Node) -> tuple[bytes, bytes]:
        """Returns the lines up to the end of the first part as the node serves them, and the blocks up to there or
        further."""
        found = []
        for headers in ({}, BLOCKS):
            at, pages = 1, b""
            while at <= self._last:
                url = f"{node.url}/v1/entries?from={at}&limit={min(500, self._last + 1 - at)}&kinds=all"
                response = await self._network.request("GET", url, headers=headers, timeout_s=WAIT_S)
                pages, at = pages + bytes(response.body), int(response.headers["Vlsnlog-Next"])
            found.append(pages)
        return found[0], found[1]

    async def _lead(self, node: Node) -> None:
        async def leads() -> bool:
            if (await self._within(self.cluster.serving())) == node.name:
                return True
            for url in self.cluster.urls:
                await order(self._network, url, f"transfer?to={node.name}", timeout_s=WAIT_S)
            return False

        await self._until(leads, f"{node.name} leads")

    async def _append(self, value: bytes, acks: str = "majority") -> int:
        async with connect(",".join(self.cluster.urls), exactly_once=True, acks=acks, timeout_s=WAIT_S) as log:
            return await log.append(value)

    async def _ordered(self, what: str, body: Mapping[str, object]) -> tuple[int, bytes]:
        leader = self.cluster.node(await self._within(self.cluster.serving()))
        said = msgspec.json.encode(body)
        response = await order(self._network, leader.url, what, body=said, timeout_s=WAIT_S)
        return response.status, bytes(response.body)

    async def _get(self, node: Node, path: str) -> bytes:
        status, body = await self._call("GET", f"{node.url}{path}")
        if status != 200:
            raise ClusterFailed(f"{node.name} answers {status} to {path}: {_said(body)}")
        return body

    async def _call(self, method: str, url: str, body: bytes = b"") -> tuple[int, bytes]:
        response = await self._network.request(method, url, headers=JSON, body=body, timeout_s=WAIT_S)
        return response.status, bytes(response.body)

    async def _within(self, waiting: Awaitable[T]) -> T:
        return await asyncio.wait_for(waiting, WAIT_S)

    async def _until(self, holds: Callable[[], Awaitable[bool]], what: str) -> None:
        try:
            async with asyncio.timeout(WAIT_S):
                while True:
                    if await holds():
                        return
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            raise ClusterFailed(f"not within {WAIT_S:.0f} s: {what}") from None


def _true_once(holds: Callable[[], bool]) -> Callable[[], Awaitable[bool]]:
    async def asked() -> bool:
        return holds()

    return asked


def _contents(directory: Path) -> dict[str, bytes]:
    """Reads the log's files, without those of LMDB, whose locks every reader writes."""
    return {each.name: each.read_bytes() for each in [*sorted(directory.glob("*.vlog")), directory / "node.id"]}


def _slug(body: bytes) -> str:
    return str(msgspec.json.decode(body).get("type"))


def _said(body: bytes) -> str:
    return str(msgspec.json.decode(body).get("detail"))
