"""Old images: an honest start is never taken for one, and an image of before what was heard always is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from repl.group.old_images import HEARD_MAX, NOTHING, Heard, Shown, Told, both, forgotten, most, show
from vlsn.ids import Vlsn
from vlsn.state.node_file import NodeRecord


def record(sequence: int, term: int, floor: tuple[int, int] = (0, 0)) -> NodeRecord:
    return NodeRecord(
        group="g", node="n3", incarnation=1, term=term, sequence=sequence, floor_term=floor[0], floor_vlsn=floor[1]
    )


def shown(node: NodeRecord, log: Sequence[int], first: int = 1) -> Shown:
    """``log``: the term of each VLSN, from 1 on; what lies before ``first`` was cleaned away."""

    def term_of(vlsn: Vlsn) -> int:
        return log[vlsn - 1] if first <= vlsn <= len(log) else 0

    return show(node, first=first if log else 0, last=len(log), term_of=term_of)


def test_what_a_start_shows_is_its_log_and_its_floor() -> None:
    log = [4] * 90
    assert shown(record(7, 5), log).holds(90, 4)
    assert not shown(record(7, 5), log).holds(91, 4)
    assert not shown(record(7, 5), log).holds(90, 3)
    assert shown(record(7, 5), log, first=50).holds(40, 3)  # cleaned away: it was durable
    below = shown(record(7, 5, (4, 95)), log)
    assert below.holds(95, 4) and below.holds(95, 3) and not below.holds(96, 4) and not below.holds(91, 5)
    assert not shown(record(7, 5, (4, 95)), [5] * 90).holds(95, 4)  # reached, in another term
    assert shown(record(7, 5), log).holds(90, 0) and not shown(record(7, 5), log).holds(91, 0)  # its term is not known


def test_what_was_forgotten_is_named() -> None:
    heard = Told(17, 5, 90, 4)
    log = [4] * 95
    assert forgotten(shown(record(17, 5), log[:90]), heard) == forgotten(shown(record(17, 5), log), heard) == ""
    assert forgotten(shown(record(18, 6), log[:40]), heard) == ""  # rolled back by a later master
    assert "change 16" in forgotten(shown(record(16, 5), log), heard)
    assert "stored term is 4" in forgotten(shown(record(17, 4), log), heard)
    assert "VLSN 80" in forgotten(shown(record(17, 5), log[:80]), heard)
    assert "has term 3 there" in forgotten(shown(record(17, 5), [3] * 95), heard)
    assert forgotten(shown(record(1, 0), []), NOTHING) == ""


TERMS = [1, 1, 2, 4]
"""The terms of the one log that is told of."""
TOLD = st.builds(
    lambda sequence, term, vlsn: Told(sequence, term, vlsn, TERMS[vlsn - 1] if vlsn else 0),
    st.integers(0, 4),
    st.integers(0, 4),
    st.integers(0, len(TERMS)),
)


@given(st.lists(TOLD, max_size=5), st.integers(0, 4), st.integers(0, 4), st.lists(st.integers(1, 4), max_size=5))
def test_to_hear_more_never_finds_less_out(told: list[Told], sequence: int, term: int, terms: list[int]) -> None:
    heard = most(told)
    if any(a != b for a, b in zip(terms, TERMS, strict=False)):
        differs = next(at for at, (a, b) in enumerate(zip(terms, TERMS, strict=False)) if a != b)
        terms = [*terms[:differs], *(9 for _ in terms[differs:])]  # two logs that have parted never meet again
    start = shown(record(sequence, term), terms)
    for each in told:
        if forgotten(start, each):
            assert forgotten(start, both(heard, each))
    assert heard == most(reversed(told))


def test_so_many_are_remembered_the_last_ones() -> None:
    heard = Heard()
    for incarnation in range(1, HEARD_MAX + 2):
        heard.note(incarnation, Told(3, 2, 1))
        heard.note(2, Told(1, 1, 1))  # lower: nothing is forgotten for it
    assert heard.of(1) == NOTHING
    assert heard.of(2) == heard.of(HEARD_MAX + 1) == Told(3, 2, 1)


class Disk(RuleBasedStateMachine):
    """One store as the rules let it live: terms stored, feeds matched, rolled back, acknowledged; cut with a floor.

    ``images`` are copies of its disk taken at any time, each with what it had told by then."""

    def __init__(self) -> None:
        super().__init__()
        self.sequence = 1
        self.term = 0
        self.log: list[int] = []
        """The term of each VLSN."""
        self.masters: list[int] = []
        """The same of the master that it is matched with."""
        self.floor = (0, 0)
        self.matched = False
        self.heard = NOTHING
        self.log_told: list[int] = []
        """The log that ``heard`` tells of."""
        self.images: list[tuple[NodeRecord, tuple[int, ...], Told]] = []

    def note(self, log: list[int]) -> None:
        """All of ``log`` is told of."""
        told = Told(self.sequence, self.term, len(log), log[-1] if log else 0)
        self.heard = both(self.heard, told)
        if (self.heard.term, self.heard.vlsn) == (told.term, told.vlsn):
            self.log_told = list(log)

    def record(self) -> NodeRecord:
        return record(self.sequence, self.term, self.floor)

    @rule(more=st.integers(1, 2))
    def stores_a_term(self, more: int) -> None:
        self.term += more
        self.sequence += 1
        self.matched = False

    @precondition(lambda self: self.term > 0 and not self.matched)
    @rule(data=st.data())
    def is_matched_by_the_master_of_its_term(self, data: st.DataObject) -> None:
        """Lets the log get shorter; within one term only once, for the first feed has matched it."""
        if self.heard.term == self.term and self.heard.vlsn:
            return  # a feed of that master again: its log has all of this one
        keep = data.draw(st.integers(0, len(self.log)))
        del self.log[keep:]
        self.matched = True
        self.masters = list(self.log)
        self.note(self.log)

    @precondition(lambda self: self.matched)
    @rule(count=st.integers(1, 3))
    def acknowledges(self, count: int) -> None:
        if len(self.log) + count > len(self.masters):
            self.masters += [self.term] * (len(self.log) + count - len(self.masters))
        self.log = self.masters[: len(self.log) + count]
        self.note(self.log)

    @rule()
    def tells(self) -> None:
        self.note(self.log if self.matched else [])

    @precondition(lambda self: bool(self.log))
    @rule(data=st.data())
    def loses_its_end_and_says_so(self, data: st.DataObject) -> None:
        """A damaged end: the vote floor stands where the log did."""
        end = (self.log[-1], len(self.log))
        if end > self.floor:
            self.floor = end
        del self.log[data.draw(st.integers(0, len(self.log) - 1)) :]
        self.matched = self.heard.term == self.term and self.heard.vlsn > 0

    @rule()
    def is_copied(self) -> None:
        self.images.append((self.record(), tuple(self.log), self.heard))

    @invariant()
    def an_honest_start_has_forgotten_nothing(self) -> None:
        assert forgotten(shown(self.record(), self.log), self.heard) == ""

    @invariant()
    def an_image_of_before_what_was_heard_is_found_out(self) -> None:
        for node, log, heard_then in self.images:
            if self.heard == heard_then:
                continue
            found = forgotten(shown(node, log), self.heard)
            lacks = list(log[: self.heard.vlsn]) != self.log_told
            below_floor = (log[-1] if log else 0, len(log)) < (node.floor_term, node.floor_vlsn)
            if node.sequence < self.heard.sequence or (node.term == self.heard.term and lacks and not below_floor):
                assert found, (node, log, self.heard)
            if log and node.sequence < self.heard.sequence:  # it is cut as it is opened, before it asks
                cut = replace(node, floor_term=log[-1], floor_vlsn=len(log) + 3)
                assert forgotten(shown(cut, log[:-1]), self.heard)


TestDisk = Disk.TestCase
