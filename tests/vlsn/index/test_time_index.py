"""The time index against a plain list of blocks: its bounds are never too low, whatever becomes of log and store."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.vlsn.index.builder import PATH, flush, open_index
from vlsn.errors import WrongVersion
from vlsn.ids import NUMBER_MAX, Lsn, Vlsn, lsn
from vlsn.index import time_index
from vlsn.index.index import VlsnIndex
from vlsn.index.time_index import META_KEY, UNKNOWN, TimeIndex
from vlsnlog.testing.fakes.kv import FakeStores

MIB = 1 << 20
CLOCKS = st.integers(0, 40)
Block = tuple[Vlsn, Vlsn, Lsn, int]


def first_reaching(index: VlsnIndex, blocks: Sequence[Block], clock_us: int) -> int:
    """Searches as a reader does: step by step, and the blocks of a step one by one."""
    at = index.range.first
    while (step := index.step_reaching(clock_us, at)) is not None:
        for first, _, _, clock in blocks:
            if max(step[0], at) <= first <= step[1] and clock >= clock_us:
                return first
        at = Vlsn(step[1] + 1)
    return index.range.last + 1


class Steps(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.patches = [patch.object(time_index, "STEPS_MAX", 24), patch.object(time_index, "STEPS_A_RECORD", 3)]
        for each in self.patches:
            each.start()

    def teardown(self) -> None:
        for each in self.patches:
            each.stop()

    @initialize(known=st.booleans())
    def begin(self, known: bool) -> None:
        self.stores = FakeStores()
        self.index = open_index(self.stores)
        self.blocks: list[Block] = []
        self.offset = 4096
        self.checkpoint = 0

    @rule(sizes=st.lists(st.tuples(st.integers(1, 5), st.integers(1, 700), CLOCKS), min_size=1, max_size=12))
    def append(self, sizes: list[tuple[int, int, int]]) -> None:
        run: list[Block] = []
        for count, kib, clock in sizes:
            first = (run or self.blocks)[-1][1] + 1 if run or self.blocks else 1
            run.append(
                (
                    Vlsn(first),
                    Vlsn(first + count - 1),
                    lsn(1 + self.offset // (4 * MIB), self.offset % (4 * MIB)),
                    clock,
                )
            )
            self.offset += kib * 1024
        self.blocks += run
        self.put(run)

    def put(self, run: list[Block]) -> None:
        firsts, lasts, lsns, clocks = zip(*run, strict=True)
        self.index.put_run(firsts, lasts, lsns, clocks)

    @precondition(lambda self: len(self.blocks) > 1)
    @rule(data=st.data())
    def roll_back(self, data: st.DataObject) -> None:
        keep = data.draw(st.integers(1, len(self.blocks) - 1))
        first, last, at, _ = self.blocks[keep - 1]
        del self.blocks[keep:]
        self.index.truncate_tail(last, at, block_first=first)

    @precondition(lambda self: len(self.blocks) > 1)
    @rule(data=st.data())
    def clean(self, data: st.DataObject) -> None:
        gone = data.draw(st.integers(1, len(self.blocks) - 1))
        del self.blocks[:gone]
        self.index.truncate_head(self.blocks[0][0], self.blocks[0][2])

    @precondition(lambda self: self.blocks)
    @rule()
    def take_checkpoint(self) -> None:
        self.checkpoint += 1
        flush(self.index, self.checkpoint)

    @rule()
    def crash(self) -> None:
        """Opens the stored index, and merges the blocks that an open reads again."""
        self.index = open_index(self.stores)
        if self.index.load() is None:
            if self.blocks:
                self.put(self.blocks)
            return
        base = self.index.range.last
        rest = [block for block in self.blocks if block[0] > base]
        if rest:
            firsts, lasts, lsns, clocks = zip(*rest, strict=True)
            self.index.merge(base, firsts, lasts, lsns, clocks)

    @precondition(lambda self: self.blocks)
    @rule(rolls_back=st.booleans(), checkpoints=st.booleans(), data=st.data())
    def an_earlier_version_works_here(self, rolls_back: bool, checkpoints: bool, data: st.DataObject) -> None:
        """It changes the log and its buckets, and leaves the time index as it was."""
        self.take_checkpoint()
        contents = self.stores.contents[PATH]
        kept = {key: contents.values[key][0] for key in contents.keys if key.startswith(b"t")}
        if rolls_back and len(self.blocks) > 1:
            gone = self.blocks[-1]
            first, last, at, _ = self.blocks[-2]
            del self.blocks[-1:]
            self.index.truncate_tail(last, at, block_first=first)
            self.offset += 1024
            again = (gone[0], gone[1], lsn(1 + self.offset // (4 * MIB), self.offset % (4 * MIB)), data.draw(CLOCKS))
            self.offset += 1024
            self.blocks.append(again)
            self.put([again])
            self.index.save(self.checkpoint)
        else:
            self.append([(1, 8, data.draw(CLOCKS))])
        if checkpoints:
            self.take_checkpoint()
        for key in [key for key in contents.keys if key.startswith(b"t")]:
            contents.delete(key)
        for key, value in kept.items():
            contents.put(key, value)
        self.crash()

    @precondition(lambda self: self.blocks)
    @rule(data=st.data())
    def read_for_nothing(self, data: st.DataObject) -> None:
        """Lowers the bound of some blocks of a step, as a reader of them does."""
        firsts = [first for first, _, _ in self.index.time_steps()]
        low = data.draw(st.integers(0, len(self.blocks) - 1))
        step = bisect_right(firsts, self.blocks[low][0])
        within = [block for block in self.blocks[low:] if bisect_right(firsts, block[0]) == step]
        some = within[: data.draw(st.integers(1, len(within)))]
        self.index.lower_bound(some[0][0], some[-1][1], max(block[3] for block in some))

    @invariant()
    def steps_cover_the_range_and_bound_its_blocks(self) -> None:
        if not getattr(self, "blocks", None):
            return
        steps = self.index.time_steps()
        assert steps[0][0] <= self.index.range.first
        assert steps[-1][1] == self.index.range.last
        assert all(low[1] + 1 == high[0] for low, high in pairwise(steps))
        assert len(steps) <= time_index.STEPS_MAX
        firsts = [first for first, _, _ in steps]
        for first, _, _, clock in self.blocks:
            assert clock <= steps[bisect_right(firsts, first) - 1][2]

    @invariant()
    def a_search_finds_the_first_block_of_that_time_or_later(self) -> None:
        if not getattr(self, "blocks", None):
            return
        for clock in (0, 1, 7, 20, 39, 40, 41, NUMBER_MAX):
            wanted = next((first for first, _, _, at in self.blocks if at >= clock), self.blocks[-1][1] + 1)
            assert first_reaching(self.index, self.blocks, clock) == wanted


Steps.TestCase.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
TestSteps = Steps.TestCase


def filled(count: int, *, step: int = MIB) -> VlsnIndex:
    index = open_index(FakeStores())
    for number in range(count):
        at = lsn(1 + number // 50, 4096 + number % 50 * step)
        index.put_run([number + 1], [number + 1], [at], [1_000 + number])
    return index


def test_a_step_is_a_mebibyte_and_every_two_become_one_when_they_are_many() -> None:
    with patch.object(time_index, "STEPS_MAX", 64):
        assert len(filled(64).time_steps()) == 64
        steps = filled(65).time_steps()
    assert [each[:2] for each in steps[:3]] == [(1, 2), (3, 4), (5, 6)]
    assert [each[2] for each in steps[:3]] == [1_001, 1_003, 1_005]
    assert len(steps) == 33
    assert len(filled(200, step=8192).time_steps()) == 4  # a segment begins a step, whatever the last one holds


def test_a_flush_writes_the_records_that_changed() -> None:
    with patch.object(time_index, "STEPS_A_RECORD", 10):
        index = filled(95)
        assert len(index.start_flush(1).times) == 11  # of which one says what they are of
        index = filled(95)
        flush(index, 1)
        index.put_run([96], [96], [lsn(3, 4096)], [5])
        again = index.start_flush(2)
        assert [key for key, _ in again.times] == [META_KEY, time_index.step_key(91)]


def test_what_was_loaded_of_another_flush_is_unknown() -> None:
    stores = FakeStores()
    index = open_index(stores)
    index.put_run([1, 2], [1, 2], [lsn(1, 4096), lsn(2, 4096)], [10, 20])
    flush(index, 1)
    kept = dict(stores.contents[PATH].values)
    index.put_run([3], [3], [lsn(3, 4096)], [30])
    flush(index, 2)
    assert open_and_load(stores).time_steps() == [(1, 1, 10), (2, 2, 20), (3, 3, 30)]
    stores.contents[PATH].put(META_KEY, kept[META_KEY][0])
    assert open_and_load(stores).time_steps() == [(1, 3, UNKNOWN)]


def open_and_load(stores: FakeStores) -> VlsnIndex:
    index = open_index(stores)
    index.load()
    return index


@pytest.mark.parametrize("key", [META_KEY, time_index.step_key(1), time_index.step_key(2)])
def test_records_that_cannot_be_read_are_unknown_and_written_anew(key: bytes) -> None:
    with patch.object(time_index, "STEPS_A_RECORD", 1):
        stores = FakeStores()
        index = open_index(stores)
        index.put_run([1, 2], [1, 2], [lsn(1, 4096), lsn(2, 4096)], [10, 20])
        flush(index, 1)
        stores.corrupt(PATH, key)
        index = open_and_load(stores)
        assert index.time_steps() == [(1, 2, UNKNOWN)]
        index.lower_bound(Vlsn(1), Vlsn(1), 10)
        flush(index, 2)
        assert open_and_load(stores).time_steps() == [(1, 1, 10), (2, 2, UNKNOWN)]


def test_a_later_version_is_refused() -> None:
    stores = FakeStores()
    index = open_index(stores)
    index.put_run([1], [1], [lsn(1, 4096)], [10])
    flush(index, 1)
    value = stores.contents[PATH].values[META_KEY][0]
    stores.contents[PATH].put(META_KEY, b"\x02" + value[1:])
    with pytest.raises(WrongVersion):
        open_and_load(stores)


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3 * MIB), CLOCKS), min_size=1, max_size=40))
def test_a_run_gives_the_steps_that_its_blocks_give_one_by_one(drawn: list[tuple[int, int, int]]) -> None:
    one, many = TimeIndex(), TimeIndex()
    firsts, lasts, lsns, clocks = [], [], [], []
    vlsn, at = 1, 4096
    for count, size, clock in drawn:
        firsts.append(vlsn)
        lasts.append(vlsn + count - 1)
        lsns.append(at)
        clocks.append(clock)
        one.extend(vlsn, vlsn + count - 1, (at, at), clock)
        vlsn, at = vlsn + count, at + (size + 7 & ~7)
    many.extend_run(firsts, lasts, lsns, clocks)
    assert one.steps() == many.steps()


def test_a_bound_that_rose_since_a_flush_is_written_with_the_next_one() -> None:
    times = TimeIndex()
    times.extend(1, 5, (4096, 4096), 10)
    times.flush(1, 4096)
    times.extend(6, 9, (8192, 8192), 20)
    assert times.steps() == [(1, 9, 20)]
    puts, drops = times.flush(2, 8192)
    assert [int.from_bytes(value[-8:], "little") for key, value in puts if key != META_KEY] == [20]
    assert drops, "what lies there goes"


def test_a_step_goes_on_in_the_mebibyte_of_its_last_block() -> None:
    times = TimeIndex()
    times.extend(1, 5, (4096, 3 * MIB), UNKNOWN)  # several blocks of unknown clocks
    times.extend(6, 9, (3 * MIB + 4096, 3 * MIB + 8192), 20)
    assert times.steps() == [(1, 9, UNKNOWN)]
    times.extend(10, 10, (4 * MIB, 4 * MIB), 20)
    times.extend(11, 11, (5 * MIB, 5 * MIB), 20)
    assert [first for first, _, _ in times.steps()] == [1, 10, 11]


def test_a_bound_is_lowered_within_one_step_alone_and_never_raised() -> None:
    times = TimeIndex()
    times.extend(1, 9, (4096, 4096), 30)
    times.extend(10, 12, (MIB, MIB), 40)
    kept = times.steps()
    for first, last, clock in ((1, 9, 30), (1, 9, 31), (5, 10, 7), (10, 13, 7)):
        times.lower(first, last, clock)
        assert times.steps() == kept
    times.lower(4, 6, 7)
    assert times.steps() == [(1, 3, 30), (4, 6, 7), (7, 9, 30), (10, 12, 40)]
