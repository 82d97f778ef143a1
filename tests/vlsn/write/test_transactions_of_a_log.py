"""The transactions of a whole log: each is there whole or not at all, wherever its disk stopped.

The oracle knows what was handed in, and reads every visible block of the segments anew."""

from __future__ import annotations

from random import Random

import pytest

from tests.fakes.seeds import seeds
from tests.vlsn.logs import DIRECTORY, Machine, Opened, Undurable, Waiting
from tests.vlsn.state.test_producers_of_a_log import OPTIONS, Story, blocks_of
from vlsn.format import block
from vlsn.format.block import EntryKind
from vlsn.format.producer_columns import HANDLE_SEQUENCE
from vlsn.format.submission import Transaction, Values
from vlsn.verify.verify import verify
from vlsnlog.testing.fakes.disk import StopHere


def transaction(parts: list[list[bytes]], handle: int = 0) -> Waiting:
    named = (handle, HANDLE_SEQUENCE) if handle else (0, 0)
    values = [value for part in parts for value in part] + [b""]
    return Waiting(values, submission=Transaction([Values(part) for part in parts], b"", named))


def transactions_of(opened: Opened) -> dict[int, list[bytes]]:
    """Returns the values of each transaction by its id, from every visible block."""
    found: dict[int, list[bytes]] = {}
    for data in blocks_of(opened):
        for entry in block.entries(data, block.decode(data)):
            if entry.txn:
                found.setdefault(entry.txn, []).append(entry.value)
                assert (entry.kind == EntryKind.COMMIT) == (entry.value[:1] in (b"", b"{")), entry
    return found


def last_end(opened: Opened) -> int:
    ends = [txn + len(values) - 1 for txn, values in transactions_of(opened).items()]
    return max(ends, default=0)


class WithTransactions(Story):
    """A story in which half of the appends are transactions, some of them named by a handle."""

    handles = 1_000

    def append(self) -> None:
        super().append()
        for _ in range(self.rng.choice((1, 2, 30))):
            parts = [[b"." * self.rng.choice((1, 40, 400))] * self.rng.choice((1, 3)) for _ in range(2)]
            named = self.rng.random() < 0.5
            self.handles += named
            self.opened.log.append(transaction(parts, self.handles if named else 0))


@pytest.mark.parametrize("seed", seeds(6))
def test_the_last_commit_and_the_handles_are_what_the_blocks_say(seed: int) -> None:
    story = WithTransactions(seed)
    for _ in range(30):
        story.step()
        log = story.opened.log
        assert log.view.range.last_txn_end == max(log.view.history.txn_ends, default=0) == last_end(story.opened)
        named = set()
        for data in blocks_of(story.opened):
            rows = block.producers(data, block.decode(data))
            named |= {row[0] for row in rows if row[1] == HANDLE_SEQUENCE}
            assert not any(log.view.history.producers.find(handle, at=log.view.range.last + 1) for handle in named)
        assert {
            handle for handle in named if log.view.history.commits.find(handle, at=log.view.range.last + 1)
        } == named
        assert len(log.view.history.commits) == len(named)
    story.end()
    assert story.opened.log.view.range.last_txn_end == last_end(story.opened)
    story.opened.close()
    assert verify(story.machine.disk, story.machine.stores, DIRECTORY).ok


def scenario(machine: Machine, given: list[Waiting]) -> list[Waiting]:
    """Hands in transactions of every size beside plain entries, with rolls and checkpoints between them."""
    opened = Undurable(machine, durable=10**9, options=OPTIONS)

    def put(pending: Waiting) -> None:
        given.append(pending)
        opened.log.append(pending)

    for number in range(4):
        opened.append(b"plain %d" % number)
        put(transaction([[b"%d a" % number, b"%d b" % number], [b"%d c" % number * 500]]))
        put(transaction([[b"%d long" % number * 800] * 4]))
        if number == 1:
            opened.log.cycle.rotate("request")
        if number == 2:
            opened.log.care.checkpointer.run()
    opened.close()
    return given


def test_a_transaction_is_whole_or_not_there_wherever_the_disk_stopped() -> None:
    machine = Machine(1)
    calls_before = len(machine.disk.calls)
    expected = [pending.values for pending in scenario(machine, [])]
    total = len(machine.disk.calls) - calls_before
    assert total > 50
    seen = set()
    for number in range(1, total + 1):
        machine = Machine(1)
        machine.disk.stop_at(number)
        given: list[Waiting] = []
        try:
            scenario(machine, given)
        except StopHere:
            pass
        machine.power_cut(tear=bool(number % 2))
        opened = Opened(machine, OPTIONS)
        found = list(transactions_of(opened).values())
        assert found == expected[: len(found)], f"stopped at disk call {number}"
        assert opened.log.view.range.last_txn_end == last_end(opened)
        synced = sum(each.synced for each in given)
        assert len(found) >= synced
        seen.add(len(found))
        opened.close()
        assert verify(machine.disk, machine.stores, DIRECTORY).ok
    assert seen == set(range(len(expected) + 1)), "each number of them was left by some stop"


def test_random_mixtures_read_back_in_order() -> None:
    rng = Random(5)
    opened = Opened(Machine(2), OPTIONS)
    expected: list[bytes] = []
    for number in range(200):
        values = [b"%d" % number + b"." * rng.choice((0, 30, 3000)) for _ in range(rng.choice((1, 2, 9)))]
        expected += values
        opened.log.append(transaction([values]) if rng.random() < 0.5 else Waiting(values))
    assert list(opened.entries().values()) == expected
    opened.close()
