"""A vote floor holds until the log has reached it, or has everything that its master has."""

from __future__ import annotations

import asyncio

import pytest

from tests.fakes.loop import virtual
from tests.seam.nodes import Group
from vlsn.format.block import BLOCK_BYTES
from vlsn.format.frame import FRAME_BYTES
from vlsn.verify.dump import DumpFilter, dump_rows


async def acknowledged(group: Group) -> tuple[int, list[tuple[str, int]]]:
    """Leaves four appends on the media of n1 and n2, the last three as one write on n2; n3 has two, and is down. n2 is
    down and has noted that all are synced. Returns the VLSN of the first, and the offsets of the last three blocks on
    n2."""
    await group.start()
    await group.serving("n1")
    process = group.machines["n2"].process
    assert process is not None
    process.threads.latency_s = (0.5, 0.5)
    first = (await group.append(b"0", acks="none"))[1]["first"]  # n2's disk is busy with this one
    await asyncio.sleep(0.1)
    assert (await group.append(b"1", acks="none"))[1]["first"] == first + 1
    await group.until(lambda: group.nodes["n3"].opened().log.view.range.last_sync == first + 1, "n3 has it")
    group.kill("n3")
    for number in (2, 3):
        assert (await group.append(b"%d" % number, acks="none"))[1]["first"] == first + number
    await group.until(lambda: group.nodes["n1"].dtvlsn() == first + 3, "n2 has acknowledged all of it")
    await asyncio.sleep(3.0)
    group.kill("n2")
    machine = group.machines["n2"]
    blocks = DumpFilter(kinds=frozenset(("BLOCK",)), from_vlsn=first + 1)
    places = [(f"/n2/{row.file}", row.offset) for row in dump_rows(machine.disk, machine.stores, "/n2", blocks)]
    assert len(places) == 3
    return first, places


def rot(group: Group, places: list[tuple[str, int]]) -> None:
    """Flips one bit in the header of each of these blocks."""
    for path, offset in places:
        group.machines["n2"].disk.flip_bit(path, offset + FRAME_BYTES + BLOCK_BYTES - 1)


async def opened(group: Group, first: int) -> tuple[int, int]:
    """Opens n2, whose log is cut after ``first``; returns its vote floor."""
    await group.start("n2")
    await group.until(lambda: group.nodes["n2"].log is not None, "it is open")
    log = group.nodes["n2"].opened().log
    assert log.view.allocated == first
    return log.node_file.record.floor_term, log.node_file.record.floor_vlsn


@pytest.mark.parametrize("at_once", [False, True])
@virtual
async def test_a_node_that_lost_its_state_votes_for_no_log_behind_what_it_acknowledged(at_once: bool) -> None:
    """The note that its last group was synced is lost, so rot in it looks like a torn tail. The remaining block headers
    show its vote floor; then they rot as well, or everything rots at once. n2 and n3 alone elect no master, for it
    would be n3, which misses acknowledged entries."""
    group = Group(21, checkpoint_period_s=60.0)
    first, places = await acknowledged(group)
    group.kill("n1")
    group.machines["n2"].stores.contents.pop("/n2/state")
    rot(group, places[: 3 if at_once else 1])
    floor = await opened(group, first)
    assert floor >= (1, first + 3) if at_once else floor == (1, first + 3)
    group.kill("n2")
    if not at_once:
        rot(group, places[1:])
    assert await opened(group, first) == floor
    await group.start("n3")
    await group.until(lambda: "waits for n1" in group.nodes["n2"].member.reason, "n2 waits for n1")
    await asyncio.sleep(10.0)
    assert not any(node.member.is_master() for node in group.nodes.values())
    await group.start("n1")
    await group.serving()
    assert list((await group.read(group.master)).values()) == [b"0", b"1", b"2", b"3"]
    await group.stop()
    assert not group.fatal


@virtual
async def test_a_floor_that_was_set_high_is_met_by_all_that_the_master_has() -> None:
    """Otherwise two of three would wait for a master that is gone, even long after they received its whole log."""
    group = Group(22, checkpoint_period_s=60.0)
    first, places = await acknowledged(group)
    group.machines["n2"].stores.contents.pop("/n2/state")
    rot(group, places)
    assert await opened(group, first) > (1, first + 4)
    log = group.nodes["n2"].opened().log
    assert log.node_file.record.term == 1
    await group.until(lambda: log.view.range.last_sync == first + 3, "it is fed")
    await group.until(lambda: log.node_file.record.floor_vlsn == first + 3, "its floor is met")
    await group.start("n3")
    await group.until(lambda: group.nodes["n3"].dtvlsn() == first + 3, "n3 has all")
    group.kill("n1")
    await group.until(lambda: any(node.member.is_master() for node in group.nodes.values()), "one of them leads")
    assert list((await group.read(group.master)).values()) == [b"0", b"1", b"2", b"3"]
    await group.stop()
    assert not group.fatal


@virtual
async def test_a_floor_stands_while_the_log_is_behind_its_masters() -> None:
    """Its master ends while n2 is receiving its lost entries. Both n2 and n3 miss acknowledged entries, and wait."""
    group = Group(23, checkpoint_period_s=60.0)
    first, places = await acknowledged(group)
    group.machines["n2"].stores.contents.pop("/n2/state")
    rot(group, places)
    floor = await opened(group, first)
    process = group.machines["n2"].process
    assert process is not None
    process.threads.latency_s = (3.0, 3.0)  # nothing that comes is written soon
    log = group.nodes["n2"].opened().log
    await group.until(lambda: group.state("n2") == "REPLICA", "a feed is taken")
    await asyncio.sleep(0.5)
    assert log.view.range.last_sync == first
    group.kill("n1")
    await group.start("n3")
    await group.until(lambda: "waits for n1" in group.nodes["n2"].member.reason, "n2 waits for n1")
    await asyncio.sleep(10.0)
    assert not any(node.member.is_master() for node in group.nodes.values())
    assert (log.node_file.record.floor_term, log.node_file.record.floor_vlsn) == floor
    await group.start("n1")
    await group.serving()
    assert list((await group.read(group.master)).values()) == [b"0", b"1", b"2", b"3"]
    await group.stop()
    assert not group.fatal
