"""The small state of a whole log: after any story it is what its visible blocks say.

The oracle reads every visible block of the segments anew and plays it from the first to the last."""

from __future__ import annotations

import pytest

from tests.fakes.seeds import seeds
from tests.vlsn.logs import Opened, Waiting
from tests.vlsn.state.test_producers_of_a_log import Story, blocks_of, play, replica_of
from vlsn.format import block
from vlsn.format.block import EntryKind
from vlsn.format.records import CommitEntry
from vlsn.format.submission import Transaction, Values
from vlsn.state.small_state import SmallState, SmallStateRecord
from vlsn.write.queue import Pending

NAMES = ["consumer/a", "consumer/b", "consumer/c", "other"]


def read_anew(opened: Opened) -> SmallStateRecord:
    table = SmallState()
    for data in blocks_of(opened):
        for entry in block.entries(data, block.decode(data), kinds=frozenset((int(EntryKind.COMMIT),))):
            table.note(entry.vlsn, CommitEntry.decode(entry.value).puts)
    return table.snapshot(opened.log.view.range.last)()


def known(opened: Opened) -> SmallStateRecord:
    return opened.log.view.history.small.snapshot(opened.log.view.range.last)()


class Committing(Waiting):
    """A transaction on its way."""

    __slots__ = ()

    def __init__(self, transaction: Transaction) -> None:
        super().__init__([b""])
        Pending.__init__(self, transaction)


class Setting(Story):
    """A story in which names are set, too, alone and beside entries."""

    def append(self) -> None:
        super().append()
        rng = self.rng
        for _ in range(rng.choice((0, 1, 4))):
            names = rng.sample(NAMES, rng.choice((1, 1, 3)))
            puts = {name: rng.choice((None, 1, {"next": rng.randrange(9)}, "." * 900)) for name in names}
            parts = [Values([b"." * rng.choice((1, 900))])] * rng.choice((0, 0, 1))
            self.opened.log.append(Committing(Transaction(parts, CommitEntry.putting(puts).encode())))


@pytest.mark.parametrize("seed", seeds(6))
def test_what_a_log_knows_of_its_small_state_is_what_its_blocks_say(seed: int) -> None:
    play(Setting(seed), known, read_anew)


def test_a_replica_knows_the_same_small_state() -> None:
    story = Setting(3)
    replica = replica_of(story)
    assert len(known(replica).values) > 1
    assert known(replica) == known(story.opened)
