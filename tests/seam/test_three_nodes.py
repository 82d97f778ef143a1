"""Three nodes in one process, from a seed: the node's own code on fake disk, network, clock, threads and store."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter

import pytest

from tests.fakes.loop import run, virtual
from tests.seam.nodes import Group
from vlsn.offline.truncate import accept_floor

HELD_S = 60.0
"""The most seconds for which the loop keeps a timer, and everything that it refers to."""


async def story(seed: int) -> dict[str, object]:
    """Founds a group, makes 100 appends, one replica cut off for 40 of them, until it has caught up.  Returns the final
    logs."""
    group = Group(seed)
    await group.start()
    await group.serving()
    told: dict[int, bytes] = {}
    for number in range(100):
        if number == 30:
            group.net.split(["n3"], ["n1", "n2", "client"])
        if number == 70:
            behind = group.nodes["n3"].opened().log.view.range.last
            assert behind < group.nodes["n1"].opened().log.view.range.last
            group.net.heal()
        value = f"entry {number} of seed {seed}".encode()
        status, answer = await group.append(value)
        assert status == 200, answer
        assert answer["durable"] and answer["synced"] >= 2
        told[answer["first"]] = value
    last = group.nodes["n1"].opened().log.view.range.last
    await group.until(
        lambda: all(node.dtvlsn() == last for node in group.nodes.values()), "every node is caught up and knows it"
    )
    for name in group.names:
        assert await group.read(name) == told, name
    logs = {name: group.nodes[name].opened().log for name in group.names}
    assert len({tuple(log.view.history.term_runs) for log in logs.values()}) == 1
    result = {
        "told": told,
        "time": round(group.loop.time(), 6),
        "calls": {name: len(machine.disk.calls) for name, machine in group.machines.items()},
    }
    await group.stop()
    assert not group.fatal
    return result


@pytest.mark.parametrize("seed", range(1, 6))
def test_a_replica_that_was_cut_off_catches_up(seed: int) -> None:
    result = run(story(seed))
    assert len(result["told"]) == 100  # type: ignore[arg-type]


def test_one_seed_is_one_story_to_the_last_disk_call() -> None:
    assert run(story(7)) == run(story(7))


@virtual
async def test_kill_of_all_nodes_loses_nothing_that_was_acknowledged() -> None:
    group = Group(3)
    told: dict[int, bytes] = {}
    for life in range(4):
        await group.start()
        await group.serving()
        for name in group.names:
            await group.until(lambda name=name: group.nodes[name].dtvlsn() >= max(told, default=0), name)  # type: ignore[misc]
            found = await group.read(name)
            assert {vlsn: found.get(vlsn) for vlsn in told} == told
        for number in range(25):
            value = f"{life}/{number}".encode()
            status, answer = await group.append(value)
            assert status == 200, answer
            told[answer["first"]] = value
        group.kill(*group.names, power=life % 2 == 1)
        await asyncio.sleep(0.5)
    assert not group.fatal


@pytest.mark.parametrize("size", [1, 2, 5])
@virtual
async def test_groups_of_other_sizes_serve(size: int) -> None:
    """This includes a group of one: its first block is durable before any append."""
    group = Group(21, size=size)
    await group.start()
    await group.serving()
    status, answer = await group.append(b"value")
    assert (status, answer["durable"]) == (200, True)
    assert answer["synced"] >= size // 2 + 1
    await group.until(lambda: all(node.dtvlsn() >= answer["first"] for node in group.nodes.values()), "everywhere")
    await group.stop()
    assert not group.fatal


@virtual
async def test_too_few_replicas_is_refused_before_anything_is_logged() -> None:
    group = Group(5)
    await group.start()
    await group.serving()
    status, _ = await group.append(b"one")
    assert status == 200
    group.kill("n2", "n3")
    await asyncio.sleep(0.3)
    log = group.nodes["n1"].opened().log
    before = log.view.allocated
    status, answer = await group.append(b"two")
    assert (status, answer["type"]) == (503, "insufficient-replicas")
    assert log.view.allocated == before
    status, logged = await group.append(b"three", acks="none")
    assert (status, logged["durable"]) == (200, False)
    assert group.nodes["n1"].dtvlsn() < logged["first"]  # logged, and not shown to readers
    await group.until(lambda: group.state("n1") == "UNKNOWN", "a master whom no majority answers steps down")
    status, answer = await group.append(b"four", to="n1")
    assert (status, answer["type"]) == (503, "no-master")
    assert log.view.allocated == logged["last"]
    await group.start("n2")
    await group.serving("n1")  # its log is the longer one
    assert group.nodes["n1"].dtvlsn() >= logged["first"]
    await group.until(lambda: group.state("n2") == "REPLICA", "n2 is back")
    status, answer = await group.append(b"five", acks="all")
    assert (status, answer["type"]) == (503, "insufficient-replicas")
    assert not group.fatal
    await group.stop()


@virtual
async def test_what_a_cut_off_master_logged_is_unknown_and_rolled_back_under_the_next_one() -> None:
    group = Group(6)
    await group.start()
    await group.serving()
    told = (await group.append(b"told"))[1]["first"]
    group.net.split(["n1", "client"], ["n2", "n3"])
    status, answer = await group.append(b"who knows")
    assert (status, answer["type"]) == (504, "outcome-unknown")
    assert group.nodes["n1"].opened().log.view.range.last == told + 1
    await group.until(lambda: group.master != "n1", "another one leads")
    group.net.heal()
    await group.serving()
    await group.until(lambda: group.state("n1") == "REPLICA", "n1 follows")
    assert (await group.append(b"after"))[0] == 200
    last = group.nodes[group.master].opened().log.view.range.last
    await group.until(lambda: all(node.dtvlsn() == last for node in group.nodes.values()), "all are equal")
    for name in group.names:
        values = (await group.read(name)).values()
        assert list(values) == [b"told", b"after"], name
    await group.stop()
    assert not group.fatal


def rot_last_block(group: Group, name: str) -> None:
    """Flips a bit in the last frame of that node's newest segment, which nothing later states as synced."""
    disk = group.machines[name].disk
    segment = max(
        each
        for each in disk.list(f"/{name}")
        if each.endswith(".vlog") and any(disk.content(f"/{name}/{each}")[4096:4100])
    )
    path = f"/{name}/{segment}"
    content = disk.content(path)
    disk.flip_bit(path, len(content.rstrip(b"\0")) - 1)


@virtual
async def test_a_node_below_its_vote_floor_does_not_lead_and_is_fed_what_it_lost() -> None:
    group = Group(11)
    await group.start()
    await group.serving()
    told = [(await group.append(b"%d" % number))[1]["first"] for number in range(5)]
    await group.until(lambda: all(node.dtvlsn() == told[-1] for node in group.nodes.values()), "all have all")
    group.kill("n1")
    rot_last_block(group, "n1")
    await group.start("n1")
    await group.until(lambda: group.nodes["n1"].log is not None, "n1 has opened its log")
    record = group.nodes["n1"].opened().log.node_file.record
    assert (record.floor_term, record.floor_vlsn) == (1, told[-1])
    assert group.nodes["n1"].opened().log.view.allocated == told[-2]
    await group.serving()
    assert group.master != "n1"
    await group.until(lambda: group.nodes["n1"].dtvlsn() > told[-1], "n1 is fed")
    assert (await group.read("n1"))[told[-1]] == b"4"  # what was acknowledged is still there
    await group.stop()


@virtual
async def test_a_node_below_its_vote_floor_waits_for_every_member_to_tell_its_end() -> None:
    group = Group(12)
    await group.start()
    await group.serving()
    group.kill("n2", "n3")
    status, answer = await group.append(b"only here", acks="none")
    assert (status, answer["durable"]) == (200, False)
    group.kill("n1")
    rot_last_block(group, "n1")
    await group.start("n1", "n2")
    await group.until(lambda: "waits for n3" in group.nodes["n1"].member.reason, "n1 waits for n3")
    await group.start("n3")
    await group.serving()
    assert b"only here" not in (await group.read("n1")).values()
    assert (await group.append(b"on"))[0] == 200
    await group.stop()


@virtual
async def test_a_floor_that_a_person_has_lifted_stays_lifted_though_the_cut_bytes_are_still_there() -> None:
    group = Group(13)
    await group.start()
    await group.serving()
    group.kill("n2", "n3")
    assert not (await group.append(b"only here", acks="none"))[1]["durable"]
    group.kill("n1")
    rot_last_block(group, "n1")
    await group.start("n1", "n2")
    await group.until(lambda: "waits for n3" in group.nodes["n1"].member.reason, "n1 waits for n3")
    await asyncio.sleep(3.0)
    assert not any(node.member.is_master() for node in group.nodes.values())
    group.kill("n1")
    accept_floor(group.machines["n1"].disk, "/n1")
    await group.start("n1")
    await group.serving()
    assert group.nodes["n1"].opened().log.node_file.record.floor_vlsn == 0
    assert (await group.append(b"on"))[0] == 200
    await group.stop()


def test_a_feed_that_ended_is_freed_on_both_sides_without_a_collection() -> None:
    async def main() -> Counter[str]:
        group = Group(4)
        await group.start()
        await group.serving()
        gc.collect()
        gc.freeze()
        gc.disable()
        try:
            for _ in range(3):
                group.net.cut("n1", "n3")
                await group.until(lambda: not _follows(group, "n3"), "it has left its feed")
                await group.until(lambda: _follows(group, "n3"), "it has another one")
            await asyncio.sleep(HELD_S)
            gc.set_debug(gc.DEBUG_SAVEALL)
            gc.collect()
            return Counter(type(each).__name__ for each in gc.garbage)
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()
            gc.unfreeze()
            await group.stop()

    found = run(main())
    assert {name: found[name] for name in ("Feeder", "ReplicaFeed") if found[name]} == {}


def _follows(group: Group, name: str) -> bool:
    following = group.nodes[name].following
    return following is not None and following.feed is not None and following.feed.streaming
