"""The survey of segments, by their own and the next one's header; the stated end is proven."""

from __future__ import annotations

from tests.vlsn.builder import LogBuilder
from vlsn.format.segment import FIRST_FRAME
from vlsn.ids import NULL_LSN, lsn
from vlsn.segments.directory import last_active, stated_synced_end, survey
from vlsnlog.testing.fakes.disk import FakeDisk


def log() -> LogBuilder:
    return LogBuilder(FakeDisk(), "/d")


def test_each_segment_ends_where_a_later_header_says() -> None:
    built = log().blocks(3).roll(4).blocks(2).roll().write()
    built.put("00000006.vlog", bytes(built.segment_bytes))
    built.put("00000007.vlog", b"short")
    built.put("00000001.vidx", b"not a segment")
    found = survey(built.disk, "/d")
    assert [(info.number, info.live_end, info.active) for info in found] == [
        (1, built.pieces[0].end, True),
        (4, built.pieces[1].end, True),
        (5, None, True),
        (6, None, False),
        (7, None, False),
    ]
    assert [bool(info.fault) for info in found] == [False, False, False, True, True]
    assert [info.size for info in found][3:] == [built.segment_bytes, 5]
    last = last_active(found)
    assert last is not None
    assert last.name == "00000005.vlog"


def test_a_header_under_another_name_is_none() -> None:
    built = log().blocks(1).write()
    built.put("00000002.vlog", bytes(built.piece.data))
    assert [(info.number, info.active) for info in survey(built.disk, "/d")] == [(1, True), (2, False)]


def test_nothing_is_stated_of_an_empty_directory() -> None:
    disk = FakeDisk()
    disk.make_directory("/d")
    assert survey(disk, "/d") == []
    assert last_active([]) is None
    assert stated_synced_end(disk, []) == NULL_LSN


def test_the_stated_end_is_the_highest_that_anything_valid_states() -> None:
    built = log().blocks(2).roll().blocks(3).synced()
    stated = built.piece.end
    built.block().write()
    found = survey(built.disk, "/d")
    assert stated_synced_end(built.disk, found) == lsn(2, stated)
    assert stated_synced_end(built.disk, found, stated=[lsn(1, 1 << 20)]) == lsn(2, stated)
    assert stated_synced_end(built.disk, found, stated=[lsn(2, built.piece.end)]) == lsn(2, built.piece.end)
    built.flip(built.frames[-1], 50)
    built.write()
    assert stated_synced_end(built.disk, survey(built.disk, "/d")) == lsn(2, FIRST_FRAME)


def test_a_statement_counts_from_behind_a_bad_frame_too() -> None:
    built = log().blocks(2).synced()
    stated = built.piece.end
    built.blocks(3)
    built.flip(built.frames[1], 40)
    built.zero(built.frames[3])
    built.write()
    assert stated_synced_end(built.disk, survey(built.disk, "/d")) == lsn(1, stated)
