"""Every later master keeps the entries that an absent member needs, since feeds share hold positions."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from repl.group import peers
from repl.group.founding import DISCOVERY, HoldPosition, read_answer
from repl.group.member_holds import MemberHolds
from tests.fakes.loop import virtual
from tests.seam.nodes import CLEANS, SEGMENT, Group
from tests.seam.test_cleaning import append, first, status
from tests.seam.test_copies import moved
from tests.seam.test_membership import electable, fed, joined, told
from tests.seam.test_stalls import pause, resume
from tests.vlsn.logs import Machine, Opened, Undurable
from vlsn.errors import BadBody
from vlsn.format.records import GroupEntry, Member
from vlsn.ids import NodeName, Vlsn
from vlsn.state.holds import Owner


async def master_changed(group: Group) -> None:
    """Changes the master while one node is away: the third leads, and the old master follows it."""
    old = group.master
    other = next(name for name in group.nodes if name != old)
    await moved(group, other)
    await fed(group, 1)
    assert group.master != old


async def has_the_last(group: Group, name: str) -> None:
    entries = await told(group, 2, "afterwards ")
    await group.until(lambda: group.nodes[name].dtvlsn() >= max(entries), f"{name} has all")
    found = await group.read(name, begins=1)
    assert {vlsn: found.get(vlsn) for vlsn in entries} == entries


@pytest.mark.parametrize("seed", range(1, 4))
@virtual
async def test_an_absent_replica_is_fed_after_a_change_of_master(seed: int) -> None:
    group = Group(seed, **CLEANS, retention_bytes=5 * SEGMENT, hold_bytes_max=40 * SEGMENT)
    await group.start()
    await group.serving()
    await fed(group, 2)
    await append(group, 90)
    await group.until(lambda: all(first(group, name) > 10 for name in group.names), "all clean")
    away = next(name for name in group.names if name != group.master)
    log = group.nodes[away].opened().log
    await group.until(lambda: log.view.dtvlsn == group.nodes[group.master].opened().log.view.dtvlsn, "it has all")
    had = log.view.range.last
    group.kill(away)
    await append(group, 60)
    await master_changed(group)
    await append(group, 60)
    await master_changed(group)
    await append(group, 60)
    others = [name for name in group.names if name != away]
    for name in others:
        await group.until(
            lambda name=name: status(group, name)["cleaning"]["blocked_by"] == [f"feeder {away}"],  # type: ignore[misc]
            f"{name} is held",
        )
        assert 10 < first(group, name) <= had
    await group.start(away)
    node = group.nodes[away]
    await group.until(lambda: node.state == "REPLICA", "it is fed")
    assert node.restoration.count == 0
    await has_the_last(group, away)
    await group.until(lambda: all(first(group, name) > had for name in others), "both have cleaned")
    await group.stop()
    assert not group.fatal


@virtual
async def test_past_the_cap_an_absent_replica_is_told_and_restored() -> None:
    group = Group(5, **CLEANS, retention_bytes=4 * SEGMENT, hold_bytes_max=8 * SEGMENT)
    await group.start()
    await group.serving()
    await fed(group, 2)
    await append(group, 10)
    away = next(name for name in group.names if name != group.master)
    group.kill(away)
    await append(group, 60)
    others = [name for name in group.names if name != away]
    assert all(first(group, name) < 10 for name in others)
    await master_changed(group)
    await append(group, 150)
    await group.until(lambda: all(first(group, name) > 60 for name in others), "both have dropped its hold")
    for name in others:
        assert away not in {hold["name"] for hold in status(group, name)["holds"]}
    assert any(status(group, name)["cleaning"]["holds_dropped"] for name in others)
    await group.start(away)
    node = group.nodes[away]
    await group.until(lambda: node.restoration.count == 1 and node.state == "REPLICA", "it is restored")
    assert node.restoration.history[-1]["why"].startswith("trimmed")
    await has_the_last(group, away)
    await group.stop()
    assert not group.fatal


def positions(log: Opened) -> dict[str, int]:
    return {hold.name: hold.vlsn for hold in log.log.care.holds if hold.owner is Owner.FEEDER}


def test_a_replica_holds_what_the_master_says_and_nothing_else() -> None:
    opened = Opened(Machine())
    holds = MemberHolds(opened.log, "n2", lambda name, at: None)
    holds.hear({"n1": HoldPosition("1" * 16, 9), "n2": HoldPosition("2" * 16, 3)})
    assert positions(opened) == {"n1": 9}
    holds.hear({"n1": HoldPosition("1" * 16, 7), "n3": HoldPosition("3" * 16, 4)})
    assert positions(opened) == {"n1": 9, "n3": 4}  # it never goes back
    holds.hear({"n3": HoldPosition("4" * 16, 2)})  # but another incarnation may have less
    assert positions(opened) == {"n3": 2}
    holds.hear(None)
    assert positions(opened) == {"n3": 2}
    opened.log.care.holds.floor = Vlsn(5)
    holds.hear({"n3": HoldPosition("5" * 16, 4)})  # gone already
    assert positions(opened) == {}


@virtual
async def test_a_master_whose_term_is_over_takes_no_hold_away() -> None:
    """The old master was suspended while another one was elected and a member was added, which is away now. It answers
    with its old positions before it learns of that."""
    group = Group(6, 5)
    await group.start()
    await group.serving()
    await fed(group, 4)
    await told(group, 3)
    old = group.master
    others = [name for name in group.names if name != old]
    pause(group, old)
    await group.until(lambda: group.master != old, "another one leads")
    await group.serving()
    await joined(group, "n6")
    await electable(group, "n6")
    await told(group, 3, "of six ")
    group.kill("n6")
    replica = next(name for name in others if name != group.master)

    def held() -> bool:
        return "n6" in {hold["name"] for hold in status(group, replica)["holds"]}

    await group.until(held, "the replica knows what n6 needs")
    asked = asyncio.create_task(peers.ask_all(group.nodes[replica].member, DISCOVERY, [NodeName(old)]))
    await asyncio.sleep(0.1)
    resume(group, old)
    assert (await asked)[NodeName(old)].state == "MASTER"
    assert held()
    await group.until(lambda: group.state(old) == "REPLICA", "it follows")
    assert held()
    await group.stop()
    assert not group.fatal


def listing(**incarnations: str) -> GroupEntry:
    members = [Member(name=name, url=f"http://{name}:1", incarnation=each * 16) for name, each in incarnations.items()]
    return GroupEntry(group="g", members=members)


def test_what_another_store_had_says_nothing_to_a_new_master() -> None:
    """The store that now has the name may have less, so the whole log is kept for it."""
    opened = Opened(Machine())
    opened.append(b"a")
    holds = MemberHolds(opened.log, "n2", lambda name, at: None)
    holds.hear({"n1": HoldPosition("1" * 16, 9), "n3": HoldPosition("3" * 16, 4), "n4": HoldPosition("0" * 16, 0)})
    holds.lead(listing(n1="1", n2="2", n3="5", n4="4"))
    assert positions(opened) == {"n1": 9, "n3": 1, "n4": 1}


def test_what_may_be_rolled_back_at_a_member_is_not_told_of_it() -> None:
    """If it rolls back, and is away while the others log more, it would need entries that the others no longer keep."""
    opened = Undurable(Machine(), durable=2)
    holds = MemberHolds(opened.log, "n2", lambda name, at: None)
    holds.follow(listing(n1="1", n2="2"))
    opened.append(b"a")
    opened.append(b"b")
    opened.append(b"c")
    assert opened.log.view.range.last == 4 and opened.log.view.dtvlsn == 2
    holds.matched("n1", 0x1111111111111111, Vlsn(1))
    assert holds.told()["n1"].vlsn == 1
    holds.acknowledged("n1", Vlsn(4))
    assert holds.told()["n1"].vlsn == holds.told()["n2"].vlsn == 2


def test_an_answer_names_no_more_members_than_a_group_has() -> None:
    answer = {
        "group": "g",
        "name": "n1",
        "incarnation": "1" * 16,
        "process": "1" * 16,
        "term": 3,
        "empty": False,
        "last_term": 3,
        "last": 9,
        "holds": {f"m{number}": ["0" * 16, number] for number in range(64)},
    }
    assert read_answer(msgspec.json.encode(answer)).holds is not None
    for holds in ({**answer["holds"], "one more": ["0" * 16, 1]}, {"n1": ["0" * 16, -1]}, {"n1": ["x", 1]}):  # type: ignore[dict-item]
        with pytest.raises(BadBody):
            read_answer(msgspec.json.encode({**answer, "holds": holds}))
