"""The reader hands out exactly the visible blocks up to the synced end, or says what is damaged and where."""

from __future__ import annotations

import errno
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.vlsn.builder import LogBuilder, Placed
from vlsn.errors import Damaged
from vlsn.format.block import EntryKind
from vlsn.format.frame import FRAME_BYTES, FrameKind
from vlsn.format.segment import FIRST_FRAME
from vlsn.ids import Lsn, Vlsn, lsn, lsn_file, lsn_offset
from vlsn.segments.reader import LogReader, ReadRun
from vlsnlog.testing.fakes.disk import FakeDisk

START = lsn(1, FIRST_FRAME)


def log() -> LogBuilder:
    return LogBuilder(FakeDisk(), "/d")


def reader_of(log: LogBuilder, *, ends: dict[int, int] | None = None) -> LogReader:
    """Makes a reader as a node has it: it knows its last segment's end only, headers say the others."""
    known = {log.piece.header.number: log.piece.end} if ends is None else ends
    return LogReader(log.disk, log.directory, lambda number: known.get(number, 0))


def all_of(log: LogBuilder, *, start: Lsn = START, vlsn: int = 1, bytes_max: int = 500) -> list[bytes]:
    reader = reader_of(log)
    got: list[bytes] = []
    upto = log.next_vlsn - 1
    while vlsn <= upto:
        run = reader.blocks(vlsn, start=start, upto_vlsn=upto, bytes_max=bytes_max)
        assert run.data
        got += run.data
        vlsn, start = run.next_vlsn, run.next_lsn
    reader.close()
    return got


def payloads(frames: list[Placed]) -> list[bytes]:
    return [each.payload for each in frames]


@pytest.mark.parametrize("bit", range(32))
def test_a_block_whose_count_is_rotten_is_damaged_not_to_be_read_later(bit: int) -> None:
    built = log().block(b"1", b"2").block(b"3", b"4").block(b"5", b"6").write()
    place = built.frames[1]
    assert isinstance(built.disk, FakeDisk)
    built.disk.flip_bit("/d/00000001.vlog", place.lsn % (1 << 32) + FRAME_BYTES + 4 + bit // 8, bit % 8)
    reader = reader_of(built)
    with pytest.raises(Damaged):
        reader.blocks(3, start=START, upto_vlsn=6, bytes_max=1)
    reader.close()


def test_a_run_begins_with_the_block_that_holds_the_vlsn() -> None:
    built = log().block(b"1", b"2", b"3").block(b"4", b"5").block(b"6").write()
    run = reader_of(built).blocks(5, start=START, upto_vlsn=6, bytes_max=1 << 20)
    assert (run.data, run.first, run.last, run.next_vlsn) == (payloads(built.frames[1:]), 4, 6, 7)
    assert run.lsns == [each.lsn for each in built.frames[1:]]
    assert run.next_lsn == lsn(1, built.piece.end)


def test_nothing_past_what_the_caller_may_read() -> None:
    built = log().block(b"1", b"2").block(b"3", b"4").block(b"5").write()
    reader = reader_of(built)
    assert reader.blocks(1, start=START, upto_vlsn=4, bytes_max=1 << 20).last == 4
    assert reader.blocks(1, start=START, upto_vlsn=3, bytes_max=1 << 20).last == 2
    nothing = reader.blocks(3, start=START, upto_vlsn=3, bytes_max=1 << 20)
    assert (nothing.data, nothing.next_vlsn) == ([], 3)
    assert reader.blocks(5, start=START, upto_vlsn=4, bytes_max=1 << 20).data == []


def test_no_single_entry_past_what_the_caller_may_read() -> None:
    """The entry lies in the log, synced, and is not durable: a look at it alone hides it, too."""
    built = log().block(b"1", b"2").block(b"3", b"4").block(b"5").write()
    reader = reader_of(built)
    for vlsn, upto, values in ((3, 4, [b"3"]), (3, 2, []), (3, 3, []), (4, 3, []), (5, 4, []), (5, 5, [b"5"])):
        run = reader.entries(vlsn, start=START, upto_vlsn=upto, limit=1, bytes_max=1 << 20)
        assert [entry.value for entry in run.entries] == values, (vlsn, upto)
    reader.close()


def test_nothing_past_the_synced_end_and_more_when_it_moves() -> None:
    built = log().blocks(6).write()
    ends = {1: built.frames[3].offset}
    reader = reader_of(built, ends=ends)
    run = reader.blocks(1, start=START, upto_vlsn=6, bytes_max=1 << 20)
    assert run.last == 3
    again = reader.blocks(run.next_vlsn, start=run.next_lsn, upto_vlsn=6, bytes_max=1 << 20)
    assert again == ReadRun([], [], Vlsn(0), Vlsn(0), run.next_lsn, Vlsn(4))
    ends[1] = built.piece.end
    assert reader.blocks(4, start=again.next_lsn, upto_vlsn=6, bytes_max=1 << 20).last == 6


def test_a_reader_does_not_pass_what_its_owner_has_not_told_yet() -> None:
    """The next segment's header names the end as soon as it is synced. The owner reports the sync a moment later."""
    built = log().blocks(6).roll().blocks(2).write()
    ends = {1: built.frames[3].offset, 2: built.piece.end}
    reader = reader_of(built, ends=ends)
    run = reader.blocks(1, start=START, upto_vlsn=8, bytes_max=1 << 20)
    assert run.last == 3
    assert reader.blocks(4, start=run.next_lsn, upto_vlsn=8, bytes_max=1 << 20).data == []
    ends[1] = built.pieces[0].end
    rest = reader.blocks(4, start=run.next_lsn, upto_vlsn=8, bytes_max=1 << 20)
    assert (rest.first, rest.last) == (4, 8)
    reader.close()


def test_a_segment_ends_where_the_next_header_says() -> None:
    built = log().blocks(3)
    dead = built.frames[-1]
    built.roll()
    # The writer broke after VLSN 2: segment 2 begins with VLSN 3 once more, what segment 1 has of it is dead.
    built.pieces[0].end, built.next_vlsn = dead.offset, 3
    built.pieces.pop()
    built.roll().blocks(2)
    built.write()
    got = all_of(built)
    assert len(got) == 4
    assert got == payloads(built.frames[:2] + built.pieces[1].frames)


def test_a_frame_larger_than_the_window_is_read_whole() -> None:
    built = LogBuilder(FakeDisk(), "/d", segment_bytes=8 << 20)
    built.block(b"a").block(b"b" * (3 << 20)).block(b"c").write()
    assert all_of(built, bytes_max=1) == payloads(built.frames)


@pytest.mark.parametrize("at", [0, 2, 3, 5, 9, 13, 17, 21, 24, 40, 90])
def test_damage_is_named_after_what_is_good_before_it(at: int) -> None:
    built = log().blocks(9)
    victim = built.frames[4]
    built.flip(victim, at, 0x10)
    built.write()
    reader = reader_of(built)
    run = reader.blocks(1, start=START, upto_vlsn=9, bytes_max=1 << 20)
    assert run.data == payloads(built.frames[:4])
    with pytest.raises(Damaged) as raised:
        reader.blocks(run.next_vlsn, start=run.next_lsn, upto_vlsn=9, bytes_max=1 << 20)
    assert (raised.value.file, raised.value.offset, raised.value.vlsn) == ("00000001.vlog", victim.offset, 5)
    with pytest.raises(Damaged) as raised:
        reader.blocks(5, start=START, upto_vlsn=9, bytes_max=1 << 20)
    assert (raised.value.offset, raised.value.vlsn) == (victim.offset, 5)


def test_a_checksum_is_asked_only_of_blocks_that_are_handed_out() -> None:
    built = log().blocks(9)
    built.flip(built.frames[2], 100)
    built.write()
    run = reader_of(built).blocks(5, start=START, upto_vlsn=9, bytes_max=1 << 20)
    assert run.data == payloads(built.frames[4:])


def test_zeros_before_the_synced_end_are_damage() -> None:
    built = log().blocks(5)
    built.zero(built.frames[2])
    built.write()
    with pytest.raises(Damaged, match=r"00000001\.vlog") as raised:
        reader_of(built).blocks(3, start=START, upto_vlsn=5, bytes_max=1 << 20)
    assert raised.value.offset == built.frames[2].offset


def test_blocks_that_do_not_follow_on_are_damage() -> None:
    built = log().blocks(3)
    built.next_vlsn = 5
    built.blocks(2).write()
    with pytest.raises(Damaged) as raised:
        reader_of(built).blocks(4, start=START, upto_vlsn=6, bytes_max=1 << 20)
    assert (raised.value.offset, raised.value.vlsn) == (built.frames[3].offset, 4)


def test_a_missing_or_unreadable_segment_is_damage_only_if_the_log_goes_on() -> None:
    built = log().blocks(2).roll().blocks(2).roll().blocks(2).write()
    ends = {1: built.pieces[0].end, 2: built.pieces[1].end, 3: built.pieces[2].end}

    def read(vlsn: int) -> ReadRun:
        return reader_of(built, ends=ends).blocks(vlsn, start=START, upto_vlsn=6, bytes_max=1 << 20)

    built.put("00000003.vlog", bytes(built.segment_bytes))
    assert read(1).last == 4
    built.write()
    built.put("00000002.vlog", bytes(built.segment_bytes))
    with pytest.raises(Damaged) as raised:
        read(3)
    assert raised.value.file == "00000002.vlog"
    built.disk.remove("/d/00000002.vlog")
    with pytest.raises(Damaged, match="missing") as raised:
        read(3)
    assert raised.value.file == "00000002.vlog"


def test_entries_are_of_the_kinds_asked_and_never_past_the_limits() -> None:
    built = log()
    built.block(b"term", kind=EntryKind.TERM).block(b"a", b"bb", b"ccc", keys=[b"k", b"", b"q"]).block(b"dddd").write()
    reader = reader_of(built)

    def read(vlsn: int, start: Lsn, limit: int, bytes_max: int = 1 << 20) -> tuple[list[tuple[int, bytes]], int, Lsn]:
        run = reader.entries(vlsn, start=start, upto_vlsn=5, limit=limit, bytes_max=bytes_max)
        return [(each.vlsn, each.value) for each in run.entries], run.next_vlsn, run.next_lsn

    end = lsn(1, built.piece.end)
    assert read(1, START, 10) == ([(2, b"a"), (3, b"bb"), (4, b"ccc"), (5, b"dddd")], 6, end)
    first, vlsn, at = read(1, START, 2)
    assert (first, vlsn) == ([(2, b"a"), (3, b"bb")], 4)
    assert read(vlsn, at, 2) == ([(4, b"ccc"), (5, b"dddd")], 6, end)
    assert read(4, at, 10, bytes_max=1) == ([(4, b"ccc")], 5, built.frames[2].lsn)
    every = reader.entries(1, start=START, upto_vlsn=5, limit=10, bytes_max=1 << 20, kinds=None).entries
    assert [(each.vlsn, each.kind, each.key) for each in every[:3]] == [(1, 1, None), (2, 0, b"k"), (3, 0, None)]
    only_own = reader.entries(2, start=START, upto_vlsn=5, limit=10, bytes_max=1 << 20, kinds=frozenset({1}))
    assert (only_own.entries, only_own.next_vlsn) == ([], 6)


@st.composite
def logs(draw: st.DrawFn) -> LogBuilder:
    built = log()
    for _ in range(draw(st.integers(1, 40))):
        match draw(st.sampled_from(["block", "block", "block", "big", "checkpoint", "roll", "burn", "rollback"])):
            case "block":
                built.block(*[b"v" * size for size in draw(st.lists(st.integers(0, 90), min_size=1, max_size=5))])
            case "big":
                built.block(b"w" * draw(st.integers(10_000, 40_000)))
            case "checkpoint":
                built.checkpoint()
            case "roll" if built.piece.frames:
                built.roll()
            case "burn" if built.piece.frames:
                built.roll(built.piece.header.number + draw(st.integers(2, 4)))
            case "rollback" if built.visible():
                kept = draw(st.integers(0, len(built.visible()) - 1))
                built.rollback(built.visible()[kept - 1].last if kept else 0)
    return built


@settings(max_examples=60, deadline=None)
@given(logs(), st.integers(1, 30_000), st.data())
def test_any_log_reads_back_as_its_visible_blocks(built: LogBuilder, bytes_max: int, data: st.DataObject) -> None:
    built.write()
    visible = built.visible()
    if not visible:
        return
    frame = data.draw(st.sampled_from(visible))
    vlsn = data.draw(st.integers(frame.first, frame.last))
    before = data.draw(st.sampled_from([each for each in visible if each.first <= frame.first]))
    wanted = [each for each in visible if each.last >= vlsn]
    assert all_of(built, start=before.lsn, vlsn=vlsn, bytes_max=bytes_max) == payloads(wanted)
    run = reader_of(built).entries(
        vlsn, start=before.lsn, upto_vlsn=visible[-1].last, limit=1 << 20, bytes_max=1 << 30, kinds=None
    )
    assert [each.vlsn for each in run.entries] == list(range(vlsn, visible[-1].last + 1))
    assert lsn_file(run.next_lsn) in [piece.header.number for piece in built.pieces]
    assert all(each.kind == FrameKind.BLOCK for each in visible)


def unread(built: LogBuilder, frame: int) -> LogReader:
    """Returns a reader of the log, whose page with the middle of that frame is a bad sector."""
    place = built.frames[frame]
    assert isinstance(built.disk, FakeDisk)
    built.disk.lose_page("/d/00000001.vlog", lsn_offset(place.lsn) + len(place.payload) // 2)
    return reader_of(built)


def test_a_page_that_the_disk_does_not_give_is_damage_and_what_lies_before_comes_first() -> None:
    built = log()
    for number in range(20):
        built.block(bytes([number]) * 3_000)
    reader = unread(built.write(), 10)
    run = reader.blocks(1, start=START, upto_vlsn=20, bytes_max=1 << 20)
    vlsn = run.next_vlsn
    assert run.data == payloads(built.frames[: vlsn - 1]) and 9 <= vlsn <= 11
    with pytest.raises(Damaged) as caught:
        reader.blocks(vlsn, start=run.next_lsn, upto_vlsn=20, bytes_max=1 << 20)
    place = lsn_offset(built.frames[vlsn - 1].lsn)
    assert (caught.value.file, caught.value.offset, caught.value.vlsn) == ("00000001.vlog", place, vlsn)
    with pytest.raises(Damaged) as caught:
        reader.entries(11, start=built.frames[10].lsn, upto_vlsn=20, limit=1, bytes_max=1)
    assert (caught.value.offset, caught.value.vlsn) == (lsn_offset(built.frames[10].lsn), 11)
    [entry] = reader.entries(20, start=built.frames[19].lsn, upto_vlsn=20, limit=1, bytes_max=1).entries
    assert entry.value == b"\x13" * 3_000
    reader.close()


def test_zeros_that_the_disk_does_not_give_are_damage_too() -> None:
    """Zeros put in their place would have a right checksum, and the bad sector would stay."""
    reader = unread(log().block(bytes(20_000)).write(), 0)
    with pytest.raises(Damaged):
        reader.blocks(1, start=START, upto_vlsn=1, bytes_max=1)
    reader.close()


def test_a_header_page_that_the_disk_does_not_give_is_damage() -> None:
    built = log().block(b"1").write()
    assert isinstance(built.disk, FakeDisk)
    built.disk.lose_page("/d/00000001.vlog", 0)
    with pytest.raises(Damaged, match="its header page cannot be read") as caught:
        reader_of(built).blocks(1, start=START, upto_vlsn=1, bytes_max=1)
    assert caught.value.file == "00000001.vlog"


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENOMEM, errno.EACCES])
def test_another_failure_of_a_read_is_no_damage(code: int) -> None:
    built = log().block(b"1").write()
    assert isinstance(built.disk, FakeDisk)
    for limit in (1, 2):
        reader = reader_of(built)
        reader.blocks(1, start=START, upto_vlsn=1, bytes_max=1)
        built.disk.fail_at(lambda call: call.name == "read", code=code)
        with pytest.raises(OSError, match=os.strerror(code)):
            reader.entries(1, start=START, upto_vlsn=1, limit=limit, bytes_max=1)
        reader.close()
