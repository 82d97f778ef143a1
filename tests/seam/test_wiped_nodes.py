"""Members that lost their disk or their node file: each comes back as another incarnation."""

from __future__ import annotations

import asyncio

from tests.fakes.loop import virtual
from tests.seam.nodes import Group
from tests.seam.test_membership import electable, has_all, incarnation, listed, told


@virtual
async def test_a_wiped_replica_is_restored_and_admitted_as_another_incarnation() -> None:
    group = Group(8)
    await group.start()
    await group.serving()
    entries = await told(group, 20)
    wiped = next(name for name in group.names if name != group.master)
    before = listed(group)[wiped].incarnation
    group.kill(wiped)
    group.machine(wiped)
    await group.start(wiped)
    await group.until(lambda: listed(group)[wiped].incarnation != before, "it is admitted")
    await electable(group, wiped)
    assert listed(group)[wiped].incarnation == incarnation(group, wiped)
    assert group.nodes[wiped].restoration.history
    assert group.nodes[group.master].member.counts.readmitted == 1
    # It counts: with the master alone it is a majority.
    group.kill(next(name for name in group.names if name not in (wiped, group.master)))
    entries |= await told(group, 5, "with it ")
    await has_all(group, entries)
    await group.stop()
    assert not group.fatal


@virtual
async def test_a_wiped_master_founds_no_second_group_and_is_admitted_by_the_next() -> None:
    group = Group(9)
    await group.start()
    await group.serving()
    entries = await told(group, 20)
    wiped = group.master
    await has_all(group, entries)
    group.kill(wiped)
    group.machine(wiped)
    await group.start(wiped)
    await group.until(lambda: group.master != wiped, "another one leads")
    await electable(group, wiped)
    await group.until(lambda: listed(group)[wiped].incarnation == incarnation(group, wiped), "it is admitted")
    await has_all(group, entries)
    await group.stop()
    assert not group.fatal


@virtual
async def test_a_wiped_node_admits_itself_to_nothing() -> None:
    """Two of three run, one of them wiped: nothing becomes durable until the third is back."""
    group = Group(52)
    await group.start()
    await group.serving()
    entries = await told(group, 20)
    await has_all(group, entries)
    wiped, away = (name for name in group.names if name != group.master)
    group.kill(wiped)
    group.kill(away)
    before = listed(group)[wiped].incarnation
    group.machine(wiped)
    await group.start(wiped)
    await asyncio.sleep(20.0)
    assert all(
        listed(group, name)[wiped].incarnation == before
        for name in group.nodes
        if group.nodes[name].opened().log.view.history.group
    )
    assert not any(node.member.is_master() for node in group.nodes.values())
    await group.start(away)
    await group.serving()
    await group.until(lambda: listed(group)[wiped].incarnation == incarnation(group, wiped), "it is admitted")
    entries |= await told(group, 5)
    await has_all(group, entries)
    await group.stop()
    assert not group.fatal


@virtual
async def test_a_node_without_its_node_file_is_another_incarnation_and_keeps_its_log() -> None:
    group = Group(53)
    await group.start()
    await group.serving()
    entries = await told(group, 20)
    await has_all(group, entries)
    lost = next(name for name in group.names if name != group.master)
    before = incarnation(group, lost)
    group.kill(lost)
    group.machines[lost].disk.remove(f"/{lost}/node.id")
    await group.start(lost)
    await group.until(lambda: listed(group)[lost].incarnation == incarnation(group, lost) != before, "it is admitted")
    assert not group.nodes[lost].restoration.history
    entries |= await told(group, 5)
    await has_all(group, entries)
    await group.stop()
    assert not group.fatal


@virtual
async def test_members_that_are_wiped_one_after_another_lose_nothing() -> None:
    group = Group(54)
    await group.start()
    await group.serving()
    entries: dict[int, bytes] = {}

    async def wipe(name: str) -> None:
        group.kill(name)
        group.machine(name)
        await group.start(name)
        await group.serving()
        await group.until(lambda: listed(group)[name].incarnation == incarnation(group, name), f"{name} is admitted")
        await electable(group, name)

    for number in range(6):
        entries |= await told(group, 5, f"{number} ")
        await wipe(group.names[number % 3])
    await has_all(group, entries)
    await group.stop()
    assert not group.fatal
