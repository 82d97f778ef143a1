"""A master that falls silent while its replicas are in syncup is replaced as soon as any other."""

from __future__ import annotations

import pytest

from tests.fakes.loop import VirtualLoop, virtual
from tests.fakes.seeds import seeds
from tests.seam.nodes import Group


@pytest.mark.parametrize("seed", seeds(4))
@virtual
async def test_a_master_that_stands_still_while_both_replicas_are_in_syncup_is_succeeded(seed: int) -> None:
    """The limit is two timeouts of silence, one second of asking the master, and the election."""
    group = Group(seed)
    await group.start()
    await group.serving()
    for number in range(5):
        await group.appended(b"%d" % number)
    master = group.master
    others = [name for name in group.names if name != master]
    for name in others:
        group.net.delays_s[master, name] = (0.3, 0.3)  # so that a syncup takes a while
        group.net.cut(master, name)

    def in_syncup(name: str) -> bool:
        following = group.nodes[name].following
        return following is not None and following.taking_feed

    await group.until(lambda: all(map(in_syncup, others)), "both are in syncup")
    loop = group.loop
    assert isinstance(loop, VirtualLoop)
    process = group.machines[master].process
    assert process is not None
    loop.pause(process.owner)
    began = loop.time()
    await group.until(lambda: "MASTER" in map(group.state, others), "one of them leads", limit_s=60)
    assert loop.time() - began < 5.0, loop.time() - began
    loop.resume(process.owner)
    await group.serving()
    await group.appended(b"after")
    await group.stop()
    assert not group.fatal


@pytest.mark.parametrize("seed", seeds(4))
@virtual
async def test_a_syncup_that_takes_longer_than_an_election_timeout_is_not_given_up(seed: int) -> None:
    """The master runs, and answers when asked. The replica's slow disk must read a block first."""
    group = Group(seed)
    await group.start()
    await group.serving()
    master = group.master
    other = next(name for name in group.names if name != master)
    await group.appended(b"something")
    term = group.nodes[master].opened().log.node_file.record.term
    disk = group.machines[other].disk
    disk.latency = lambda call: 3.0 if call.name == "read" and call.path.endswith(".vlog") else 0.0
    group.net.cut(master, other)
    node = group.nodes[other]
    await group.until(lambda: node.following is not None and node.following.taking_feed, "it is in syncup")
    following = node.following
    assert following is not None
    feeds, began = following.feeds, group.loop.time()
    await group.until(lambda: following.feed is not None and following.feed.streaming, "it follows again")
    assert group.loop.time() - began > 3.0
    assert node.following is following and following.feeds == feeds
    assert group.master == master and group.nodes[master].opened().log.node_file.record.term == term
    await group.stop()
    assert not group.fatal
