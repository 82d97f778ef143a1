"""Whole groups whose members join, are promoted, leave, and are wiped, in virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from repl.lead.leading import Leading
from tests.fakes.loop import run, virtual
from tests.seam.nodes import BIG, CLEANS, JSON, SEGMENT, Group


async def ordered(group: Group, to: str = "", **change: Any) -> tuple[int, dict[str, Any]]:
    """Orders one change from ``to`` or the master; returns status and document."""
    response = await group.client.request(
        "POST",
        f"{group.url(to or group.master)}/v1/admin/group",
        headers={"Content-Type": "application/json"},
        body=msgspec.json.encode(change),
        timeout_s=20.0,
    )
    return response.status, msgspec.json.decode(bytes(response.body))


async def changed(group: Group, **change: Any) -> dict[str, Any]:
    status, document = await ordered(group, **change)
    assert status == 200, document
    return document


def listed(group: Group, name: str = "") -> dict[str, Any]:
    """Returns the members by that node's log."""
    found = group.nodes[name or group.master].opened().log.view.history.group
    assert found is not None
    return {member.name: member for member in found.members}


async def electable(group: Group, name: str) -> None:
    def there() -> bool:
        node = group.nodes[group.master]
        member = listed(group).get(name)
        log = node.opened().log
        return member is not None and member.electable and log.view.dtvlsn >= log.view.history.group_vlsn

    await group.until(there, f"{name} is electable")


async def told(group: Group, count: int, prefix: str = "") -> dict[int, bytes]:
    """Makes ``count`` acknowledged appends; repeats an append that was certainly not logged."""
    found: dict[int, bytes] = {}
    for number in range(count):
        value = f"{prefix}{number}".encode()
        found[await group.appended(value)] = value
    return found


async def has_all(group: Group, told: dict[int, bytes], *names: str) -> None:
    for name in names or tuple(group.nodes):
        await group.until(lambda name=name: group.nodes[name].dtvlsn() >= max(told), f"{name} has all")  # type: ignore[misc]
        found = await group.read(name)
        assert {vlsn: found.get(vlsn) for vlsn in told} == told, name


async def fed(group: Group, count: int) -> None:
    """Waits until the master has this number of connected replicas."""

    def there() -> bool:
        role = group.nodes[group.master].member.role
        return isinstance(role, Leading) and role.present == count

    await group.until(there, f"the master sees {count} replicas")


async def joined(group: Group, name: str, **more: Any) -> None:
    group.machine(name)
    await group.start(name)
    await group.until(lambda: group.nodes[name].member.reason.startswith("not-listed"), f"{name} waits to be listed")
    await changed(group, change="add", name=name, url=group.url(name), **more)


def incarnation(group: Group, name: str) -> str:
    return f"{group.nodes[name].member.incarnation:016x}"


@virtual
async def test_a_newcomer_is_fed_that_another_newcomer_has_asked_too() -> None:
    """n0 is the first by name, and asks whether all members are empty, just after the master did."""
    group = Group(40)
    await group.start()
    await group.serving()
    entries = await told(group, 5)
    master = group.nodes[group.master]
    names = list(group.names)
    group.names += ["n0", "n4"]
    for name in ("n0", "n4"):
        group.machine(name)
    await group.start("n4")
    await group.until(lambda: group.nodes["n4"].member.reason.startswith("not-listed"), "n4 waits to be listed")
    group.net.delays_s["n4", master.name] = (0.2, 0.2)  # it has no time to be fed at once
    await changed(group, change="add", name="n4", url=group.url("n4"))
    group.net.block("n4", master.name)
    newcomer = group.nodes["n4"]
    await group.until(
        lambda: newcomer.member.founder == (master.member.incarnation, master.member.process),
        "the master has asked it",
    )
    group.net.block(master.name, "n4")
    group.net.unblock([("n4", master.name)])
    await group.start("n0")
    await group.until(
        lambda: newcomer.member.founder == (group.nodes["n0"].member.incarnation, group.nodes["n0"].member.process),
        "n0 too",
    )
    await asyncio.sleep(1.0)
    group.kill("n0")
    group.net.heal()
    await electable(group, "n4")
    await has_all(group, entries, *names, "n4")
    await group.stop()
    assert not group.fatal


@virtual
async def test_a_node_joins_catches_up_and_counts() -> None:
    group = Group(41)
    await group.start()
    await group.serving()
    entries = await told(group, 30)
    await joined(group, "n4")
    assert listed(group)["n4"].joining
    await electable(group, "n4")
    await has_all(group, entries)
    assert listed(group, "n4").keys() == {"n1", "n2", "n3", "n4"}
    # Three of four are a majority, and n4 may be one of them.
    group.kill("n3")
    entries |= await told(group, 5, "with three ")
    group.kill("n4")
    await fed(group, 1)
    status, answer = await group.append(b"with two")
    assert (status, answer["type"]) == (503, "insufficient-replicas")
    await group.start("n3", "n4")
    await group.serving()
    entries |= await told(group, 5, "again ")
    await has_all(group, entries)
    await group.stop()
    assert not group.fatal


@virtual
async def test_a_secondary_is_fed_has_no_vote_and_is_promoted_by_a_person() -> None:
    group = Group(42)
    await group.start()
    await group.serving()
    entries = await told(group, 10)
    await joined(group, "n4", secondary=True)
    await has_all(group, entries)
    await asyncio.sleep(3.0)
    assert not listed(group)["n4"].electable and not listed(group)["n4"].joining
    # Its acknowledgement is no part of a majority.
    others = [name for name in ("n1", "n2", "n3") if name != group.master]
    group.kill(*others)
    await asyncio.sleep(3.0)
    assert group.state("n4") == "UNKNOWN"
    await group.start(*others)
    await group.serving()
    document = await changed(group, change="promote", name="n4")
    assert document["durable"]
    await electable(group, "n4")
    status, refused = await ordered(group, change="promote", name="n4")
    assert (status, refused["type"]) == (400, "bad-argument")
    entries |= await told(group, 5)
    await has_all(group, entries)
    await group.stop()
    assert not group.fatal


@virtual
async def test_a_node_joins_a_group_whose_log_does_not_begin_at_1() -> None:
    segment = 64 << 10
    group = Group(
        43,
        segment_bytes=segment,
        checkpoint_bytes=segment,
        checkpoint_period_s=1.0,
        cleaning_period_s=0.5,
        ring_bytes_max=segment,
        retention_bytes=8 * segment,
    )
    await group.start()
    await group.serving()
    for number in range(200):
        assert (await group.append(b"%d" % number + b"." * 4000))[0] == 200
    await group.until(lambda: group.nodes[group.master].opened().log.view.range.first > 1, "the master has cleaned")
    await joined(group, "n4")
    await electable(group, "n4")
    assert group.nodes["n4"].restoration.history
    await group.stop()
    assert not group.fatal


@virtual
async def test_a_removed_node_is_refused_says_so_and_does_not_stand() -> None:
    group = Group(44)
    await group.start()
    await group.serving()
    entries = await told(group, 10)
    gone = next(name for name in group.names if name != group.master)
    document = await changed(group, change="remove", name=gone)
    assert gone not in {each["name"] for each in document["members"]} and document["durable"]
    await group.until(lambda: group.nodes[gone].member.reason.startswith("not-listed"), "it says why")
    term = group.nodes[group.master].opened().log.node_file.record.term
    await asyncio.sleep(10.0)
    group.kill(gone)
    await group.start(gone)
    await asyncio.sleep(10.0)
    assert group.nodes[gone].member.reason.startswith("not-listed")
    assert group.nodes[group.master].opened().log.node_file.record.term == term
    entries |= await told(group, 5)
    # After another answer it is a member again.
    await changed(group, change="add", name=gone, url=group.url(gone))
    await electable(group, gone)
    await has_all(group, entries)
    await group.stop()
    assert not group.fatal


@virtual
async def test_a_node_that_was_away_when_it_was_removed_unseats_nobody() -> None:
    group = Group(45)
    await group.start()
    await group.serving()
    await told(group, 10)
    gone = next(name for name in group.names if name != group.master)
    group.kill(gone)
    await changed(group, change="remove", name=gone)
    term = group.nodes[group.master].opened().log.node_file.record.term
    await group.start(gone)
    await group.until(lambda: group.nodes[gone].member.reason.startswith("not-listed"), "it says why")
    await asyncio.sleep(10.0)
    assert gone in listed(group, gone)  # its own log does not know it
    assert group.nodes[group.master].opened().log.node_file.record.term == term
    await told(group, 5)
    await group.stop()
    assert not group.fatal


@virtual
async def test_a_removed_node_that_starts_says_so_though_another_member_is_silent() -> None:
    group = Group(50)
    await group.start()
    await group.serving()
    await told(group, 10)
    gone, silent = (name for name in group.names if name != group.master)
    group.kill(gone)
    await changed(group, change="remove", name=gone)
    group.kill(silent, power=True)
    await group.start(gone)
    await group.until(lambda: group.nodes[gone].member.reason.startswith("not-listed"), "it says why", limit_s=1.0)
    said = group.nodes[gone].member.events.counts["state"]
    await asyncio.sleep(20.0)
    status = group.nodes[gone].services.monitoring.status()
    assert status["state"] == "UNKNOWN" and status["reason"].startswith("not-listed")
    assert group.nodes[gone].member.events.counts["state"] <= said + 1  # not at every try
    await group.stop()
    assert not group.fatal


@virtual
async def test_a_node_that_was_cut_off_when_it_was_removed_asks_for_votes_no_more_once_a_majority_tells_it() -> None:
    group = Group(46)
    await group.start()
    await group.serving()
    gone = next(name for name in group.names if name != group.master)
    rest = [name for name in group.names if name != gone]
    electing = group.nodes[gone].opened().electing
    assert electing is not None
    group.net.split([gone], [*rest, "client"])
    await changed(group, change="remove", name=gone)
    await group.until(lambda: electing.core.rounds > 1, "it asks for votes")
    group.net.heal()
    await group.until(lambda: group.nodes[gone].member.reason.startswith("not-listed"), "it is told")
    assert gone in listed(group, gone)  # its own log does not know it
    asked = electing.core.rounds
    await asyncio.sleep(20.0)
    assert electing.core.rounds == asked
    # After such an answer of one of three it asks on: that one may be behind, and need this node's blocks.
    group.kill(group.master)
    await group.until(lambda: electing.core.rounds > asked, "it asks again")
    await group.stop()
    assert not group.fatal


@virtual
async def test_a_master_that_removes_itself_hands_over_once_that_is_durable() -> None:
    group = Group(46)
    await group.start()
    await group.serving()
    entries = await told(group, 10)
    old = group.master
    document = await changed(group, change="remove", name=old)
    assert old not in {each["name"] for each in document["members"]}
    await group.until(lambda: group.master != old, "another one leads", limit_s=5.0)
    await group.serving()
    await group.until(lambda: group.nodes[old].member.reason.startswith("not-listed"), "it says why")
    entries |= await told(group, 5)
    await has_all(group, entries, *(name for name in group.names if name != old))
    # Both of the two that are left are needed for a majority.
    last = next(name for name in group.names if name not in (old, group.master))
    group.kill(last)
    await asyncio.sleep(2.0)
    status, answer = await group.append(b"alone")
    assert status == 503, answer
    await group.stop()
    assert not group.fatal


@virtual
async def test_the_last_member_is_not_removed() -> None:
    group = Group(47, size=1)
    await group.start()
    await group.serving()
    status, answer = await ordered(group, change="remove", name="n1")
    assert (status, answer["type"]) == (400, "bad-argument")
    await joined(group, "n2")
    await electable(group, "n2")
    await changed(group, change="remove", name="n1")
    await group.until(lambda: group.master == "n2", "n2 leads alone")
    await group.serving("n2")
    await told(group, 3)
    await group.stop()
    assert not group.fatal


@virtual
async def test_two_changes_at_once_are_refused_and_one_is_made() -> None:
    group = Group(48, size=5)
    await group.start()
    await group.serving()
    await fed(group, 4)
    gone = [name for name in group.names if name != group.master][:3]
    answers = await asyncio.gather(*(ordered(group, change="remove", name=name) for name in gone))
    assert sorted(status for status, _ in answers) == [200, 409, 409]
    assert {answer["type"] for status, answer in answers if status == 409} == {"group-busy"}
    assert len(listed(group)) == 4
    await told(group, 3)
    await group.stop()
    assert not group.fatal


@virtual
async def test_a_change_that_could_not_become_durable_is_not_logged() -> None:
    group = Group(49)
    await group.start()
    await group.serving()
    master = group.master
    one, other = (name for name in group.names if name != master)
    await fed(group, 2)
    group.kill(other)
    await fed(group, 1)
    last = group.nodes[master].opened().log.view.allocated
    status, answer = await ordered(group, change="remove", name=one)
    assert (status, answer["type"]) == (503, "insufficient-replicas")
    assert group.nodes[master].opened().log.view.allocated == last
    await changed(group, change="remove", name=other)
    await told(group, 3)
    await group.stop()
    assert not group.fatal


@virtual
async def test_who_is_not_the_master_shows_the_way_to_it() -> None:
    group = Group(50)
    await group.start()
    await group.serving()
    replica = next(name for name in group.names if name != group.master)
    await group.until(lambda: group.state(replica) == "REPLICA", "it follows")
    for call in ("admin/group", "admin/transfer?to=n2"):
        response = await group.client.request(
            "POST", f"{group.url(replica)}/v1/{call}", headers=JSON, body=b"{}", timeout_s=5.0
        )
        assert response.status == 307
        assert response.headers["Location"] == f"{group.url(group.master)}/v1/{call}"
    shown = await group.client.request("GET", f"{group.url(replica)}/v1/group", timeout_s=5.0)
    assert {each["name"] for each in msgspec.json.decode(bytes(shown.body))["members"]} == set(group.names)
    await group.stop()
    assert not group.fatal


def test_who_has_lost_the_group_before_a_change_does_not_stand_while_that_may_be_rolled_back() -> None:
    """Its log was cleaned past the earlier GROUP entry, which only its state record had. By the later change alone, an
    incarnation that no node has admitted yet would count its own vote."""

    async def main(*, lost: bool) -> bool:
        group = Group(52, **CLEANS, retention_bytes=2 * SEGMENT)
        await group.start()
        await group.serving()
        while group.nodes[group.master].opened().log.view.range.first <= 2:
            await group.appended(BIG)
        old = group.master
        group.net.split([old, "client"], [name for name in group.names if name != old])
        status, answer = await ordered(group, old, change="priority", name=old, priority=2)
        assert (status, answer["type"]) == (504, "outcome-unknown"), answer
        group.kill(old)
        if lost:
            del group.machines[old].stores.contents[f"/{old}/state"]
        await group.start(old)
        await group.until(lambda: group.nodes[old].open is not None, "it is open")
        node = group.nodes[old]
        node.member.recognised = True
        assert node.opened().log.view.history.group_vlsn > node.opened().log.view.dtvlsn
        assert len(node.opened().log.view.history.groups) == 2 - lost
        electing = node.opened().electing
        assert electing is not None
        may_stand = electing._standing().may_stand
        await group.stop()
        assert not group.fatal
        return may_stand

    assert run(main(lost=False))
    assert not run(main(lost=True))


@virtual
async def test_a_change_that_met_no_majority_is_rolled_back_under_a_new_master() -> None:
    group = Group(51)
    await group.start()
    await group.serving()
    entries = await told(group, 5)
    old = group.master
    left = [name for name in group.names if name != old]
    group.net.split([old, "client"], left)
    # It does not see yet that it is alone: the change is logged, and nobody has it.
    status, answer = await ordered(group, old, change="remove", name=left[0])
    assert (status, answer["type"]) == (504, "outcome-unknown"), answer
    assert left[0] not in listed(group, old)
    await group.until(lambda: group.master in left, "another one leads")
    group.net.heal()
    await group.until(lambda: group.state(old) == "REPLICA", "the old master follows")
    assert set(listed(group, old)) == set(group.names) == set(listed(group))
    entries |= await told(group, 5)
    await has_all(group, entries)
    group.kill(next(name for name in left if name != group.master))
    entries |= await told(group, 5, "with two ")
    await group.stop()
    assert not group.fatal


@virtual
async def test_a_low_priority_only_delays() -> None:
    group = Group(55)
    await group.start()
    await group.serving()
    old = group.master
    last, other = (name for name in group.names if name != old)
    await changed(group, change="priority", name=last, priority=0)
    await has_all(group, await told(group, 3))
    group.kill(old)
    await group.until(lambda: group.nodes[other].member.is_master(), "the other leads")
    await group.serving()
    await group.stop()
    assert not group.fatal


@virtual
async def test_a_node_that_was_away_finds_a_master_that_it_never_heard_of() -> None:
    group = Group(56)
    await group.start()
    await group.serving()
    entries = await told(group, 5)
    await has_all(group, entries)
    away = next(name for name in group.names if name != group.master)
    group.kill(away)
    await joined(group, "n4")
    await electable(group, "n4")
    response = await group.client.request("POST", f"{group.url(group.master)}/v1/admin/transfer?to=n4", timeout_s=5.0)
    assert response.status == 200, bytes(response.body)
    await group.serving("n4")
    entries |= await told(group, 5, "by n4 ")
    await group.start(away)
    assert "n4" not in group.nodes[away].member.config.members
    await has_all(group, entries)
    assert "n4" in listed(group, away)
    await group.stop()
    assert not group.fatal
