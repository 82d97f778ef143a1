"""A change of the group waits for the earlier change, and for a member with the whole log."""

from __future__ import annotations

import asyncio

import pytest

from tests.fakes.loop import virtual
from tests.seam.nodes import Group
from tests.seam.test_membership import fed, listed, ordered, told
from vlsnlog.testing.fakes.disk import Call


def _slow(call: Call) -> float:
    return 1.5 if call.name == "sync" and call.path.endswith(".vlog") else 0.0


@virtual
async def test_of_two_changes_asked_at_once_one_waits_for_its_turn() -> None:
    """Both changes start from the same list, before anything is sealed. The second one's entry would undo the first
    change, though that was answered as durable."""
    group = Group(931)
    await group.start()
    await group.serving()
    await fed(group, 2)
    one, other = (name for name in group.names if name != group.master)
    group.machines[group.master].disk.latency = _slow
    append = asyncio.create_task(group.append(b"keeps the writer busy"))
    await asyncio.sleep(0.1)
    asked = []
    for name, priority in ((one, 3), (other, 4)):
        asked.append(asyncio.create_task(ordered(group, change="priority", name=name, priority=priority)))
        await asyncio.sleep(0.1)
    answers = await asyncio.gather(*asked)
    assert [status for status, _ in answers] == [200, 409], answers
    assert answers[1][1]["type"] == "group-busy"
    assert (await append)[0] == 200
    assert (await ordered(group, change="priority", name=other, priority=4))[0] == 200
    assert (listed(group)[one].priority, listed(group)[other].priority) == (3, 4)
    await group.stop()
    assert not group.fatal


@pytest.mark.parametrize("change", ["joins", "promoted"])
@virtual
async def test_a_member_counts_once_it_has_synced_what_was_there_when_it_began(change: str) -> None:
    """The newcomer's disk is slow: a feed runs, and nothing of it is acknowledged for long.  If the list counted it
    meanwhile, and another member were lost, nothing would become durable."""
    group = Group(932)
    await group.start()
    await group.serving()
    await fed(group, 2)
    entries = await told(group, 20)
    group.machine("n4")
    group.machines["n4"].disk.latency = _slow
    await group.start("n4")
    await group.until(lambda: group.nodes["n4"].member.reason.startswith("not-listed"), "it waits to be listed")
    secondary = change == "promoted"
    assert (await ordered(group, change="add", name="n4", url=group.url("n4"), secondary=secondary))[0] == 200
    lead = group.nodes[group.master].lead
    assert lead is not None
    await group.until(lambda: "n4" in lead.feeders and lead.feeders["n4"].streaming, "it is fed")
    if change == "promoted":
        assert (await ordered(group, change="promote", name="n4"))[0] == 200

    assert not listed(group)["n4"].electable and group.nodes["n4"].opened().log.view.range.last_sync < max(entries)
    await group.until(lambda: listed(group)["n4"].electable, "it counts", 60.0)
    assert group.nodes["n4"].opened().log.view.range.last_sync >= max(entries)
    await group.stop()
    assert not group.fatal


@virtual
async def test_a_change_is_told_durable_once_its_own_block_is_on_a_majority() -> None:
    """The block before the change becomes durable while the change's block is being written by the replicas."""
    group = Group(933)
    await group.start()
    await group.serving()
    await fed(group, 2)
    one, other = (name for name in group.names if name != group.master)
    for name in (one, other):
        group.machines[name].disk.latency = _slow
    status, before = await group.append(b"the block before it", acks="none")
    assert status == 200 and not before["durable"]
    asked = asyncio.create_task(ordered(group, change="priority", name=one, priority=3))
    log = group.nodes[group.master].opened().log
    await group.until(lambda: log.view.history.group_vlsn == before["last"] + 1, "it lies right behind")
    assert log.view.dtvlsn < before["first"]
    await group.until(lambda: log.view.dtvlsn == before["last"], "the block before it is durable")
    assert (await asked)[0] == 200
    at = log.view.history.group_vlsn
    assert max(group.nodes[name].opened().log.view.range.last_sync for name in (one, other)) >= at
    await group.stop()
    assert not group.fatal
