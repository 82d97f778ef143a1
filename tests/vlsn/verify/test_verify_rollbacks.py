"""Rollbacks as ``verify`` judges them: flags against records, and records against one another and the log."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.vlsn.builder import LogBuilder, Placed
from tests.vlsn.logs import Machine
from tests.vlsn.verify.test_verify import check, index_of, log, rows
from vlsn.errors import Damaged
from vlsn.format.frame import FLAG_AT, FrameKind
from vlsn.format.records import RollbackEnd
from vlsn.format.segment import segment_name
from vlsn.ids import lsn
from vlsn.recover.recovery import recover
from vlsnlog.testing.fakes.disk import FakeDisk


def test_overmarks_are_held_against_the_rollback_records() -> None:
    built = log().blocks(4).roll().blocks(3).rollback(2).blocks(4).roll().blocks(2).rollback(7).blocks(2)
    assert rows(check(built.write(sidecars=True))) == []
    assert check(built).entries == 9

    strange = built.frames[0]
    built.overmark(strange)
    built.put("00000001.vlog", bytes(built.pieces[0].data))
    assert ("overmark", "00000001.vlog", strange.offset, 1) in rows(check(built))
    built.overmark(strange, 0)
    missed = built.frames[3]
    built.overmark(missed, 0)
    built.disk.remove("/d/00000001.vidx")
    built.put("00000001.vlog", bytes(built.pieces[0].data))
    assert rows(check(built)) == [("overmark", "00000001.vlog", missed.offset, 4)]


def test_a_rollback_that_a_crash_cut_short_is_normal() -> None:
    built = log().blocks(5).roll().blocks(2).rollback(3, flags=False, complete=False).write()
    report = check(built)
    assert (rows(report), report.last, report.entries) == ([], 3, 3)
    built.block().write()
    assert [row[0] for row in rows(check(built))] == ["overmark"] * 4


def test_rollback_records_are_held_against_one_another_and_against_the_log() -> None:
    """Their checksums are right: only what they say cannot be."""

    def built_with(**says: int) -> tuple[LogBuilder, Placed]:
        built = log().blocks(4).roll().blocks(3).rollback(2).blocks(4).roll().blocks(2)
        before = len(built.frames)
        return built.rollback(7, says=says).blocks(2).write(), built.frames[before]

    def named(built: LogBuilder, start: Placed, vlsn: int) -> bool:
        return ("record", segment_name(start.number), start.offset, vlsn) in rows(check(built))

    right, start = built_with()
    assert rows(check(right)) == []
    assert named(*built_with(end_lsn=lsn(start.number, start.offset + 1)), 8)
    # Its period begins within the one of the rollback before it.
    abandoned = right.frames[5]
    assert abandoned.overmarked
    assert named(*built_with(matchpoint_lsn=right.frames[0].lsn, first_lsn=abandoned.lsn), 8)
    # VLSN 4 is abandoned when the second rollback says that it goes back to it.
    hidden = log().blocks(4).rollback(2).blocks(1)
    at = len(hidden.frames)
    hidden.rollback(2, says={"matchpoint": 4, "last_vlsn": 4}).blocks(1).write()
    assert named(hidden, hidden.frames[at], 5)


@pytest.mark.parametrize("between", [0, 1])
def test_a_rollback_further_back_than_the_one_before_is_normal(between: int) -> None:
    """Its period ends behind the last frame that it abandons, as the log writes it. That is before the other one begins
    where nothing was logged between them, else it holds the other one whole."""
    built = log().blocks(4).roll().blocks(3)
    for matchpoint in (5, 3):
        gone = [each.lsn for each in built.visible() if each.first > matchpoint]
        built.rollback(matchpoint, says={"end_lsn": gone[-1] + 1}).blocks(between)
    assert rows(check(built.blocks(2).write())) == []


def test_a_matchpoint_that_was_cleaned_away_is_not_missed() -> None:
    built = log().blocks(4).roll().blocks(3).rollback(4).blocks(2).write()
    built.disk.remove("/d/00000001.vlog")
    assert "record" not in [row[0] for row in rows(check(built))]


def test_a_record_abandons_nothing_behind_itself() -> None:
    """An open sets the flags that a record names: good blocks that were synced behind it are not its business."""
    machine = Machine()
    built = log(disk=machine.disk).blocks(4)
    built.rollback(2, says={"end_lsn": lsn(1, 60_000)}).blocks(3).synced().block().write()
    recovered = recover("/d", machine.seams(), group="g", node="n1", segment_bytes=64 * 1024)
    assert recovered.last_vlsn == 6
    flags = [built.disk.open("/d/00000001.vlog").read(frame.offset + FLAG_AT, 1)[0] for frame in built.frames]
    assert [frame.first for frame, flag in zip(built.frames, flags, strict=True) if flag] == [3, 4]


def crossed(disk: FakeDisk) -> tuple[LogBuilder, Placed]:
    """A log whose second rollback begins within the period of the first; and that record."""
    built = log(disk=disk).blocks(4).roll().blocks(3).rollback(2).blocks(4).roll().blocks(2)
    inside, at = built.frames[5], len(built.frames)
    assert inside.overmarked
    says = {"matchpoint_lsn": built.frames[0].lsn, "first_lsn": inside.lsn}
    return built.rollback(7, says=says).blocks(2), built.frames[at]


def ended_only(disk: FakeDisk) -> tuple[LogBuilder, Placed]:
    """A log with the end of a rollback that none of its records begins; and that end."""
    built = log(disk=disk).blocks(4)
    return built, built.synced().frame(FrameKind.ROLLBACK_END, RollbackEnd(built.frames[2].lsn, 1).encode())


@pytest.mark.parametrize("wrong", [crossed, ended_only])
def test_an_open_refuses_what_verify_names_of_rollbacks(wrong: Callable[[FakeDisk], tuple[LogBuilder, Placed]]) -> None:
    """Which blocks such a log shows nobody can say. Nothing of it is changed."""
    machine = Machine()
    built, record = wrong(machine.disk)
    built.blocks(2).write()
    named = ("record", segment_name(record.number), record.offset)
    assert named in [row[:3] for row in rows(check(built))]
    before = [machine.disk.content(f"/d/{piece.name}") for piece in built.pieces]
    with pytest.raises(Damaged) as raised:
        recover("/d", machine.seams(), group="g", node="n1", segment_bytes=64 * 1024)
    assert (raised.value.file, raised.value.offset) == named[1:]
    assert [machine.disk.content(f"/d/{piece.name}") for piece in built.pieces] == before


def test_the_end_of_a_rollback_that_was_cleaned_away_or_lies_before_what_is_read_is_normal() -> None:
    machine = Machine()
    built = log(disk=machine.disk).blocks(4).rollback(2).roll().blocks(3)
    start = next(frame for frame in built.frames if frame.kind is FrameKind.ROLLBACK_START)
    built.synced().frame(FrameKind.ROLLBACK_END, RollbackEnd(start.lsn, 1).encode())
    built.blocks(2).write()
    built.disk.remove("/d/00000001.vlog")
    assert "record" not in [row[0] for row in rows(check(built))]
    recovered = recover("/d", machine.seams(), group="g", node="n1", segment_bytes=64 * 1024)
    assert recovered.last_vlsn == 7


def test_an_index_not_cut_yet_after_a_rollback_is_normal() -> None:
    built = log().blocks(6).rollback(3).write()
    assert rows(check(built, index_of((built.frames[0], 1), (built.frames[5], 6)))) == []
    built.block().write()
    assert [row[0] for row in rows(check(built, index_of((built.frames[0], 1), (built.frames[5], 6))))] == ["index"]


def test_a_flag_that_nothing_explains_is_found_on_a_running_node_too() -> None:
    built = log().blocks(4).roll().blocks(3).rollback(5).blocks(2).synced().block()
    built.overmark(built.frames[1])
    built.write()
    lock = built.disk.lock("/d/LOCK")
    assert rows(check(built, live=True)) == [("overmark", "00000001.vlog", built.frames[1].offset, 2)]
    lock.release()
