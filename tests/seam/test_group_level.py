"""The group's level: an entry of the log that every node promises in its node file before it acknowledges it."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from repl.lead.leading import Leading
from repl.lead.level_raising import raise_level
from tests.fakes.loop import virtual
from tests.seam.nodes import BIG, CLEANS, Group
from tests.seam.test_membership import fed
from vlsn.errors import BadArgument, VlsnLogError, WrongVersion
from vlsn.format.block import EntryKind
from vlsn.format.records import CommitEntry, Settings
from vlsn.ids import NodeName
from vlsn.levels import LEVELS, SIGNED, Levels
from vlsn.state import node_file
from vlsn.write.local_log import LocalLog

BOTH = LEVELS
RAISE = CommitEntry(set=Settings(level=2)).encode()


async def made(seed: int, **settings: Any) -> Group:
    """Makes a group without a level, all of whose nodes now run the later binary."""
    group = Group(seed, **settings)
    await group.start()
    await group.serving()
    group.kill(*group.names)
    group.levels = BOTH
    for machine in group.machines.values():
        machine.levels = BOTH
    await group.start()
    await group.serving()
    await fed(group, 2)
    return group


def lead(group: Group) -> Leading:
    role = group.nodes[group.master].member.role
    assert isinstance(role, Leading)
    return role


def log(group: Group, name: str) -> LocalLog:
    return group.nodes[name].opened().log


def promised(group: Group, name: str) -> int:
    """Reads the level in the node file on the disk."""
    return node_file.read(group.machines[name].disk, f"/{name}/node.id").level


def bytes_of(group: Group, name: str) -> dict[str, bytes]:
    disk, found = group.machines[name].disk, {}
    for each in disk.list(f"/{name}"):
        file = disk.open(f"/{name}/{each}")
        found[each] = file.read(0, file.size())
        file.close()
    return found


async def shown(group: Group, path: str, of: str = "") -> dict[str, Any]:
    response = await group.client.request("GET", f"{group.url(of or group.master)}{path}", timeout_s=5.0)
    document: dict[str, Any] = msgspec.json.decode(bytes(response.body))
    return document


async def up(group: Group, name: str) -> None:
    await group.start(name)
    await group.until(lambda: group.state(name) == "REPLICA", f"{name} is fed again")


async def all_told(group: Group) -> None:
    """Waits until the master has every member's levels; members report them every few seconds."""
    members = group.nodes[group.master].member.members
    await group.until(lambda: {*members.levels, group.master} >= set(group.names), "all have told their levels")


async def with_an_older_one(group: Group) -> str:
    """Starts a replica again with a binary of level 1. Returns its name once the master has its levels."""
    older = next(name for name in group.names if name != group.master)
    group.kill(older)
    group.machines[older].levels = Levels(1, 1)
    await up(group, older)
    members = group.nodes[group.master].member.members
    await group.until(lambda: members.levels.get(NodeName(older)) == Levels(1, 1), "the master has its levels")
    return older


async def at_level(group: Group, level: int, *names: str) -> None:
    await group.until(
        lambda: all(log(group, name).view.level == level for name in names or group.nodes), f"all are at level {level}"
    )


@virtual
async def test_a_raise_is_in_every_node_file_before_it_is_durable_and_outlives_restarts() -> None:
    group = await made(91)
    await group.appended(b"before")
    assert [log(group, name).view.level for name in group.names] == [1, 1, 1]
    await all_told(group)
    raising = asyncio.create_task(raise_level(lead(group), 2))
    while not raising.done():
        for name in group.names:
            acknowledged = log(group, name).view.range.last_sync
            if any(vlsn <= acknowledged for vlsn, _ in log(group, name).view.history.levels):
                assert promised(group, name) == 2, f"{name} has synced the raise, and may be opened by an older one"
        await asyncio.sleep(0.000_05)
    at = await raising
    await at_level(group, 2)
    await group.appended(b"after")
    assert {name: promised(group, name) for name in group.names} == dict.fromkeys(group.names, 2)
    for again in range(2):
        assert sorted((await group.read(group.master)).values()) == [b"after", b"before"]
        page = await group.client.request("GET", f"{group.url(group.master)}/v1/entries/{at}", timeout_s=5.0)
        assert msgspec.json.decode(bytes(page.body))["type"] == "not-data"
        every = await group.client.request("GET", f"{group.url(group.master)}/v1/entries?kinds=all", timeout_s=5.0)
        shown = {row["vlsn"]: row["kind"] for row in map(msgspec.json.decode, bytes(every.body).splitlines())}
        assert shown[at] == "COMMIT"
        group.kill(*group.names, power=bool(again))
        await group.start()
        await group.serving()
        await fed(group, 2)
        await at_level(group, 2)
    assert not group.fatal
    await group.stop()


@virtual
async def test_a_new_groups_level_is_in_each_node_file_before_its_first_block_is_kept() -> None:
    group = Group(97, levels=BOTH)
    await group.start()
    serving = asyncio.create_task(group.serving())
    seen: set[str] = set()
    while not serving.done() or len(seen) < 3:
        for name, node in group.nodes.items():
            if node.member.open is None:
                continue
            kept = log(group, name)
            if kept.view.history.levels and kept.view.range.last_sync >= kept.view.history.levels[0][0]:
                seen.add(name)
                assert promised(group, name) == BOTH.max, f"{name} has it, and may be opened by an older one"
        await asyncio.sleep(0.000_05)
    await group.stop()


@virtual
async def test_an_older_binary_does_not_open_a_directory_of_that_level() -> None:
    group = await made(92)
    await all_told(group)
    await raise_level(lead(group), 2)
    await at_level(group, 2)
    older = next(name for name in group.names if name != group.master)
    group.kill(older)
    before = bytes_of(group, older)
    group.machines[older].levels = Levels(1, 1)
    await group.start(older)
    await group.until(lambda: bool(group.fatal), f"{older} refuses")
    ((name, error),) = group.fatal
    assert name == older and isinstance(error, WrongVersion)
    assert "node.id" in str(error) and "version 2" in str(error)
    assert bytes_of(group, older) == before
    group.fatal.clear()
    group.kill(older)
    group.machines[older].levels = BOTH
    await up(group, older)
    await group.stop()
    assert not group.fatal


@virtual
async def test_a_member_that_was_away_takes_the_level_with_the_log() -> None:
    group = await made(93)
    await all_told(group)
    away = next(name for name in group.names if name != group.master)
    group.kill(away)
    await raise_level(lead(group), 2)
    await group.appended(b"meanwhile")
    assert promised(group, away) == 1
    await up(group, away)
    await at_level(group, 2)
    assert promised(group, away) == 2
    await group.stop()
    assert not group.fatal


@virtual
async def test_a_member_promises_the_level_of_the_blocks_that_it_is_restored_with() -> None:
    """It promises before the blocks are in its log. It was away when the level was raised, and its process may end at
    any moment."""
    group = await made(95)
    await all_told(group)
    away = next(name for name in group.names if name != group.master)
    group.kill(away)
    at = await raise_level(lead(group), 2)
    group.net.split([away], [name for name in group.names if name != away])
    await group.start(away)
    restoration = group.nodes[away].restoration
    await group.until(lambda: restoration.want("a test"), "it is to be restored")
    await group.until(lambda: group.state(away) == "RESTORING", "it looks for a provider")
    assert promised(group, away) == 1
    group.net.heal()
    await group.until(lambda: restoration.log is not None, "it restores")
    process, restored = group.machines[away].process, restoration.log
    assert process is not None and restored is not None
    process.threads.latency_s = (0.05, 0.1)  # each step takes its time
    await group.until(lambda: restored.view.allocated >= at, "the level is in its log")
    assert promised(group, away) == 2
    process.threads.latency_s = (0.0, 0.0)
    await group.until(lambda: group.state(away) == "REPLICA", "it follows")
    await at_level(group, 2)
    await group.stop()
    assert not group.fatal


@virtual
async def test_a_member_that_is_restored_takes_the_level_from_the_record() -> None:
    group = await made(94, retention_bytes=4 << 16, hold_bytes_max=1 << 16, **CLEANS)
    await all_told(group)
    away = next(name for name in group.names if name != group.master)
    group.kill(away)
    at = await raise_level(lead(group), 2)
    while log(group, group.master).view.range.first <= at:
        await group.appended(BIG)
    await group.start(away)
    await group.until(lambda: group.state(away) == "REPLICA" and log(group, away).view.range.first > at, "restored")
    await at_level(group, 2)
    assert promised(group, away) == 2
    assert group.nodes[away].restoration.count == 1
    await group.stop()
    assert not group.fatal


@virtual
async def test_a_raise_that_is_rolled_back_is_none() -> None:
    group = await made(95)
    await all_told(group)
    old = group.master
    others = [name for name in group.names if name != old]
    group.net.split([old], others)
    raising = asyncio.create_task(raise_level(lead(group), 2))
    await group.until(lambda: log(group, old).view.history.level == 2, "the raise is in the old master's log")
    assert log(group, old).view.level == 1, "and nothing may be written by it yet"
    await group.until(lambda: group.master != old and group.nodes[group.master].member.is_master(), "another one leads")
    await group.appended(b"under another master", to=group.master)
    group.net.heal()
    await fed(group, 2)
    await group.until(lambda: log(group, old).view.history.level == 1, "it is rolled back")
    with pytest.raises(VlsnLogError):
        await raising
    await at_level(group, 1)
    assert {name: promised(group, name) for name in group.names} == {old: 2, **dict.fromkeys(others, 1)}
    group.kill(old)
    await up(group, old)
    await at_level(group, 1)
    await all_told(group)
    await raise_level(lead(group), 2)
    await at_level(group, 2)
    await group.stop()
    assert not group.fatal


@virtual
async def test_a_level_that_a_member_does_not_speak_is_not_raised_to() -> None:
    group = await made(96)
    older = await with_an_older_one(group)
    with pytest.raises(BadArgument, match=f"level 2 is not spoken by {older} \\(1\\)"):
        await raise_level(lead(group), 2)
    with pytest.raises(BadArgument, match="the next one is 2"):
        await raise_level(lead(group), 3)
    assert [promised(group, name) for name in group.names] == [1, 1, 1]
    await group.stop()
    assert not group.fatal


@virtual
async def test_a_masters_document_says_whether_the_level_can_be_raised_and_changes_nothing() -> None:
    group = await made(98)
    older = await with_an_older_one(group)
    members = group.nodes[group.master].member.members
    said = await shown(group, "/v1/group")
    with pytest.raises(BadArgument) as refusal:
        await raise_level(lead(group), 2)
    assert said["upgrade"] == {"level": 2, "why_not": str(refusal.value)} and older in str(refusal.value)
    told = {each["name"]: each["levels"] for each in said["members"]}
    assert told == {name: [1, 1] if name == older else [*BOTH.below(SIGNED)] for name in group.names}
    assert (await shown(group, "/v1/group", of=older))["upgrade"] is None
    group.kill(older)
    group.machines[older].levels = BOTH
    await up(group, older)
    await group.until(lambda: members.levels.get(older) == BOTH.below(SIGNED), "it has told")  # type: ignore[call-overload]
    last = log(group, group.master).view.allocated
    assert (await shown(group, "/v1/group"))["upgrade"] == {"level": 2, "why_not": ""}
    assert log(group, group.master).view.allocated == last
    assert [promised(group, name) for name in group.names] == [1, 1, 1]
    await raise_level(lead(group), 2)
    assert (await shown(group, "/v1/group"))["upgrade"] == {"level": 3, "why_not": ""}
    await group.stop()
    assert not group.fatal


@virtual
async def test_an_older_member_keeps_nothing_of_a_raise_that_it_cannot_read() -> None:
    """The member may be admitted just after the check, so the entry arrives on its feed."""
    group = await made(97)
    older = next(name for name in group.names if name != group.master)
    group.kill(older)
    group.machines[older].levels = Levels(1, 1)
    await up(group, older)
    before = log(group, older).view.allocated
    log(group, group.master).append_entries([EntryKind.COMMIT], [RAISE], lambda _: None)
    await group.until(lambda: group.nodes[older].member.reason.startswith("wrong-version: "), f"{older} says why")
    last = await group.appended(b"goes on without it")
    assert log(group, group.master).view.level == 2
    assert log(group, older).view.allocated == before < last and promised(group, older) == 1
    said = group.nodes[older].member.reason
    assert "level 2" in said and "speaks level 1: run" in said, said
    group.kill(older)
    group.machines[older].levels = BOTH
    await up(group, older)
    await at_level(group, 2)
    await group.stop()
    assert not group.fatal
