"""The index after an open is the log's, whatever became of its store; rot is mended."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.vlsn.index import inspect
from tests.vlsn.logs import DIRECTORY, Machine, Opened, Undurable
from tests.vlsn.oracle import places
from tests.vlsn.write.test_rollback import rolled_back
from vlsn.errors import Damaged, LogFailed
from vlsn.format.segment import FIRST_FRAME, segment_name
from vlsn.ids import Vlsn
from vlsn.index.stored import RECORD_KEY, UNFINISHED, Record, decode_record
from vlsnlog.testing.fakes.kv import Contents

INDEX = f"{DIRECTORY}/index"


def fill(opened: Opened, count: int, size: int = 5_000) -> None:
    """Blocks that are mapped one in ten."""
    for number in range(count):
        assert opened.append(str(number).encode().ljust(size, b".")).synced


def check_index(opened: Opened) -> None:
    """Range, every mapping and every lookup are what the bytes of the segments say."""
    log, index = places(opened.machine.disk, DIRECTORY), opened.log.view.index
    held = index.range
    assert (held.first, held.last, held.last_sync) == (min(log), max(last for last, _ in log.values()), held.last)
    inspect.verify(index)
    mapped = dict(inspect.mappings(index))
    assert mapped == {vlsn: log[vlsn][1] for vlsn in mapped}
    for first, (last, at) in log.items():
        before, after = index.at_or_before(Vlsn(last)), index.at_or_after(Vlsn(first))
        assert before is not None
        assert after is not None
        assert before == (max(vlsn for vlsn in mapped if vlsn <= last), mapped[before[0]])
        assert after == (min((vlsn for vlsn in mapped if vlsn >= first), default=max(mapped)), mapped[after[0]])
        assert before[1] >> 32 == at >> 32 or mapped[before[0]] < at
        assert at - before[1] <= 100_000 or before[1] >> 32 != at >> 32, "not further than the largest distance"
    assert mapped[held.first] == log[held.first][1]


def two_checkpoints() -> tuple[Machine, Opened, list[Contents]]:
    """Returns a killed log, and the store of its index as of each of its checkpoints."""
    machine = Machine()
    opened = Opened(machine)
    images = []
    for count in (70, 40):
        fill(opened, count)
        opened.log.care.checkpointer.run()
        images.append(machine.stores.snapshot(INDEX))
    fill(opened, 9)
    machine.kill()
    return machine, opened, images


def lost(machine: Machine, images: list[Contents]) -> None:
    del machine.stores.contents[INDEX]


def older(machine: Machine, images: list[Contents]) -> None:
    machine.stores.restore(INDEX, images[0])


def unreadable(machine: Machine, images: list[Contents]) -> None:
    machine.stores.unreadable.add(INDEX)


def newer(machine: Machine, images: list[Contents]) -> None:
    """Stores a record of a checkpoint that this log has not seen."""
    record = decode_record(machine.stores.snapshot(INDEX).values[RECORD_KEY][0])
    machine.stores.contents[INDEX].put(RECORD_KEY, Record(9, record.range, record.owner).encode())


def unfinished(machine: Machine, images: list[Contents]) -> None:
    record = decode_record(machine.stores.snapshot(INDEX).values[RECORD_KEY][0])
    machine.stores.contents[INDEX].put(RECORD_KEY, Record(UNFINISHED, record.range, record.owner).encode())


def of_another_store(machine: Machine, images: list[Contents]) -> None:
    """The same checkpoint id, from a log that a like-named node wrote."""
    other = Machine(seed=1)
    opened = Opened(other)
    fill(opened, 90, size=4_000)
    for _ in range(2):
        fill(opened, 20)
        opened.log.care.checkpointer.run()
    machine.stores.restore(INDEX, other.stores.snapshot(INDEX))


def of_another_time(machine: Machine, images: list[Contents]) -> None:
    """This store's own, of a life in which the same VLSNs lay elsewhere."""
    record = decode_record(machine.stores.snapshot(INDEX).values[RECORD_KEY][0])
    of_another_store(machine, images)
    theirs = decode_record(machine.stores.snapshot(INDEX).values[RECORD_KEY][0])
    machine.stores.contents[INDEX].put(RECORD_KEY, Record(record.checkpoint_id, theirs.range, record.owner).encode())


def with_less_than_the_log(machine: Machine, images: list[Contents]) -> None:
    """The pointer's id over the buckets of the checkpoint before."""
    record = decode_record(images[0].values[RECORD_KEY][0])
    machine.stores.restore(INDEX, images[0])
    machine.stores.contents[INDEX].put(RECORD_KEY, Record(2, record.range, record.owner).encode())


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lost, "there was none"),
        (older, "of checkpoint 1"),
        (unreadable, "not a store"),
        (newer, "of checkpoint 9"),
        (unfinished, "of checkpoint"),
        (of_another_store, "of the store"),
        (of_another_time, "is not at"),
        (with_less_than_the_log, "the log continues after"),
    ],
    ids=lambda spoil: getattr(spoil, "__name__", ""),
)
def test_an_index_that_is_not_this_logs_is_built_anew_once(
    spoil: Callable[[Machine, list[Contents]], None], why: str
) -> None:
    machine, _, images = two_checkpoints()
    good = Opened(machine)
    assert good.notes == []
    check_index(good)
    machine.kill()
    spoil(machine, images)
    opened = Opened(machine)
    assert any("built anew" in note for note in opened.notes), opened.notes
    assert any(why in note for note in opened.notes), opened.notes
    check_index(opened)
    machine.kill()
    again = Opened(machine)
    assert not any("anew" in note for note in again.notes), "what was built is durable"
    check_index(again)


@pytest.mark.parametrize("lose", [False, True], ids=["there", "lost"])
@pytest.mark.parametrize("at", [0, 40], ids=["frame", "block"])
def test_rot_in_the_first_block_is_no_later_beginning(at: int, lose: bool) -> None:
    """An index that is built anew over it would begin behind it, as if that had been cleaned away."""
    machine, _, _ = two_checkpoints()
    if lose:
        lost(machine, [])
    machine.disk.flip_bit(f"{DIRECTORY}/{segment_name(1)}", FIRST_FRAME + at, 3)
    with pytest.raises(Damaged) as raised:
        Opened(machine)
    assert (raised.value.file, raised.value.offset, raised.value.vlsn) == (segment_name(1), FIRST_FRAME, 1)


@pytest.mark.parametrize("lose", [False, True], ids=["there", "lost"])
def test_an_index_that_was_built_over_rot_in_the_first_block_is_built_anew_once_that_is_mended(lose: bool) -> None:
    """The index was stored, and fits its source: only the log's beginning says that it lacks something."""
    machine, _, _ = two_checkpoints()
    if lose:
        lost(machine, [])
    path = f"{DIRECTORY}/{segment_name(1)}"
    good = machine.disk.content(path)
    machine.disk.flip_bit(path, FIRST_FRAME, 3)
    with pytest.raises(Damaged):
        Opened(machine)
    machine.disk.write_content(path, good)
    opened = Opened(machine)
    assert any("begins at VLSN 2, the log at 1" in note for note in opened.notes), opened.notes
    check_index(opened)


@given(which=st.integers(0, 40), bit=st.integers(0, 10_000))
@settings(max_examples=max(1, settings().max_examples // 4))
def test_any_value_of_the_index_that_rotted_is_noticed_and_made_good(which: int, bit: int) -> None:
    machine, _, _ = two_checkpoints()
    keys = machine.stores.contents[INDEX].keys
    machine.stores.corrupt(INDEX, keys[which % len(keys)], bit=bit)
    opened = Opened(machine)
    for vlsn in range(1, opened.log.view.range.last + 1):
        assert opened.log.view.index.at_or_before(Vlsn(vlsn)) is not None
    opened.log.tick()  # mends what a lookup met
    assert not opened.log.view.index.wounded
    check_index(opened)


def test_a_bucket_that_rots_while_the_log_is_open_costs_no_answer_and_is_mended_at_the_next_tick() -> None:
    machine = Machine()
    opened = Opened(machine)
    fill(opened, 150)
    opened.log.care.checkpointer.run()
    held = opened.entries()
    keys = machine.stores.contents[INDEX].keys
    for key in (keys[0], keys[2], keys[3], keys[-2]):
        machine.stores.corrupt(INDEX, key)
    assert opened.entries() == held
    for vlsn in held:
        mapping = opened.log.view.index.at_or_before(Vlsn(vlsn))
        assert mapping is not None
        assert mapping[0] <= vlsn
    flushes = opened.log.view.index.stats.flushes
    opened.log.tick()
    check_index(opened)
    opened.log.tick()
    assert opened.log.view.index.stats.flushes == flushes + 1, "once"
    assert opened.entries() == held
    machine.kill()
    check_index(Opened(machine))


def test_a_rotten_block_does_not_keep_the_index_from_being_built() -> None:
    machine, _, images = two_checkpoints()
    opened = Opened(machine)
    held, last = opened.entries(), opened.log.view.range.last
    opened.log.care.checkpointer.run()
    vlsn = next(vlsn for vlsn, _ in inspect.mappings(opened.log.view.index) if vlsn > 25)
    machine.kill()
    at = places(machine.disk, DIRECTORY)[vlsn][1]
    path = f"{DIRECTORY}/{at >> 32:08d}.vlog"
    content = bytearray(machine.disk.content(path))
    content[(at & 0xFFFF_FFFF) + 200] ^= 1
    machine.disk.write_content(path, bytes(content))
    lost(machine, images)
    again = Opened(machine, take_term=False)
    assert (again.log.view.range.first, again.log.view.range.last) == (1, last)
    index = again.log.view.index
    for each in held:
        mapping = index.at_or_before(Vlsn(each))
        assert mapping is not None
        assert mapping[0] != vlsn
    inspect.verify(index)


# Rollbacks in what is read again.

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 14)),
        st.tuples(st.just("checkpoint"), st.just(0)),
        st.tuples(st.just("roll back"), st.integers(0, 30)),
        st.tuples(st.just("durable"), st.integers(0, 20)),
        st.tuples(st.just("rotate"), st.just(0)),
        st.tuples(st.just("reopen"), st.just(0)),
        st.tuples(st.just("reopen cleanly"), st.just(0)),
    ),
    min_size=1,
    max_size=12,
)


class Undecided(Undurable):
    """A test's decision on what is durable: the steps say."""

    durable = 0

    def synced(self, last_vlsn: Vlsn) -> None:
        known = self.log.view.dtvlsn
        super().synced(last_vlsn)
        self.log.view.dtvlsn = known


def play(steps: list[tuple[str, int]]) -> Machine:
    machine = Machine()
    opened = Undecided(machine)
    for step, number in steps:
        ends = sorted(last for last, _ in places(machine.disk, DIRECTORY).values())
        chosen = Vlsn(max(ends[max(0, len(ends) - 1 - number)], opened.log.view.dtvlsn))
        if step == "append":
            fill(opened, number)
        elif step == "checkpoint":
            opened.log.care.checkpointer.run()
        elif step == "durable":
            opened.log.view.raise_dtvlsn(chosen)
        elif step == "rotate":
            opened.log.cycle.rotate("request", lambda _: None)
        elif step == "roll back":
            rolled_back(opened, chosen)
            check_index(opened)
            opened.take_term()
        else:
            if step == "reopen cleanly":
                opened.close()
            machine.kill()
            opened = Undecided(machine)
        check_index(opened)
    machine.kill()
    return machine


def nested(*rollbacks: int, checkpoint_at: int) -> list[tuple[str, int]]:
    steps = [("append", 25), *(step for number in rollbacks for step in (("roll back", number), ("append", 4)))]
    return [*steps[:checkpoint_at], ("durable", 14), ("checkpoint", 0), *steps[checkpoint_at:]]


@given(steps=STEPS)
@example(nested(12, 6, checkpoint_at=3))
@example(nested(6, 3, checkpoint_at=1))
@example(nested(6, 6, checkpoint_at=5))
@example(nested(6, 0, 9, checkpoint_at=2))
@settings(max_examples=max(1, settings().max_examples // 2))
def test_any_rollbacks_between_any_checkpoints_leave_the_index_that_the_log_says(steps: list[tuple[str, int]]) -> None:
    machine = play(steps)
    check_index(Opened(machine, take_term=False))
    lost(machine, [])
    machine.kill()
    check_index(Opened(machine, take_term=False))


@pytest.mark.parametrize("failing", ["write", "sync"])
@pytest.mark.parametrize("blocks", [0, 1, 2], ids=lambda blocks: f"{blocks} blocks between")
def test_the_index_after_a_segment_was_replaced_under_checkpoints_that_follow_close(blocks: int, failing: str) -> None:
    """Frames of checkpoints that were synced are not written again: the pointer's place may be dead then."""

    def story(number: int) -> Machine:
        machine = Machine()
        opened = Opened(machine)
        fill(opened, 20, size=300)
        begun = len(machine.disk.calls)
        machine.disk.fail_at(
            lambda call: call.number == begun + number and call.name == failing and call.path.endswith(".vlog")
        )
        for _ in range(3):
            opened.log.care.checkpointer.run()
            fill(opened, blocks, size=100)
        assert opened.failure is None
        check_index(opened)
        length.append(len(machine.disk.calls) - begun)
        replaced.append(opened.log.stats.write_errors)
        return machine

    length: list[int] = []
    replaced: list[int] = []
    story(0)
    for number in range(1, length[0] + 1):
        machine = story(number)
        machine.kill()
        opened = Opened(machine, take_term=False)
        assert opened.log.view.range.last == 21 + 3 * blocks
        assert not any("anew" in note for note in opened.notes), opened.notes
        check_index(opened)
        lost(machine, [])
        machine.kill()
        check_index(Opened(machine, take_term=False))
    assert sum(replaced) >= 6 + 3 * blocks


@pytest.mark.parametrize("past", [[10, 0], [5, 2, 0], [0], [0, 0]], ids=str)
def test_what_is_read_again_may_be_nothing_but_rollbacks(past: list[int]) -> None:
    """The checkpoint's scan begins right behind the durable end, and all from there on was abandoned."""
    machine = Machine()
    opened = Undecided(machine)
    fill(opened, 29)
    durable = next(vlsn for vlsn, _ in inspect.mappings(opened.log.view.index) if vlsn > 12) - 1
    opened.log.view.raise_dtvlsn(Vlsn(durable))
    opened.log.care.checkpointer.run()
    fill(opened, 9)
    for distance in past:
        rolled_back(opened, durable + distance)
        check_index(opened)
    index = machine.stores.snapshot(INDEX)
    machine.kill()
    again = Opened(machine, take_term=False)
    assert again.log.view.range.last == durable
    assert not any("anew" in note for note in again.notes)
    check_index(again)
    machine.kill()
    del machine.stores.contents[INDEX]
    machine.stores.restore(INDEX, index)
    check_index(Opened(machine, take_term=False))


# Building anew, stopped.


def test_a_build_that_is_stopped_at_any_flush_begins_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vlsn.recover.stored_index.FLUSH_WINDOWS", 1)  # a flush a segment
    for writes in range(20):
        machine, _, images = two_checkpoints()
        lost(machine, images)
        machine.stores.fail_writes_after = machine.stores.writes + writes
        try:
            opened = Opened(machine, take_term=False)
        except LogFailed:
            if writes:
                assert decode_record(machine.stores.contents[INDEX].values[RECORD_KEY][0]).checkpoint_id == UNFINISHED
            machine.stores.fail_writes_after = None
            machine.kill()
            opened = Opened(machine, take_term=False)
            assert any("anew" in note for note in opened.notes)
            check_index(opened)
        else:
            assert writes >= 9, "a flush for each of the segments, and the last"
            check_index(opened)
            return
    raise AssertionError("it never came to an end")


def test_a_mend_that_is_stopped_leaves_the_wound_or_what_healed_it() -> None:
    for writes in range(4):
        machine = Machine()
        opened = Opened(machine)
        fill(opened, 150)
        opened.log.care.checkpointer.run()
        keys = list(machine.stores.contents[INDEX].keys)
        for key in (keys[1], keys[4]):
            machine.stores.corrupt(INDEX, key)
        for vlsn in range(1, 151):
            assert opened.log.view.index.at_or_before(Vlsn(vlsn)) is not None
        machine.stores.fail_writes_after = machine.stores.writes + writes
        opened.log.tick()
        assert (opened.failure is None) == (writes == 4), "two wounds, the flush, the pointer"
        machine.stores.fail_writes_after = None
        machine.kill()
        again = Opened(machine)
        for vlsn in range(1, 151):
            assert again.log.view.index.at_or_before(Vlsn(vlsn)) is not None
        again.log.tick()
        check_index(again)
