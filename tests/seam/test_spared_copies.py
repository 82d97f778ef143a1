"""Restores ordered by an operator: a copy is discarded only while most other members are whole."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from tests.fakes.loop import virtual
from tests.fakes.seeds import seeds
from tests.seam.nodes import SEGMENT, Group
from tests.seam.test_floors import acknowledged, opened, rot
from tests.seam.test_membership import has_all, incarnation, joined, listed, told
from tests.seam.test_mending import filled, flip_in_body
from tests.seam.test_old_images import started


async def asked(group: Group, name: str) -> tuple[int, dict[str, Any]]:
    response = await group.client.request("POST", f"{group.url(name)}/v1/admin/restore", timeout_s=10.0)
    return response.status, msgspec.json.decode(bytes(response.body))


async def served(seed: int, size: int = 3, **settings: Any) -> Group:
    """Makes a group with an entry that every node has, and knows to be durable."""
    group = Group(seed, size, segment_bytes=SEGMENT, **settings)
    await group.start()
    await group.serving()
    vlsn = await group.appended(b"everywhere")
    await group.until(lambda: all(node.dtvlsn() >= vlsn for node in group.nodes.values()), "all have all")
    return group


@pytest.mark.parametrize("seed", seeds(5))
@virtual
async def test_an_acknowledged_entry_outlives_two_restores_asked_for_at_once(seed: int) -> None:
    """Two of three have the entry.  Both have restarted since, and have forgotten that it is durable: the third could
    be the provider, and then no node would have the entry."""
    group = await served(seed)
    master = group.master
    name, lacks = (each for each in group.names if each != master)
    group.net.split([lacks], [master, name, "client"])
    vlsn = await group.appended(b"precious", to=master)
    group.kill(master, name, power=True)
    group.kill(lacks)
    group.net.heal()
    await group.start()

    def opened() -> bool:
        return all(node.log is not None and node.member.recognised for node in group.nodes.values())

    await group.until(opened, "they are back")
    answers = await asyncio.gather(asked(group, master), asked(group, name))
    assert sum(status == 200 for status, _ in answers) < 2, answers
    await group.serving()

    def known() -> bool:
        return all(node.state in ("MASTER", "REPLICA") and node.dtvlsn() > vlsn for node in group.nodes.values())

    await group.appended(b"later")
    await group.until(known, "all serve again", 60.0)
    for each in group.names:
        assert (await group.read(each))[vlsn] == b"precious", each
    await group.stop()
    assert not group.fatal


@virtual
async def test_a_restore_is_refused_while_too_few_others_answer() -> None:
    group = await served(3)
    name, other = (each for each in group.names if each != group.master)
    group.kill(other)
    status, said = await asked(group, name)
    assert (status, said["type"]) == (503, "not-ready") and other in said["detail"], said
    assert group.state(name) == "REPLICA" and group.nodes[name].member.events.counts["restore.refused"] == 1
    await group.start(other)
    await group.until(lambda: group.state(other) == "REPLICA", f"{other} is back")
    assert (await asked(group, name))[0] == 200
    await group.until(lambda: group.nodes[name].restoration.count == 1, f"{name} is restored")
    await group.stop()
    assert not group.fatal


@virtual
async def test_a_node_that_was_elected_while_its_restore_was_looked_into_is_not_restored() -> None:
    """The successor has the master's answer that its copy is whole, and waits for the third's, while it becomes
    master."""
    group = await served(8)
    old = group.master
    heir, third = (each for each in group.names if each != old)
    node = group.nodes[heir]
    vlsn = await group.appended(b"precious")
    group.net.block(third, heir)
    request = asyncio.create_task(asked(group, heir))
    await group.until(lambda: node.restoration.gives_up, "it asks the others")
    await group.nodes[old].services.administration.transfer(heir)
    await group.until(node.member.is_master, f"{heir} leads")
    assert not request.done()
    group.net.heal()
    status, said = await request
    assert (status, said["type"]) == (405, "not-allowed") and "MASTER" in said["detail"], said
    await group.serving(heir)
    assert node.restoration.count == 0 and not node.restoration.gives_up
    assert (await group.read(heir))[vlsn] == b"precious"
    await group.stop()
    assert not group.fatal


@virtual
async def test_a_member_that_mends_damage_is_not_whole() -> None:
    """Its log is open, and it follows; it found a damaged block that no member could provide so far."""
    told: dict[int, bytes] = {}
    group = await filled(9, told)
    name, other = (each for each in group.names if each != group.master)
    flip_in_body(group, other, 20)
    group.net.split([other, "client"], [group.master, name])
    response = await group.client.request("GET", f"{group.url(other)}/v1/entries/20", timeout_s=5.0)
    assert response.status == 500
    mending = group.nodes[other].opened().mending
    await group.until(lambda: any(damage.why for damage in mending.damages.values()), f"nobody gives it to {other}")
    group.net.heal()
    status, said = await asked(group, name)
    assert (status, said["type"]) == (503, "not-ready") and f"{other} has damage" in said["detail"], said
    await group.until(lambda: not mending.damages, f"{other} is mended")
    await group.serving()
    assert (await asked(group, name))[0] == 200
    await group.until(lambda: group.nodes[name].restoration.count == 1, f"{name} is restored")
    await group.stop()
    assert not group.fatal


@virtual
async def test_a_node_that_is_opening_its_log_is_not_restored() -> None:
    """The order would have no effect there, so an answer that all is well would be false."""
    group = await served(10)
    name = next(each for each in group.names if each != group.master)
    group.kill(name)
    group.machines[name].disk.latency = lambda call: 0.05
    await group.start(name)
    await group.until(lambda: group.state(name) == "UNKNOWN", f"{name} opens its log")
    status, said = await asked(group, name)
    assert group.nodes[name].open is None
    assert (status, said["type"]) == (503, "no-master") and "opening its log" in said["detail"], said
    group.machines[name].disk.latency = None
    await group.until(lambda: group.state(name) == "REPLICA", f"{name} follows")
    assert group.nodes[name].restoration.count == 0
    await group.stop()
    assert not group.fatal


@virtual
async def test_a_member_that_has_not_asked_who_it_is_or_is_not_listed_yet_is_not_whole() -> None:
    """A node with an old image first waits for the master's answer, which does not arrive; then it is another
    incarnation, which the master cannot admit."""
    group, entries = await started(61)
    name, other = group.master, next(each for each in group.names if each != group.master)
    image = group.machines[other].image()
    entries |= await told(group, 20, "later ")
    await has_all(group, entries)
    third = next(each for each in group.names if each not in (name, other))
    await group.nodes[name].services.administration.transfer(third)
    await group.serving(third)
    await group.until(lambda: group.state(name) == "REPLICA", f"{name} follows")
    group.kill(other)
    group.machines[other].put_back(image)
    group.net.split([other], [third])
    await group.start(other)
    node = group.nodes[other]

    async def refused() -> None:
        status, said = await asked(group, name)
        assert (status, said["type"]) == (503, "not-ready"), said
        assert f"{other} is not known to be the incarnation that its group lists" in said["detail"], said

    await group.until(lambda: node.open is not None, f"{other} is open")
    assert not node.member.recognised
    await refused()
    await group.until(lambda: node.member.recognised, f"{other} is another")
    assert node.member.counts.old_images == 1
    await refused()
    group.net.heal()
    await group.until(
        lambda: listed(group, other)[other].incarnation == incarnation(group, other), f"{other} knows it is listed"
    )
    assert (await asked(group, name))[0] == 200
    await group.until(lambda: group.nodes[name].restoration.count == 1, f"{name} is restored")
    await has_all(group, entries)
    await group.stop()
    assert not group.fatal


@virtual
async def test_a_secondary_does_not_make_up_for_a_voter_that_is_gone() -> None:
    """A secondary's acknowledgement is no part of a majority: its copy shows nothing about the voters' copies."""
    group = await served(42)
    name, gone = (each for each in group.names if each != group.master)
    await joined(group, "n4", secondary=True)
    await group.until(lambda: group.state("n4") == "REPLICA", "n4 follows")
    vlsn = await group.appended(b"everywhere")
    await group.until(lambda: all(node.dtvlsn() >= vlsn for node in group.nodes.values()), "all have all")
    group.kill(gone)
    status, said = await asked(group, name)
    assert (status, said["type"]) == (503, "not-ready") and "of 2 other members" in said["detail"], said
    await group.stop()
    assert not group.fatal


@virtual
async def test_whoever_is_to_be_restored_itself_counts_for_nobody_else() -> None:
    """From the order on, the node is no whole copy for any other restore: before others can see that it has begun, and
    until it is at its vote floor."""
    group = await served(4)
    name, other = (each for each in group.names if each != group.master)
    statuses = [status for status, _ in await asyncio.gather(asked(group, name), asked(group, other))]
    assert statuses.count(200) <= 1, statuses
    taken = 0
    for _ in range(100):
        for each in group.rng.sample((name, other), 2):
            status, _ = await asked(group, each)
            taken += status == 200
            at_it = [node for node in group.nodes.values() if node.state == "RESTORING"]
            assert len(at_it) <= 1, at_it
        await asyncio.sleep(0.05)
    assert taken > 3 and all(group.nodes[each].restoration.count for each in (name, other))
    await group.stop()
    assert not group.fatal


@virtual
async def test_of_five_two_copies_are_given_up_at_once_and_no_third() -> None:
    group = await served(6, 5)
    replicas = [each for each in group.names if each != group.master]
    group.kill(replicas[0])
    assert (await asked(group, replicas[1]))[0] == 200
    status, said = await asked(group, replicas[2])
    assert (status, said["type"]) == (503, "not-ready") and replicas[1] in said["detail"], said
    await group.stop()
    assert not group.fatal


@virtual
async def test_a_copy_below_its_floor_is_not_whole() -> None:
    """n2 has lost entries that it acknowledged, follows, and is receiving them: only n1 and n3 have them."""
    group = Group(23, checkpoint_period_s=60.0)
    first, places = await acknowledged(group)
    group.machines["n2"].stores.contents.pop("/n2/state")
    rot(group, places)
    await opened(group, first)
    process = group.machines["n2"].process
    assert process is not None
    process.threads.latency_s = (3.0, 3.0)  # nothing that comes is written soon
    await group.start("n3")
    await group.until(lambda: group.state("n2") == group.state("n3") == "REPLICA", "they are fed")
    assert group.nodes["n2"].opened().log.view.range.last_sync == first
    status, said = await asked(group, "n3")
    assert (status, said["type"]) == (503, "not-ready") and "n2 is missing entries" in said["detail"], said
    process.threads.latency_s = (0.0, 0.0)
    log = group.nodes["n2"].opened().log
    await group.until(lambda: log.node_file.record.floor_vlsn <= log.view.range.last_sync, "n2 is at its floor")
    assert (await asked(group, "n3"))[0] == 200
    await group.until(lambda: group.nodes["n3"].restoration.count == 1, "n3 is restored")
    await group.stop()
    assert not group.fatal


@virtual
async def test_a_member_with_damage_is_not_whole() -> None:
    group = await served(7, checkpoint_period_s=60.0)
    name, other = (each for each in group.names if each != group.master)
    disk = group.machines[other].disk
    path = next(path for path in sorted(disk.files(f"/{other}")) if path.endswith(".vlog"))
    disk.flip_bit(path, 20)  # its header page, which is nobody else's
    group.kill(other)
    await group.start(other)
    await group.until(lambda: group.state(other) == "DAMAGED", f"{other} is damaged")
    status, said = await asked(group, name)
    assert (status, said["type"]) == (503, "not-ready") and other in said["detail"], said
    assert (await asked(group, other))[0] == 200  # the other two are whole
    await group.until(lambda: group.state(other) == "REPLICA", f"{other} is restored")
    await group.stop()
    assert not group.fatal
