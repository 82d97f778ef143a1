"""The table of transactions named by their handles, against the producers' table, which is the same and slower."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vlsn.format.producer_columns import HANDLE_SEQUENCE, Produced
from vlsn.ids import Vlsn
from vlsn.state.handles import Handles
from vlsn.state.history import History
from vlsn.state.log_table import TableChanges
from vlsn.state.producers import ProducerLimits, Producers, ProducersRecord

MOST = 4
SILENT = 60
LIMITS = ProducerLimits(producers=MOST, remembered=1, silent=SILENT, recent=MOST)


class Pair:
    """Both tables of one log, and what checkpoints have kept of the one that is tested."""

    def __init__(self) -> None:
        self.model = Producers(limits=LIMITS)
        self.table = Handles(most=MOST, silent=SILENT)
        self.kept: dict[int, bytes] = {}
        self.kept_record = ProducersRecord()
        self.last = self.durable = 0
        self.known: set[int] = set()

    def note(self, handles: list[int]) -> None:
        rows: list[Produced] = []
        for handle in handles:
            rows.append((handle, HANDLE_SEQUENCE, self.last + 1, self.last + 3, 1))
            self.last += 3
            self.known.add(handle)
        self.model.note(rows)
        self.table.note(rows)

    def pass_by(self, count: int) -> None:
        self.last += count

    def settle(self, share: float) -> None:
        self.durable = max(self.durable, int(self.last * share))
        self.model.settle(Vlsn(self.durable))
        self.table.settle(Vlsn(self.durable))

    def roll_back(self, share: float) -> None:
        self.last = self.durable + int((self.last - self.durable) * share)
        self.model.truncate(Vlsn(self.last))
        self.table.truncate(Vlsn(self.last))

    def checkpoint(self, share: float) -> None:
        at = Vlsn(self.durable + int((self.last - self.durable) * share))
        record, changes = self.table.checkpoint(at)()
        assert isinstance(changes, TableChanges)
        if changes.whole:
            self.kept.clear()
        for handle in changes.deletes:
            self.kept.pop(handle, None)
        self.kept.update(changes.puts)
        assert len(self.kept) == record.count
        assert b"".join(sorted(self.kept.values())) == b"".join(sorted(lives(self.table.snapshot(at)())))
        self.kept_record = record

    def reopen(self, share: float) -> None:
        at = Vlsn(self.durable + int((self.last - self.durable) * share))
        record = self.table.snapshot(at)()
        self.last = int(at)
        self.durable = min(self.durable, self.last)
        self.model, self.table = Producers(record, LIMITS), Handles(record, most=MOST, silent=SILENT)

    def forget(self) -> None:
        self.model.forget_before(Vlsn(self.last // 2))
        self.table.forget_before(Vlsn(self.last // 2))

    def check(self) -> None:
        at = self.last + 1
        assert len(self.table) == len(self.model)
        assert self.table.forgotten_to(at=at) == self.model.forgotten_to(at=at)
        for handle in self.known:
            life = self.model.find(handle, at=at)
            place = life.place(HANDLE_SEQUENCE, self.model.limits) if life is not None else None
            assert self.table.find(handle, at=at) == place
        for vlsn in (self.durable, self.last):
            mine, theirs = self.table.snapshot(Vlsn(vlsn))(), self.model.snapshot(Vlsn(vlsn))()
            assert (mine.forgotten_to, mine.lives) == (theirs.forgotten_to, theirs.lives)


def lives(record: ProducersRecord) -> list[bytes]:
    return [record.lives[at : at + 48] for at in range(0, len(record.lives), 48)]


SHARES = st.sampled_from((0.0, 0.3, 0.7, 1.0))
STEPS: st.SearchStrategy[Callable[[Pair], None]] = st.one_of(
    st.lists(st.integers(1, 9), min_size=1, max_size=6).map(lambda each: lambda pair: pair.note(each)),
    st.integers(1, SILENT).map(lambda each: lambda pair: pair.pass_by(each)),
    SHARES.map(lambda each: lambda pair: pair.settle(each)),
    SHARES.map(lambda each: lambda pair: pair.roll_back(each)),
    SHARES.map(lambda each: lambda pair: pair.checkpoint(each)),
    st.lists(st.integers(1, 9), min_size=1, max_size=3).map(lambda each: lambda pair: pair.note(each)),
    SHARES.map(lambda each: lambda pair: pair.checkpoint(each)),
    SHARES.map(lambda each: lambda pair: pair.reopen(each)),
    st.just(lambda pair: pair.forget()),
)


@settings(max_examples=600)
@given(st.lists(STEPS, max_size=25))
def test_it_says_what_the_producers_table_says_of_names_that_come_once(steps: list[Callable[[Pair], None]]) -> None:
    pair = Pair()
    pair.note([1, 2, 3])
    pair.checkpoint(1.0)
    for step in steps:
        step(pair)
        pair.check()


def test_a_commit_that_was_rolled_back_is_not_kept_by_a_checkpoint_past_its_vlsns() -> None:
    pair = Pair()
    pair.note([1, 2, 3])
    pair.settle(1.0)
    pair.checkpoint(1.0)
    pair.note([4])
    pair.roll_back(0.0)
    pair.pass_by(9)
    pair.settle(1.0)
    pair.checkpoint(1.0)
    assert sorted(pair.kept) == [1, 2, 3]


def test_changes_are_bounded_whatever_happens_between_two_checkpoints() -> None:
    table = Handles(most=MOST)
    table.checkpoint(Vlsn(0))()
    for at in range(1, 100):
        table.note([(at, HANDLE_SEQUENCE, 2 * at, 2 * at + 1, 1)])
    record, changes = table.checkpoint(Vlsn(199))()
    assert (len(list(changes.puts)), record.count) == (MOST, MOST)
    assert len(changes.deletes) <= 2 * MOST


@pytest.mark.parametrize("settled", [0, 10])
def test_what_was_put_out_for_room_comes_back_with_a_rollback(settled: int) -> None:
    table = Handles(most=2)
    table.note([(1, HANDLE_SEQUENCE, 1, 2, 1), (2, HANDLE_SEQUENCE, 3, 4, 1), (3, HANDLE_SEQUENCE, 11, 12, 1)])
    assert table.find(1, at=13) is None and table.forgotten_to(at=13) == 2
    table.settle(Vlsn(settled))
    table.truncate(Vlsn(10))
    assert table.find(1, at=11) == (1, 2, 1) and table.find(3, at=11) is None and table.forgotten_to(at=11) == 0


def test_commits_from_before_a_lost_beginning_may_be_forgotten() -> None:
    """A log that was cleaned and has lost its state cannot say that a commit of back then was never logged."""
    history = History()
    history.lose_before(Vlsn(10))
    assert history.commits.forgotten_to(at=11) >= 9


@given(gaps=st.lists(st.integers(0, 3), min_size=1, max_size=20), data=st.data())
def test_a_table_that_lacks_its_beginning_becomes_whole_by_another_copys(gaps: list[int], data: st.DataObject) -> None:
    """Whatever made room in each of them, and whatever each has settled."""
    rows: list[Produced] = []
    last = 0
    for handle, gap in enumerate(gaps, 1):
        last += gap + 1
        rows.append((handle, HANDLE_SEQUENCE, last, last, 1))
    ends = [0, *(row[3] for row in rows)]
    lacks_to, settled, at = sorted(data.draw(st.sampled_from(ends)) for _ in range(3))
    whole, lacking = Handles(most=MOST, silent=SILENT), Handles(most=MOST, silent=SILENT)
    whole.note(rows)
    lacking.lose_before(Vlsn(lacks_to + 1))
    lacking.note(row for row in rows if row[2] > lacks_to)
    lacking.settle(Vlsn(settled))
    known = Handles(whole.snapshot(Vlsn(at))(), most=MOST, silent=SILENT)
    lacking.check_fill(known, Vlsn(at))
    lacking.fill(known, Vlsn(at))
    for vlsn in [end for end in ends if end >= at]:
        assert lacking.snapshot(Vlsn(vlsn))() == whole.snapshot(Vlsn(vlsn))()


def test_a_table_of_another_log_or_of_later_is_not_taken() -> None:
    lacking = Handles(most=MOST, silent=SILENT)
    lacking.lose_before(Vlsn(3))
    lacking.note([(7, HANDLE_SEQUENCE, 5, 5, 1)])
    lacking.settle(Vlsn(5))
    for handle, vlsn in ((8, 5), (7, 4), (7, 6)):
        other = Handles(most=MOST, silent=SILENT)
        other.note([(handle, HANDLE_SEQUENCE, vlsn, vlsn, 1)])
        with pytest.raises(ValueError, match="transactions"):
            lacking.check_fill(other, Vlsn(5))
    with pytest.raises(ValueError, match="exact from 5 on"):
        lacking.check_fill(Handles(most=MOST, silent=SILENT), Vlsn(4))
    with pytest.raises(ValueError, match="other VLSNs in the other copy"):
        lacking.check_fill(Handles(most=MOST, silent=SILENT), Vlsn(5))
