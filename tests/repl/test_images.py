"""Old images: an honest start is never taken for one, and an image of before what was heard always is."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from repl.images import HEARD_MAX, NOTHING, Heard, Told, both, claim, forgotten, most
from vlsn.nodefile import NodeRecord


def record(sequence: int, term: int, floor: tuple[int, int] = (0, 0)) -> NodeRecord:
    return NodeRecord(
        group="g", node="n3", incarnation=1, term=term, sequence=sequence, floor_term=floor[0], floor_vlsn=floor[1]
    )


def test_what_a_start_shows_is_its_log_or_its_floor() -> None:
    assert claim(record(7, 5), last_term=4, last_vlsn=90) == Told(7, 5, 90)
    assert claim(record(7, 5, (4, 95)), last_term=4, last_vlsn=90) == Told(7, 5, 95)
    assert claim(record(7, 5, (4, 95)), last_term=5, last_vlsn=90) == Told(7, 5, 90)  # reached, in another term


def test_what_was_forgotten_is_named() -> None:
    heard = Told(17, 5, 90)
    assert forgotten(Told(17, 5, 90), heard) == forgotten(Told(17, 5, 91), heard) == ""
    assert forgotten(Told(18, 6, 40), heard) == ""  # rolled back by a later master
    assert "change 16" in forgotten(Told(16, 5, 90), heard)
    assert "stored term is 4" in forgotten(Told(17, 4, 90), heard)
    assert "VLSN 80" in forgotten(Told(17, 5, 80), heard)
    assert forgotten(Told(1, 0, 0), NOTHING) == ""


TOLD = st.builds(Told, st.integers(0, 4), st.integers(0, 4), st.integers(0, 4))


@given(st.lists(TOLD, max_size=5), TOLD)
def test_to_hear_more_never_finds_less_out(told: list[Told], claimed: Told) -> None:
    heard = most(told)
    for each in told:
        if forgotten(claimed, each):
            assert forgotten(claimed, both(heard, each))
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
        self.images: list[tuple[NodeRecord, tuple[int, ...], Told]] = []

    def record(self) -> NodeRecord:
        return record(self.sequence, self.term, self.floor)

    def claimed(self, node: NodeRecord, log: tuple[int, ...]) -> Told:
        return claim(node, last_term=log[-1] if log else 0, last_vlsn=len(log))

    @rule(more=st.integers(1, 2))
    def stores_a_term(self, more: int) -> None:
        self.term += more
        self.sequence += 1
        self.matched = False

    @precondition(lambda self: self.term > 0 and not self.matched)
    @rule(data=st.data())
    def is_matched_by_the_master_of_its_term(self, data: st.DataObject) -> None:
        """With that the log may get shorter; within one term only once, for the first feed has matched it."""
        if self.heard.term == self.term and self.heard.vlsn:
            return  # a feed of that master again: its log has all of this one
        keep = data.draw(st.integers(0, len(self.log)))
        del self.log[keep:]
        self.matched = True
        self.masters = list(self.log)
        self.heard = both(self.heard, Told(self.sequence, self.term, len(self.log)))

    @precondition(lambda self: self.matched)
    @rule(count=st.integers(1, 3))
    def acknowledges(self, count: int) -> None:
        if len(self.log) + count > len(self.masters):
            self.masters += [self.term] * (len(self.log) + count - len(self.masters))
        self.log = self.masters[: len(self.log) + count]
        self.heard = both(self.heard, Told(self.sequence, self.term, len(self.log)))

    @rule()
    def tells(self) -> None:
        self.heard = both(self.heard, Told(self.sequence, self.term, len(self.log) if self.matched else 0))

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
        assert forgotten(self.claimed(self.record(), tuple(self.log)), self.heard) == ""

    @invariant()
    def an_image_of_before_what_was_heard_is_found_out(self) -> None:
        for node, log, heard_then in self.images:
            if self.heard == heard_then:
                continue
            found = forgotten(self.claimed(node, log), self.heard)
            if node.sequence < self.heard.sequence or (
                self.claimed(node, log).vlsn < self.heard.vlsn and node.term == self.heard.term
            ):
                assert found
            if log and node.sequence < self.heard.sequence:  # it is cut as it is opened, before it asks
                cut = replace(node, floor_term=log[-1], floor_vlsn=len(log) + 3)
                assert forgotten(self.claimed(cut, log[:-1]), self.heard)


TestDisk = Disk.TestCase
