"""Blocks of a stopped log replaced by others': every disk call cut, the index out of the way, what is refused."""

from __future__ import annotations

import pytest

from tests.vlsn.logs import Opened
from tests.vlsn.repair.test_mending import Story
from vlsn.errors import BadArgument
from vlsn.format.block import decode_header
from vlsn.format.frame import FRAME_BYTES, padded
from vlsn.format.seal import seal
from vlsn.format.submission import Values
from vlsn.limits import MENDED_KEPT_MAX
from vlsn.recover.recovery import INDEX_NAME
from vlsn.repair.replacing import REPLACEMENTS_MAX, Replacement, replace_blocks
from vlsn.verify.verify import verify
from vlsnlog.testing.fakes.disk import StopHere


def other_block(block: bytes, **changes: int) -> bytes:
    """A block of the same size and name with other values."""
    header = decode_header(block)
    size = header.value_bytes // header.count
    values = Values([b"%d" % n + b"?" * (size - 1) for n in range(header.count)], None, (changes.pop("producer", 0), 1))
    named = {"term": header.term, "first_vlsn": header.first_vlsn, "dtvlsn": header.dtvlsn, "clock_us": header.clock_us}
    (sealed,) = seal([values], **{**named, **changes}, block_bytes_max=1 << 20)
    return sealed.data


def place(story: Story, vlsn: int, *blocks: bytes, whole: bool = False) -> Replacement:
    """The place of the block at ``vlsn``, for ``blocks`` or for the one that was there."""
    number, offset = story.places[vlsn]
    old = story.blocks[vlsn]
    end = offset + FRAME_BYTES + padded(len(old))
    gone = (decode_header(old),) if whole else ()
    return Replacement(number, offset, end, story.ends[number], blocks or (old,), gone)


def replaced(story: Story, *places: Replacement) -> list[str]:
    return replace_blocks(story.disk, story.machine.stores, story.machine.directory, places)


def findings(story: Story) -> list[object]:
    return list(verify(story.disk, story.machine.stores, story.machine.directory).findings)


def test_damage_is_replaced_and_the_index_stays() -> None:
    story = Story()
    wounds = [20, 21, 40, 60]
    for vlsn in wounds:
        story.flip(vlsn, FRAME_BYTES + 100)
    kept = replaced(story, *[place(story, vlsn) for vlsn in wounds])
    assert len(kept) == 4
    assert story.machine.stores.exists(f"{story.machine.directory}/{INDEX_NAME}")
    assert not findings(story)
    assert Opened(story.machine, take_term=False).entries() == story.held


def test_a_whole_block_is_replaced_and_the_index_is_set_aside() -> None:
    story = Story()
    new = other_block(story.blocks[30])
    replaced(story, place(story, 30, new, whole=True))
    assert not story.machine.stores.exists(f"{story.machine.directory}/{INDEX_NAME}")
    assert not findings(story)
    opened = Opened(story.machine, take_term=False)
    entries = opened.entries()
    assert {vlsn: value for vlsn, value in entries.items() if story.held[vlsn] != value}.keys() == {30}
    assert entries[30].startswith(b"0?")


def test_every_disk_call_of_a_repair_cut_leaves_each_segment_as_it_was_or_repaired() -> None:
    """Two segments, damage in one and another block in the other; the rest is done by a second repair."""

    def story_of() -> tuple[Story, list[Replacement]]:
        story = Story()
        number, _ = story.places[20]
        behind = next(vlsn for vlsn, (where, _) in story.places.items() if where > number)
        story.flip(20, FRAME_BYTES + 100)
        new = other_block(story.blocks[behind + 3])
        return story, [place(story, 20), place(story, behind + 3, new, whole=True)]

    story, places = story_of()
    story.machine.begin()
    replaced(story, *places)
    points = [call.number for call in story.disk.calls[story.machine.begun :] if call.changes]
    assert len(points) >= 20
    good = {name: story.disk.content(story.path(name)) for name in sorted(story.ends)}
    seen: set[tuple[bool, bool]] = set()
    for turn, point in enumerate(points):
        story, places = story_of()
        before = {name: story.disk.content(story.path(name)) for name in sorted(story.ends)}
        story.machine.stop_at(point)
        with pytest.raises(StopHere):
            replaced(story, *places)
        story.machine.end("torn" if turn % 2 else "kill")
        left = []
        for each in places:
            content = story.disk.content(story.path(each.number))
            assert content in (before[each.number], good[each.number])
            left += [each] if content == before[each.number] else []
        seen.add((places[0] in left, places[1] in left))
        if places[1] not in left:
            assert not story.machine.stores.exists(f"{story.machine.directory}/{INDEX_NAME}")
        replaced(story, *left)
        assert {name: story.disk.content(story.path(name)) for name in sorted(story.ends)} == good
        assert not findings(story)
    assert seen == {(True, True), (False, True), (False, False)} or seen == {(True, True), (False, True)}, seen


def test_old_bytes_of_all_places_are_kept() -> None:
    story = Story()
    wounds = range(20, 20 + MENDED_KEPT_MAX + 9)
    for vlsn in wounds:
        story.flip(vlsn, FRAME_BYTES + 100)
    replaced(story, *[place(story, vlsn) for vlsn in wounds])
    kept = [name for name in story.disk.list(story.machine.directory) if ".damaged-" in name]
    assert len(kept) == len(wounds)


def test_what_does_not_fit_is_refused_before_anything_is_written() -> None:
    story = Story()
    producer = other_block(story.blocks[31], producer=7)
    longer = place(story, 30, other_block(story.blocks[30]) + b"\0" * 64)
    for wrong, message in (
        (place(story, 30, story.blocks[31]), "VLSN 30 begins"),
        (place(story, 30, other_block(story.blocks[30], term=2)), "stored term"),
        (Replacement(9_999, 4096, 8192, 9000, (story.blocks[30],)), "missing"),
        (longer, "replaced in place"),
        (place(story, 31, producer, whole=True), "more than blocks|sums up"),
    ):
        story.machine.begin()
        with pytest.raises(BadArgument, match=message):
            replaced(story, place(story, 20), wrong)
        assert not [call for call in story.disk.calls[story.machine.begun :] if call.changes]
    with pytest.raises(BadArgument, match="places"):
        replaced(story, *[place(story, 30)] * (REPLACEMENTS_MAX + 1))


def test_a_block_of_producers_takes_no_others_place() -> None:
    story = Story()
    header = decode_header(story.blocks[30])
    made = other_block(story.blocks[30], producer=7)
    size = len(made) - len(story.blocks[30])
    number, offset = story.places[30]
    assert size > 0 and header.submissions
    following = len(story.blocks[31]) + FRAME_BYTES
    assert following > size  # it would reach into the next block, which is refused as well
    end = offset + FRAME_BYTES + padded(len(story.blocks[30]))
    with pytest.raises(BadArgument):
        replaced(story, Replacement(number, offset, end, story.ends[number], (made,), (header,)))
