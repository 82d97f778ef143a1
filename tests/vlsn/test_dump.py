"""The dump shows every frame as it lies: visible blocks and damage, or with ``all`` both lives of a VLSN."""

from __future__ import annotations

import msgspec

from tests.fakes.disk import FakeDisk
from tests.fakes.kv import FakeStores
from tests.vlsn.builder import LogBuilder
from vlsn.dump import DumpRow, dump_rows


def log() -> LogBuilder:
    return LogBuilder(FakeDisk(), "/d")


def rows(built: LogBuilder, *, first: int = 1, last: int | None = None, all: bool = False) -> list[DumpRow]:
    return list(dump_rows(built.disk, FakeStores(), "/d", from_vlsn=first, to_vlsn=last, all=all))


def spans(found: list[DumpRow]) -> list[tuple[int, int]]:
    return [(row.first, row.last) for row in found]


def test_a_row_is_the_json_object_of_the_surface() -> None:
    built = log().block(b"a", b"b").write()
    (row,) = rows(built)
    assert msgspec.json.encode(row) == (
        b'{"file":"00000001.vlog","offset":4096,"lsn":4294971392,"kind":"BLOCK","term":1,'
        b'"first":1,"last":2,"count":2,"overmarked":false,"damaged":false}'
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
