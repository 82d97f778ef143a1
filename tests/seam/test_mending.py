"""Rot in a node's segments, found by a reader, a feeder or the scrub, and mended from a peer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from repl.repair.mending import Damage
from tests.fakes.loop import virtual
from tests.fakes.seeds import seeds
from tests.seam.nodes import BIG, SEGMENT, Group
from tests.seam.test_restore import append
from vlsn.errors import Damaged
from vlsn.format.frame import FRAME_BYTES
from vlsn.format.segment import FIRST_FRAME, parse_segment_name, segment_name
from vlsn.ids import Vlsn, lsn_file, lsn_offset
from vlsn.limits import KIB
from vlsn.verify.verify import verify

SETTINGS: dict[str, Any] = {
    "segment_bytes": SEGMENT,
    "ring_bytes_max": SEGMENT,
    "scrub_bytes_per_s": 0,
}


async def filled(seed: int, told: dict[int, bytes], **settings: Any) -> Group:
    group = Group(seed, **{**SETTINGS, **settings})
    await group.start()
    await group.serving()
    await append(group, 60, told)
    await group.until(lambda: all(node.dtvlsn() >= max(told) for node in group.nodes.values()), "all have all")
    return group


def place(group: Group, name: str, vlsn: int) -> tuple[str, int]:
    """Returns path and offset of the frame of the block with ``vlsn``."""
    log = group.nodes[name].opened().log
    mapping = log.view.index.at_or_before(Vlsn(vlsn))
    assert mapping is not None
    reader = log.view.reader()
    at = reader.blocks(vlsn, start=mapping[1], upto_vlsn=log.view.range.last, bytes_max=1).lsns[0]
    reader.close()
    return f"/{name}/{segment_name(lsn_file(at))}", lsn_offset(at)


def flip(group: Group, name: str, vlsn: int, byte: int) -> None:
    path, offset = place(group, name, vlsn)
    group.machines[name].disk.flip_bit(path, offset + byte)


def flip_in_body(group: Group, name: str, vlsn: int) -> None:
    flip(group, name, vlsn, FRAME_BYTES + 100)


def lose(group: Group, name: str, vlsn: int) -> None:
    """Makes the block's sector unreadable."""
    path, offset = place(group, name, vlsn)
    group.machines[name].disk.lose_page(path, offset + FRAME_BYTES + 100)


Harm = Callable[[Group, str, int], None]


async def mended(group: Group, name: str, told: dict[int, bytes], blocks: int = 1) -> None:
    def whole() -> bool:
        node = group.nodes[name]
        there = node.dtvlsn() >= max(told)
        return there and node.open is not None and node.open.mending.may_stand and node.open.mending.mended >= blocks

    await group.until(whole, f"{name} has mended", limit_s=40)
    assert await group.read(name) == told
    await group.nodes[name].services.administration.checkpoint()
    group.kill(name)
    machine = group.machines[name]
    report = verify(machine.disk, machine.stores, f"/{name}")
    assert not report.findings, report.findings
    await group.start(name)
    await group.until(lambda: group.nodes[name].dtvlsn() >= max(told), f"{name} is back")


COUNT = FRAME_BYTES + 5
"""If this byte is flipped, the block ends 256 VLSNs later."""
BYTES = [0, 3, 5, 9, 13, 17, 22, FRAME_BYTES + 1, COUNT, FRAME_BYTES + 20, FRAME_BYTES + 62, FRAME_BYTES + 300]
"""Magic, flag, length, prev, synced, salt, crc; the block's header, its crc, its body."""


@pytest.mark.parametrize("byte", [*BYTES, None])
@virtual
async def test_a_flipped_bit_or_a_bad_sector_that_a_reader_meets_is_mended_from_a_peer(byte: int | None) -> None:
    told: dict[int, bytes] = {}
    group = await filled(50, told)
    path, _ = place(group, "n3", 20)
    if byte is None:
        lose(group, "n3", 20)
    else:
        flip(group, "n3", 20, byte)
    response = await group.client.request("GET", f"{group.url('n3')}/v1/entries/20", timeout_s=5.0)
    assert response.status == 500 and b'"damaged"' in response.body, response
    assert not group.nodes["n3"].opened().mending.may_stand
    (damage,) = group.nodes["n3"].services.monitoring.status()["damage"]
    assert path.endswith(damage["file"])
    assert group.state("n3") == "REPLICA"
    status, answer = await group.append(b"meanwhile")
    assert status == 200
    told[answer["first"]] = b"meanwhile"
    await mended(group, "n3", told)
    disk = group.machines["n3"].disk
    assert any(".damaged-" in name for name in disk.list("/n3"))
    await group.stop()
    assert not group.fatal


@virtual
async def test_a_bad_sector_that_a_reader_of_whole_segments_meets_is_mended_from_a_peer() -> None:
    told: dict[int, bytes] = {}
    group = await filled(74, told)
    path, _ = place(group, "n3", 20)
    number = parse_segment_name(path.rpartition("/")[2])
    lose(group, "n3", 20)
    files = group.nodes["n3"].opened().files
    assert files is not None and number is not None
    with pytest.raises(Damaged) as caught:
        await files.read(number, 0, files.end(number))
    assert caught.value.file == segment_name(number)
    await mended(group, "n3", told)
    await group.stop()
    assert not group.fatal


@virtual
async def test_bad_sectors_that_the_scrub_meets_on_every_node_are_mended() -> None:
    told: dict[int, bytes] = {}
    group = await filled(72, told, scrub_bytes_per_s=64 * KIB, scrub_period_s=2.0)
    for number, name in enumerate(group.names):
        lose(group, name, 5 + 10 * number)
    for name in group.names:
        await mended(group, name, told)
        assert not group.nodes[name].member.events.counts["scrub.unreadable"]
    await group.stop()
    assert not group.fatal


@virtual
async def test_a_bad_sector_that_stays_bad_when_it_was_written_again_stays_damaged_and_is_not_tried_in_a_loop() -> None:
    told: dict[int, bytes] = {}
    group = await filled(73, told)
    path, offset = place(group, "n3", 20)
    bad = offset + FRAME_BYTES + 100
    disk = group.machines["n3"].disk
    disk.fail_at(
        lambda call: call.name == "read" and call.path == path and call.offset <= bad < call.offset + call.size,
        times=1 << 30,
    )
    response = await group.client.request("GET", f"{group.url('n3')}/v1/entries/20", timeout_s=5.0)
    assert response.status == 500
    await asyncio.sleep(11.0)
    (damage,) = group.nodes["n3"].services.monitoring.status()["damage"]
    assert "does not read back" in damage["why"], damage
    assert sum(call.name == "rename" and call.path.endswith(".mend") for call in disk.calls) <= 3
    disk.mend()
    await mended(group, "n3", told)
    await group.stop()
    assert not group.fatal


@virtual
async def test_what_a_disk_does_not_give_for_a_moment_is_there_as_it_was_once_damage_beside_it_is_mended() -> None:
    """Only n3 has the good copy of a block, beside a flipped bit, and reads of the good copy fail for a moment. The
    mending of the bit waits, reports the reason, and does not lose the good copy."""
    told: dict[int, bytes] = {}
    group = await filled(75, told)
    (path, _), (other, offset) = place(group, "n3", 5), place(group, "n3", 12)
    assert path == other
    flip_in_body(group, "n3", 5)
    for name in ("n1", "n2"):
        flip_in_body(group, name, 12)
    disk, alone = group.machines["n3"].disk, offset + FRAME_BYTES + 100
    disk.fail_at(
        lambda call: call.name == "read" and call.path == path and call.offset <= alone < call.offset + call.size,
        times=1 << 30,
    )
    response = await group.client.request("GET", f"{group.url('n3')}/v1/entries/5", timeout_s=5.0)
    assert response.status == 500
    await asyncio.sleep(8.0)
    assert group.nodes["n3"].member.events.counts["damage.stays"]
    disk.mend()
    for name in ("n1", "n2"):
        response = await group.client.request("GET", f"{group.url(name)}/v1/entries/12", timeout_s=5.0)
        assert response.status == 500
    for name in group.names:
        await mended(group, name, told)
    await group.stop()
    assert not group.fatal


@virtual
async def test_a_replica_whose_block_at_the_matchpoint_is_rotten_mends_it_and_follows() -> None:
    """Its count field says that it ends later: it is neither another block, nor missing."""
    told: dict[int, bytes] = {}
    group = await filled(60, told)
    name = next(each for each in group.names if each != group.master)
    flip(group, name, group.nodes[name].opened().log.view.range.last, COUNT)
    group.net.cut(name, group.master)
    await append(group, 2, told)
    await mended(group, name, told)
    await group.stop()
    assert not group.fatal


@virtual
async def test_logs_that_do_not_open_mend_one_another() -> None:
    """Each node has lost a different block that an open reads, and no log is open that could provide it."""
    told: dict[int, bytes] = {}
    group = await filled(61, told)
    for number, name in enumerate(group.names):
        flip(group, name, 30 + 5 * number, FRAME_BYTES + 100)
    group.kill(*group.names, power=True)
    await group.start()
    await group.serving()
    for name in group.names:
        await group.until(lambda name=name: group.nodes[name].dtvlsn() >= max(told), f"{name} has all")  # type: ignore[misc]
        assert await group.read(name) == told
        events = group.nodes[name].member.events
        assert events.counts["mended"] == 1
        states = [each["state"] for each in events.since(1, 100)["events"] if each["event"] == "state"]
        assert states[0] == "DAMAGED"  # before it was open
        assert not group.nodes[name].restoration.history
    await group.stop()
    assert not group.fatal


@virtual
async def test_logs_that_do_not_open_mend_one_another_where_no_disk_knows_it_durable() -> None:
    """Every node has the last blocks, but no acknowledgement was received: the remains of the blocks have their
    names."""
    told: dict[int, bytes] = {}
    group = await filled(62, told)
    master = group.master
    for name in group.names:
        group.net.block(name, master)
    for number in range(8):
        value = b"unheard %d" % number
        status, answer = await group.append(value, to=master, acks="none")
        assert status == 200, answer
        told[answer["first"]] = value
    last = max(told)
    await group.until(
        lambda: all(n.opened().log.view.range.last_sync >= last for n in group.nodes.values()), "all have all"
    )
    assert group.nodes[master].dtvlsn() < last - 7
    for number, name in enumerate(group.names):
        flip(group, name, last - 5 + number, FRAME_BYTES + 100)
    group.kill(*group.names, power=True)
    group.net.heal()
    await group.start()
    await group.serving()
    for name in group.names:
        await group.until(lambda name=name: group.nodes[name].dtvlsn() >= last, f"{name} has all")  # type: ignore[misc]
        assert await group.read(name) == told
        assert group.nodes[name].member.events.counts["mended"] == 1
    await group.stop()
    assert not group.fatal


@virtual
async def test_damage_in_the_current_segment_rolls_it_first() -> None:
    told: dict[int, bytes] = {}
    group = await filled(51, told)
    vlsn = max(told) - 1
    flip(group, "n3", vlsn, FRAME_BYTES + 100)
    group.nodes["n3"].opened().log.view.ring.restart(
        Vlsn(group.nodes["n3"].opened().log.view.range.last)
    )  # not in memory any more
    response = await group.client.request("GET", f"{group.url('n3')}/v1/entries/{vlsn}", timeout_s=5.0)
    assert response.status == 500
    await mended(group, "n3", told)
    await group.stop()
    assert not group.fatal


@virtual
async def test_a_segment_that_is_still_written_to_is_not_mended_and_nothing_without_room() -> None:
    told: dict[int, bytes] = {}
    group = await filled(58, told)
    log, disk = group.nodes["n3"].opened().log, group.machines["n3"].disk
    disk.capacity_bytes = 1  # nothing is free
    await group.nodes["n3"].services.administration.rotate()  # into the standby; there is no room for another one
    await append(group, 2, told)
    await group.until(lambda: log.view.range.last_sync >= max(told), "n3 has them")
    number = log.placement.active_files()[0]
    flip(group, "n3", max(told) - 1, FRAME_BYTES + 100)
    log.view.ring.restart(Vlsn(log.view.range.last))  # not in memory any more
    response = await group.client.request("GET", f"{group.url('n3')}/v1/entries/{max(told) - 1}", timeout_s=5.0)
    assert response.status == 500
    await asyncio.sleep(12.0)
    (damage,) = group.nodes["n3"].services.monitoring.status()["damage"]
    assert log.placement.active_files() == [number] and "still written to" in damage["why"]
    disk.capacity_bytes = None
    await mended(group, "n3", told)
    await group.stop()
    assert not group.fatal


@pytest.mark.parametrize(("seed", "harm"), [(52, flip_in_body), (71, lose)], ids=["rot", "a bad sector"])
@virtual
async def test_damage_at_the_master_met_by_a_feeder_is_mended_from_a_replica(seed: int, harm: Harm) -> None:
    told: dict[int, bytes] = {}
    group = await filled(seed, told)
    group.kill("n3")
    await append(group, 40, told)
    harm(group, "n1", max(told) - 35)
    await group.start("n3")
    await group.until(lambda: group.nodes["n3"].dtvlsn() >= max(told), "n3 is fed all the same")
    await mended(group, "n1", told)
    await group.serving()
    await group.stop()
    assert not group.fatal


@pytest.mark.parametrize("seed", seeds(3))
@virtual
async def test_the_scrub_meets_rot_in_different_places_on_every_node_and_all_of_it_is_mended(seed: int) -> None:
    told: dict[int, bytes] = {}
    rng = Random(seed)
    group = await filled(seed, told, scrub_bytes_per_s=64 * KIB, scrub_period_s=2.0)
    blocks = rng.sample(sorted(told)[:45], 9)
    for number, name in enumerate(group.names):
        for path, offset in [place(group, name, vlsn) for vlsn in blocks[number * 3 : number * 3 + 3]]:
            group.machines[name].disk.flip_bit(path, offset + rng.choice(BYTES))
    for name in group.names:
        await mended(group, name, told, blocks=3)
    await group.serving()
    await group.stop()
    assert not group.fatal


@virtual
async def test_the_only_good_copy_of_a_block_that_no_disk_calls_durable_mends_the_others() -> None:
    """All have stopped, and two of three cannot read the last block of a segment.  The third does not know it as
    durable, and can neither lead nor vote before the two are mended."""
    told: dict[int, bytes] = {}
    group = await filled(59, told, checkpoint_period_s=600.0, checkpoint_bytes=1 << 30)
    master, damaged, whole = sorted(group.names, key=lambda name: name != group.master)
    for name in (damaged, whole):
        group.net.block(name, master)  # no acknowledgement arrives
    vlsns = []
    for value in (b"unheard", b"behind it"):
        status, answer = await group.append(value, to=master, acks="none")
        assert status == 200
        told[vlsn := answer["last"]] = value
        vlsns.append(vlsn)
        for name in group.names:
            log = group.nodes[name].opened().log
            await group.until(lambda log=log, vlsn=vlsn: log.view.range.last_sync >= vlsn, f"{name} has it")  # type: ignore[misc]
            await group.nodes[name].services.administration.rotate()
    places = {name: place(group, name, vlsns[0]) for name in group.names}
    behind = {name: place(group, name, vlsns[1])[0] for name in group.names}
    assert all(places[name][0] < behind[name] for name in group.names)
    assert all(node.dtvlsn() < vlsns[0] for node in group.nodes.values())
    group.kill(*group.names)
    group.net.heal()
    for name in (master, damaged):
        path, offset = places[name]
        group.machines[name].disk.flip_bit(path, offset + FRAME_BYTES + 20)  # nothing names its term any more
    await group.start()
    await group.serving()
    await group.until(lambda: all(node.dtvlsn() >= vlsns[1] for node in group.nodes.values()), "all have all")
    for name in group.names:
        assert await group.read(name) == told
        assert not group.nodes[name].restoration.count
    await group.stop()
    assert not group.fatal


@virtual
async def test_rot_at_the_end_of_a_log_whose_index_is_lost_is_not_another_end() -> None:
    """Nothing follows the last checkpoint: building the index anew finds damage before it."""
    told: dict[int, bytes] = {}
    group = await filled(58, told, checkpoint_period_s=1_000.0, checkpoint_bytes=100 << 20)
    await group.nodes["n3"].services.administration.checkpoint()
    flip(group, "n3", max(told), FRAME_BYTES + 100)
    group.kill("n3")
    group.machines["n3"].stores.contents.pop("/n3/index")
    group.net.split(["n3"], ["n1", "n2", "client"])
    await group.start("n3")
    await group.until(lambda: group.state("n3") == "DAMAGED", "n3 says that it is damaged")
    assert group.nodes["n3"].log is None
    group.net.heal()
    await group.until(lambda: group.state("n3") == "REPLICA", "n3 has mended itself")
    assert await group.read("n3") == told
    await group.stop()
    assert not group.fatal


@virtual
async def test_what_no_peer_can_give_stays_is_said_and_is_mended_when_one_is_back() -> None:
    told: dict[int, bytes] = {}
    group = await filled(54, told)
    flip(group, "n3", 20, FRAME_BYTES + 100)
    group.net.split(["n3", "client"], ["n1", "n2"])
    response = await group.client.request("GET", f"{group.url('n3')}/v1/entries/20", timeout_s=5.0)
    assert response.status == 500
    await asyncio.sleep(15.0)
    damage = group.nodes["n3"].services.monitoring.status()["damage"]
    assert len(damage) == 1 and damage[0]["why"]
    assert any(each.startswith("damaged:") for each in group.nodes["n3"].services.monitoring.readiness())
    group.net.heal()
    await mended(group, "n3", told)
    await group.stop()
    assert not group.fatal


@virtual
async def test_a_master_steps_down_over_damage_in_what_nobody_else_has() -> None:
    """The master's log is the longest, so it is elected, and no block after the damage can ever be fed."""
    told: dict[int, bytes] = {}
    group = await filled(55, told)
    longest, other, third = group.master, *(name for name in group.names if name != group.master)
    group.kill(other, third)
    for _ in range(40):
        status, _answer = await group.append(BIG, to=longest, acks="none")
        assert status == 200
    node = group.nodes[longest]
    await group.until(lambda: node.opened().log.view.range.last_sync >= max(told) + 40, "it has more than the others")
    await group.until(lambda: group.state(longest) != "MASTER", "it hears no majority")
    flip_in_body(group, longest, max(told) + 10)
    await group.start(other)
    await group.until(lambda: group.state(longest) == "MASTER", "it is elected")
    await group.start(third)
    await group.until(lambda: group.master not in ("", longest), "another one leads")
    await append(group, 5, told)
    await group.until(lambda: group.nodes[longest].dtvlsn() >= max(told), "it follows")
    assert told.items() <= (await group.read(longest)).items()
    await group.stop()
    assert not group.fatal


@virtual
async def test_a_master_leads_on_over_damage_that_is_durable_or_that_it_has_not_tried_to_mend() -> None:
    """Replicas need only blocks after durable damage; and damage that was not requested yet may be on a peer."""
    group = await filled(55, {})
    opened = group.nodes[group.master].opened()
    mending, durable = opened.mending, opened.log.view.dtvlsn
    for vlsn, why, unfit in (
        (20, "nobody has it", False),
        (durable, "nobody has it", False),
        (durable + 1, "", False),
        (durable + 1, "nobody has it", True),
    ):
        mending.damages[1] = Damage(1, segment_name(1), FIRST_FRAME, vlsn, 0.0, why)
        assert bool(mending.unfit) is unfit, (vlsn, why)
    mending.damages.clear()
    await group.stop()
    assert not group.fatal


@virtual
async def test_a_block_that_is_damaged_on_every_node_stays_damaged() -> None:
    told: dict[int, bytes] = {}
    group = await filled(55, told)
    term = group.nodes[group.master].opened().log.node_file.record.term
    for name in group.names:
        flip(group, name, 20, FRAME_BYTES + 100)
    for name in group.names:
        response = await group.client.request("GET", f"{group.url(name)}/v1/entries/20", timeout_s=5.0)
        assert response.status == 500
    await asyncio.sleep(12.0)
    for name in group.names:
        assert not group.nodes[name].opened().mending.may_stand
    assert group.nodes[group.master].opened().log.node_file.record.term == term  # it leads on
    await group.stop()
    assert not group.fatal


@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("vlsn", [20, 0])
@virtual
async def test_a_segment_that_was_cut_short_on_a_stopped_node_is_made_whole(vlsn: int, checkpoint: bool) -> None:
    """A sealed segment, after the last checkpoint (the open finds it) or before it (the scrub does), is mended.  For
    the last segment the node is restored, since nothing states where its log had ended."""
    told: dict[int, bytes] = {}
    settings = {"scrub_bytes_per_s": 1 << 20, "scrub_period_s": 1.0}
    group = await filled(64, told, checkpoint_period_s=600.0, checkpoint_bytes=1 << 30, **settings)
    if checkpoint:
        await group.nodes["n3"].services.administration.checkpoint()
    await asyncio.sleep(3.0)  # the idle end is stated
    path, offset = place(group, "n3", vlsn or max(told))
    group.kill("n3")
    disk = group.machines["n3"].disk
    whole = disk.content(path)
    disk.write_content(path, whole[: offset + 40])
    await group.start("n3")

    def whole_again() -> bool:
        node = group.nodes["n3"]
        mended = node.restoration.count if not vlsn else len(disk.content(path)) == len(whole)
        return bool(mended) and node.log is not None and node.dtvlsn() >= max(told)

    await group.until(whole_again, "n3 has mended and follows", limit_s=60)
    assert await group.read("n3") == told
    assert group.nodes["n3"].member.events.counts["mended"] == bool(vlsn)
    assert group.nodes["n3"].restoration.count == (not vlsn)
    await group.stop()
    machine = group.machines["n3"]
    machine.kill()
    report = verify(machine.disk, machine.stores, "/n3")
    assert not report.findings, report.findings
    assert not group.fatal


@pytest.mark.parametrize("byte", [0, 5, 13, FRAME_BYTES + 20, FRAME_BYTES + 300])
@pytest.mark.parametrize("behind", [1, 0])
@virtual
async def test_a_log_that_does_not_open_for_damaged_blocks_is_mended_and_opened(byte: int, behind: int) -> None:
    """Some blocks before its end are damaged; or its very last block, which only the stated end follows."""
    told: dict[int, bytes] = {}
    group = await filled(57, told, checkpoint_period_s=600.0, checkpoint_bytes=1 << 30)
    await asyncio.sleep(3.0)  # the idle end is stated
    vlsns = [max(told) - 3 * behind, max(told) - 7] if behind else [max(told)]
    places = [place(group, "n3", vlsn) for vlsn in vlsns]
    group.kill("n3")
    for path, offset in places:
        group.machines["n3"].disk.flip_bit(path, offset + byte)
    group.net.split(["n3"], ["n1", "n2"])
    await group.start("n3")
    await group.until(lambda: group.state("n3") == "DAMAGED", "n3 does not open its log")
    await asyncio.sleep(12.0)
    assert group.state("n3") == "DAMAGED"
    group.net.heal()
    await group.until(lambda: group.nodes["n3"].dtvlsn() >= max(told), "n3 has mended and follows", limit_s=40)
    assert await group.read("n3") == told
    assert not group.nodes["n3"].restoration.count
    await group.stop()
    machine = group.machines["n3"]
    machine.kill()
    report = verify(machine.disk, machine.stores, "/n3")
    assert not report.findings, report.findings
    assert not group.fatal
