"""The dump shows every frame as it lies: visible blocks and damage, or with ``all`` both lives of a VLSN."""

from __future__ import annotations

import tracemalloc
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.vlsn.builder import LogBuilder
from tests.vlsn.segments.test_reader import logs
from vlsn.format import block as block_format
from vlsn.format.block import EntryKind
from vlsn.format.frame import FrameKind
from vlsn.format.segment import FIRST_FRAME
from vlsn.ids import lsn
from vlsn.verify.dump import ROW_KINDS, DumpFilter, DumpRow, dump_rows
from vlsnlog.testing.fakes.disk import Call, FakeDisk
from vlsnlog.testing.fakes.kv import FakeStores


def log() -> LogBuilder:
    return LogBuilder(FakeDisk(), "/d")


def rows(built: LogBuilder, *, first: int = 1, last: int | None = None, all: bool = False) -> list[DumpRow]:
    return list(dump_rows(built.disk, FakeStores(), "/d", DumpFilter(from_vlsn=first, to_vlsn=last, all=all)))


def spans(found: list[DumpRow]) -> list[tuple[int, int]]:
    return [(row.first, row.last) for row in found]


def test_a_row_is_the_json_object_of_the_surface() -> None:
    built = log().block(b"a", b"b").write()
    (row,) = rows(built)
    assert msgspec.json.encode(row) == (
        b'{"file":"00000001.vlog","offset":4096,"lsn":4294971392,"kind":"BLOCK","term":1,'
        b'"first":1,"last":2,"count":2,"overmarked":false,"damaged":false,'
        b'"bytes":82,"entries":"DATA","dtvlsn":0,"time":1000001,"detail":""}'
    )


def test_visible_blocks_only_unless_all_is_asked() -> None:
    built = log().blocks(3).checkpoint().roll().blocks(2).rollback(2).block(b"x", b"y").write()
    assert spans(rows(built)) == [(1, 1), (2, 2), (3, 4)]
    every = rows(built, all=True)
    assert [row.lsn for row in every] == [frame.lsn for frame in built.frames]
    assert [row.kind for row in every] == [frame.kind.name for frame in built.frames]
    assert [row.first for row in every if row.overmarked] == [3, 4, 5]
    assert [(row.first, row.term) for row in every if row.kind == "BLOCK"][-1] == (3, 2)
    assert not any(row.damaged for row in every)


def test_vlsn_bounds_are_inclusive_and_take_blocks_that_touch_them() -> None:
    built = log().block(b"1", b"2", b"3").roll().block(b"4", b"5").block(b"6").roll().block(b"7").write()
    assert spans(rows(built, first=3, last=4)) == [(1, 3), (4, 5)]
    assert spans(rows(built, first=4)) == [(4, 5), (6, 6), (7, 7)]
    assert spans(rows(built, first=6, last=6)) == [(6, 6)]
    assert spans(rows(built, first=8)) == []


def test_the_second_life_of_a_vlsn_is_found_behind_a_higher_one() -> None:
    built = log().blocks(5).roll().rollback(2).blocks(1).write()
    assert spans(rows(built, last=3)) == [(1, 1), (2, 2), (3, 3)]


def test_damage_is_a_row_with_the_vlsn_it_costs() -> None:
    built = log().blocks(4).roll().blocks(2).checkpoint()
    built.flip(built.frames[1], 70)
    built.flip(built.frames[3], 4, 0x40)  # its length: nothing of it can be trusted
    built.write()
    found = rows(built)
    assert [(row.kind, row.offset, row.first, row.damaged) for row in found] == [
        ("BLOCK", built.frames[0].offset, 1, False),
        ("BLOCK", built.frames[1].offset, 2, True),
        ("BLOCK", built.frames[2].offset, 3, False),
        ("UNREADABLE", built.frames[3].offset, 4, True),
        ("BLOCK", built.frames[4].offset, 5, False),
        ("BLOCK", built.frames[5].offset, 6, False),
    ]


def test_a_torn_tail_is_not_shown_nor_what_a_running_node_has_not_synced() -> None:
    built = log().blocks(3).synced().block()
    built.flip(built.frames[-1], 70)
    built.write()
    assert spans(rows(built)) == [(1, 1), (2, 2), (3, 3)]
    built = log().blocks(3).synced().blocks(2).write()
    assert len(rows(built)) == 5
    lock = built.disk.lock("/d/LOCK")
    assert len(rows(built)) == 3
    lock.release()


def dumped(built: LogBuilder, *, reverse: bool = False, **wanted: Any) -> list[DumpRow]:
    return list(dump_rows(built.disk, FakeStores(), "/d", DumpFilter(**wanted), reverse=reverse))


@pytest.mark.long
@settings(max_examples=80, deadline=None)
@given(logs(), st.data())
def test_filters_and_direction_choose_from_what_all_shows(built: LogBuilder, data: st.DataObject) -> None:
    for frame in data.draw(st.lists(st.sampled_from(built.frames), max_size=3)) if built.frames else []:
        built.flip(frame, data.draw(st.integers(0, frame.size - 1)))
    built.write()
    every = dumped(built, all=True)
    assert [row.lsn for row in every] == sorted(row.lsn for row in every)
    low, high = sorted(data.draw(st.tuples(st.integers(0, 1 << 18), st.integers(0, 1 << 18))))
    bounds = {"from_lsn": low << 16, "to_lsn": high << 16}
    kinds = data.draw(st.frozensets(st.sampled_from(ROW_KINDS), min_size=1))
    for wanted, right in (
        ({}, list(every)),
        (bounds, [row for row in every if low << 16 <= row.lsn <= high << 16]),
        ({"kinds": kinds}, [row for row in every if row.kind in kinds]),
        ({"term": 2}, [row for row in every if row.term == 2]),
        ({"from_vlsn": 9, "kinds": {"BLOCK"}}, [row for row in every if row.kind == "BLOCK" and row.last >= 9]),
    ):
        assert dumped(built, all=True, **wanted) == right
        assert dumped(built, all=True, reverse=True, **wanted) == right[::-1]
    shown = [row for row in every if row.damaged or (row.kind == "BLOCK" and not row.overmarked)]
    assert dumped(built) == shown
    assert dumped(built, reverse=True) == shown[::-1]


def test_kinds_of_entries_are_found_in_blocks_of_one_kind_and_of_many() -> None:
    built = log().block().block(b"t", kind=EntryKind.TERM).checkpoint()
    mixed = block_format.build(
        term=1, first_vlsn=3, dtvlsn=0, clock_us=1, kind=[1, 2], submissions=0,
        columns=block_format.columns_of([b"t", b"g"], None),
    )  # fmt: skip
    built.frame(FrameKind.BLOCK, mixed)
    built.write()
    assert [row.entries for row in dumped(built)] == ["DATA", "TERM", "TERM+GROUP"]
    assert [row.first for row in dumped(built, entries={EntryKind.TERM})] == [2, 3]
    assert [row.first for row in dumped(built, entries={EntryKind.GROUP})] == [3]
    both = dumped(built, entries={EntryKind.GROUP}, kinds={"CHECKPOINT_END"})
    assert [row.kind for row in both] == ["CHECKPOINT_END", "BLOCK"]


def test_local_records_say_what_is_in_them_and_damage_says_why() -> None:
    built = log().blocks(3).checkpoint(clean=True).rollback(1).blocks(2)
    start = built.frames[5]
    said = {row.kind: row.detail for row in dumped(built.write(), all=True)}
    assert said["CHECKPOINT_END"] == f"id 4, VLSN 1 to 3, durable 0, began at 1:{built.frames[3].offset}, clean stop"
    assert said["ROLLBACK_START"].startswith("back to VLSN 1, abandons up to VLSN 3: frames from 1:")
    assert said["ROLLBACK_END"] == f"of the rollback at 1:{start.offset}"
    assert said["BLOCK"] == ""
    built.flip(built.frames[1], 80)
    built.flip(built.frames[4], 0)
    built.write()
    why = {row.offset: row.detail for row in dumped(built) if row.damaged}
    assert why[built.frames[1].offset] == "the frame's bytes do not match its checksum"
    assert why[built.frames[4].offset] == f"no valid frame in {built.frames[4].size} bytes that were synced"


def test_a_torn_tail_is_shown_with_all_and_is_no_damage() -> None:
    built = log().blocks(3).synced().blocks(2)
    built.flip(built.frames[3], 70)
    built.write()
    row = dumped(built, all=True)[-1]
    sizes = sum(frame.size for frame in built.frames[3:])
    assert (row.kind, row.offset, row.damaged) == ("TORN_TAIL", built.frames[3].offset, False)
    assert sizes - 8 < row.bytes <= sizes
    assert dumped(built, kinds={"TORN_TAIL"}) == [row]


def test_a_lost_header_page_changes_no_vlsn_in_either_direction() -> None:
    built = log().blocks(3).roll().blocks(3).roll().blocks(2)
    built.flip(built.pieces[1].frames[0], 4, 0x40)
    built.pieces[1].data[20] ^= 1
    built.write()
    assert [row.first for row in dumped(built)] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert dumped(built, reverse=True) == dumped(built)[::-1]


def test_only_the_segments_that_can_hold_what_is_asked_for_are_read() -> None:
    built = log()
    for _ in range(6):
        built.blocks(5).roll()
    built.block().write()
    calls = built.disk.calls  # type: ignore[attr-defined]

    def read(**wanted: Any) -> set[str]:
        before = len(calls)
        dumped(built, **wanted)
        long: list[Call] = [call for call in calls[before:] if call.name == "read" and call.size > FIRST_FRAME]
        return {call.path[-13:] for call in long if call.path.endswith(".vlog")}

    assert read(from_vlsn=26) == {"00000006.vlog", "00000007.vlog"}
    assert read(from_lsn=lsn(3, 0), to_lsn=lsn(4, 9999), all=True) == {"00000003.vlog", "00000004.vlog"}


@pytest.mark.parametrize("reverse", [False, True])
def test_memory_does_not_grow_with_the_log(reverse: bool) -> None:
    def peak(segments: int) -> int:
        built = log()
        for _ in range(segments):
            built.blocks(300).roll()
        built.write()
        tracemalloc.start()
        count = sum(1 for _ in dump_rows(built.disk, FakeStores(), "/d", reverse=reverse))
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert count == 300 * segments
        return found

    peak(2)
    assert peak(24) < 1.5 * peak(3)
