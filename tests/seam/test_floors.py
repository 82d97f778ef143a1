"""A vote floor, once written, stands until the log has reached it: whatever else is lost meanwhile."""

from __future__ import annotations

import asyncio

from tests.fakes.loop import run
from tests.seam.nodes import Group
from vlsn.block import BLOCK_BYTES
from vlsn.dump import DumpFilter, dump_rows
from vlsn.frame import FRAME_BYTES


def rot(group: Group, name: str, *places: tuple[str, int]) -> None:
    """One bit of each of these blocks' headers."""
    for path, offset in places:
        group.machines[name].disk.flip_bit(path, offset + FRAME_BYTES + BLOCK_BYTES - 1)


def test_a_floor_outlives_a_lost_state_and_what_rots_after_it_was_written() -> None:
    """n2 acknowledges VLSN ``last`` for a majority, and n3 has the log up to two before it.  On n2 the group of these
    three rots, and what said that it was synced is lost: a torn tail, whose floor the block headers left in it tell.
    Then they rot as well.  By these two alone nobody is elected, for it would be n3."""

    async def main() -> None:
        group = Group(21, checkpoint_period_s=60.0)
        await group.start()
        await group.serving("n1")
        process = group.machines["n2"].process
        assert process is not None
        process.threads.latency_s = (0.5, 0.5)
        first = (await group.append(b"0", acks="none"))[1]["first"]  # n2's disk is busy with this one
        await asyncio.sleep(0.1)
        assert (await group.append(b"1", acks="none"))[1]["first"] == first + 1
        await group.until(lambda: group.nodes["n3"].opened().range.last_sync == first + 1, "n3 has it")
        group.kill("n3")
        for number in (2, 3):
            assert (await group.append(b"%d" % number, acks="none"))[1]["first"] == first + number
        last = first + 3
        await group.until(lambda: group.nodes["n1"].dtvlsn() == last, "n2 has acknowledged all of it")
        await asyncio.sleep(3.0)  # and has written down that it is synced
        group.kill("n1", "n2")
        disk, stores = group.machines["n2"].disk, group.machines["n2"].stores
        blocks = DumpFilter(kinds=frozenset(("BLOCK",)), from_vlsn=first + 1)
        places = [(f"/n2/{row.file}", row.offset) for row in dump_rows(disk, stores, "/n2", blocks)]
        assert len(places) == 3
        for rotten in (places[:1], places[1:]):
            rot(group, "n2", *rotten)
            stores.contents.pop("/n2/state")
            await group.start("n2")
            await group.until(lambda: group.nodes["n2"].log is not None, "it is open")
            log = group.nodes["n2"].opened()
            assert log.allocated == first
            assert (log.node_file.record.floor_term, log.node_file.record.floor_vlsn) == (1, last)
            group.kill("n2")
        await group.start("n2", "n3")
        await group.until(lambda: "waits for n1" in group.nodes["n2"].reason, "n2 waits for n1")
        await asyncio.sleep(10.0)
        assert not any(node.is_master() for node in group.nodes.values())
        await group.start("n1")
        await group.serving()
        assert list((await group.read(group.master)).values()) == [b"0", b"1", b"2", b"3"]
        await group.stop()
        assert not group.fatal

    run(main())
