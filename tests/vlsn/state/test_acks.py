"""Acknowledgements: what the table knows is a function of the durable log, whatever happened to it on the way."""

from __future__ import annotations

from dataclasses import dataclass, field
from dataclasses import replace as changed

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from vlsn.errors import Damaged
from vlsn.format.records import AckNote, CommitEntry
from vlsn.format.vlsn_set import VlsnSet
from vlsn.ids import Vlsn
from vlsn.state.acks import AckLimits, AcksRecord, AckTable
from vlsn.state.destinations import DestinationSettings, key_of, settings_of, views_of
from vlsn.state.small_state import SmallState
from vlsn.state.state_store import StateRecord, StateStore
from vlsnlog.testing.fakes.disk import FakeDisk
from vlsnlog.testing.fakes.kv import FakeStores

LIMITS = AckLimits(destinations=3, intervals=4, tries=3, dead=2)
UUIDS = [f"{number:016x}" for number in range(1, 5)]
VLSNS = st.sets(st.integers(1, 40), max_size=6)
Notes = dict[str, AckNote]


@dataclass(frozen=True)
class Model:
    """One destination, by plain sets."""

    since: int
    done: frozenset[int] = frozenset()
    tries: dict[int, int] = field(default_factory=dict)
    dead: frozenset[int] = frozenset()


def packed(vlsns: set[int]) -> bytes:
    return VlsnSet.of(sorted(vlsns)).pack()


def plain(packed: bytes) -> set[int]:
    return set(VlsnSet.unpack(packed).vlsns().tolist())


def runs(vlsns: frozenset[int]) -> int:
    return sum(vlsn + 1 not in vlsns for vlsn in vlsns)


def noted(known: Model, vlsn: int, note: AckNote) -> Model:
    again, done = plain(note.again), {each for each in plain(note.done) if each <= vlsn}
    now = (known.done - again) | done
    dead = (known.dead - again - done) | ({each for each in plain(note.dead) if each <= vlsn} if done else set())
    tries = {each: count for each, count in known.tries.items() if each not in again}
    for count, vlsns in note.tries.items():
        tries |= {each: count for each in plain(vlsns) if each <= vlsn and count >= 2}
        tries = dict(sorted(tries.items())[: LIMITS.tries])
    if runs(frozenset(now)) > LIMITS.intervals:
        return known
    tries = {each: count for each, count in tries.items() if each not in now}
    return changed(known, done=frozenset(now), tries=tries, dead=frozenset(sorted(dead)[-LIMITS.dead :]))


def model(commits: list[tuple[int, Notes]]) -> dict[str, Model]:
    known: dict[str, Model] = {}
    for vlsn, notes in commits:
        for uuid, note in notes.items():
            if note.over:
                known.pop(uuid, None)
                continue
            if note.begin is not None:
                if uuid not in known and len(known) >= LIMITS.destinations:
                    continue
                begin = min(note.begin or vlsn + 1, vlsn + 1)
                known[uuid] = Model(vlsn, frozenset(range(1, begin)))
            if uuid in known:
                known[uuid] = noted(known[uuid], vlsn, note)
    return known


def said(table: AckTable) -> dict[str, Model]:
    found = {}
    for uuid in UUIDS:
        acked = table.folded.get(uuid)
        if acked is not None:
            tries = dict(zip(acked.tries.vlsns.tolist(), acked.tries.counts.tolist(), strict=True))
            done, dead = (frozenset(each.vlsns().tolist()) for each in (acked.done, acked.dead))
            found[uuid] = Model(acked.since, done, tries, dead)
    return found


def tables_at(table: AckTable, vlsn: int) -> dict[str, Model]:
    return said(AckTable(table.snapshot(Vlsn(vlsn))(), LIMITS, vlsn=vlsn))


@st.composite
def notes(draw: st.DrawFn) -> AckNote:
    kind = draw(st.sampled_from(["done"] * 6 + ["begin", "over", "again", "dead", "tries"]))
    vlsns = draw(VLSNS)
    match kind:
        case "begin":
            return AckNote(begin=draw(st.integers(0, 50)), done=packed(vlsns))
        case "over":
            return AckNote(over=True)
        case "again":
            return AckNote(again=packed(vlsns))
        case "dead":
            return AckNote(done=packed(vlsns), dead=packed({each for each in vlsns if each % 2}))
        case "tries":
            return AckNote(tries={draw(st.integers(0, 4)): packed(vlsns)})
    return AckNote(done=packed(vlsns))


class Table(RuleBasedStateMachine):
    """A log that grows, becomes durable, is rolled back, and is opened again from a checkpoint's record."""

    def __init__(self) -> None:
        super().__init__()
        self.commits: list[tuple[int, Notes]] = []
        self.last = self.durable = self.settled = 0
        self.table = AckTable(limits=LIMITS)
        self.disk = FakeDisk()
        self.store = StateStore(FakeStores(self.disk).open("/state", map_bytes=1 << 20))
        self.kept = 0
        """The VLSN of the last checkpoint in ``store``; 0 for none."""

    @rule(notes=st.dictionaries(st.sampled_from(UUIDS), notes(), max_size=3), others=st.integers(0, 3))
    def append(self, notes: Notes, others: int) -> None:
        self.last += others + 1
        read = CommitEntry.decode(CommitEntry(acks=notes).encode()).acks
        self.commits.append((self.last, read))
        self.table.note(Vlsn(self.last), read)

    @rule(share=st.floats(0, 1))
    def become_durable(self, share: float) -> None:
        self.durable += int(share * (self.last - self.durable))
        self.table.advance(Vlsn(self.durable))

    @rule()
    def settle(self) -> None:
        self.settled = self.durable
        self.table.settle(Vlsn(self.settled))

    @rule(share=st.floats(0, 1))
    def roll_back(self, share: float) -> None:
        self.last = self.durable + int(share * (self.last - self.durable))
        self.table.truncate(Vlsn(self.last))
        self.commits = [commit for commit in self.commits if commit[0] <= self.last]

    @rule(whole=st.booleans())
    def checkpoint(self, whole: bool) -> None:
        """A checkpoint writes what changed since the last one, and reads back as all of it."""
        self.settle()
        if not self.settled:
            return
        record = StateRecord(vlsn=Vlsn(self.settled), level=3)
        if whole:
            self.store.save(record=msgspec.structs.replace(record, acks=self.table.snapshot(Vlsn(self.settled))()))
            self.table._kept = None
        else:
            acks, changes = self.table.checkpoint(Vlsn(self.settled))()
            self.store.save(record=msgspec.structs.replace(record, acks=acks), changes={"acks": changes})
        self.kept = self.settled

    @rule()
    def open_again(self) -> None:
        """From its last checkpoint, and the log behind that; what is durable is known again later."""
        record = self.store.record()
        assert (record.vlsn if record is not None else 0) == self.kept
        self.table = AckTable(record.acks if record is not None else None, LIMITS, vlsn=self.kept)
        for vlsn, notes in self.commits:
            if vlsn > self.kept:
                self.table.note(Vlsn(vlsn), notes)
        self.settled = self.kept
        self.table.advance(Vlsn(self.durable))

    @rule(share=st.floats(0, 1))
    def lose_it_and_fetch_it(self, share: float) -> None:
        """A log that begins at any VLSN, its state lost, is given another copy's table."""
        begins = int(share * self.settled)
        mine = AckTable(limits=LIMITS)
        mine.lose_before(Vlsn(begins + 1))
        for vlsn, notes in self.commits:
            if vlsn > begins:
                mine.note(Vlsn(vlsn), notes)
        mine.advance(Vlsn(self.durable))
        as_of = Vlsn(self.settled + int(share * (self.durable - self.settled)))
        fetched = AckTable(self.table.snapshot(as_of)(), LIMITS, vlsn=as_of)
        if len(model(self.commits)) < LIMITS.destinations:
            mine.check_fill(fetched, as_of)
        mine.fill(fetched, as_of)
        assert not mine.lacks_to
        self.table, self.settled, self.kept = mine, int(as_of), 0
        self.store.restart(StateRecord(vlsn=Vlsn(0), level=3))

    @invariant()
    def it_knows_what_the_durable_log_says(self) -> None:
        assert said(self.table) == model([commit for commit in self.commits if commit[0] <= self.durable])

    @invariant()
    def as_of_any_vlsn_that_is_not_settled_it_says_what_was_so(self) -> None:
        for vlsn in {self.settled, (self.settled + self.last) // 2, self.last}:
            assert tables_at(self.table, vlsn) == model([commit for commit in self.commits if commit[0] <= vlsn])


Table.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestTable = Table.TestCase


def test_what_is_not_durable_is_not_folded_and_leaves_no_trace_behind_a_rollback() -> None:
    table = AckTable()
    table.note(Vlsn(5), {UUIDS[0]: AckNote(begin=1)})
    table.note(Vlsn(8), {UUIDS[0]: AckNote(done=packed({1, 2}))})
    table.advance(Vlsn(7))
    acked = table.folded.get(UUIDS[0])
    assert acked is not None and not acked.floor
    table.truncate(Vlsn(7))
    table.advance(Vlsn(9))
    assert table.folded.get(UUIDS[0]) is acked


def test_what_was_folded_is_undone_where_an_operator_cuts_the_log() -> None:
    table = AckTable()
    table.note(Vlsn(5), {UUIDS[0]: AckNote(begin=1)})
    table.settle(Vlsn(6))
    table.note(Vlsn(8), {UUIDS[0]: AckNote(done=packed({1, 2}))})
    table.note(Vlsn(20), {UUIDS[0]: AckNote(done=packed({3, 14}))})
    table.note(Vlsn(21), {UUIDS[1]: AckNote(begin=1)})
    table.advance(Vlsn(22))
    table.truncate(Vlsn(10))
    acked = table.folded.get(UUIDS[0])
    assert acked is not None and acked.done == VlsnSet.of([1, 2])
    assert (table.folded.get(UUIDS[1]), table.folded_to) == (None, 10)


def test_a_record_that_cannot_be_is_damage() -> None:
    disk = FakeDisk()
    store = StateStore(FakeStores(disk).open("/state", map_bytes=1 << 20))
    table = AckTable()
    table.note(Vlsn(5), {UUIDS[0]: AckNote(begin=1), UUIDS[1]: AckNote(begin=1)})
    table.settle(Vlsn(9))
    store.save(record=StateRecord(vlsn=Vlsn(9), level=3, acks=table.snapshot(Vlsn(9))()))
    read = store.record()
    assert read is not None and set(read.acks.tables) == set(UUIDS[:2])
    store.save(record=StateRecord(vlsn=Vlsn(9), level=3, acks=AcksRecord(keyed=True, count=1)), changes={})
    with pytest.raises(Damaged, match="acks: 2 rows under keys, the record counts 1"):
        store.record()


def test_a_view_keeps_the_dead_and_lets_the_acknowledged_go() -> None:
    small, acks = SmallState(), AckTable()
    settings = DestinationSettings(UUIDS[0], prefix="order-")
    settings.check()
    small.note(Vlsn(4), {key_of("orders"): msgspec.json.encode(settings), key_of("broken"): b"[]"})
    assert settings_of(small[key_of("broken")]) is None
    acks.note(Vlsn(4), {UUIDS[0]: AckNote(begin=3)})
    acks.note(Vlsn(9), {UUIDS[0]: AckNote(done=packed({3, 4, 5, 8}), dead=packed({4}))})
    assert views_of(small, acks) == []
    acks.advance(Vlsn(9))
    (view,) = views_of(small, acks)
    assert (view.name, view.uuid, view.prefix, view.letters) == ("orders", UUIDS[0], b"order-", b"dead_letter")
    assert view.floor == 3 and view.acked.floor == 5
    assert view.acked.lets_go([2, 3, 4, 5, 6, 8]).tolist() == [True, True, False, True, False, True]


def test_a_note_that_makes_too_many_intervals_is_passed_over() -> None:
    table = AckTable(limits=LIMITS)
    table.note(Vlsn(30), {UUIDS[0]: AckNote(begin=1)})
    table.note(Vlsn(31), {UUIDS[0]: AckNote(done=packed({2, 4, 6, 8}))})
    table.note(Vlsn(32), {UUIDS[0]: AckNote(done=packed({10}))})
    table.note(Vlsn(33), {UUIDS[0]: AckNote(done=packed({3}))})
    table.advance(Vlsn(40))
    acked = table.folded.get(UUIDS[0])
    assert acked is not None and acked.done == VlsnSet.of([2, 3, 4, 6, 8])
