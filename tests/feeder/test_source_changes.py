"""A source that changes from segments to the ring and back at random points: the log's blocks, byte by byte."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from feeder.source import Mode, Source
from tests.feeder.test_source_rollback import inline
from tests.vlsn.logs import SMALL, Machine, Opened, put
from vlsn.ids import Vlsn

KIB = 1024
CHANGES = 1000


async def test_a_thousand_changes_at_random_points_are_not_seen_in_the_data() -> None:
    """An upper end that stands still, moves a little, or is the log's; pieces of any size, from any number of blocks
    behind."""
    rng = Random(3)
    opened = Opened(Machine(), replace(SMALL, ring_bytes_max=6 * KIB))
    held: dict[int, bytes] = {}
    put(opened, held, 3)
    upto = int(opened.log.view.range.last)
    source = Source(opened.log, Vlsn(1), inline, upto=lambda: Vlsn(upto))
    given: list[bytes] = []
    changes = {Mode.BUFFER: 0, Mode.ARCHIVE: 0}
    for _ in range(6 * CHANGES):
        if source.switches >= CHANGES and upto == opened.log.view.range.last < source.next_vlsn:
            break
        before = source.mode
        if source.switches < CHANGES:
            put(opened, held, rng.choice((0, 1, 3, 12)), size=rng.choice((40, 900)))
        upto = rng.choice((upto, min(upto + 2, int(opened.log.view.range.last)), int(opened.log.view.range.last)))
        for _ in range(rng.choice((0, 1, 2, 40))):
            began = int(source.next_vlsn)
            blocks = source.from_ring(rng.choice((1, 2 * KIB, 1 << 20)))
            if not blocks and source.mode is Mode.ARCHIVE and began <= upto:
                blocks = await source.from_archive()
            if not blocks:
                break
            assert source.next_vlsn <= upto + 1, "nothing behind the upper end is given"
            given += [bytes(block) for block in blocks]
        changes[source.mode] += source.mode is not before
    assert source.switches >= CHANGES and min(changes.values()) > CHANGES // 5
    wanted = Source(opened.log, Vlsn(1), inline)
    log: list[bytes] = []
    while wanted.next_vlsn <= opened.log.view.range.last:
        log += [bytes(block) for block in await wanted.from_archive()]
    assert given == log
    assert source.next_vlsn == opened.log.view.range.last + 1
    for each in (source, wanted):
        each.close()
