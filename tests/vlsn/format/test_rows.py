"""Decoding by column gives what decoding block by block gives, whatever the blocks hold."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.vlsn import strategies
from tests.vlsn.builder import LogBuilder
from vlsn.errors import Damaged
from vlsn.format import block as block_format
from vlsn.format.block import BLOCK, BLOCK_BYTES, Entry, EntryKind
from vlsn.format.checksum import crc
from vlsn.format.columns import TXNS
from vlsn.format.frame import FrameKind
from vlsn.format.segment import FIRST_FRAME
from vlsn.ids import Lsn, Vlsn, lsn
from vlsn.segments.reader import DATA_ONLY, LogReader
from vlsnlog.testing.fakes.disk import FakeDisk

START = lsn(1, FIRST_FRAME)
KINDS = st.none() | st.frozensets(st.sampled_from([int(kind) for kind in EntryKind]), min_size=1)


def follow_on(block: bytes, first: int) -> bytes:
    """Returns the block under another name: its body as it is, from VLSN ``first`` on, but for transactions' ids."""
    header = block_format.decode(block)
    if header.flags & TXNS:
        at = header.layout.txns
        txns = np.frombuffer(block, "<u8", header.count, at)
        moved = np.where(txns, txns - header.first_vlsn + first, 0).astype("<u8")
        block = block[:at] + moved.tobytes() + block[at + 8 * header.count :]
    fields = list(BLOCK.unpack_from(block))
    fields[-2] = crc(block[BLOCK_BYTES:])
    fields[5], fields[6], fields[7] = 1, first, 0
    head = BLOCK.pack(*fields)[: BLOCK_BYTES - 4]
    return head + crc(head).to_bytes(4, "little") + block[BLOCK_BYTES:]


@dataclass
class Story:
    built: LogBuilder
    entries: list[Entry]
    """Decoded block by block."""

    def reader(self) -> LogReader:
        ends = {piece.header.number: piece.end for piece in self.built.pieces}
        return LogReader(self.built.disk, self.built.directory, lambda number: ends.get(number, 0))

    def frame_of(self, vlsn: int) -> Lsn:
        return next(each.lsn for each in self.built.frames if each.first <= vlsn <= each.last)


@st.composite
def stories(draw: st.DrawFn) -> Story:
    built = LogBuilder(FakeDisk(), "/d")
    entries: list[Entry] = []
    for drawn in draw(st.lists(strategies.blocks(), min_size=1, max_size=8)) * draw(st.sampled_from([1, 1, 12])):
        data = follow_on(drawn, built.next_vlsn)
        placed = built.frame(FrameKind.BLOCK, data)
        header = block_format.decode(data)
        placed.first, placed.last = header.first_vlsn, header.last_vlsn
        built.next_vlsn = header.last_vlsn + 1
        entries += block_format.entries(data, header)
        if draw(st.integers(0, 9)) == 0:
            built.roll()
    built.write()
    return Story(built, entries)


@settings(max_examples=60, deadline=None)
@given(stories(), KINDS, st.integers(1, 200), st.integers(1, 4_000), st.data())
def test_pages_of_entries_are_the_entries_of_each_block(
    story: Story, kinds: frozenset[int] | None, limit: int, bytes_max: int, data: st.DataObject
) -> None:
    upto = story.entries[-1].vlsn
    at = data.draw(st.integers(1, upto))
    wanted = [each for each in story.entries if each.vlsn >= at and (kinds is None or each.kind in kinds)]
    start, found = story.frame_of(at), []
    reader = story.reader()
    while at <= upto:
        run = reader.entries(at, start=start, upto_vlsn=upto, limit=limit, bytes_max=bytes_max, kinds=kinds)
        assert run.next_vlsn > at
        assert len(run.entries) <= limit
        size = sum(len(each.value) + len(each.key or b"") for each in run.entries)
        assert size <= bytes_max or len(run.entries) == 1
        found += run.entries
        at, start = run.next_vlsn, run.next_lsn
    assert found == wanted


@settings(max_examples=60, deadline=None)
@given(stories(), st.data())
def test_pairs_are_the_values_of_data_entries_in_any_range(story: Story, data: st.DataObject) -> None:
    upto = story.entries[-1].vlsn
    low = data.draw(st.integers(1, upto))
    high = data.draw(st.integers(low, upto))
    wanted = [(each.vlsn, each.value) for each in story.entries if low <= each.vlsn <= high and each.kind == 0]
    reader, at, start = story.reader(), low, story.frame_of(low)
    found: list[tuple[int, bytes]] = []
    while at <= high:
        run = reader.pairs(at, start=start, upto_vlsn=upto, to_vlsn=high)
        assert run.next_vlsn > at
        found += run.pairs
        at, start = run.next_vlsn, run.next_lsn
    assert found == wanted


@settings(max_examples=40, deadline=None)
@given(stories(), st.data())
def test_a_single_entry_is_the_one_of_its_block_from_any_frame_before_it(story: Story, data: st.DataObject) -> None:
    upto = story.entries[-1].vlsn
    reader = story.reader()
    for _ in range(10):
        vlsn = data.draw(st.integers(1, upto))
        start = story.frame_of(data.draw(st.integers(1, vlsn)))
        (entry,) = reader.entries(vlsn, start=start, upto_vlsn=upto, limit=1, bytes_max=1, kinds=None).entries
        assert entry == story.entries[vlsn - 1]


def test_a_single_entry_of_another_kind_is_passed_over() -> None:
    built = LogBuilder(FakeDisk(), "/d").block(b"own", kind=EntryKind.TERM).block(b"a").write()
    run = Story(built, []).reader().entries(1, start=START, upto_vlsn=2, limit=1, bytes_max=1, kinds=DATA_ONLY)
    assert [(each.vlsn, each.value) for each in run.entries] == [(2, b"a")]


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_single_entry_behind_damage_or_in_it_is_damage(victim: int) -> None:
    """The rule is that for a run: headers before it must be right, and its own frame whole."""
    built = LogBuilder(FakeDisk(), "/d").block(b"a").block(b"b").block(b"c")
    built.flip(built.frames[victim], 4 if victim < 2 else 90)
    built.write()
    with pytest.raises(Damaged) as raised:
        Story(built, []).reader().entries(3, start=START, upto_vlsn=3, limit=1, bytes_max=1)
    assert raised.value.offset == built.frames[victim].offset


def test_a_single_entry_past_what_may_be_read_is_not_given() -> None:
    built = LogBuilder(FakeDisk(), "/d").block(b"a").block(b"b", b"c").write()
    reader = Story(built, []).reader()
    assert reader.entries(2, start=START, upto_vlsn=2, limit=1, bytes_max=1).entries == []
    assert reader.entries(2, start=START, upto_vlsn=3, limit=1, bytes_max=1).entries[0].vlsn == Vlsn(2)


def test_many_readers_of_one_log_keep_few_segments_open() -> None:
    built = LogBuilder(FakeDisk(), "/d")
    for _ in range(6):
        built.block(b"x").roll()
    built.block(b"x").write()
    ends = {piece.header.number: piece.end for piece in built.pieces}
    reader = LogReader(built.disk, "/d", lambda number: ends.get(number, 0), segments_max=3)
    for vlsn in [1, 2, 3, 1, 7, 5, 4, 6, 1, 2]:
        run = reader.entries(vlsn, start=lsn(vlsn, FIRST_FRAME), upto_vlsn=7, limit=1, bytes_max=1)
        assert [each.vlsn for each in run.entries] == [vlsn]
        assert len(reader._segments) <= 3
    assert len(reader._segments) == 3
    reader.close()
    assert reader._segments == {}


def test_a_reader_that_goes_on_from_segment_to_segment_leaves_none_open_behind_it() -> None:
    built = LogBuilder(FakeDisk(), "/d")
    for _ in range(6):
        built.block(b"x").roll()
    built.block(b"x").write()
    ends = {piece.header.number: piece.end for piece in built.pieces}
    reader = LogReader(built.disk, "/d", lambda number: ends.get(number, 0), segments_max=5)
    run = reader.entries(1, start=lsn(1, FIRST_FRAME), upto_vlsn=7, limit=10, bytes_max=1 << 20)
    assert [each.vlsn for each in run.entries] == [1, 2, 3, 4, 5, 6, 7]
    assert list(reader._segments) == [7]
    reader.close()
