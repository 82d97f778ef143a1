"""Warnings in nodes' logs: none while nothing is wrong, and one for each thing that is."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from repl.config import NodeConfig
from repl.elect.electing import TICK_S
from repl.follow.following import MASTERLESS_S
from repl.group.members import AWAITED_S
from repl.group.peers import TELL_S
from repl.node.node import Node
from tests.fakes.loop import virtual
from tests.fakes.seeds import seeds
from tests.seam.nodes import Group
from tests.seam.test_membership import fed
from vlsn.errors import NotMaster, Unreachable, WrongGroup
from vlsn.ids import NodeName
from vlsnlog.testing.fakes.disk import Call

SOON_S = 1.0


def loud(group: Group, *names: str) -> list[tuple[str, str, Any]]:
    """Returns node, name and peer (or reason) of each event above INFO."""
    return [each for name in names or group.nodes for each in loud_of(group.nodes[name])]


def loud_of(node: Node) -> list[tuple[str, str, Any]]:
    """Leaves out that the fake group is open to everybody."""
    events = node.member.events.since(1, 1_000)["events"]
    found = [each for each in events if each["level"] != "info" and each["event"] != "insecure"]
    return [(node.name, each["event"], each.get("peer") or each.get("why")) for each in found]


async def founded(seed: int) -> Group:
    group = Group(seed)
    await group.start()
    await group.serving()
    await fed(group, 2)
    return group


@pytest.mark.parametrize("seed", seeds(4))
@virtual
async def test_a_founding_logs_no_warning_in_whatever_order_the_members_start(seed: int) -> None:
    group = Group(seed)
    for name in group.rng.sample(group.names, 3):
        await group.start(name)
        await asyncio.sleep(SOON_S)
    await group.serving()
    await fed(group, 2)
    assert loud(group) == []
    await group.stop()


@virtual
async def test_a_founder_with_a_slow_disk_leads_from_its_first_block_on() -> None:
    """No member can be fed before that block, so their silence counts from there."""
    group = Group(16)
    await group.start()
    node = group.nodes["n1"]
    slow_s = 1.5 * node.member.config.election_timeout_s

    def latency(call: Call) -> float:
        return slow_s if "sync" in call.name and node.member.events.recent("founding", "founding") else 0.0

    group.machines["n1"].disk.latency = latency
    await group.until(lambda: bool(node.member.events.recent("founding", "founding")), "it founds the group")
    began = group.loop.time()
    await group.until(node.member.is_master, "it leads", poll_s=0.001)
    assert group.loop.time() - began >= slow_s
    group.net.split(["n1"], ["n2", "n3"])  # no member is fed for a while
    group.machines["n1"].disk.latency = lambda call: 0.0
    await asyncio.sleep(3 * TICK_S)
    group.net.heal()
    await fed(group, 2)
    assert node.opened().log.node_file.record.term == 1
    assert loud(group) == []
    await group.stop()


@virtual
async def test_a_member_that_never_starts_is_warned_about_once_the_grace_is_over() -> None:
    group = Group(7)
    await group.start("n1", "n2")
    await asyncio.sleep(min(AWAITED_S, MASTERLESS_S) - SOON_S)
    assert loud(group) == []
    await asyncio.sleep(2 * SOON_S)
    assert loud(group, "n1") == [("n1", "peer.silent", "n3")]
    [(_, event, why)] = loud(group, "n2")
    assert event == "feed.stopped" and "n3" in why
    await asyncio.sleep(2 * AWAITED_S)
    assert loud(group, "n1") == [("n1", "peer.silent", "n3")], "it is one event"
    await group.stop()


@virtual
async def test_a_member_that_was_seen_and_then_is_silent_is_warned_about_at_once() -> None:
    group = Group(8)
    await group.start("n1", "n3")
    await group.until(lambda: group.nodes["n3"].member.founder is not None, "n1 has seen n3")
    assert loud(group) == []
    group.kill("n3")
    await asyncio.sleep(SOON_S)
    assert loud(group, "n1") == [("n1", "peer.silent", "n3")]
    await group.stop()


@virtual
async def test_a_node_without_a_master_warns_once_the_grace_is_over() -> None:
    """All members answer, and none of them leads."""
    group = Group(9)
    await group.start()
    group.nodes["n1"].member.may_found = False
    await asyncio.sleep(MASTERLESS_S - SOON_S)
    assert loud(group) == []
    await asyncio.sleep(2 * SOON_S)
    assert loud(group) == [(name, "feed.stopped", "no-master: no member leads") for name in group.names]
    await group.stop()


@pytest.mark.parametrize("seed", seeds(4))
@virtual
async def test_a_hand_over_that_was_ordered_logs_no_warning(seed: int) -> None:
    group = await founded(seed)
    old = group.nodes[group.master]
    heir = group.nodes[str((await old.services.administration.transfer(None))["to"])]
    await group.until(heir.member.is_master, "the heir leads")
    await fed(group, 2)
    assert loud(group) == []
    assert [each["expected"] for each in old.member.events.recent("election", "steps_down")] == [True]
    await group.stop()


@pytest.mark.parametrize("seed", seeds(4))
@virtual
async def test_a_rolling_restart_logs_no_warning(seed: int) -> None:
    group = await founded(seed)
    for name in group.names:
        node = group.nodes.pop(name)
        await node.stop()
        assert loud_of(node) == []
        group.machines[name].kill()
        await group.serving()
        assert loud(group) == []
        await group.start(name)
        await fed(group, 2)
        assert loud(group) == []
    await group.stop()


@pytest.mark.parametrize("seed", seeds(4))
@virtual
async def test_a_master_that_stops_ends_only_when_its_successor_leads(seed: int) -> None:
    group = await founded(seed)
    stopped = group.nodes.pop(group.master)
    await stopped.stop()
    assert any(node.member.is_master() for node in group.nodes.values())
    await group.stop()


@pytest.mark.parametrize("seed", seeds(6))
@virtual
async def test_a_group_that_is_stopped_at_once_logs_no_warning(seed: int) -> None:
    group = await founded(seed)
    nodes = [group.nodes[name] for name in group.rng.sample(group.names, 3)]
    began = group.loop.time()
    stopping = [asyncio.create_task(node.stop()) for node in nodes[:-1]]
    await asyncio.sleep(0.001 * group.rng.random())
    stopping.append(asyncio.create_task(nodes[-1].stop()))
    await asyncio.wait(stopping)
    assert loud(group) == []
    assert group.loop.time() - began < SOON_S, "nobody waits for a successor that stops"


@pytest.mark.parametrize("voted", [False, True])
@virtual
async def test_a_master_does_not_wait_for_a_successor_that_stops_before_it_leads(voted: bool) -> None:
    """It stops after it has begun to stand, or after this master has voted for it."""
    group = await founded(15)
    old = group.nodes[group.master]
    others = [node for node in group.nodes.values() if node is not old]
    stopping = [asyncio.create_task(old.stop())]
    while not any(node.member.events.recent("election", "stands") for node in ([] if voted else others)):
        if old.member.events.recent("election", "vote"):
            break
        assert not stopping[0].done()
        await asyncio.sleep(1e-5)
    stopping += [asyncio.create_task(node.stop()) for node in others]
    began = group.loop.time()
    await asyncio.wait(stopping)
    assert not any(node.member.events.recent("election", "elected") for node in others)
    assert loud(group) == []
    assert group.loop.time() - began < SOON_S


@virtual
async def test_a_master_that_stops_passes_a_replica_over_that_stops_as_well() -> None:
    """The longer log is on n2, which is stopping: n3 takes over, although it is asked second."""
    group = await founded(11)
    old = group.master
    second, third = [name for name in group.names if name != old]
    group.net.bytes_per_s[old, third] = 10_000.0
    assert (await group.append(2_000 * b"."))[0] == 200
    group.nodes[second].member.stopping = True
    await group.nodes.pop(old).stop()
    assert group.state(third) == "MASTER"
    assert loud(group) == []
    await group.stop()


@virtual
async def test_a_master_that_dies_is_warned_about() -> None:
    group = await founded(10)
    old = group.master
    group.kill(old)
    await group.serving()
    warned = {name for name, event, why in loud(group) if event == "feed.stopped" and "gone" in why}
    assert warned == set(group.names) - {old}
    await group.stop()


@virtual
async def test_a_replica_that_died_is_warned_about_by_every_other_once_the_grace_is_over() -> None:
    """The master, which has lost a feed, may say so at once."""
    group = await founded(12)
    dead, other = [name for name in group.names if name != group.master]
    group.kill(dead)
    await asyncio.sleep(AWAITED_S - SOON_S)
    assert loud(group, other) == []
    await asyncio.sleep(2 * TELL_S + SOON_S)
    assert loud(group) == [(name, "peer.silent", dead) for name in group.nodes]
    await group.stop()


@virtual
async def test_only_a_member_that_may_be_starting_or_stopping_is_expected_to_be_silent() -> None:
    group = Group(13)
    await group.start("n1")
    member, n2 = group.nodes["n1"].member, NodeName("n2")
    refused = Unreachable("n2: connection refused", refused=True)
    assert member.is_expected(n2, refused)
    assert member.is_expected(n2, NotMaster("it opens its log"))
    assert not member.is_expected(n2, Unreachable("n2: its certificate is of another", tls=True))
    assert not member.is_expected(n2, WrongGroup("n2 is of another group"))
    member.members.answered(n2)
    assert not member.is_expected(n2, refused)
    member.members.has_left(n2, member.seams.clock.monotonic_s())
    assert member.is_expected(n2, refused)
    await asyncio.sleep(AWAITED_S + SOON_S)
    assert not member.is_expected(n2, refused)
    await group.stop()


class Strange(Group):
    """The settings of n3 name another group."""

    def config(self, name: str) -> NodeConfig:
        made = super().config(name)
        return replace(made, group="another") if name == "n3" else made


@virtual
async def test_a_node_that_a_member_refuses_warns_at_once() -> None:
    group = Strange(14)
    await group.start("n2")
    await asyncio.sleep(SOON_S)
    assert loud(group) == []
    await group.start("n3")
    await asyncio.sleep(SOON_S)
    assert {name for name, event, _ in loud(group) if event == "feed.stopped"} == {"n2", "n3"}
    await group.stop()
