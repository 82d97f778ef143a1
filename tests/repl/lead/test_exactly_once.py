"""Exactly once on one log: what is due while submissions are queued, refused, sealed and forgotten."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from repl.api import Acks, Appended
from repl.lead.append_book import Append, AppendBook
from repl.lead.exactly_once import Once, ProducerAppend
from tests.fakes.threads import InlineWorker
from tests.vlsn.logs import Machine, Opened
from vlsn.errors import NotMaster, OutcomeUnknown, OutOfSequence, UnknownProducer, VlsnLogError
from vlsn.format.submission import Values
from vlsn.histogram import Seconds
from vlsn.ids import Incarnation, Term, Vlsn
from vlsn.write.queue import Pending

OWN = Incarnation(1)
OTHER = Incarnation(2)


class Master(Opened):
    """A log whose appends go through ``once`` and the book of appends; ``busy`` runs a step with the writer busy."""

    def __init__(self) -> None:
        self.once: Once | None = None
        super().__init__(Machine())
        self.book = AppendBook(OWN, Term(1), on_durable=lambda _: None, clock=lambda: 0.0, seconds=Seconds())
        self.book.set_group([OWN, OTHER], Vlsn(1))
        self.once = Once(self.log, self._repeat, self._lacks)

    def _lacks(self, append: Append, error: VlsnLogError) -> None:
        raise error  # this log is the group's

    def _repeat(self, append: Append) -> None:
        self.book.repeat(append, durable=Vlsn(0))

    def sealed(self, pendings: list[Pending]) -> None:
        if self.once is not None:
            self.book.sealed(pendings)
            self.once.sealed(pendings)

    def send(self, producer: int, sequence: int, *values: bytes, acks: Acks = Acks.NONE) -> list[object]:
        """Sends an append; the list gets what becomes of it."""
        assert self.once is not None
        answers: list[object] = []

        def done(result: Appended | VlsnLogError) -> None:
            answers.append(
                result if isinstance(result, VlsnLogError) else (result.first, result.last, result.duplicate)
            )

        submission = Values(list(values or (b"%d" % sequence,)), None, (producer, sequence))
        append = ProducerAppend(self.once, submission, acks, done, 0.0)
        self.once.submit(append, None)
        return answers

    def busy(self, step: Callable[[], None]) -> None:
        assert isinstance(self.writer, InlineWorker)
        self.writer._threads.run(step)  # what it is given meanwhile waits for the step's end

    def own_synced(self) -> None:
        self.book.note(OWN, self.log.view.range.last_sync)
        self.book.release_repeats()


def test_what_is_queued_counts_and_a_second_one_waits_beside_it() -> None:
    master = Master()
    first = master.log.view.allocated + 1
    answers: list[list[object]] = []

    def step() -> None:
        answers.append(master.send(7, 0))  # with the writer
        assert master.log.queue.entries == 0
        answers.extend(master.send(7, sequence) for sequence in (1, 2, 1, 2, 0))
        assert master.log.queue.entries == 2
        with pytest.raises(OutOfSequence):
            master.send(7, 4)
        with pytest.raises(OutOfSequence):
            master.send(7, 2, b"two", b"entries")
        with pytest.raises(UnknownProducer):
            master.send(8, 1)
        assert not any(answers)

    master.busy(step)
    assert master.log.view.range.last == first + 2
    master.own_synced()
    places = [(first + number, first + number) for number in (0, 1, 2, 1, 2, 0)]
    assert answers == [[(*place, at > 2)] for at, place in enumerate(places)]


def test_what_the_queue_gives_back_unlogged_is_due_again() -> None:
    master = Master()
    last = master.log.view.allocated
    refused: list[list[object]] = []

    def step() -> None:
        master.send(7, 0)
        refused.extend(master.send(7, sequence) for sequence in (1, 2, 2))
        master.log.stop_sealing(NotMaster("no longer"))

    master.busy(step)
    assert [type(each) for answers in refused for each in answers] == [NotMaster] * 3
    assert master.log.view.range.last == last + 1
    master.take_term()
    with pytest.raises(OutOfSequence):
        master.send(7, 2)
    answers = [master.send(7, sequence) for sequence in (1, 2, 1)]
    master.own_synced()
    assert answers == [[(last + 3, last + 3, False)], [(last + 4, last + 4, False)], [(last + 3, last + 3, True)]]


def test_a_duplicate_is_as_safe_as_it_asks_and_ends_with_the_term() -> None:
    master = Master()
    first = master.log.view.allocated + 1
    master.send(7, 0)
    waiting = {acks: master.send(7, 0, acks=acks) for acks in Acks}
    master.book.release_repeats()
    assert not any(waiting.values())
    master.own_synced()
    assert waiting == {Acks.NONE: [(first, first, True)], Acks.MAJORITY: [], Acks.ALL: []}
    master.book.note(OTHER, Vlsn(first))
    assert waiting == {acks: [(first, first, True)] for acks in Acks}
    master.send(7, 1)
    left = master.send(7, 1, acks=Acks.MAJORITY)
    master.book.fail(lambda: OutcomeUnknown("the term is over"))
    assert [type(each) for each in left] == [OutcomeUnknown]


def test_what_was_durable_before_this_term_is_answered_before_its_first_block_is() -> None:
    """A majority must also have told that it holds it. Who did when it became durable may have lost its disk."""
    master = Master()
    first = master.log.view.allocated + 1
    master.book.set_group([OWN, OTHER], Vlsn(first + 10))
    master.send(7, 0)
    answers = master.send(7, 0, acks=Acks.MAJORITY)
    master.book.repeat(Append(Values([b""]), Acks.NONE, lambda _: None, 0.0), durable=Vlsn(first))
    master.own_synced()
    assert answers == []
    master.book.note(OTHER, Vlsn(first))
    assert (answers, master.book.durable) == ([(first, first, True)], 0)


def test_what_all_have_of_an_earlier_term_is_not_durable_before_this_terms_first_block() -> None:
    """A copy on every node may be rolled back yet, and the answer says ``durable``."""
    master = Master()
    first = master.log.view.allocated + 1
    told: list[Appended | VlsnLogError] = []
    master.book.set_group([OWN, OTHER], Vlsn(first + 1))
    master.send(7, 0)
    again = Append(Values([b"0"]), Acks.ALL, told.append, 0.0)
    again.first = again.last = first
    master.book.repeat(again, durable=Vlsn(0))
    master.own_synced()
    master.book.note(OTHER, Vlsn(first))
    assert told == []
    for incarnation in (OWN, OTHER):
        master.book.note(incarnation, Vlsn(first + 1))  # what this term has sealed
    assert [(each.durable, each.synced) for each in told if isinstance(each, Appended)] == [(True, 2)]


def test_an_acknowledgement_that_was_withdrawn_counts_for_nothing() -> None:
    durable: list[Vlsn] = []
    told: list[Appended | VlsnLogError] = []
    book = AppendBook(OWN, Term(1), on_durable=durable.append, clock=lambda: 0.0, seconds=Seconds())
    book.set_group([OWN, OTHER, Incarnation(3)], Vlsn(1))
    append = Append(Values([b"one"]), Acks.MAJORITY, told.append, 0.0)
    append.first = append.last = Vlsn(9)
    append.term = Term(1)
    book.sealed([append])
    book.note(OTHER, Vlsn(9))
    book.withdraw(OTHER)
    book.note(OWN, Vlsn(9))
    assert (durable, told) == ([], [])
    book.note(OTHER, Vlsn(4))  # it came back with less
    assert (durable, told) == ([4], [])
    book.note(Incarnation(3), Vlsn(9))
    assert durable == [4, 9]
    assert told == [Appended(Vlsn(9), Vlsn(9), Term(1), True, 2, Acks.MAJORITY)]


@pytest.mark.parametrize("acks", [Acks.MAJORITY, Acks.ALL])
def test_who_counts_from_now_on_counts_for_what_was_noted_before(acks: Acks) -> None:
    """A member has acknowledged all there is before it is listed, and another one, which stands still, is left out."""
    durable: list[int] = []
    book = AppendBook(OWN, Term(1), on_durable=durable.append, clock=lambda: 0.0, seconds=Seconds())
    book.set_group([OWN, Incarnation(3)], Vlsn(1))
    answers: list[object] = []
    append = Append(Values([b"a"]), acks, answers.append, 0.0)
    append.first = append.last = Vlsn(5)
    append.term = Term(1)
    book.sealed([append])
    book.note(OWN, Vlsn(5))
    book.note(OTHER, Vlsn(5))
    assert not answers and not durable
    book.set_group([OWN, OTHER], Vlsn(1))
    assert durable == [5]
    assert [answer.synced for answer in answers if isinstance(answer, Appended)] == [2]
