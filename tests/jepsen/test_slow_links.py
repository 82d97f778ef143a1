"""Real nodes behind narrow links (``vlsnlog.testing.links``): a replica behind one catches up, and stays."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from harness.group.nodes import Group, make_group

from repl.client.connect import real_network
from repl.web.types import Network
from tests.e2e.calls import BATCH, call
from vlsn.format import batch
from vlsn.limits import KIB, MIB
from vlsnlog.testing.links import Links

pytestmark = pytest.mark.real
CATCH_UP_S = 60.0


class Nodes:
    """A group that runs, its links, and its leader."""

    def __init__(self, group: Group, links: Links, network: Network, master: str) -> None:
        self.group, self.links, self.network, self.master = group, links, network, master
        self.others = [name for name in group.names if name != master]

    async def status(self, name: str) -> dict[str, Any]:
        response = await self.network.request("GET", f"{self.group.urls[name]}/v1/status", timeout_s=30.0)
        return msgspec.json.decode(bytes(response.body), type=dict[str, Any])

    async def standing(self) -> list[tuple[object, ...]]:
        """Returns each node's state, its term, and how often it has got a feed past syncup."""
        told = [await self.status(name) for name in self.group.names]
        return [(each["state"], each["term"], len(each["syncups"])) for each in told]

    async def append(self, values: list[bytes], acks: str) -> int:
        url = f"{self.group.urls[self.master]}/v1/entries?acks={acks}&timeout=60"
        answer = await asyncio.to_thread(call, "POST", url, headers=BATCH, body=batch.encode(values))
        return int(answer.ok()["last"])


@asynccontextmanager
async def running(directory: Path) -> AsyncIterator[Nodes]:
    network = real_network()
    group = await make_group(directory, network, nodes=3, settings={"segment_bytes": 24 * MIB})
    assert isinstance(group.links, Links)
    try:
        yield Nodes(group, group.links, network, await group.start())
    finally:
        await group.close()
        await network.close()


async def test_a_replica_behind_a_slow_link_catches_up_and_stays(tmp_path: Path) -> None:
    """The link carries 300 kB/s for a group that logs 200. The kernel has room for 6 MB on the way, so a replica gets
    no whole message for many seconds."""
    async with running(tmp_path / "group") as nodes:
        slow = nodes.others[0]
        nodes.links.narrow((nodes.master, slow), 300_000)
        before, last = await nodes.standing(), 0
        for _ in range(12):
            last = await nodes.append([b"." * 500 * KIB], "majority")
            await asyncio.sleep(500 * KIB / 200_000)
        async with asyncio.timeout(CATCH_UP_S):
            while (await nodes.status(slow))["range"]["last_sync"] < last:  # noqa: ASYNC110  another process has it
                await asyncio.sleep(0.2)
        assert await nodes.standing() == before


async def test_a_large_batch_is_logged_whatever_time_the_links_take_for_it(tmp_path: Path) -> None:
    """15 MB at 24 Mbit/s: some five seconds."""
    async with running(tmp_path / "group") as nodes:
        for name in nodes.others:
            nodes.links.narrow((nodes.master, name), 3e6)
        before = await nodes.standing()
        await nodes.append([b"." * 1_000_000] * 15, "all")
        assert await nodes.standing() == before
