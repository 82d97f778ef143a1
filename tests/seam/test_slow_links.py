"""Narrow links: messages under way arrive, and no member is given up because of them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.fakes.loop import virtual
from tests.seam.nodes import Group
from vlsn.format import batch
from vlsn.limits import KIB, MIB

SETTINGS: dict[str, Any] = {"segment_bytes": 24 * MIB, "checkpoint_bytes": 1 << 30}


@pytest.mark.parametrize("size", [300 * KIB, 1000 * KIB])
@virtual
async def test_a_replica_behind_a_slow_link_catches_up_and_stays(size: int) -> None:
    """The group logs 200 kB a second, the link carries 300: each message of a mebibyte takes over three seconds."""
    group = Group(81, **SETTINGS)
    await group.start()
    await group.serving()
    master = group.master
    slow = next(name for name in group.names if name != master)
    term = group.nodes[master].opened().log.node_file.record.term
    group.net.bytes_per_s[master, slow] = 300_000.0
    following = group.nodes[slow].following
    assert following is not None
    feeds, last = following.feeds, 0
    for _ in range(6_000_000 // size):
        last = await group.appended(b"." * size)
        await asyncio.sleep(size / 200_000)
    await group.until(lambda: group.nodes[slow].dtvlsn() >= last, f"{slow} has caught up", limit_s=15)
    assert group.nodes[slow].following is following and following.feeds == feeds
    assert group.nodes[master].opened().log.node_file.record.term == term and group.master == master
    await group.stop()
    assert not group.fatal


@virtual
async def test_a_large_batch_on_links_that_take_longer_than_an_election_timeout_is_logged() -> None:
    """15 MB, which is legal, at 80 Mbit/s: a second and a half without a whole message, on both links."""
    group = Group(82, **SETTINGS)
    await group.start()
    await group.serving()
    master = group.master
    others = [name for name in group.names if name != master]
    term = group.nodes[master].opened().log.node_file.record.term
    feeds = {name: group.nodes[name].following.feeds for name in others}  # type: ignore[union-attr]
    for name in others:
        group.net.bytes_per_s[master, name] = 10e6
    began = group.loop.time()
    response = await group.client.request(
        "POST",
        f"{group.url(master)}/v1/entries?acks=all",
        headers={"Content-Type": "application/x-vlsnlog-batch"},
        body=batch.encode([b"." * 1_000_000] * 15),
        timeout_s=20.0,
    )
    assert response.status == 200, bytes(response.body)
    assert group.loop.time() - began > 1.5
    assert group.master == master and group.nodes[master].opened().log.node_file.record.term == term
    assert feeds == {name: group.nodes[name].following.feeds for name in others}  # type: ignore[union-attr]
    await group.stop()
    assert not group.fatal


@virtual
async def test_a_master_that_stands_still_behind_a_slow_link_is_succeeded() -> None:
    """Messages under way when it stopped are received as long as they arrive, and not longer."""
    group = Group(83, **SETTINGS)
    await group.start()
    await group.serving()
    master = group.master
    others = [name for name in group.names if name != master]
    for name in others:
        group.net.bytes_per_s[master, name] = 300_000.0
    await group.append(b"." * (900 * KIB), to=master, acks="none")
    began = group.loop.time()
    group.kill(master)
    await group.until(lambda: "MASTER" in map(group.state, others), "one of them leads", limit_s=10)
    assert group.loop.time() - began < 6.0
    await group.stop()
