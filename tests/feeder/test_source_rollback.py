"""A feeder's source on a log that was rolled back: the visible life of each VLSN, and no other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from feeder.source import Mode, Source
from tests.vlsn.logs import SMALL, Machine, Opened, Undurable, put
from tests.vlsn.recover.crash_operations import Model, roll_back
from vlsn.format import block as block_format
from vlsn.ids import Vlsn
from vlsn.segments.reader import ReadRun


def inline(job: Callable[[], ReadRun]) -> asyncio.Future[ReadRun]:
    done: asyncio.Future[ReadRun] = asyncio.get_running_loop().create_future()
    done.set_result(job())
    return done


async def everything(source: Source, last: int) -> list[tuple[int, int, int]]:
    """(term, first, last) of each block up to ``last``."""
    given: list[tuple[int, int, int]] = []
    while source.next_vlsn <= last:
        for block in source.from_ring() or await source.from_archive():
            header = block_format.decode_header(block)
            given.append((header.term, header.first_vlsn, header.last_vlsn))
    return given


def rolled_back() -> tuple[Opened, list[tuple[int, int]]]:
    """Returns a log after nested and disjoint rollbacks over some segments; (term, VLSN) of visible entries."""
    model = Model()
    opened = Undurable(Machine(), 4)
    put(opened, model.held, 20, size=6000)
    for matchpoint in (15, 9, 4):
        roll_back(opened, model, matchpoint)
        put(opened, model.held, 8, size=6000)
    roll_back(opened, model, 8)
    put(opened, model.held, 8, size=6000)
    terms = [(run.term, vlsn) for run in opened.log.view.history.term_runs for vlsn in range(run.first, run.last + 1)]
    assert sorted(opened.entries()) == sorted(model.held)
    return opened, terms


@pytest.mark.parametrize("reopened", [False, True])
async def test_a_source_gives_one_life_of_each_vlsn(reopened: bool) -> None:
    opened, terms = rolled_back()
    if reopened:
        opened.machine.kill()
        opened = Opened(opened.machine, take_term=False)
    last = opened.log.view.range.last
    assert [vlsn for _, vlsn in terms] == list(range(1, last + 1))
    source = Source(opened.log, Vlsn(1), inline)
    given = await everything(source, last)
    assert [(term, vlsn) for term, first, end in given for vlsn in range(first, end + 1)] == terms
    assert bool(source.archive_reads) == reopened  # from the ring, where that has them; from the segments else
    source.close()


async def test_a_read_ahead_that_found_nothing_says_nothing_of_what_came_since() -> None:
    """Marks a read ahead: a wait behind it would be for an entry that may never come."""
    before = Undurable(Machine(), 4)
    put(before, {}, 20, size=6000)
    before.machine.kill()
    opened = Opened(before.machine, take_term=False)
    last, upto = opened.log.view.range.last, 10
    source = Source(opened.log, Vlsn(1), inline, upto=lambda: Vlsn(upto))
    await everything(source, upto)
    assert opened.log.view.ring.position_of(source.next_vlsn) is None
    upto = last
    assert not source.from_ring()
    assert await source.from_archive() and source.next_vlsn > 11
    source.close()


async def test_the_ring_forgets_what_was_rolled_back() -> None:
    opened, terms = rolled_back()
    ring = opened.log.view.ring
    position = ring.position_of(Vlsn(terms[-1][1]))
    assert position is not None
    held = [block_format.decode_header(block) for block in ring.take(ring.head, end=ring.end, bytes_max=1 << 30)]
    assert [(head.term, head.first_vlsn) for head in held] == terms[-len(held) :]


async def test_a_source_that_the_ring_has_overtaken_goes_on_where_the_log_was_cleaned_before() -> None:
    """The source looks its place up anew: where it read the segments last may be gone."""
    options = replace(SMALL, ring_bytes_max=64 << 10, retention_bytes=3 * SMALL.segment_bytes)
    opened = Opened(Machine(), options)
    held: dict[int, bytes] = {}
    put(opened, held, 30, size=6000)
    source = Source(opened.log, Vlsn(1), inline)
    await everything(source, opened.log.view.range.last)
    assert source.archive_reads == 1
    for _ in range(60):
        put(opened, held, 1, size=6000)
        await everything(source, opened.log.view.range.last)
    assert source.mode is Mode.BUFFER and source.switches == source.archive_reads == 1
    wanted = source.next_vlsn
    put(opened, held, 20, size=6000)
    opened.log.care.checkpointer.run()
    opened.log.care.cleaner.run(lambda report: None)
    assert 45 < opened.log.view.range.first <= wanted < opened.log.view.ring.first_vlsn
    given = await everything(source, opened.log.view.range.last)
    assert given[0][1] == wanted and given[-1][2] == opened.log.view.range.last
    assert sum(last - first + 1 for _, first, last in given) == opened.log.view.range.last - wanted + 1
    source.close()
