"""Damage in a segment found, filled with the blocks that belong there, and the segment renamed over; every call cut."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.vlsn.logs import Machine, Opened, Undurable, put
from tests.vlsn.write.test_rollback import rolled_back
from vlsn.errors import BadBody, Damaged, IntegrityFault, NoSpace, NotMaster
from vlsn.format import scan
from vlsn.format.frame import FRAME_BYTES, FrameKind, padded
from vlsn.format.seal import seal
from vlsn.format.segment import FIRST_FRAME, SegmentHeader, segment_name, sidecar_name
from vlsn.format.submission import Values
from vlsn.ids import Term, Vlsn, lsn_file, lsn_offset
from vlsn.limits import MENDED_KEPT_MAX
from vlsn.repair.mended_copy import COPY_SUFFIX, mend
from vlsn.repair.mending import Filling, Wound, check_window, find_wound, find_wound_of_closed
from vlsn.segments.bad_sectors import PAGE_BYTES, ROT
from vlsn.verify.verify import verify
from vlsnlog.testing.fakes.disk import Call, FakeDisk, StopHere


class Story:
    """A stopped log of several segments and what its blocks are, by first VLSN."""

    def __init__(self, *, other: bool = False, checkpoint: bool = False) -> None:
        """``checkpoint``: before the last ten blocks."""
        self.machine = Machine(1)
        self.held: dict[int, bytes] = {0: b""} if other else {}
        opened = Opened(self.machine)
        put(opened, self.held, 150, 900)
        log = opened.log
        if checkpoint:
            log.care.checkpointer.run(done=lambda _: None, failed=lambda _: None)
            put(opened, self.held, 10, 900)
        reader = log.view.reader()
        start = log.view.index.at_or_before(Vlsn(1))
        assert start is not None
        run = reader.blocks(1, start=start[1], upto_vlsn=log.view.range.last, bytes_max=1 << 30)
        reader.close()
        firsts: list[int] = []
        vlsn = 1
        self.blocks: dict[int, bytes] = {}
        self.places: dict[int, tuple[int, int]] = {}
        for data, at in zip(run.data, run.lsns, strict=True):
            count = int.from_bytes(data[4:8], "little")
            self.blocks[vlsn] = data
            self.places[vlsn] = lsn_file(at), lsn_offset(at)
            firsts.append(vlsn)
            vlsn += count
        self.ends = log.view.segments()
        opened.close()

    @property
    def disk(self) -> FakeDisk:
        return self.machine.disk

    def path(self, number: int) -> str:
        return f"{self.machine.directory}/{segment_name(number)}"

    def flip(self, vlsn: int, byte: int) -> int:
        number, offset = self.places[vlsn]
        self.disk.flip_bit(self.path(number), offset + byte)
        return number

    def wound(self, number: int, *filled: Filling) -> Wound | None:
        return find_wound(self.disk, self.machine.directory, number, self.ends[number], filled=filled)

    def filled(self, wound: Wound) -> Filling:
        filling = Filling(wound, term_max=1)
        while not filling.whole:
            filling.add(self.blocks[filling.next_vlsn])
        return filling

    def mend(self, *fillings: Filling) -> list[str]:
        return mend(self.disk, self.machine.directory, fillings, free_bytes_min=0)

    def mend_all(self, number: int) -> int:
        wounds = 0
        while (wound := self.wound(number)) is not None:
            self.mend(self.filled(wound))
            wounds += 1
        return wounds


@pytest.mark.long
@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 900)), min_size=1, max_size=5),
    st.integers(0, 1),
)
def test_any_flipped_bits_in_blocks_of_a_segment_are_mended_byte_for_byte(
    flips: list[tuple[int, int]], segment: int
) -> None:
    story = Story()
    number = sorted(story.ends)[segment]
    inside = [vlsn for vlsn, (where, _) in story.places.items() if where == number]
    before = story.disk.content(story.path(number))
    changed = set()
    for index, byte in flips:
        vlsn = inside[index % len(inside)]
        if (vlsn, byte) not in changed:
            changed.add((vlsn, byte))
            story.flip(vlsn, byte % (FRAME_BYTES + len(story.blocks[vlsn])))
    if story.disk.content(story.path(number)) == before:
        return  # one bit flipped twice
    story.mend_all(number)
    after = story.disk.content(story.path(number))
    differ = [at for at in range(len(before)) if before[at] != after[at]]
    # Where a frame's own header was lost its ``synced`` may say less than it did, and its checksum another thing.
    frames = [offset for where, offset in story.places.values() if where == number]
    allowed = {offset + byte for offset in frames for byte in (*range(12, 16), *range(20, 24))}
    assert set(differ) <= allowed
    report = verify(story.disk, story.machine.stores, story.machine.directory)
    assert not report.findings, report.findings
    opened = Opened(story.machine, take_term=False)
    assert opened.entries() == story.held


@pytest.mark.parametrize("further", [0, 1, 2])
def test_damage_on_both_sides_of_a_checkpoints_record_is_mended(further: int) -> None:
    """The bytes between two wounds are whole, and no block. The first wound does not end before the block behind
    both."""
    story = Story(checkpoint=True)
    firsts = sorted(story.places)
    gaps = [
        (one, other)
        for one, other in pairwise(firsts)
        if story.places[one][0] == story.places[other][0]
        and story.places[other][1] - story.places[one][1] > FRAME_BYTES + padded(len(story.blocks[one]))
    ]
    before, behind = gaps[-1]
    for vlsn in (before, *(first for first in firsts if behind <= first <= behind + further)):
        number = story.flip(vlsn, FRAME_BYTES + 300)
    content = story.disk.content(story.path(number))
    assert story.mend_all(number) == 2
    assert story.disk.content(story.path(number)) != content
    report = verify(story.disk, story.machine.stores, story.machine.directory)
    assert not report.findings, report.findings
    assert Opened(story.machine, take_term=False).entries() == story.held


@pytest.mark.parametrize("vlsn", [3, 30, 57])
@pytest.mark.parametrize("inside", [0, 8, 300])
def test_a_sealed_segment_that_was_cut_short_is_mended_to_its_size(vlsn: int, inside: int) -> None:
    """Somebody truncated the file of a stopped node: the copy has the size that the header page says."""
    story = Story()
    number, offset = story.places[vlsn]
    before = story.disk.content(story.path(number))
    story.disk.write_content(story.path(number), before[: offset + inside])
    wound = story.wound(number)
    assert wound is not None and (wound.start, wound.end) == (offset, story.ends[number])
    assert story.mend_all(number) == 1
    after = story.disk.content(story.path(number))
    assert len(after) == len(before)
    assert after[: wound.start] == before[: wound.start] and not any(after[wound.end :])
    report = verify(story.disk, story.machine.stores, story.machine.directory)
    assert not report.findings, report.findings
    assert Opened(story.machine, take_term=False).entries() == story.held


@pytest.mark.parametrize("byte", [FRAME_BYTES + 10, FRAME_BYTES + 200])
def test_a_segment_that_is_what_it_was_keeps_its_sidecar(byte: int) -> None:
    story = Story()
    number = story.flip(20, byte)
    before = story.disk.content(story.path(number))
    story.mend_all(number)
    assert story.disk.content(story.path(number)) != before
    assert story.disk.exists(f"{story.machine.directory}/{sidecar_name(number)}")


def test_a_sidecar_that_cannot_be_read_goes() -> None:
    story = Story()
    number = story.flip(20, FRAME_BYTES + 200)
    sidecar = f"{story.machine.directory}/{sidecar_name(number)}"
    story.disk.flip_bit(sidecar, 4)
    story.mend_all(number)
    assert not story.disk.exists(sidecar)
    assert not verify(story.disk, story.machine.stores, story.machine.directory).findings


def test_a_copy_that_the_disk_kept_otherwise_is_not_put_in_the_segments_place() -> None:
    """The disk rots where the copy was just written."""
    story = Story()
    number = story.flip(30, FRAME_BYTES + 100)
    before, wound = story.disk.content(story.path(number)), story.wound(number)
    assert wound is not None
    copy = story.path(number) + COPY_SUFFIX
    struck: list[Call] = []

    def rot(call: Call) -> None:
        if (call.name, call.path) == ("drop_cache", copy) and not struck:
            struck.append(call)
            story.disk.flip_bit(copy, wound.start + FRAME_BYTES + 100)

    story.disk.hook = rot
    with pytest.raises(Damaged, match="does not read back"):
        story.mend(story.filled(wound))
    assert struck and story.disk.content(story.path(number)) == before
    story.mend_all(number)
    assert story.wound(number) is None
    assert not [name for name in story.disk.list(story.machine.directory) if name.endswith(COPY_SUFFIX)]


def test_damage_is_found_where_it_is_and_nowhere_else() -> None:
    story = Story()
    number, offset = story.places[30]
    assert story.wound(number) is None
    at = FIRST_FRAME
    while at < story.ends[number]:
        at = check_window(story.disk, story.machine.directory, number, at, story.ends[number], 8192)
    story.flip(30, 100)
    wound = story.wound(number)
    assert wound is not None
    assert (wound.start, wound.first, wound.following) == (offset, 30, 31)
    assert wound.bytes == story.places[31][1] - offset
    at = FIRST_FRAME
    while at + 8192 <= offset:
        at = check_window(story.disk, story.machine.directory, number, at, story.ends[number], 8192)
    with pytest.raises(Damaged) as met:
        check_window(story.disk, story.machine.directory, number, at, story.ends[number], 8192)
    assert (met.value.file, met.value.offset) == (segment_name(number), offset)


def test_neighbours_and_zeros_are_one_wound() -> None:
    story = Story()
    number, offset = story.places[30]
    end = story.places[34][1]
    file = story.disk.open(story.path(number), write=True)
    file.write(offset, [bytes(end - offset)])
    file.sync()
    file.close()
    wound = story.wound(number)
    assert wound is not None and (wound.start, wound.end, wound.following) == (offset, end, 34)
    assert story.mend_all(number) == 1
    assert Opened(story.machine, take_term=False).entries() == story.held


@pytest.mark.parametrize("byte", [0, 2, 4, 17, 21, FRAME_BYTES + 3])
@pytest.mark.parametrize("which", [0, 1])
def test_a_checkpoints_record_is_replaced_by_one_that_says_no_more_than_is_known(byte: int, which: int) -> None:
    machine = Machine(1)
    held: dict[int, bytes] = {}
    opened = Opened(machine)
    put(opened, held, 20, 900)
    opened.log.care.checkpointer.run()
    put(opened, held, 20, 900)
    opened.log.cycle.rotate("request")
    put(opened, held, 5, 900)
    opened.log.care.checkpointer.run()
    number, end = next(iter(opened.log.view.segments().items()))
    opened.close()
    path = f"{machine.directory}/{segment_name(number)}"
    data = machine.disk.content(path)
    kinds = [FrameKind.CHECKPOINT_START, FrameKind.CHECKPOINT_END]
    found = scan.walk(data, base=0, start=FIRST_FRAME, end=end, salt=SegmentHeader.decode(data).salt)
    at = int(found.offsets[found.headers["kind"] == kinds[which]][0])
    machine.disk.flip_bit(path, at + byte)
    wound = find_wound(machine.disk, machine.directory, number, end)
    assert wound is not None and wound.start == at
    filling = Filling(wound, term_max=1)
    assert filling.add_record() and filling.whole
    mend(machine.disk, machine.directory, [filling], free_bytes_min=0)
    assert find_wound(machine.disk, machine.directory, number, end) is None
    report = verify(machine.disk, machine.stores, machine.directory)
    assert not report.findings, report.findings
    assert Opened(machine, take_term=False).entries() == held


def test_what_does_not_belong_there_is_refused() -> None:
    story, other = Story(), Story(other=True)
    number = story.flip(30, FRAME_BYTES + 300)
    wound = story.wound(number)
    assert wound is not None
    with pytest.raises(BadBody):
        Filling(wound, term_max=1).add(story.blocks[31])
    with pytest.raises(BadBody):
        Filling(wound, term_max=1).add(story.blocks[30][:-1] + b"?")
    forged = Opened(Machine(3))
    put(forged, {}, 40, 907)
    reader = forged.log.view.reader()
    at = forged.log.view.index.at_or_before(Vlsn(1))
    assert at is not None
    block = reader.blocks(30, start=at[1], upto_vlsn=forged.log.view.range.last, bytes_max=1).data[0]
    with pytest.raises(BadBody, match="more than blocks"):
        Filling(wound, term_max=1).add(block)
    assert other.blocks[30] != story.blocks[30]
    with pytest.raises(IntegrityFault):
        Filling(wound, term_max=1).add(other.blocks[30])


@pytest.mark.parametrize("sealed_behind", [False, True])
@pytest.mark.parametrize(("term", "fits"), [(1, False), (2, True), (4, False)])
def test_a_block_whose_term_is_not_between_those_around_it_is_refused(
    term: int, fits: bool, sealed_behind: bool
) -> None:
    """Terms never fall along a log: (3, 8) before (2, 9) was never in it, whoever holds it as durable.  Its neighbours
    may lie in other segments."""
    machine = Machine(1)
    opened = Opened(machine)  # term 1: VLSN 1 is its own
    opened.append(b"." * 100)
    for _ in range(2):
        if sealed_behind:
            opened.log.cycle.rotate("request")
        opened.log.stop_sealing(NotMaster("another term"))
        opened.take_term()
        opened.append(b"." * 100)
    assert [run.term for run in opened.log.view.history.term_runs] == [1, 2, 3]
    opened.append(b"." * 100)
    at = opened.frames_after(3)[0]
    opened.log.node_file.replace(replace(opened.log.node_file.record, term=9))
    machine.kill()
    number = lsn_file(at)
    machine.disk.flip_bit(f"{machine.directory}/{segment_name(number)}", lsn_offset(at) + FRAME_BYTES + 16)
    wound, stored = find_wound_of_closed(machine.disk, machine.stores, machine.directory, number)
    assert wound is not None and (wound.first, stored) == (4, 9)
    values = [Values([b"." * 100])]
    (made,) = seal(values, term=Term(term), first_vlsn=Vlsn(4), dtvlsn=Vlsn(0), clock_us=0, block_bytes_max=1 << 20)
    filling = Filling(wound, term_max=stored)
    if fits:
        filling.add(made.data)
        assert filling.whole
    else:
        with pytest.raises(BadBody, match=r"its neighbours are of terms"):
            filling.add(made.data)


@pytest.mark.parametrize("vlsn", [1, 4, 6], ids=["the log's first", "inside", "its segment's last"])
def test_a_lost_block_between_blocks_of_one_term_has_that_term(vlsn: int) -> None:
    """So peers are asked for it by its name, and may give it though they do not know it as durable.  The block behind
    it may begin the next segment."""
    machine = Machine(1)
    opened = Opened(machine)  # term 1: VLSN 1 is its own
    for _ in range(5):
        opened.append(b"." * 100)
    ends = opened.log.view.range.last
    opened.log.cycle.rotate("request", lambda _: None)
    opened.append(b"." * 100)
    number, at = lsn_file(place := opened.frames_after(vlsn - 1)[0]), lsn_offset(place)
    machine.kill()
    path = f"{machine.directory}/{segment_name(number)}"
    held = machine.disk.content(path)
    size = int.from_bytes(held[at + 4 : at + 8], "little")
    block = held[at + FRAME_BYTES : at + FRAME_BYTES + size]
    machine.disk.flip_bit(path, at + FRAME_BYTES + 16)  # in its header: what is left of it names no term
    wound, stored = find_wound_of_closed(machine.disk, machine.stores, machine.directory, number)
    assert wound is not None and wound.first == vlsn and ends == 6
    filling = Filling(wound, term_max=stored)
    assert filling.term == (1 if vlsn > 1 else 0)  # nothing lies before the log's first block
    filling.add(block)
    assert filling.whole and filling.term == 1


def test_a_copy_without_room_is_refused_with_nothing_changed() -> None:
    story = Story()
    number = story.flip(30, 100)
    wound = story.wound(number)
    assert wound is not None
    with pytest.raises(NoSpace):
        mend(story.disk, story.machine.directory, [story.filled(wound)], free_bytes_min=1 << 60)
    assert story.wound(number) == wound


def test_only_so_many_files_of_damaged_bytes_are_kept() -> None:
    story = Story()
    for vlsn in range(20, 20 + MENDED_KEPT_MAX + 4):
        story.mend_all(story.flip(vlsn, 100))
    kept = [name for name in story.disk.list(story.machine.directory) if ".damaged-" in name]
    assert len(kept) == MENDED_KEPT_MAX


def test_every_disk_call_of_a_mending_cut_leaves_the_damage_or_the_whole_segment() -> None:
    story = Story()
    story.machine.begin()
    story.mend_all(story.flip(30, 8))
    points = [call.number for call in story.disk.calls[story.machine.begun :] if call.changes]
    assert len(points) >= 10
    ends = {"damaged": 0, "whole": 0}
    for turn, point in enumerate(points):
        story = Story()
        number = story.flip(30, 8)
        wound = story.wound(number)
        assert wound is not None
        story.machine.stop_at(point)
        with pytest.raises(StopHere):
            story.mend(story.filled(wound))
        story.machine.end("torn" if turn % 2 else "kill")
        found = story.wound(number)
        assert found is None or (found.start, found.end) == (wound.start, wound.end)
        ends["whole" if found is None else "damaged"] += 1
        story.mend_all(number)
        assert not [name for name in story.disk.list(story.machine.directory) if name.endswith(".mend")]
        assert Opened(story.machine, take_term=False).entries() == story.held
    assert ends["damaged"] >= 9 and ends["whole"] >= 1, ends


def test_a_block_behind_a_rollback_is_mended_though_what_was_abandoned_ends_an_earlier_segment() -> None:
    machine = Machine(3)
    opened = Undurable(machine)
    for value in (b"a", b"b", b"c", b"d", b"e", b"f"):
        opened.append(value)  # VLSN 2 to 7
    opened.log.cycle.rotate("request", lambda _: None)
    rolled_back(opened, 4)
    opened.take_term()
    opened.append(b"new")
    log, vlsn = opened.log, Vlsn(opened.log.view.range.last - 1)
    at = log.view.index.at_or_before(vlsn)
    assert at is not None
    number, offset = lsn_file(at[1]), lsn_offset(at[1])
    assert number > min(log.view.segments())
    path, end = f"{machine.directory}/{segment_name(number)}", log.view.segments()[number]
    good = machine.disk.content(path)
    machine.disk.flip_bit(path, offset + FRAME_BYTES + 40)
    wound = find_wound(machine.disk, machine.directory, number, end)
    assert wound is not None
    assert (wound.start, wound.first) == (offset, vlsn)
    filling = Filling(wound, term_max=2)
    size = int.from_bytes(good[offset + 4 : offset + 8], "little")
    filling.add(good[offset + FRAME_BYTES : offset + FRAME_BYTES + size])
    mend(machine.disk, machine.directory, [filling], free_bytes_min=0)
    assert machine.disk.content(path)[:end] == good[:end]


@pytest.mark.parametrize("behind", [0, 1, 30], ids=["nothing", "few", "past-it"])
@pytest.mark.parametrize("rotated", [False, True])
def test_a_block_that_a_rollback_abandoned_is_not_put_back(behind: int, rotated: bool) -> None:
    """It would lie before what the log goes on with, and leave a gap.  The rollback may lie in a later segment."""
    machine = Machine(1)
    held: dict[int, bytes] = {}
    opened = Undurable(machine)
    put(opened, held, 20, 900)
    number, offset = lsn_file(place := opened.frames_after(11)[0]), lsn_offset(place)
    path = f"{machine.directory}/{segment_name(number)}"
    size = int.from_bytes((good := machine.disk.content(path))[offset + 4 : offset + 8], "little")
    block = good[offset + FRAME_BYTES : offset + FRAME_BYTES + size]
    if rotated:
        opened.log.cycle.rotate("request", lambda _: None)
    rolled_back(opened, 4)
    opened.log.cycle.rotate("request", lambda _: None)
    if behind:
        opened.take_term()
    put(opened, held, behind, 900)
    end = opened.log.view.segments()[number]
    opened.close()
    machine.disk.flip_bit(path, offset)
    wound = find_wound(machine.disk, machine.directory, number, end)
    assert wound is not None and wound.start == offset
    with pytest.raises(BadBody, match="more than blocks"):
        Filling(replace(wound, first=Vlsn(12)), term_max=2).add(block)


def test_pages_that_the_disk_does_not_give_are_read_around_and_mended() -> None:
    """Two bad sectors in one segment: one copy fills both."""
    story = Story()
    number = story.places[30][0]
    before = story.disk.content(story.path(number))
    offsets = [story.places[vlsn][1] + 200 for vlsn in (20, 40)]
    assert {story.places[vlsn][0] for vlsn in (20, 40)} == {number}
    for offset in offsets:
        story.disk.lose_page(story.path(number), offset)
    with pytest.raises(Damaged) as caught:
        check_window(story.disk, story.machine.directory, number, FIRST_FRAME, story.ends[number])
    wound = story.wound(number)
    assert wound is not None
    page = offsets[0] // PAGE_BYTES * PAGE_BYTES
    assert caught.value.offset == wound.start <= page < offsets[0] < wound.end
    first = story.filled(wound)
    second = story.wound(number, first)
    assert second is not None and wound.end <= second.start <= offsets[1] < second.end
    kept = story.disk.content(f"{story.machine.directory}/{story.mend(first, story.filled(second))[0]}")
    there = before[wound.start : wound.end]
    lost = slice(page - wound.start, page - wound.start + PAGE_BYTES)
    assert (
        len(kept) == len(there)
        and kept[: lost.start] == there[: lost.start]
        and kept[lost.stop :] == there[lost.stop :]
    )
    assert kept[lost] == ROT[: len(there[lost])]
    assert story.wound(number) is None
    assert not verify(story.disk, story.machine.stores, story.machine.directory).findings


def segment_reads(story: Story, number: int, at: int) -> Callable[[Call], bool]:
    """Matches reads of that segment's page with byte ``at``."""
    path = story.path(number)
    return lambda call: call.name == "read" and call.path == path and call.offset <= at < call.offset + call.size


@pytest.mark.parametrize("vlsn", [0, 40], ids=["the header page", "a block"])
def test_what_the_disk_does_not_give_for_a_moment_is_given_up_for_nothing(vlsn: int) -> None:
    """The segment stays until a copy puts the bytes in its place: only that may stand for it."""
    story = Story()
    number = story.flip(20, FRAME_BYTES + 100)
    before = story.disk.content(story.path(number))
    wound = story.wound(number)
    assert wound is not None
    filling = story.filled(wound)
    at = story.places[vlsn][1] + 200 if vlsn else 4_000
    story.disk.fail_at(segment_reads(story, number, at), times=1 << 30)
    with pytest.raises((OSError, Damaged), match=os.strerror(errno.EIO)):
        story.mend(filling)
    assert story.disk.content(story.path(number)) == before
    story.disk.mend()
    story.mend(filling)
    assert story.wound(number) is None
    after = story.disk.content(story.path(number))
    assert after[: wound.start] == before[: wound.start] and after[wound.end :] == before[wound.end :]


def test_what_the_disk_gives_again_is_not_replaced() -> None:
    story = Story()
    number, offset = story.places[30]
    before = story.disk.content(story.path(number))
    story.disk.fail_at(segment_reads(story, number, offset + 100), times=1 << 30)
    wound = story.wound(number)
    assert wound is not None
    story.disk.mend()
    with pytest.raises(OSError, match="reads differently"):
        story.mend(story.filled(wound))
    assert story.disk.content(story.path(number)) == before
    assert story.wound(number) is None


def test_a_page_behind_the_end_of_the_log_that_the_disk_does_not_give_hinders_no_mending() -> None:
    """A write has failed there, and all of it was written again in the next segment."""
    story = Story()
    number = story.flip(max(story.places) - 3, FRAME_BYTES + 100)
    end = story.ends[number]
    assert end + 2 * PAGE_BYTES < len(story.disk.content(story.path(number)))
    story.disk.lose_page(story.path(number), end + PAGE_BYTES)
    assert story.mend_all(number) == 1
    assert not verify(story.disk, story.machine.stores, story.machine.directory).findings


def test_in_a_log_that_does_not_open_what_cannot_be_read_is_not_known() -> None:
    """Nothing is written in its place: past the damage an end could be taken for another."""
    story = Story()
    number = story.flip(30, 100)
    story.disk.lose_page(story.path(number), story.places[40][1] + 200)
    directory = story.machine.directory
    wound = find_wound(story.disk, directory, number, story.places[35][1], around=False)
    assert wound is not None
    names = story.disk.list(directory)
    for look in (
        lambda: find_wound_of_closed(story.disk, story.machine.stores, directory, number),
        lambda: story.mend(story.filled(wound)),
    ):
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            look()
    assert [name for name in story.disk.list(directory) if not name.endswith(COPY_SUFFIX)] == names
