"""Nodes of several binaries in one group: which of them can work together, and which a group's level excludes."""

from __future__ import annotations

from tests.fakes.loop import virtual
from tests.seam.nodes import BIG, SEGMENT, Group
from tests.seam.test_membership import fed
from vlsn.errors import WrongVersion
from vlsn.format.checksum import crc
from vlsn.format.frame import FRAME_BYTES
from vlsn.ids import Vlsn, lsn_file, lsn_offset
from vlsn.levels import Levels


@virtual
async def test_a_node_of_levels_that_nobody_speaks_is_refused_and_says_so() -> None:
    group = Group(81)
    await group.start()
    await group.serving()
    await fed(group, 2)
    group.kill("n3")
    group.machine("n3").levels = Levels(2, 3)
    await group.start("n3")
    await group.until(
        lambda: group.nodes["n3"].member.reason.startswith("wrong-version: "), "n3 says why it is not fed"
    )
    said = group.nodes["n3"].member.reason
    assert "n3 speaks level 2-3, n1 level 1: run a later vlsnlog on n1" in said, said
    assert group.state("n3") == "UNKNOWN"
    assert await group.appended(b"goes on")
    assert not group.fatal
    await group.stop()


@virtual
async def test_a_founder_says_which_member_speaks_no_level_of_its_own() -> None:
    group = Group(82)
    group.machines["n2"].levels = Levels(2, 2)
    await group.start()
    await group.until(lambda: group.nodes["n1"].member.reason.startswith("wrong-version: "), "n1 says why it waits")
    assert "n1 speaks level 1, n2 level 2: run a later vlsnlog on n1" in group.nodes["n1"].member.reason
    group.kill("n2")
    group.machines["n2"].levels = Levels(1, 2)
    await group.start("n2")
    await group.serving()
    await fed(group, 2)
    assert not group.fatal
    await group.stop()


@virtual
async def test_nodes_with_a_level_in_common_are_one_group_whoever_leads() -> None:
    group = Group(83)
    group.machines["n2"].levels = Levels(1, 2)
    group.machines["n3"].levels = Levels(1, 3)
    await group.start()
    led: set[str] = set()
    while len(led) < 3:
        await group.serving()
        await fed(group, 2)
        await group.appended(f"under {group.master}".encode())
        led.add(old := group.master)
        to = next((name for name in group.names if name not in led), "")
        if to:
            await group.nodes[old].services.administration.transfer(to)
            await group.serving(to)
    assert not group.fatal
    await group.stop()


@virtual
async def test_a_later_block_that_is_met_while_a_node_runs_ends_it_and_is_not_mended() -> None:
    """An open does not read blocks before its checkpoint."""
    group = Group(84, ring_bytes_max=SEGMENT, scrub_bytes_per_s=0)
    await group.start()
    await group.serving()
    await fed(group, 2)
    first = await group.appended(BIG)
    while group.nodes["n3"].opened().log.placement.number < 4:
        await group.appended(BIG)
    await group.nodes["n3"].services.administration.checkpoint()
    log = group.nodes["n3"].opened().log
    mapping = log.view.index.at_or_before(Vlsn(first))
    assert mapping is not None
    reader = log.view.reader()
    at = reader.blocks(first, start=mapping[1], upto_vlsn=log.view.range.last_sync, bytes_max=1).lsns[0]
    reader.close()
    assert lsn_file(at) == 1
    offset, path = lsn_offset(at), "/n3/00000001.vlog"
    file = group.machines["n3"].disk.open(path, write=True)
    frame = bytearray(file.read(offset, FRAME_BYTES))
    block = bytearray(file.read(offset + FRAME_BYTES, int.from_bytes(frame[4:8], "little")))
    block[0] = 2
    block[60:64] = crc(bytes(block[:60])).to_bytes(4, "little")
    frame[20:24] = crc(bytes(block), crc(bytes(frame[:3] + frame[4:20]))).to_bytes(4, "little")
    file.write(offset, [bytes(frame + block)])
    file.sync()
    before = file.read(0, file.size())
    assert group.state("n3") == "REPLICA" and not group.fatal
    reading = await group.client.request("GET", f"{group.url('n3')}/v1/entries?from={first}", timeout_s=5.0)
    assert reading.status != 200
    ((name, error),) = group.fatal
    assert name == "n3" and isinstance(error, WrongVersion), error
    assert f"00000001.vlog, offset {offset}: a block of version 2" in str(error)
    assert file.read(0, file.size()) == before
    file.close()
    group.fatal.clear()
    await group.stop()
