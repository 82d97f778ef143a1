"""Appends answered before a sync, beside a plain model: when each is answered, and what replicas may put off."""

from __future__ import annotations

import asyncio
from functools import partial
from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from feeder.feeder import Messages
from repl.api import Acks, Appended
from repl.lead.append_book import Append, AppendBook
from repl.lead.unsynced_appends import UnsyncedAppends
from vlsn.durability import SYNCED, Durability, GroupDurability, group_durability
from vlsn.errors import OutcomeUnknown, VlsnLogError
from vlsn.format.feed_messages import RECEIPT, UNHURRIED, Ack
from vlsn.format.submission import Values
from vlsn.histogram import Seconds
from vlsn.ids import Incarnation, Term, Vlsn
from vlsn.write.queue import Pending

ALL = [group_durability(f"{local.name},{replica.name}".lower()) for local, replica in product(Durability, Durability)]
OWN = Incarnation(1)
TERM = Term(3)

asked = st.tuples(st.sampled_from(list(Acks)), st.sampled_from([SYNCED, *ALL]), st.integers(1, 3))
groups = st.lists(st.tuples(st.booleans(), st.lists(asked, min_size=1, max_size=5)), min_size=1, max_size=6)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("own"), st.integers(0, 40), st.integers(0, 40)),
        st.tuples(st.just("ack"), st.integers(2, 5), st.lists(st.integers(0, 40), min_size=3, max_size=3)),
        st.tuples(st.just("short"), st.integers(2, 5), st.lists(st.integers(0, 40), min_size=3, max_size=3)),
        st.tuples(st.just("gone"), st.integers(2, 5), st.none()),
    ),
    max_size=25,
)


class Model:
    """A plain model: what each node has received (the master: sealed), written and synced."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.has: dict[int, list[int]] = {}
        self.durable = 0

    def have(self, node: int, level: Durability) -> int:
        return self.has.get(node, [0, 0, 0])[level]

    def is_met(self, acks: Acks, held: GroupDurability, last: int) -> bool:
        local, replica = held.levels
        here = self.have(1, local) >= last
        there = sum(self.have(node, replica) >= last for node in range(2, self.size + 1))
        if acks is Acks.NONE:
            return here
        if acks is Acks.ALL:
            return here and there == self.size - 1
        return (here and 1 + there > self.size / 2) or self.durable >= last


@settings(max_examples=300, deadline=None)
@given(size=st.integers(1, 5), sealed=groups, steps=steps)
def test_each_is_answered_once_it_has_what_it_was_promised_and_not_before(
    size: int,
    sealed: list[tuple[bool, list[tuple[Acks, GroupDurability, int]]]],
    steps: list[tuple[str, int, int | list[int] | None]],
) -> None:
    async def main() -> None:
        book = AppendBook(OWN, TERM, on_durable=lambda _: None, clock=lambda: 0.0, seconds=Seconds())
        book.set_group([Incarnation(number) for number in range(1, size + 1)], Vlsn(1))
        messages = Messages()
        unsynced = UnsyncedAppends(book, messages)
        model = Model(size)
        answers: dict[int, Appended | VlsnLogError] = {}
        appends: list[Append] = []
        kinds: dict[int, GroupDurability] = {}
        at = 1
        for own_first, group in sealed:
            at += own_first  # an entry of the log's own, of which nobody here is told
            pendings: list[Pending] = []
            for acks, held, count in group:
                append = Append(Values([b"v"] * count, None), acks, partial(answers.__setitem__, len(appends)), 0.0)
                if held is not SYNCED:
                    unsynced.promise(append, held)
                append.first, append.last, append.term = at, at + count - 1, int(TERM)
                kinds.update(dict.fromkeys(range(at, at + count), held))
                at += count
                appends.append(append)
                pendings.append(append)
            book.sealed(unsynced.sealed(pendings) if unsynced.used else pendings)
        end = at - 1
        model.has[1] = [end if unsynced.used else 0, 0, 0]

        for first in range(1, end + 1):
            for last in range(first, end + 1):
                flags = messages._flags(Vlsn(first), Vlsn(last))
                unhurried = all(kinds.get(vlsn, SYNCED).replica != "sync" for vlsn in range(first, last + 1))
                assert unhurried or not flags & UNHURRIED, "a replica puts off what an append waits for"
                waits = any(kinds.get(vlsn, SYNCED).replica == "no_sync" for vlsn in range(first, last + 1))
                assert flags & RECEIPT or not waits, "nobody tells of a receipt that an append waits for"

        def check() -> None:
            for number, append in enumerate(appends):
                met = model.is_met(append.acks, append.promised, append.last)
                if number in answers:
                    found = answers[number]
                    assert isinstance(found, Appended)
                    assert (found.durability, found.acks) == (append.promised, append.acks)
                    assert not found.durable or model.durable >= append.last
                else:
                    assert not met or append.promised is SYNCED, (append.acks, str(append.promised), append.last)

        known: set[int] = set()
        await asyncio.sleep(0)
        check()
        for kind, node, told in steps:
            if kind == "own":
                assert isinstance(told, int)
                was = model.has[1]
                model.has[1] = [was[0], min(end, max(was[1], node, told)), min(end, max(was[2], min(node, told)))]
                model.durable = max(model.durable, _majority(model))
                unsynced.written(Vlsn(model.has[1][1]))
                book.note(OWN, Vlsn(model.has[1][2]))
            elif kind == "gone":
                model.has.pop(node, None)
                book.withdraw(Incarnation(node))
                unsynced.withdraw(Incarnation(node))
            elif node <= size:
                assert isinstance(told, list)
                was = model.has.get(node, [0, 0, 0])
                levels = [
                    max(before, min(end, now)) for before, now in zip(was, sorted(told, reverse=True), strict=True)
                ]
                if kind == "short":
                    levels[1] = levels[2]
                model.has[node] = levels
                model.durable = max(model.durable, _majority(model))
                received, written, synced = levels
                book.note(Incarnation(node), Vlsn(synced))
                ack = Ack(TERM, received, synced, None if kind == "short" else written)
                unsynced.acknowledged(Incarnation(node), ack)
            unsynced.release()
            for number in answers.keys() - known:
                append = appends[number]
                assert model.is_met(append.acks, append.promised, append.last), (number, append.promised)
            known = set(answers)
            check()
        for each in (book, unsynced):
            each.fail(lambda: OutcomeUnknown("over"))
        assert len(answers) == len(appends), "each is answered"

    asyncio.run(main())


def _majority(model: Model) -> int:
    ends = sorted((model.have(node, Durability.SYNC) for node in range(1, model.size + 1)), reverse=True)
    return ends[model.size // 2]
