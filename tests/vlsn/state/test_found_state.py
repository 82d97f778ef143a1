"""A log that has lost its state record finds the sum of its entries in another copy: then it is that of a log that has
read every entry."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.vlsn.logs import Machine
from tests.vlsn.offline.test_truncated_tables import LEVEL_AT, STEPS, UUIDS, Story
from vlsn.durability import SYNCED, GroupDurability
from vlsn.format import block
from vlsn.format.feed_messages import Position, blocks_message, split_blocks
from vlsn.ids import Vlsn
from vlsn.limits import PRODUCERS_MIN
from vlsn.state.history import History
from vlsn.state.state_store import OWN_FIELDS


def read(history: History, blocks: list[bytes]) -> History:
    """Notes blocks as a replica does."""
    for data in blocks:
        header = block.decode(data)
        message = blocks_message(Position(last_vlsn=1, dtvlsn=0, clock_us=0, term=header.term), [data])
        run = split_blocks(message, expected_first=header.first_vlsn, term_min=1, term_max=header.term)
        history.note_run(run, 0, 1)
    return history


def last_of(data: bytes) -> int:
    return int(block.decode(data).last_vlsn)


def record(history: History, vlsn: int) -> dict[str, Any]:
    whole = history.snapshot(Vlsn(vlsn), trimmed_to=Vlsn(0), first_segment=0)()
    return {name: value for name, value in msgspec.structs.asdict(whole).items() if name not in OWN_FIELDS}


def lacking(blocks: list[bytes], gone: int) -> History:
    """A log that begins behind block ``gone``, and has nothing else."""
    history = History()
    history.begin_at_level(Vlsn(last_of(blocks[gone])), 3)
    history.lose_before(Vlsn(last_of(blocks[gone]) + 1))
    return read(history, blocks[gone + 1 :])


@given(steps=st.lists(STEPS, min_size=4, max_size=20), data=st.data())
def test_a_log_that_has_lost_its_beginning_adds_up_to_the_same_once_it_is_found(
    steps: list[Callable[[Story], None]], data: st.DataObject
) -> None:
    story = Story(Machine())
    for step in steps:
        step(story)
    blocks = story.stop()
    last = last_of(blocks[-1])
    gone = data.draw(st.integers(LEVEL_AT - 1, len(blocks) - 1), "blocks up to this one were cleaned away")
    at = data.draw(st.sampled_from([last_of(each) for each in blocks[gone:]]), "the other copy's record is of")
    mine = lacking(blocks, gone)
    mine.settle(Vlsn(data.draw(st.integers(last_of(blocks[gone]), at), "settled here up to")))
    known = read(History(), [each for each in blocks if last_of(each) <= at])
    handed_on = known.snapshot(Vlsn(at), trimmed_to=Vlsn(0), first_segment=0)()
    handed_on.check()
    mine.found_state(History(handed_on), Vlsn(at))
    assert not mine.lacks_to
    assert record(mine, last) == record(read(History(), blocks), last)
    assert mine.producers.limit == read(History(), blocks).producers.limit


def told(*settings: tuple[int | None, GroupDurability | None]) -> tuple[list[bytes], list[int]]:
    """A log that sets these, an entry and a producer behind each; the VLSNs of what sets them."""
    story, places = Story(Machine()), []
    for number, each in enumerate(settings):
        story.settings(*each)
        places.append(int(story.opened.log.view.range.last))
        story.submission(7 + number)
    return story.stop(), places


WRITTEN = GroupDurability("write_no_sync", "sync")


@pytest.mark.parametrize("between", [0, 1])
def test_settings_before_behind_and_beside_what_is_found_are_one(between: int) -> None:
    """Each entry sets one of them; what the other was by then was cleaned away with the entry that had set it."""
    blocks, places = told((PRODUCERS_MIN, None), (None, WRITTEN), (PRODUCERS_MIN + 5, None), (None, SYNCED))
    gone = next(number for number, data in enumerate(blocks) if last_of(data) == places[0])
    at = places[between] + 1
    mine, whole = lacking(blocks, gone), read(History(), blocks)
    known = read(History(), [each for each in blocks if last_of(each) <= at])
    mine.found_state(known, Vlsn(at))
    assert [each for each in mine.settings if each[0] > at] == [each for each in whole.settings if each[0] > at]
    assert mine.settings[0][0] == places[0], "the newest that counted then, and all behind"
    for vlsn in range(at, last_of(blocks[-1]) + 1):
        assert record(mine, vlsn)["settings"] == record(whole, vlsn)["settings"]
    assert mine.producers.limit == whole.producers.limit == PRODUCERS_MIN + 5
    mine.truncate(Vlsn(at))
    assert mine.producers.limit == PRODUCERS_MIN, "what was set behind is taken back"


def test_another_history_is_not_taken_and_changes_nothing() -> None:
    story = Story(Machine())
    story.entry()
    story.put("a", 1)
    story.note(UUIDS[0], "begin")
    story.submission(7)
    blocks = story.stop()
    at = last_of(blocks[-1])
    mine = lacking(blocks, LEVEL_AT)
    before = record(mine, at)
    for field in ("small", "acks", "producers", "commits"):
        other = History(read(History(), blocks).snapshot(Vlsn(at), trimmed_to=Vlsn(0), first_segment=0)())
        setattr(other, field, getattr(History(), field))
        with pytest.raises(ValueError, match=r"this log|other copy"):
            mine.found_state(other, Vlsn(at))
        assert record(mine, at) == before, field
