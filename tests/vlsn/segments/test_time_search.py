"""A search for a time finds what a look at every block would, and reads a MiB for it, in a hundred GB too."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.vlsn.builder import LogBuilder
from tests.vlsn.logs import Machine, Opened
from tests.vlsn.segments.test_reader import reader_of
from vlsn.errors import Damaged
from vlsn.format import block as block_format
from vlsn.format.frame import FrameKind, build_header
from vlsn.format.segment import FIRST_FRAME, HEADER_PAGE, SegmentHeader, SegmentState, segment_name
from vlsn.ids import NULL_LSN, Vlsn, lsn
from vlsn.index.index import VlsnIndex
from vlsn.segments.directory import survey
from vlsn.segments.reader import LogReader, TimeRun
from vlsn.segments.time_search import LOOK_BYTES, TimeSearch
from vlsn.segments.visible_blocks import visible_blocks
from vlsnlog.testing.fakes.disk import FakeDisk
from vlsnlog.testing.fakes.kv import FakeStores

HOUR_US = 3_600_000_000
MIB = 1 << 20
TIMES = st.integers(0, 60)


def found(index: VlsnIndex, reader: LogReader, time_us: int, *, last: int = 0) -> tuple[int, int]:
    """Returns what a search finds, and after how many reads."""
    search = TimeSearch(index, time_us, index.range.first, Vlsn(last or index.range.last))
    while (part := search.part()) is not None:
        mapping = index.at_or_before(part[0])
        assert mapping is not None
        search.looked(reader.sealed_at(time_us, part[0], start=mapping[1], upto_vlsn=part[1], bytes_max=LOOK_BYTES))
    return search.result, search.reads


@st.composite
def logs(draw: st.DrawFn) -> tuple[LogBuilder, list[tuple[int, int]]]:
    """A log of segments and rollbacks with clocks that go to and fro; (first VLSN, time) of its visible blocks."""
    built = LogBuilder(FakeDisk(), "/d")
    times: dict[int, int] = {}
    for what in draw(st.lists(st.sampled_from(["blocks"] * 5 + ["roll", "rollback"]), min_size=1, max_size=12)):
        if what == "roll" and built.piece.frames:
            built.roll()
        elif what == "rollback" and len(times) > 1:
            gone = sorted(times)[-draw(st.integers(1, min(3, len(times) - 1))) :]
            built.rollback(gone[0] - 1)
            for first in gone:
                del times[first]
        for count, size, clock in draw(
            st.lists(st.tuples(st.integers(1, 4), st.integers(0, 6_000), TIMES), max_size=6)
        ):
            times[built.next_vlsn] = clock
            built.block(*[b"x" * size] * count, clock_us=clock)
    if not times:
        times[built.next_vlsn] = 7
        built.block(b"x", clock_us=7)
    built.write()
    return built, sorted(times.items())


@settings(max_examples=150, deadline=None)
@given(logs(), st.sampled_from(["known", "unknown", "of the first half"]), st.data())
def test_a_search_finds_the_first_block_of_that_time_or_later(
    log: tuple[LogBuilder, list[tuple[int, int]]], known: str, data: st.DataObject
) -> None:
    built, times = log
    index = VlsnIndex(FakeStores().open("index", map_bytes=MIB), nullcontext())
    end = lsn(built.piece.header.number, built.piece.end)
    half = times[len(times) // 2][0]
    for firsts, lasts, lsns, clocks in visible_blocks(
        built.disk, built.directory, survey(built.disk, built.directory), start=NULL_LSN, end=end
    ):
        if known == "of the first half":
            clocks = [clock if first < half else 61 for first, clock in zip(firsts, clocks, strict=True)]
        index.put_run(firsts, lasts, lsns, [] if known == "unknown" else clocks)
    reader = reader_of(built)
    last = data.draw(st.sampled_from([*(first - 1 for first, _ in times[1:]), index.range.last]))
    for time_us in data.draw(st.lists(TIMES | st.sampled_from([time for _, time in times]), min_size=1, max_size=6)):
        wanted = next((first for first, time in times if time >= time_us and first <= last), last + 1)
        assert found(index, reader, time_us, last=last)[0] == wanted
    for _, time in times:  # by now much of it was read: the bounds learned are right
        wanted = next((first for first, each in times if each >= time), index.range.last + 1)
        assert found(index, reader, time)[0] == wanted
    reader.close()


def test_what_was_read_for_nothing_is_not_read_again() -> None:
    built = LogBuilder(FakeDisk(), "/d", segment_bytes=4 * MIB)
    for number in range(60):
        built.block(b"x" * 100_000, clock_us=100 + number % 7)
    built.write()
    index = VlsnIndex(FakeStores().open("index", map_bytes=MIB), nullcontext())
    firsts, lsns = [each.first for each in built.frames], [each.lsn for each in built.frames]
    index.put_run(firsts, firsts, lsns)
    reader = reader_of(built)
    assert found(index, reader, 107) == (61, 6)
    assert found(index, reader, 107) == (61, 0)
    assert found(index, reader, 106) == (7, 1)
    reader.close()


def test_damage_where_the_time_is_looked_for_is_told() -> None:
    built = LogBuilder(FakeDisk(), "/d").block(b"a", clock_us=1).block(b"b", clock_us=2).block(b"c", clock_us=3)
    built.flip(built.frames[1], 100)
    built.write()
    index = VlsnIndex(FakeStores().open("index", map_bytes=MIB), nullcontext())
    index.put_run([1, 2, 3], [1, 2, 3], [each.lsn for each in built.frames])
    reader = reader_of(built)
    assert found(index, reader, 1)[0] == 1
    with pytest.raises(Damaged) as raised:
        found(index, reader, 3)
    assert raised.value.vlsn == 2
    reader.close()


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["append"] * 6 + ["checkpoint", "rotate", "kill", "power", "lost"]), st.integers(0, 9)
        ),
        min_size=1,
        max_size=25,
    )
)
def test_a_log_that_was_killed_anywhere_knows_its_times(story: list[tuple[str, int]]) -> None:
    """Each append's clock is some hours off; ``lost``: the index's store knows nothing of times, as one of before."""
    machine = Machine()
    opened = Opened(machine)
    for what, number in story:
        machine.clock.offset_us = (number - 5) * HOUR_US
        match what:
            case "append":
                opened.append(b"x" * 3_000 * number)
            case "checkpoint":
                opened.log.care.checkpointer.run()
            case "rotate":
                opened.log.cycle.rotate("request")
            case _:
                machine.power_cut() if what == "power" else machine.kill()
                if what == "lost":
                    index = machine.stores.contents["/log/index"]
                    for key in [key for key in index.keys if key.startswith(b"t")]:
                        index.delete(key)
                opened = Opened(machine)
    log = opened.log
    reader = log.view.reader()
    entries = reader.entries(
        1, start=lsn(1, FIRST_FRAME), upto_vlsn=log.view.range.last, limit=10_000, bytes_max=1 << 30, kinds=None
    ).entries
    assert entries[-1].vlsn == log.view.range.last
    for time in {entry.time for entry in entries} | {0, entries[-1].time + 99 * HOUR_US}:
        wanted = next((entry.vlsn for entry in entries if entry.time >= time), log.view.range.last + 1)
        assert found(log.view.index, reader, time)[0] == wanted
    reader.close()


# A hundred GB.

SEGMENTS, BLOCKS_A_SEGMENT = 1_600, 63
BLOCKS = SEGMENTS * BLOCKS_A_SEGMENT
VALUE_BYTES = MIB - 24 - 64 - 8


def clock_of(vlsn: int) -> int:
    """Returns when a block was sealed: a second each, by masters of 300 blocks whose clocks are hours apart."""
    return 100 * HOUR_US + vlsn * 1_000_000 + (vlsn // 300 * 7 % 5 - 2) * 3 * HOUR_US


@dataclass
class LargeFile:
    """One of its segments; every block is made when it is read."""

    disk: LargeLog
    number: int

    def read(self, offset: int, size: int) -> bytes:
        self.disk.reads.append(size)
        if offset < FIRST_FRAME:
            return self._header().encode().ljust(HEADER_PAGE, b"\0")[offset : offset + size]
        low = (offset - FIRST_FRAME) // MIB
        high = min((offset + size - 1 - FIRST_FRAME) // MIB, BLOCKS_A_SEGMENT - 1)
        data = b"".join(map(self._frame, range(low, high + 1)))
        start = offset - FIRST_FRAME - low * MIB
        return data[start : start + size]

    def close(self) -> None:
        pass

    def _header(self) -> SegmentHeader:
        end = FIRST_FRAME + BLOCKS_A_SEGMENT * MIB
        before = self.number - 1
        return SegmentHeader(
            group="g", node="n1", incarnation=7, number=self.number, salt=self.number, state=SegmentState.ACTIVE,
            size=64 * MIB, created_us=1, prev_number=before, prev_end=end if before else 0,
            prev_last_vlsn=before * BLOCKS_A_SEGMENT,
        )  # fmt: skip

    def _frame(self, place: int) -> bytes:
        vlsn = (self.number - 1) * BLOCKS_A_SEGMENT + place + 1
        columns = block_format.columns_of([bytes(VALUE_BYTES)], None)
        data = block_format.build(
            term=1, first_vlsn=vlsn, dtvlsn=vlsn - 1, clock_us=clock_of(vlsn), kind=0, columns=columns, submissions=1
        )
        at, prev = FIRST_FRAME + place * MIB, MIB if place else 0
        return build_header(FrameKind.BLOCK, data, offset=at, prev=prev, synced=at, salt=self.number) + data


class LargeLog:
    """A disk with 1 600 segments of 64 MiB, none of which is anywhere."""

    def __init__(self) -> None:
        self.reads: list[int] = []

    def open(self, path: str) -> Any:
        return LargeFile(self, int(path[-13:-5]))


def test_a_time_in_a_hundred_gb_is_found_in_a_few_block_reads() -> None:
    disk, stores = LargeLog(), FakeStores()
    index = VlsnIndex(stores.open("index", map_bytes=MIB), nullcontext())
    for number in range(1, SEGMENTS + 1):
        firsts = range((number - 1) * BLOCKS_A_SEGMENT + 1, number * BLOCKS_A_SEGMENT + 1)
        at = lsn(number, FIRST_FRAME)
        index.put_run(firsts, firsts, range(at, at + BLOCKS_A_SEGMENT * MIB, MIB), list(map(clock_of, firsts)))
    index.save(1)
    stores.abandon()
    index = VlsnIndex(stores.open("index", map_bytes=MIB), nullcontext())
    index.load()  # as an open after a clean stop: nothing of the log is read
    assert index.range.last == BLOCKS == 100_800
    end = FIRST_FRAME + BLOCKS_A_SEGMENT * MIB
    wanted = [
        100 * HOUR_US + number * 1_000_000 + hours * HOUR_US
        for number in range(0, BLOCKS, 9_973)
        for hours in (-6, 0, 5)
    ]
    most = 0
    for time_us in wanted:
        disk.reads.clear()
        reader = LogReader(disk, "/d", lambda _: end)  # type: ignore[arg-type]
        vlsn, _ = found(index, reader, time_us)
        reader.close()
        assert vlsn == next((each for each in range(1, BLOCKS + 1) if clock_of(each) >= time_us), BLOCKS + 1)
        assert max(disk.reads, default=0) <= MIB
        most = max(most, len(disk.reads))
    assert 1 <= most <= 4  # the header page, and the block with the bytes read before it


def test_segment_names_of_the_large_log_are_those_of_any() -> None:
    assert segment_name(1_600)[-13:-5] == "00001600"


def test_what_was_read_before_a_rollback_says_nothing_of_what_came_in_its_place() -> None:
    index = VlsnIndex(FakeStores().open("index", map_bytes=MIB), nullcontext())
    index.put_run([1, 2, 3], [1, 2, 3], [lsn(1, 4096), lsn(1, 5000), lsn(1, 6000)], [5, 9, 5])
    search = TimeSearch(index, 7, Vlsn(2), Vlsn(3))
    assert search.part() == (2, 3)
    index.truncate_tail(Vlsn(1), lsn(1, 4096), block_first=Vlsn(1))
    index.put_run([2, 3], [2, 3], [lsn(1, 7000), lsn(1, 8000)], [8, 8])
    search.looked(TimeRun(Vlsn(0), 6, lsn(1, 6000), Vlsn(4)))  # as if it had read the blocks of before
    assert index.time_steps() == [(1, 1, 9), (2, 3, 8)]
