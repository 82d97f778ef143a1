"""The ``synced`` rule, in every combination of lost and kept sectors of the last sync groups.

A segment is written in groups, each synced before the next.  Each of its sectors is then given every version that it
ever had, in every combination: those of the last group alone are what a power cut can leave, the others are rot.
The model knows the frames as they were placed and compares bytes; it searches nothing and checks no checksum.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

import pytest

from tests.vlsn.builder import LogBuilder, Placed
from tests.vlsn.logs import Machine, Opened
from vlsn.errors import Damaged
from vlsn.format.frame import padded
from vlsn.format.segment import FIRST_FRAME, segment_name
from vlsn.ids import Lsn, lsn
from vlsn.recover.torn_tail import Found, examine
from vlsn.recover.vote_floor import BlockName, floor_of, with_floor, with_floor_met
from vlsn.segments.directory import survey
from vlsn.segments.log_end import Ending, ending, synced_end
from vlsn.state.node_file import NodeRecord
from vlsnlog.testing.fakes.disk import FakeDisk
from vlsnlog.testing.fakes.inodes import SECTOR_BYTES

DIRECTORY = "/log"
SEGMENT_BYTES = 16 << 10
SHAPES = {
    "frames larger than a sector": [(900,), (700, 800), (600, 650)],
    "frames smaller than a sector": [(60, 90, 70), (100, 80, 60), (50, 120, 90, 60, 200)],
    "a last group of one frame": [(300, 300), (500,), (1400,)],
}


@pytest.mark.parametrize(
    ("stop", "synced", "zeros", "wanted"),
    [
        (4096, 0, True, Ending.END),
        (4096, 0, False, Ending.TAIL),
        (5000, 4999, False, Ending.TAIL),
        (5000, 5000, False, Ending.TAIL),  # everything before it was synced, not it
        (5000, 5000, True, Ending.END),
        (5000, 5001, False, Ending.DAMAGE),
        (5000, 5001, True, Ending.DAMAGE),  # zeros where something had been synced
    ],
)
def test_what_the_end_of_the_readable_frames_is(stop: int, synced: int, zeros: bool, wanted: Ending) -> None:
    assert ending(stop, synced=synced, zeros=zeros) is wanted


def test_what_says_how_far_a_segment_had_been_synced() -> None:
    here, before, after = lsn(7, 6000), lsn(6, 9000), lsn(8, 4096)
    assert synced_end(7, 5000) == 0
    assert synced_end(7, 5000, frames_behind=[0, 4800]) == 4800
    assert synced_end(7, 5000, next_header=8192) == 8192
    assert synced_end(7, 5000, stated=[before]) == 0
    assert synced_end(7, 5000, stated=[before, here]) == 6000
    assert synced_end(7, 5000, stated=[after]) == 5001  # all of segment 7 was, wherever it ended
    assert synced_end(7, 5000, next_header=5000, stated=[after]) == 5000


@dataclass(frozen=True, slots=True)
class Written:
    """A segment's frames, the end of each group, and the file after each group (before the first too)."""

    frames: list[Placed]
    group_ends: list[int]
    files: list[bytes]

    @property
    def starts(self) -> dict[int, int]:
        """The synced end that each frame states, by its offset: where its group began."""
        ends = [0, *self.group_ends]
        return {each.offset: max([0, *(end for end in ends if end <= each.offset)]) for each in self.frames}

    def images(self, from_group: int) -> Iterator[bytes]:
        """Yields the file in every combination of sectors; those of groups before ``from_group`` as they were
        written."""
        first = self.files[from_group]
        choices = []
        for at in range(FIRST_FRAME, self.group_ends[-1], SECTOR_BYTES):
            versions = [file[at : at + SECTOR_BYTES] for file in self.files[from_group:]]
            choices.append(list(dict.fromkeys(versions)))
        for chosen in product(*choices):
            yield first[:FIRST_FRAME] + b"".join(chosen) + first[FIRST_FRAME + len(chosen) * SECTOR_BYTES :]


def written(shape: list[tuple[int, ...]]) -> Written:
    builder = LogBuilder(FakeDisk(), DIRECTORY, segment_bytes=SEGMENT_BYTES)
    files, ends = [bytes(builder.piece.data)], []
    for sizes in shape:
        for size in sizes:
            builder.block(b"%d" % size * (size // 3))
        ends.append(builder.piece.end)
        files.append(bytes(builder.piece.data))
        builder.synced()
    return Written(builder.frames, ends, files)


def model(log: Written, image: bytes, stated: int) -> tuple[Ending, int, list[BlockName]]:
    """Says what ``image`` is, where its log ends, and which blocks' headers are whole behind that."""
    right = log.files[-1]

    def same(start: int, size: int) -> bool:
        return image[start : start + size] == right[start : start + size]

    whole = {each.offset for each in log.frames if same(each.offset, each.size)}
    stop = next((each.offset for each in log.frames if each.offset not in whole), log.group_ends[-1])
    synced = max([stated, *(log.starts[at] for at in whole if at > stop)])
    behind = [each for each in log.frames if each.offset >= stop and same(each.offset + 24, 64)]
    vlsns = {each.offset: number for number, each in enumerate(log.frames, 1)}
    ends = {each.offset: each.offset + each.size - stop for each in log.frames}
    names = [BlockName(1, vlsns[each.offset], vlsns[each.offset], ends[each.offset]) for each in behind]
    if synced > stop:
        return Ending.DAMAGE, stop, names
    return (Ending.TAIL if any(image[stop:]) else Ending.END), stop, names


def opened(image: bytes, stated: list[Lsn]) -> Found:
    disk = FakeDisk()
    disk.make_directory(DIRECTORY)
    disk.write_content(f"{DIRECTORY}/{segment_name(1)}", image)
    return examine(disk, survey(disk, DIRECTORY)[0], start=FIRST_FRAME, last=True, stated=stated)


def verdict(image: bytes, stated: list[Lsn]) -> tuple[Damaged | None, Found | None]:
    try:
        return None, opened(image, stated)
    except Damaged as error:
        return error, None


def agree(log: Written, image: bytes, stated: int) -> Ending:
    wanted, stop, names = model(log, image, stated)
    damage, found = verdict(image, [lsn(1, stated)] if stated else [])
    before = [each.offset for each in log.frames if each.offset < stop]
    if damage is not None or found is None:
        assert damage is not None
        assert wanted is Ending.DAMAGE, f"taken for damage at {damage.offset}, it is {wanted} at {stop}"
        assert (damage.file, damage.offset) == (segment_name(1), stop)
        assert damage.vlsn == (len(before) + 1 if before else 0)
        return wanted
    assert wanted is (Ending.END if found.cut is None else Ending.TAIL)
    assert found.end == stop
    assert found.offsets.tolist() == before
    if found.cut is not None:
        assert (found.cut.offset, found.cut.data) == (stop, image[stop:].rstrip(b"\0"))
        assert [replace(name, end=padded(name.end)) for name in found.cut.names] == names
    return wanted


@pytest.mark.parametrize("shape", SHAPES)
def test_every_combination_of_sectors_is_told_apart(shape: str) -> None:
    log = written(SHAPES[shape])
    seen: dict[Ending, int] = dict.fromkeys(Ending, 0)
    for image in log.images(0):
        for stated in (0, *log.group_ends) if shape != "frames larger than a sector" else (0, log.group_ends[1]):
            seen[agree(log, image, stated)] += 1
    print(f"{shape}: {seen}")
    assert all(seen.values())


@pytest.mark.parametrize("shape", SHAPES)
def test_what_a_power_cut_leaves_of_the_last_group_is_never_damage(shape: str) -> None:
    """The groups before are synced, and it says so."""
    log = written(SHAPES[shape])
    for image in log.images(2):
        for stated in (0, *log.group_ends[:2]):
            assert agree(log, image, stated) is not Ending.DAMAGE


@pytest.mark.parametrize("shape", SHAPES)
def test_what_was_synced_before_a_readable_group_is_damage_and_never_cut(shape: str) -> None:
    log = written(SHAPES[shape])
    last = [each for each in log.frames if each.offset >= log.group_ends[1]]
    cut = 0
    for image in log.images(0):
        whole_group = (
            image[log.group_ends[1] : log.group_ends[2]] == log.files[-1][log.group_ends[1] : log.group_ends[2]]
        )
        whole_before = image[: log.group_ends[1]] == log.files[-1][: log.group_ends[1]]
        if whole_group and not whole_before:
            assert last
            assert agree(log, image, 0) is Ending.DAMAGE
            cut += 1
    assert cut


def test_a_next_segments_header_makes_everything_before_the_end_that_it_names_synced() -> None:
    log = written(SHAPES["frames smaller than a sector"])
    disk = FakeDisk()
    builder = LogBuilder(disk, DIRECTORY, segment_bytes=SEGMENT_BYTES)
    for sizes in SHAPES["frames smaller than a sector"]:
        for size in sizes:
            builder.block(b"%d" % size * (size // 3))
        builder.synced()
    builder.roll().block(b"next").write()
    for image in log.images(2):
        disk.write_content(f"{DIRECTORY}/{segment_name(1)}", image)
        first = survey(disk, DIRECTORY)[0]
        if image == log.files[-1]:
            assert examine(disk, first, start=FIRST_FRAME, last=False, stated=[]).end == log.group_ends[-1]
        else:
            with pytest.raises(Damaged):
                examine(disk, first, start=FIRST_FRAME, last=False, stated=[])


# The floor.

RECORD = NodeRecord(group="g", node="n1", incarnation=1, term=5)


@pytest.mark.parametrize(
    ("names", "wanted"),
    [
        ([], (5, 41)),
        ([BlockName(3, 41, 44)], (3, 44)),
        ([BlockName(3, 41, 44), BlockName(4, 45, 45)], (4, 45)),
        ([BlockName(3, 41, 44), BlockName(6, 45, 45)], (3, 44)),  # above the stored term: a client's bytes
        ([BlockName(3, 41, 44), BlockName(2, 45, 45)], (3, 44)),  # below the log's last term
        ([BlockName(3, 41, 44), BlockName(3, 10**12, 10**12)], (3, 44)),  # more entries than the bytes could hold
        ([BlockName(9, 10**12, 10**12)], (5, 41)),
    ],
)
def test_the_floor_is_the_last_block_that_can_be_this_logs(names: list[BlockName], wanted: tuple[int, int]) -> None:
    assert floor_of(names, size=400, stored_term=5, last_term=3, last_vlsn=40) == wanted


def test_without_a_node_file_the_floors_term_is_the_highest_that_is_left() -> None:
    assert floor_of([BlockName(7, 41, 41)], size=400, stored_term=0, last_term=3, last_vlsn=40) == (7, 41)
    assert floor_of([], size=400, stored_term=0, last_term=3, last_vlsn=40) == (3, 41)


@pytest.mark.parametrize(
    ("names", "wanted"),
    [
        ([], (5, 140)),
        ([BlockName(3, 41, 44, 400)], (3, 44)),  # it reaches up to the last byte
        ([BlockName(3, 41, 44, 408)], (3, 44)),  # it is torn
        ([BlockName(3, 41, 44, 200)], (5, 94)),  # what lies behind it cannot be read
        ([BlockName(3, 41, 44, 200), BlockName(6, 45, 45, 300)], (5, 94)),  # nor are a client's bytes a block
        ([BlockName(9, 41, 44, 400)], (5, 140)),
    ],
)
def test_without_state_the_floor_is_as_high_as_what_cannot_be_read_could_be(
    names: list[BlockName], wanted: tuple[int, int]
) -> None:
    assert floor_of(names, size=400, stored_term=5, last_term=3, last_vlsn=40, state_lost=True) == wanted


def test_without_state_any_unreadable_byte_may_have_been_a_block() -> None:
    assert floor_of([], size=1, stored_term=5, last_term=3, last_vlsn=40, state_lost=True) == (5, 41)


def test_a_floor_that_is_met_is_where_the_log_ends() -> None:
    high = with_floor(RECORD, (5, 94), last_visible=40)
    met = with_floor_met(high, (5, 50))
    assert (met.floor_term, met.floor_vlsn) == (5, 50)
    assert with_floor_met(met, (5, 60)) is met
    assert with_floor_met(RECORD, (3, 40)) is RECORD


def test_a_floor_not_yet_reached_is_never_lowered() -> None:
    first = with_floor(RECORD, (3, 44), last_visible=40)
    assert (first.floor_term, first.floor_vlsn) == (3, 44)
    assert with_floor(first, (3, 42), last_visible=40) is first
    assert with_floor(first, (4, 42), last_visible=40).floor_term == 4
    assert with_floor(RECORD, (3, 40), last_visible=40) is RECORD


# The statements of ``state``, through a whole open.


@pytest.mark.parametrize("says", ["checkpoint", "idle end", "nothing"])
@pytest.mark.parametrize("how", ["a flipped bit", "zeros", "the segment is gone"])
def test_what_state_says_was_synced_is_damage_when_it_does_not_read_back(says: str, how: str) -> None:
    machine = Machine()
    opened = Opened(machine)
    opened.append(b"one")
    opened.append(b"the last" * 100)
    if says == "checkpoint":
        opened.log.care.checkpointer.run()
    if says == "idle end":
        for _ in range(2):
            machine.clock.advance(2.0)
            opened.log.tick()
    machine.kill()
    path = f"{DIRECTORY}/{segment_name(1)}"
    content = machine.disk.content(path)
    end = len(content.rstrip(b"\0"))
    match how:
        case "a flipped bit":
            machine.disk.flip_bit(path, end - 1)
        case "zeros":
            machine.disk.write_content(path, content[: end - 80] + bytes(len(content) - end + 80))
        case "the segment is gone":
            machine.disk.remove(path)
            machine.disk.sync_directory(DIRECTORY)
    before = {path: machine.disk.content(path) for path in machine.disk.files(DIRECTORY)}
    if says == "nothing":
        again = Opened(machine, take_term=False)
        assert again.log.stats.cuts == (how != "the segment is gone")
        return
    with pytest.raises(Damaged):
        Opened(machine)
    machine.kill()
    assert {path: machine.disk.content(path) for path in machine.disk.files(DIRECTORY)} == before
