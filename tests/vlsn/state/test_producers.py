"""Producers: what the table knows is a function of the log, whatever happened to it on the way."""

from __future__ import annotations

import gc
import sys
from array import array
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from tests.vlsn import strategies
from vlsn.format import block
from vlsn.format.block_heads import BLOCK_DTYPE, produced_of
from vlsn.ids import Vlsn
from vlsn.limits import PRODUCER_REMEMBERED_MAX, PRODUCERS_AT_LEVEL_1
from vlsn.state.handles import Handles
from vlsn.state.log_table import TableChanges
from vlsn.state.producer_lives import SPARE_ROWS, last_of
from vlsn.state.producers import ProducerLimits, Producers, ProducersRecord
from vlsn.state.state_store import StateRecord, StateStore
from vlsnlog.testing.fakes.kv import FakeStores


class Produced(NamedTuple):
    producer: int
    sequence: int
    first: int
    last: int
    term: int


LIMITS = ProducerLimits(producers=3, remembered=2, silent=12, recent=2, least=1)
IDS = range(1, 7)


def model(
    rows: list[Produced], limits: ProducerLimits = LIMITS, limits_set: Sequence[tuple[int, int]] = ()
) -> tuple[dict[int, list[Produced]], int]:
    """Models the producers: submissions without a hole that are remembered, and up to where others were put out for
    room."""
    known: dict[int, list[Produced]] = {}
    evicted_to = 0
    for row in rows:
        life = known.get(row.producer)
        if life is None or life[-1].sequence + 1 != row.sequence or life[-1].last + limits.silent < row.first:
            known.pop(row.producer, None)
            limit = ([limits.producers] + [limit for vlsn, limit in limits_set if vlsn < row.first])[-1]
            while len(known) >= limit:
                oldest = min(known, key=lambda each: known[each][-1].last)
                evicted_to = max(evicted_to, known.pop(oldest)[-1].last)
            known[row.producer] = []
        known[row.producer].append(row)
        heard = sorted(known.values(), key=lambda life: life[-1].last)
        for rank, life in enumerate(reversed(heard)):
            del life[: -(limits.remembered if rank < limits.recent else limits.least)]
    return known, evicted_to


TABLE = ProducerLimits(producers=4, remembered=3, silent=15, recent=2, least=1)


class Table(RuleBasedStateMachine):
    """A log that grows, becomes durable, is rolled back, and is opened again from a checkpoint's record."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[Produced] = []
        self.last = 0
        self.settled = 0
        self.table = Producers(limits=TABLE)
        self.limits_set: list[tuple[int, int]] = []
        self.store = StateStore(FakeStores().open("/state", map_bytes=1))
        self.kept: list[tuple[Callable[[], tuple[ProducersRecord, TableChanges]], int, ProducersRecord]] = []
        """Checkpoints that are not written yet, and what their record is to be, of which VLSN."""
        self.snapshots: list[tuple[Callable[[], ProducersRecord], ProducersRecord]] = []

    @rule(
        producers=st.lists(st.sampled_from([1, 1, 1, 1, 2, 2, 3, 4, 5, 6]), min_size=1, max_size=8),
        wrong=st.sampled_from([None, None, None, None, 0, 7]),
        others=st.sampled_from([0, 0, 0, 1, 5, 14]),
        count=st.integers(1, 3),
    )
    def append(self, producers: list[int], wrong: int | None, others: int, count: int) -> None:
        """The first with ``others`` before it, and perhaps a sequence out of order."""
        for producer in producers:
            self._append(producer, wrong, others, count)
            wrong, others = None, 0

    def _append(self, producer: int, wrong: int | None, others: int, count: int) -> None:
        mine = [row.sequence for row in self.rows if row.producer == producer]
        sequence = wrong if wrong is not None else (mine[-1] + 1 if mine else 0)
        first = self.last + others + 1
        self.last = first + count - 1
        row = Produced(producer, sequence, first, self.last, 1 + len(self.rows) // 5)
        self.rows.append(row)
        self.table.note([row])

    @rule(producers=st.integers(1, 6))
    def set_a_limit(self, producers: int) -> None:
        self.last += 1
        self.limits_set.append((self.last, producers))
        self.table.limit_from(self.last, producers)

    @rule(share=st.floats(0, 1))
    def settle(self, share: float) -> None:
        self.settled = self._between(share)
        self.table.settle(Vlsn(self.settled))

    @rule(share=st.floats(0, 1))
    def roll_back(self, share: float) -> None:
        self.last = self._between(share)
        self.table.truncate(Vlsn(self.last))
        self.rows = [row for row in self.rows if row.last <= self.last]
        self.limits_set = [each for each in self.limits_set if each[0] <= self.last]

    @rule(share=st.floats(0, 1))
    def open_again(self, share: float) -> None:
        self.settled = self._between(share)
        self._open(self.table.snapshot(Vlsn(self.settled))())

    @rule(share=st.floats(0, 1))
    def make_a_checkpoint(self, share: float) -> None:
        self.settled = self._between(share)
        self.table.settle(Vlsn(self.settled))
        self.kept.append((self.table.checkpoint(Vlsn(self.settled)), self.settled, self._fresh(self.settled)))

    @precondition(lambda self: self.kept)
    @rule()
    def write_a_checkpoint(self) -> None:
        """Puts it together later, whatever came meanwhile: what is kept then is what a whole record says."""
        kept, vlsn, whole = self.kept.pop(0)
        table, changes = kept()
        record = StateRecord(vlsn=Vlsn(vlsn), level=2, producers=table)
        self.store.save(record=record, changes={"producers": changes})
        stored = self.store.record()
        assert stored is not None and (stored.producers.keyed, stored.vlsn) == (True, vlsn)
        assert stored.producers.lives == whole.lives
        assert stored.producers.forgotten_to == whole.forgotten_to

    @rule()
    def open_from_the_store(self) -> None:
        while self.kept:
            self.write_a_checkpoint()
        stored = self.store.record()
        if stored is not None:
            self.settled = stored.vlsn
            self._open(stored.producers)

    def _open(self, record: ProducersRecord) -> None:
        """Opens as of what is settled, and reads the log behind it."""
        self.table = Producers(record, TABLE)
        for vlsn, producers in self.limits_set:
            self.table.limit_from(vlsn, producers)
        self.table.note([row for row in self.rows if row.last > self.settled])

    def _fresh(self, upto: int) -> ProducersRecord:
        """Returns the record of a log that is read at once."""
        fresh = Producers(limits=TABLE)
        for vlsn, producers in self.limits_set:
            fresh.limit_from(vlsn, producers)
        fresh.note([row for row in self.rows if row.last <= upto])
        return fresh.snapshot(Vlsn(upto))()

    @rule(share=st.floats(0, 1))
    def take_a_snapshot(self, share: float) -> None:
        """Put together later, whatever was added, settled or undone meanwhile, it says what a record said at once."""
        vlsn = Vlsn(self._between(share))
        self.snapshots.append((self.table.snapshot(vlsn), self.table.snapshot(vlsn)()))

    @invariant()
    def a_snapshot_stays_what_it_was(self) -> None:
        assert all(snapshot() == record for snapshot, record in self.snapshots)

    def _between(self, share: float) -> int:
        """Returns a VLSN from what is settled to the end at which no submission is cut in two."""
        ends = {self.settled, self.last, *(row.first - 1 for row in self.rows), *(row.last for row in self.rows)}
        ends |= {vlsn for vlsn, _ in self.limits_set}
        fit = sorted(end for end in ends if self.settled <= end <= self.last)
        return fit[int(share * (len(fit) - 1))]

    @invariant()
    def it_knows_what_the_log_says(self) -> None:
        known, evicted_to = model(self.rows, TABLE, self.limits_set)
        at = self.last + 1
        assert len(self.table) == len(known)
        assert self.table.forgotten_to(at=at) == max(evicted_to, at - TABLE.silent - 1, 0)
        for producer in IDS:
            life = self.table.find(producer, at=at)
            mine = known.get(producer)
            if mine is None or mine[-1].last + TABLE.silent < at:
                assert life is None
                continue
            assert life is not None
            assert life.next == mine[-1].sequence + 1
            places = {row.sequence: (row.first, row.last, row.term) for row in mine}
            for sequence in range(life.next + 2):
                assert life.place(sequence, self.table.limits) == places.get(sequence)

    @invariant()
    def who_is_unknown_and_was_born_after_all_forgotten_was_never_logged(self) -> None:
        at = self.last + 1
        forgotten_to = self.table.forgotten_to(at=at)
        for producer in IDS:
            if self.table.find(producer, at=at) is None:
                assert all(row.last <= forgotten_to for row in self.rows if row.producer == producer)

    @precondition(lambda self: self.rows)
    @invariant()
    def its_record_is_that_of_a_log_read_at_once(self) -> None:
        assert self.table.snapshot(Vlsn(self.last))() == self._fresh(self.last)


def test_the_table_and_what_is_kept_of_it_are_what_the_log_says() -> None:
    run_state_machine_as_test(Table)


def noted(table: Producers, producers: Sequence[int], first: int) -> None:
    """Notes a submission of each, from VLSN ``first`` on."""
    for vlsn, producer in enumerate(producers, first):
        life = table.find(producer, at=vlsn)
        table.note([Produced(producer, life.next if life is not None else 0, vlsn, vlsn, 1)])


def test_what_was_copied_stays_so_though_others_come_in_place_of_what_it_knew() -> None:
    """Life 1 is what the rollback leaves as it was; then it goes on, with VLSNs that the copies are of."""
    table = Producers(limits=TABLE)
    noted(table, [1, 2, 2, 2], 1)
    whole, snapshot, checkpoint = table.snapshot(Vlsn(4))(), table.snapshot(Vlsn(4)), table.checkpoint(Vlsn(4))
    table.truncate(Vlsn(2))
    noted(table, [1, 1], 3)
    assert snapshot() == whole
    record, changes = checkpoint()
    puts = sorted((life for _, life in changes.puts), key=last_of)
    assert (b"".join(puts), record.count) == (whole.lives, 2)
    assert table.find(1, at=5) is not None and table.snapshot(Vlsn(2))() != whole


def test_a_checkpoint_writes_lives_that_were_cut_short_and_takes_away_those_that_went() -> None:
    table, store = Producers(limits=TABLE), StateStore(FakeStores().open("/state", map_bytes=1))
    last = 0
    for producers in ([1, 1, 1], [2, 3], [4, 5]):
        for producer in producers:
            last += 1
            life = table.find(producer, at=last)
            table.note([Produced(producer, life.next if life is not None else 0, last, last, 1)])
        table.settle(Vlsn(last))
        kept, changes = table.checkpoint(Vlsn(last))()
        store.save(record=StateRecord(vlsn=Vlsn(last), level=2, producers=kept), changes={"producers": changes})
        stored = store.record()
        assert stored is not None
        assert stored.producers.lives == table.snapshot(Vlsn(last))().lives
    assert table.find(1, at=last + 1) is None, "it made room"


def steps_of(call: Callable[[], object]) -> int:
    """Counts the interpreter's instructions in what Python code ``call`` runs."""
    steps = 0

    def count(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal steps
        frame.f_trace_opcodes = True
        steps += event == "opcode"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        call()
    finally:
        sys.settrace(before)
    return steps


@pytest.mark.parametrize("handles", [False, True])
def test_a_checkpoint_costs_its_caller_the_same_however_many_changed(handles: bool) -> None:
    """The event loop is the caller: 50,000 that changed may not hold it up."""
    took = {}
    for changed in (10, 2_000):
        table = Handles(most=5_000) if handles else Producers(limits=ProducerLimits(producers=5_000, recent=100))
        table.checkpoint(Vlsn(0))()
        table.note([(number, 0, number, number, 1) for number in range(1, changed + 1)])
        table.settle(Vlsn(changed))
        put_together: list[Callable[[], tuple[ProducersRecord, TableChanges]]] = []
        took[changed] = steps_of(lambda: put_together.append(table.checkpoint(Vlsn(changed))))  # noqa: B023
        record, changes = put_together[0]()
        assert record.count == len(list(changes.puts)) == changed
    assert 0 < took[2_000] < took[10] + 200


def test_the_garbage_collector_does_not_look_at_lives() -> None:
    """A full collection holds up everything for as long as it takes to look at all there is."""
    table = Producers()
    table.note([(number, 0, number, number, 1) for number in range(1, 100)])
    lives = list(table._lives())
    assert len(lives) == 99
    assert not any(gc.is_tracked(each) or gc.is_tracked(each.rows) for each in lives)


def test_memory_is_bounded_by_the_limits() -> None:
    table = Producers()
    for round_ in range(3):
        first = 1 + round_ * 3000 * 40
        table.note(
            Produced(1 + number % 3000 + 2000 * round_, number // 3000, first + number, first + number, 1)
            for number in range(3000 * 40)
        )
        table.settle(Vlsn(first + 3000 * 40 - 1))
    assert len(table) == PRODUCERS_AT_LEVEL_1
    table.note(Produced(5, number, 10**6 + number, 10**6 + number, 1) for number in range(3 * PRODUCER_REMEMBERED_MAX))
    table.settle(Vlsn(2 * 10**6))
    life = table.find(5, at=2 * 10**6)
    assert life is not None
    assert len(life) <= PRODUCER_REMEMBERED_MAX + SPARE_ROWS


def lives(*words: int) -> bytes:
    return array("Q", words).tobytes()


@pytest.mark.parametrize(
    "bad",
    [
        lives(1)[:-1],
        lives(1, 0),
        lives(1, 0, 0),
        lives(0, 0, 1, 5, 5, 1),
        lives(1, 0, 1, 5, 5),
        lives(1, 0, 2**63, 5, 5, 1),
        lives(1, 2**63 - 1, 1, 5, 5, 1),
        lives(1, 0, 1, 0, 5, 1),
        lives(1, 0, 1, 6, 5, 1),
        lives(1, 0, 1, 5, 2**63, 1),
        lives(1, 0, 2, 5, 6, 6, 7, 1, 1),
        lives(1, 0, 1, 5, 5, 1, 1, 1, 1, 6, 6, 1),
        lives(1, 0, 1, 5, 5, 1, 2, 0, 1, 5, 5, 1),
    ],
)
def test_a_record_that_can_be_no_log_is_refused(bad: bytes) -> None:
    ProducersRecord(0, lives(1, 0, 2, 5, 6, 5, 7, 1, 1, 2, 3, 1, 8, 8, 1)).check(9)
    with pytest.raises(ValueError, match=r"producers|bytes"):
        ProducersRecord(0, bad).check(9)


@given(st.lists(strategies.blocks(), min_size=1, max_size=6))
def test_many_blocks_are_read_as_each_of_them_alone(blocks: list[bytes]) -> None:
    buf, at, headers, expected = bytearray(8), [], [], []
    for data in blocks:
        header = block.decode(data)
        if header.layout.producers >= 0:
            at.append(len(buf))
            headers.append(data[: block.BLOCK_BYTES])
            expected += block.producers(data, header)
        buf += data + bytes(-len(data) % 8)
    if at:
        rows = np.frombuffer(b"".join(headers), BLOCK_DTYPE)
        assert produced_of(bytes(buf), np.array(at, np.int64), rows) == expected


@st.composite
def logs(draw: st.DrawFn) -> list[Produced]:
    """Submissions of a few producers, some out of order, with other entries between them."""
    rows: list[Produced] = []
    next_of: dict[int, int] = {}
    last = 0
    for _ in range(draw(st.integers(1, 30))):
        producer = draw(st.sampled_from([1, 1, 1, 2, 2, 3, 4, 5]))
        sequence = draw(st.sampled_from([next_of.get(producer, 0)] * 9 + [0, 7]))
        first = last + 1 + draw(st.sampled_from([0, 0, 0, 1, 5, 14]))
        last = first + draw(st.integers(0, 2))
        rows.append(Produced(producer, sequence, first, last, 1 + len(rows) // 5))
        next_of[producer] = sequence + 1
    return rows


def fill(lacking: Producers, record: ProducersRecord, at: int) -> None:
    known = Producers(record, LIMITS)
    lacking.check_fill(known, Vlsn(at))
    lacking.fill(known, Vlsn(at))


@given(logs(), st.data())
def test_a_table_that_lacks_its_beginning_becomes_whole_by_another_copys(
    rows: list[Produced], data: st.DataObject
) -> None:
    """The table becomes whole whatever each of the two has settled, up to any point, and taken back since."""
    ends = [0, *(row.last for row in rows)]
    lacks_to = data.draw(st.sampled_from(ends[:-1]), "the log was cleaned up to")
    at = data.draw(st.sampled_from([end for end in ends if end >= lacks_to]), "the other's table is of")
    settled = data.draw(st.sampled_from([end for end in ends if lacks_to <= end <= at]), "settled here up to")
    whole, lacking = Producers(limits=LIMITS), Producers(limits=LIMITS)
    whole.note(rows)
    whole.settle(Vlsn(data.draw(st.sampled_from([end for end in ends if end <= at]), "and there up to")))
    lacking.lose_before(Vlsn(lacks_to + 1))
    lacking.note(row for row in rows if row.first > lacks_to)
    lacking.settle(Vlsn(settled))
    if data.draw(st.booleans(), "opened again"):
        lacking = Producers(lacking.snapshot(Vlsn(settled))(), LIMITS)
        lacking.note(row for row in rows if row.first > settled)
    assert lacking.lacks_to == lacks_to
    if not lacks_to:
        return
    fill(lacking, whole.snapshot(Vlsn(at))(), at)
    assert not lacking.lacks_to
    for end in sorted((end for end in ends if end >= at), reverse=True):
        fresh = Producers(limits=LIMITS)
        fresh.note(row for row in rows if row.last <= end)
        lacking.truncate(Vlsn(end))
        assert lacking.snapshot(Vlsn(end))() == fresh.snapshot(Vlsn(end))()


def lacking_and_whole() -> tuple[Producers, ProducersRecord]:
    """Returns one that lacks all before VLSN 4, and the record of one that lacks nothing, as of 6."""
    rows = [Produced(1, 0, 1, 1, 1), Produced(2, 0, 2, 3, 1), Produced(1, 1, 4, 5, 1), Produced(3, 0, 6, 6, 1)]
    whole, lacking = Producers(limits=LIMITS), Producers(limits=LIMITS)
    whole.note(rows)
    lacking.lose_before(Vlsn(4))
    lacking.note(rows[2:])
    return lacking, whole.snapshot(Vlsn(6))()


@pytest.mark.parametrize(
    "words",
    [
        (1, 0, 2, 1, 4, 1, 4, 1, 1, 3, 0, 1, 6, 6, 1),  # another end
        (1, 1, 2, 1, 4, 1, 5, 1, 1, 3, 0, 1, 6, 6, 1),  # another sequence
        (1, 0, 2, 1, 4, 1, 5, 1, 2, 3, 0, 1, 6, 6, 1),  # another term
        (1, 0, 1, 1, 1, 1, 3, 0, 1, 6, 6, 1),  # one submission less
        (1, 0, 2, 1, 4, 1, 5, 1, 1),  # one producer less, though nobody was put out
        (1, 0, 2, 1, 4, 1, 5, 1, 1, 4, 0, 1, 5, 6, 1),  # one that is not here
        (1, 0, 2, 1, 4, 1, 5, 1, 1, 3, 0, 1, 7, 7, 1),  # behind the VLSN that it is of
        (1, 0, 3, 1, 2, 4, 1, 2, 5, 1, 1, 1, 3, 0, 1, 6, 6, 1),  # more of one than is remembered
        (4, 0, 1, 1, 1, 1, 2, 0, 1, 2, 3, 1, 1, 1, 1, 4, 5, 1, 3, 0, 1, 6, 6, 1),  # more than there may be
    ],
)
def test_a_table_that_says_other_than_the_log_is_not_taken(words: tuple[int, ...]) -> None:
    lacking, good = lacking_and_whole()
    before = lacking.snapshot(Vlsn(6))()
    bad = ProducersRecord(0, lives(*words))
    bad.check(9)
    with pytest.raises(ValueError, match="producer"):
        lacking.check_fill(Producers(bad, LIMITS), Vlsn(6))
    assert lacking.snapshot(Vlsn(6))() == before
    fill(lacking, good, 6)


def test_a_table_that_is_no_better_or_of_another_vlsn_than_it_says_is_not_taken() -> None:
    lacking, good = lacking_and_whole()
    with pytest.raises(ValueError, match="lost up to VLSN 3"):
        lacking.check_fill(Producers(lacking.snapshot(Vlsn(6))(), LIMITS), Vlsn(6))
    one_more = (1, 0, 2, 1, 4, 1, 5, 1, 1, 3, 0, 1, 6, 6, 1, 4, 0, 1, 7, 7, 1)
    for later in (ProducersRecord(0, lives(*one_more)), ProducersRecord(7, good.lives)):
        with pytest.raises(ValueError, match="as of VLSN 6 that submitted later"):
            lacking.check_fill(Producers(later, LIMITS), Vlsn(6))
    lacking.settle(Vlsn(6))
    with pytest.raises(ValueError, match="exact from 6"):
        lacking.check_fill(Producers(good, LIMITS), Vlsn(5))
    fill(lacking, good, 6)
    assert lacking.snapshot(Vlsn(6))() == good
