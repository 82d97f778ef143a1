"""Silence and suspension: disks that hang, processes and whole machines that are stopped."""

from __future__ import annotations

import asyncio

import pytest

from repl.elect.electing import UNSYNCED_MAX_S
from replica.feed import SILENCE_S
from tests.fakes.loop import VirtualLoop, virtual
from tests.fakes.seeds import seeds
from tests.seam.nodes import Group
from tests.seam.test_membership import fed, has_all, joined, told
from vlsnlog.testing.fakes.disk import Call


def pause(group: Group, *names: str) -> None:
    for name in names:
        process = group.machines[name].process
        assert isinstance(group.loop, VirtualLoop) and process is not None
        group.loop.pause(process.owner)


def resume(group: Group, *names: str) -> None:
    for name in names:
        process = group.machines[name].process
        assert isinstance(group.loop, VirtualLoop) and process is not None
        group.loop.resume(process.owner)


def term(group: Group, name: str) -> int:
    return group.nodes[name].opened().log.node_file.record.term


def _stalled(call: Call) -> float:
    return 600.0 if call.name == "sync" and call.path.endswith(".vlog") else 0.0


@pytest.mark.parametrize("size", [3, 5])
@virtual
async def test_a_master_whose_disk_has_stopped_makes_way(size: int) -> None:
    """Its replicas acknowledge, so that appends become durable without it. But appends that need its own disk
    (``acks=none``, ``all``) would wait for ever."""
    group = Group(901, size)
    await group.start()
    await group.serving()
    await fed(group, size - 1)
    entries = await told(group, 3)
    master = group.master
    others = [name for name in group.names if name != master]
    group.machines[master].disk.latency = _stalled
    began = group.loop.time()
    assert (await group.append(b"while it stands", to=master))[0] == 200
    await group.until(lambda: any(group.nodes[name].member.is_master() for name in others), "another one leads", 60.0)
    assert UNSYNCED_MAX_S < group.loop.time() - began < UNSYNCED_MAX_S + 5.0
    assert not group.nodes[master].member.is_master()
    entries |= await told(group, 3, "after ")
    await has_all(group, entries, *others)
    group.kill(master)
    group.machines[master].disk.latency = None
    await group.start(master)
    await has_all(group, entries, master)
    await group.stop()
    assert not group.fatal


@pytest.mark.parametrize("seed", seeds(3))
@virtual
async def test_machines_that_stood_still_together_hold_nobody_silent(seed: int) -> None:
    """All nodes are stopped for longer than any timeout, as on one suspended host. No node was silent, and their
    messages are unread in their sockets."""
    group = Group(910 + seed)
    await group.start()
    await group.serving()
    await fed(group, 2)
    entries = await told(group, 3)
    master = group.master
    before = term(group, master)
    for seconds in (0.9, 4.0, 30.0):
        pause(group, *group.names)
        await asyncio.sleep(seconds)
        resume(group, *group.names)
        await asyncio.sleep(3.0)
        assert group.nodes[master].member.is_master(), f"{seconds} s: {group.nodes[master].member.reason}"
        assert {term(group, name) for name in group.names} == {before}, seconds
        entries |= await told(group, 1, f"{seconds} ")
    await has_all(group, entries)
    await group.stop()
    assert not group.fatal


@pytest.mark.parametrize("seed", seeds(2))
@virtual
async def test_a_secondary_leaves_the_feed_of_a_master_that_stands_still(seed: int) -> None:
    """The secondary takes no part in the election, so it leaves its feed only because that is silent."""
    group = Group(920 + seed)
    await group.start()
    await group.serving()
    await joined(group, "n4", secondary=True)
    await group.until(lambda: group.state("n4") == "REPLICA", "it is fed")
    entries = await told(group, 3)
    await has_all(group, entries)
    master = group.master
    others = [name for name in group.names if name not in (master, "n4")]
    pause(group, master)
    await group.until(lambda: any(group.nodes[name].member.is_master() for name in others), "another one leads", 10.0)
    leads = next(name for name in others if group.nodes[name].member.is_master())
    await group.until(
        lambda: group.nodes["n4"].member.master_name() == leads, "the secondary follows it", 2 * SILENCE_S
    )
    resume(group, master)
    entries |= await told(group, 3, "after ")
    await has_all(group, entries)
    await group.stop()
    assert not group.fatal
