"""Commits are judged in the order of the queue: against the log, and against what waits before them."""

from __future__ import annotations

import pytest

from repl.api import Acks, Appended, Puts
from repl.lead.append_book import Append, AppendBook
from repl.lead.exactly_once import Once, ProducerAppend
from repl.lead.name_conflicts import NameConflicts
from tests.repl.lead.test_exactly_once import OTHER, OWN, Master
from vlsn.errors import NotMaster, ProducersMissing, QueueFull, StaleTerm, TooLarge, VlsnLogError
from vlsn.format.submission import Transaction, Values
from vlsn.histogram import Seconds
from vlsn.ids import Term, Vlsn
from vlsn.state.small_state import SmallStateLimits
from vlsn.write.queue import Pending


class Setting(Master):
    """A log whose transactions go through ``puts``, too."""

    def __init__(self) -> None:
        self.puts: NameConflicts | None = None
        super().__init__()
        self.puts = NameConflicts(self.log)
        self.once = Once(self.log, self._repeat, self._lacks, self.puts.push)
        self.book = AppendBook(OWN, Term(1), on_durable=lambda _: None, clock=lambda: 0.0, seconds=Seconds())
        self.book.set_group([OWN, OTHER], Vlsn(1))

    def sealed(self, pendings: list[Pending]) -> None:
        if self.puts is not None:
            self.puts.sealed(pendings)
        super().sealed(pendings)

    def put(
        self, name: str, value: bytes | None, expected: int | None = None, producer: tuple[int, int] = (0, 0)
    ) -> list[object]:
        """Sets ``name`` beside an entry; the list gets what becomes of it."""
        assert self.puts is not None and self.once is not None
        answers: list[object] = []

        def done(result: Appended | VlsnLogError) -> None:
            answers.append(result if isinstance(result, VlsnLogError) else int(result.last))

        puts = Puts({name: value}, {} if expected is None else {name: expected})
        submission = Transaction([Values([b"entry"])], puts.entry(), producer)
        if producer[0]:
            named = ProducerAppend(self.once, submission, Acks.NONE, done, 0.0)
            named.puts = puts
            self.once.submit(named, 0)
            return answers
        append = Append(submission, Acks.NONE, done, 0.0)
        append.puts = puts
        self.puts.push(append)
        return answers

    def at(self, name: str) -> int:
        kept = self.log.view.history.small.get(name)
        return int(kept.vlsn) if kept is not None else 0


def test_a_commit_starts_from_what_is_in_the_log() -> None:
    master = Setting()
    master.put("a", b"1", 0)
    first = master.at("a")
    assert first == master.log.view.allocated, "the VLSN of the COMMIT, behind the entry beside it"
    for expected in (0, first - 1, first + 1):
        with pytest.raises(StaleTerm):
            master.put("a", b"2", expected)
    with pytest.raises(StaleTerm, match="it is not set"):
        master.put("b", b"2", first)
    assert master.log.view.allocated == first, "nothing was logged"
    master.put("a", b"2", first)
    master.put("a", b"3")
    master.put("a", None, master.at("a"))
    assert "a" not in master.log.view.history.small
    master.put("a", b"1", 0)


def test_of_two_that_start_from_one_position_the_second_is_refused_in_the_queue() -> None:
    master = Setting()
    master.put("a", b"1", 0)
    first, last = master.at("a"), master.log.view.allocated

    def step() -> None:
        master.send(7, 0)  # with the writer
        master.put("a", b"2", first)
        assert master.log.queue.entries, "it waits, and has no VLSN yet"
        assert master.at("a") == first
        with pytest.raises(StaleTerm):
            master.put("a", b"3", first)
        with pytest.raises(QueueFull):
            master.put("a", b"2", first)  # the same again, its answer lost: it is on its way
        master.put("b", b"1", 0)

    master.busy(step)
    assert master.log.view.allocated == last + 1 + 2 + 2, "nothing else was logged"
    assert master.log.view.history.small["a"].value == b"2"
    with pytest.raises(StaleTerm):
        master.put("a", b"3", first)


def test_what_the_queue_gives_back_unlogged_has_set_nothing() -> None:
    master = Setting()
    master.put("a", b"1", 0)
    first = master.at("a")
    refused: list[list[object]] = []

    def step() -> None:
        master.send(7, 0)
        refused.append(master.put("a", b"2", first))
        refused.append(master.put("b", b"2", 0, (9, 0)))
        master.log.stop_sealing(NotMaster("no longer"))

    master.busy(step)
    assert [type(each) for answers in refused for each in answers] == [NotMaster] * 2
    master.take_term()
    master.put("a", b"3", first)
    master.put("b", b"3", 0)


def test_what_the_log_refuses_has_set_nothing() -> None:
    master = Setting()
    last = master.log.view.allocated
    master.log.stop_sealing(NotMaster("no longer"))
    with pytest.raises(NotMaster):
        master.put("a", b"1", 0)
    master.take_term()
    master.put("a", b"2", 0)
    assert (master.at("a"), master.log.view.history.small["a"].value) == (master.log.view.allocated, b"2")
    assert master.log.view.allocated > last


def test_a_producers_commit_that_is_there_already_is_not_judged_again() -> None:
    master = Setting()
    first = master.put("a", b"1", 0, (7, 0))
    again = master.put("a", b"1", 0, (7, 0))
    master.own_synced()
    assert first == again == [master.at("a")]
    with pytest.raises(StaleTerm):
        master.put("a", b"2", 0, (7, 1))
    master.put("a", b"2", master.at("a"), (7, 1))


def test_limits_count_what_is_queued_too() -> None:
    master = Setting()
    assert master.puts is not None
    with pytest.raises(TooLarge, match="a value of 5000 bytes"):
        master.put("a", b"1" * 5000)
    for number in range(254):
        master.put(f"{number:04}", b"1" * 4096)

    def step() -> None:
        master.send(7, 0)
        master.put("0254", b"1" * 4096)
        with pytest.raises(TooLarge, match="1048576"):
            master.put("0255", b"1" * 4096)
        master.put("0000", None)

    last = master.log.view.allocated
    master.busy(step)
    assert master.log.view.allocated == last + 5
    assert master.log.view.history.small.size == 254 * 4100


def test_names_are_counted_with_those_queued_and_those_of_the_same_commit() -> None:
    master = Setting()
    assert master.puts is not None
    master.log.view.history.small.limits = SmallStateLimits(names=3)
    master.put("a", b"1")
    master.put("b", b"1")
    both = Puts({"c": b"1", "d": b"1"})
    append = Append(Transaction([Values([b"entry"])], both.entry()), Acks.NONE, lambda _: None, 0.0)
    append.puts = both
    with pytest.raises(TooLarge, match="3 names are set already"):
        master.puts.push(append)

    def step() -> None:
        master.send(7, 0)
        master.put("c", b"1")
        with pytest.raises(TooLarge, match="3 names are set already"):
            master.put("d", b"1")
        master.put("a", b"2")

    master.busy(step)
    assert set(master.log.view.history.small) == {"a", "b", "c"}


def test_a_table_that_was_lost_says_nothing() -> None:
    master = Setting()
    master.log.view.history.small.lose_before(Vlsn(2))
    with pytest.raises(ProducersMissing):
        master.put("a", b"1")
