"""Small state: what the table knows is a function of the log, whatever happened to it on the way."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from vlsn.errors import BadBody
from vlsn.format.records import CommitEntry
from vlsn.ids import Vlsn
from vlsn.limits import SMALL_STATE_NAMES_MAX, SMALL_STATE_VALUE_BYTES_MAX
from vlsn.state.small_state import Kept, SmallState, SmallStateLimits, SmallStateRecord

LIMITS = SmallStateLimits(names=3, name_bytes=8, value_bytes=6, bytes=20, tokens=2, tokens_bytes=30)
NAMES = ["a", "b", "c", "dd", "eeee", "ninebytes", "", "é", "token/1", "token/22", "token/3", "token/333"]
VALUES = st.none() | st.binary(max_size=7)
Commit = tuple[int, Mapping[str, bytes | None]]


def model(commits: list[Commit]) -> dict[str, Kept]:
    """Models the table: each name with what set it last, within the limits."""
    known: dict[str, Kept] = {}
    for vlsn, puts in commits:
        for name, value in puts.items():
            rest = {each: kept for each, kept in known.items() if each != name}
            if value is None:
                known = rest if 0 < len(name.encode()) <= LIMITS.name_bytes else known
                continue
            size = len(name.encode()) + len(value)
            before = len(name.encode()) + len(known[name].value) if name in known else 0
            share = {each: kept for each, kept in rest.items() if each[:6] == "token/"}
            names_max, bytes_max = LIMITS.tokens, LIMITS.tokens_bytes
            if name[:6] != "token/":
                share = {each: kept for each, kept in rest.items() if each[:6] != "token/"}
                names_max, bytes_max = LIMITS.names, LIMITS.bytes
            total = sum(len(each.encode()) + len(kept.value) for each, kept in share.items())
            if (
                0 < len(name.encode()) <= LIMITS.name_bytes
                and len(value) <= LIMITS.value_bytes
                and len(share) < names_max
                and (size <= before or total + size <= bytes_max)
            ):
                known = {**rest, name: Kept(Vlsn(vlsn), value)}
    return known


class Table(RuleBasedStateMachine):
    """A log that grows, becomes durable, is rolled back, and is opened again from a checkpoint's record."""

    def __init__(self) -> None:
        super().__init__()
        self.commits: list[Commit] = []
        self.last = 0
        self.settled = 0
        self.is_tight = False
        """Something was passed over."""
        self.table = SmallState(limits=LIMITS)
        self.snapshots: list[tuple[Callable[[], SmallStateRecord], SmallStateRecord]] = []

    @rule(puts=st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=4), others=st.integers(0, 3))
    def append(self, puts: dict[str, bytes | None], others: int) -> None:
        self.last += others + 1
        self.commits.append((self.last, puts))
        self.table.note(Vlsn(self.last), puts)
        there = [self.table.get(name) for name, value in puts.items() if value is not None]
        self.is_tight |= any(kept is None or kept.vlsn < self.last for kept in there)

    @rule(share=st.floats(0, 1))
    def settle(self, share: float) -> None:
        self.settled = self._between(share)
        self.table.settle(Vlsn(self.settled))

    @rule(share=st.floats(0, 1))
    def roll_back(self, share: float) -> None:
        self.last = self._between(share)
        self.table.truncate(Vlsn(self.last))
        self.commits = [commit for commit in self.commits if commit[0] <= self.last]

    @rule(share=st.floats(0, 1))
    def open_again(self, share: float) -> None:
        self.settled = self._between(share)
        self.table = SmallState(self.table.snapshot(Vlsn(self.settled))(), LIMITS)
        for vlsn, puts in self.commits:
            if vlsn > self.settled:
                self.table.note(Vlsn(vlsn), puts)

    @rule(share=st.floats(0, 1))
    def lose_it_and_fetch_it(self, share: float) -> None:
        """A log that begins at any VLSN, its state lost, is given another copy's table."""
        begins, as_of = self._between(share / 2), self._between(share)
        mine = SmallState(limits=LIMITS)
        mine.lose_before(Vlsn(begins + 1))
        for vlsn, puts in self.commits:
            if vlsn > begins:
                mine.note(Vlsn(vlsn), puts)
        fetched = SmallState(self.table.snapshot(Vlsn(as_of))(), LIMITS)
        try:
            mine.check_fill(fetched, Vlsn(as_of))
        except ValueError:
            assert self.is_tight, "a table that lacks names has room for what was passed over"
            return
        mine.fill(fetched, Vlsn(as_of))
        assert not mine.lacks_to
        self.table, self.settled = mine, max(self.settled, as_of)

    @rule(share=st.floats(0, 1))
    def take_a_snapshot(self, share: float) -> None:
        """Put together later, whatever was set, settled or undone meanwhile, it says what a record said at once."""
        vlsn = Vlsn(self._between(share))
        self.snapshots.append((self.table.snapshot(vlsn), self.table.snapshot(vlsn)()))

    @invariant()
    def a_snapshot_stays_what_it_was(self) -> None:
        assert all(snapshot() == record for snapshot, record in self.snapshots)

    def _between(self, share: float) -> int:
        return self.settled + int(share * (self.last - self.settled))

    @invariant()
    def it_knows_what_the_log_says(self) -> None:
        known = model(self.commits)
        assert dict(self.table) == known
        assert self.table.size == sum(len(name.encode()) + len(kept.value) for name, kept in known.items())
        assert self.table.tokens.names == sum(name.startswith("token/") for name in known) <= LIMITS.tokens
        assert self.table.others.names == len(known) - self.table.tokens.names <= LIMITS.names
        assert self.table.tokens.bytes <= LIMITS.tokens_bytes and self.table.others.bytes <= LIMITS.bytes

    @invariant()
    def it_knows_what_was_so_at_any_vlsn_that_is_not_settled(self) -> None:
        for vlsn in range(self.settled, self.last + 1):
            known = model([commit for commit in self.commits if commit[0] <= vlsn])
            assert self.table.as_of(vlsn) == known
            for name in NAMES:
                assert self.table.at(name, vlsn) == known.get(name)

    @invariant()
    def its_record_is_that_of_a_log_read_at_once(self) -> None:
        fresh = SmallState(limits=LIMITS)
        for vlsn, puts in self.commits:
            fresh.note(Vlsn(vlsn), puts)
        assert self.table.snapshot(Vlsn(self.last))() == fresh.snapshot(Vlsn(self.last))()


TestTable = Table.TestCase


def test_from_where_on_a_table_is_exact() -> None:
    """Another copy's is compared from there on alone."""
    table = SmallState(SmallStateRecord({"a": (4, b"1"), "b": (9, b"2")}))
    assert table.settled == 9
    assert SmallState(SmallStateRecord(lacks_to=7)).settled == SmallState(SmallStateRecord(lacks_to=7)).lacks_to == 7
    table.settle(Vlsn(5))
    assert table.settled == 9, "it does not fall"
    table.lose_before(Vlsn(21))
    table.lose_before(Vlsn(15))
    assert (table.settled, table.lacks_to) == (20, 20)
    with pytest.raises(ValueError, match="exact from 20 on"):
        table.check_fill(SmallState(), Vlsn(19))


def test_a_table_is_compared_as_of_the_others_vlsn_and_goes_on_with_what_came_since() -> None:
    mine = SmallState()
    mine.lose_before(Vlsn(10))
    mine.note(Vlsn(12), {"a": b"1"})
    mine.note(Vlsn(15), {"a": b"3", "c": b"4"})
    theirs = SmallState(SmallStateRecord({"a": (12, b"1"), "b": (5, b"2")}, lacks_to=4))
    mine.check_fill(theirs, Vlsn(12))
    mine.fill(theirs, Vlsn(12))
    assert dict(mine) == {"b": (5, b"2"), "a": (15, b"3"), "c": (15, b"4")}
    assert (mine.lacks_to, mine.settled) == (4, 12), "what they lack it lacks yet"
    assert mine.snapshot(Vlsn(12))() == SmallStateRecord({"a": (12, b"1"), "b": (5, b"2")}, lacks_to=4)
    more = SmallState(SmallStateRecord({"b": (5, b"2"), "a": (15, b"3"), "c": (15, b"4"), "d": (14, b"5")}))
    with pytest.raises(ValueError, match="'d' has another value in the other copy"):
        mine.check_fill(more, Vlsn(15))


def test_names_that_nobody_has_are_given_up() -> None:
    table = SmallState()
    table.lose_before(Vlsn(10))
    assert table.snapshot(Vlsn(10))().lacks_to == 9
    table.give_up_lost()
    assert table.snapshot(Vlsn(10))() == SmallStateRecord()


def test_a_record_ahead_of_itself_is_refused() -> None:
    SmallStateRecord({"a": (4, b"1")}).check(4)
    with pytest.raises(ValueError, match="set at VLSN 5"):
        SmallStateRecord({"a": (5, b"1")}).check(4)
    with pytest.raises(ValueError, match="set at VLSN 0"):
        SmallStateRecord({"a": (0, b"1")}).check(4)


@given(puts=st.dictionaries(st.text(min_size=1, max_size=8), st.none() | st.integers() | st.text(), max_size=5))
def test_a_commit_says_what_it_puts(puts: dict[str, int | str | None]) -> None:
    read = CommitEntry.decode(CommitEntry.putting(puts).encode()).puts
    assert read == {
        name: None if value is None else CommitEntry.putting({"x": value}).puts["x"] for name, value in puts.items()
    }


def test_a_commit_of_more_than_an_entry_of_the_logs_own_may_have_is_refused() -> None:
    with pytest.raises(BadBody, match="a COMMIT of"):
        CommitEntry.putting({str(name): "v" * SMALL_STATE_VALUE_BYTES_MAX for name in range(17)}).encode()


def test_limits_are_told_before_anything_is_logged() -> None:
    table = SmallState()
    assert table.fault("a", b"v" * SMALL_STATE_VALUE_BYTES_MAX, names=0, size=0) is None
    assert "a value of 4097 bytes" in str(table.fault("a", b"v" * 4097, names=0, size=0))
    assert "a name of 257 bytes" in str(table.fault("a" * 257, b"1", names=0, size=0))
    assert "a name of 258 bytes" in str(table.fault("é" * 129, b"1", names=0, size=0)), "bytes, not letters"
    assert table.fault("é" * 128, b"1", names=0, size=0) is None
    assert "names are set already" in str(table.fault("a", b"1", names=SMALL_STATE_NAMES_MAX, size=0))
    assert "1048577 bytes" in str(table.fault("a", b"1", names=1, size=(1 << 20) - 1))
    table.note(Vlsn(1), {"a": b"1"})
    for size in (1 << 20, (1 << 20) + 1):
        assert table.fault("a", b"2", names=SMALL_STATE_NAMES_MAX, size=size) is None, "it takes no more than before"


def test_neither_tokens_nor_other_names_fill_the_share_of_the_others() -> None:
    table = SmallState(limits=SmallStateLimits(names=2, tokens=2))
    table.note(Vlsn(4), {"a": b"1", "b": b"1", "c": b"1", "token/a": b"1"})
    assert set(table) == {"a", "b", "token/a"}, "the share of the others is full"
    table.note(Vlsn(5), {"token/b": b"1", "token/c": b"1", "a": None, "d": b"1"})
    assert set(table) == {"b", "d", "token/a", "token/b"}, "the share of tokens is full"
    again = SmallState(table.snapshot(Vlsn(5))())
    assert (again.tokens, again.others) == (table.tokens, table.others)
