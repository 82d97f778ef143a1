"""The order in which a lead tells that something is durable, and what one who cannot take his answer does to others."""

from __future__ import annotations

import asyncio
from typing import Any

from repl.api import Acks, Appended
from repl.lead.append_book import Append, AppendBook
from vlsn.errors import VlsnLogError
from vlsn.format.submission import Values
from vlsn.histogram import Seconds
from vlsn.ids import Incarnation, Term, Vlsn

Answer = Appended | VlsnLogError
NODES = [Incarnation(number) for number in (1, 2, 3)]


class Lead:
    """A book of three nodes, and the durable end that a read asked meanwhile is shown."""

    def __init__(self) -> None:
        self.durable = 0
        self.book = AppendBook(NODES[0], Term(3), on_durable=self._rose, clock=lambda: 0.0, seconds=Seconds())
        self.book.set_group(NODES, Vlsn(1))
        self.at = 0

    def _rose(self, durable: Vlsn) -> None:
        self.durable = durable

    def seal(self, done: Any) -> Append:
        self.at += 1
        append = Append(Values([b"v"], None), Acks.MAJORITY, done, 0.0)
        append.first = append.last = self.at
        append.term = 3
        self.book.sealed([append])
        return append

    def synced(self) -> None:
        for node in NODES[:2]:
            self.book.note(node, Vlsn(self.at))


def test_what_is_answered_is_in_the_durable_end_that_a_read_is_given_then() -> None:
    """A read that is asked once the answer is out is not stale, whatever becomes of the rest of its turn."""
    lead = Lead()
    shown: list[tuple[int, int]] = []

    def done(answer: Answer) -> None:
        assert isinstance(answer, Appended)
        shown.append((answer.last, lead.durable))

    lead.seal(done)
    lead.seal(done)
    lead.synced()
    assert shown == [(1, 2), (2, 2)]


async def test_one_who_fails_over_his_answer_keeps_no_other_from_his() -> None:
    lead = Lead()
    answers: list[Answer] = []
    faults: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: faults.append(context))

    def fails(answer: Answer) -> None:
        raise RuntimeError("it cannot take that")

    lead.seal(answers.append)
    lead.seal(fails)
    lead.seal(answers.append)
    lead.synced()
    assert [answer.last for answer in answers if isinstance(answer, Appended)] == [1, 3]
    assert lead.durable == 3
    assert [str(fault["exception"]) for fault in faults] == ["it cannot take that"]
