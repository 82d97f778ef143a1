"""Notes on the loop that nodes run on, whose timers are not the standard library's."""

from __future__ import annotations

import asyncio
from random import Random

import uvloop

from repl.api import Acks, Appended
from repl.destinations.limits import NOTE_ACKS_SOON
from repl.destinations.notes import Done, Notes
from vlsn.format.submission import Submission
from vlsn.format.vlsn_set import VlsnSet
from vlsn.ids import Term, Vlsn


class Orders:
    """A destination."""

    uuid = "0123456789abcdef"

    def __init__(self) -> None:
        self.done: list[int] = []

    def skipped(self) -> VlsnSet:
        return VlsnSet()

    def noted(self, done: VlsnSet) -> None:
        self.done += done.vlsns().tolist()

    def given_back(self, done: VlsnSet) -> None:
        raise AssertionError("it was logged")


def test_acknowledgements_that_come_as_a_note_is_due_are_noted() -> None:
    """They come at any time before one is due, down to less than the timer counts."""

    async def main() -> None:
        loop, orders, logged = asyncio.get_running_loop(), Orders(), 0

        def submit(submission: Submission, done: Done) -> None:
            nonlocal logged
            logged += 1
            loop.call_soon(done, Appended(Vlsn(logged), Vlsn(logged), Term(1), True, 2, Acks.MAJORITY))

        notes = Notes(submit, lambda: None)
        rng = Random(1)
        begins, at = loop.time(), 1
        while loop.time() < begins + 4.0:
            size = rng.choice([1, NOTE_ACKS_SOON])
            notes.add(orders, VlsnSet.of(list(range(at, at + size))), wait=False)
            at += size
            if rng.random() < 0.5:
                await asyncio.sleep(rng.choice([0, 0, 0.000_3, 0.001]))
        while len(orders.done) < at - 1:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert sorted(orders.done) == list(range(1, at))
        notes.close()

    uvloop.run(asyncio.wait_for(main(), 30))
