"""The producers and names of a whole log: after any story they are what its visible blocks say.

The oracle reads every visible block of the segments anew and plays it from the first to the last."""

from __future__ import annotations

from random import Random

import pytest

from tests.fakes.seeds import seeds
from tests.vlsn.logs import DIRECTORY, Machine, Opened, Undurable, Waiting
from tests.vlsn.write.test_rollback import rolled_back
from vlsn.errors import VlsnLogError
from vlsn.format import block
from vlsn.format.block import EntryKind
from vlsn.format.feed_messages import Position, blocks_message, split_blocks
from vlsn.format.producer_columns import HANDLE_SEQUENCE
from vlsn.format.records import CommitEntry
from vlsn.format.submission import Transaction, Values
from vlsn.ids import Vlsn
from vlsn.state.options import LogOptions
from vlsn.state.producers import Producers, ProducersRecord
from vlsn.state.small_state import SmallState, SmallStateRecord
from vlsn.verify.verify import verify

OPTIONS = LogOptions(
    segment_bytes=64 << 10, checkpoint_bytes=1 << 30, block_bytes_max=16 << 10, group_bytes_max=32 << 10
)


def blocks_of(opened: Opened, *, after: int = 0) -> list[bytes]:
    log = opened.log
    if log.view.range.last <= after:
        return []
    mapping = log.view.index.at_or_before(Vlsn(after + 1))
    assert mapping is not None
    reader = log.view.reader()
    run = reader.blocks(after + 1, start=mapping[1], upto_vlsn=log.view.range.last, bytes_max=1 << 30)
    reader.close()
    return list(run.data)


NAMES = ["consumer/a", "consumer/b", "consumer/c", "other"]
Known = tuple[ProducersRecord, SmallStateRecord]


def read_anew(opened: Opened) -> Known:
    producers, small, last = Producers(), SmallState(), opened.log.view.range.last
    for data in blocks_of(opened):
        header = block.decode(data)
        producers.note(block.producers(data, header))
        for entry in block.entries(data, header, kinds=frozenset((int(EntryKind.COMMIT),))):
            small.note(entry.vlsn, CommitEntry.decode(entry.value).puts)
    return producers.snapshot(last)(), small.snapshot(last)()


def known(opened: Opened) -> Known:
    history, last = opened.log.view.history, opened.log.view.range.last
    return history.producers.snapshot(last)(), history.small.snapshot(last)()


class Story:
    """Entries of producers, and names that are set alone and beside entries."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.machine = Machine(seed)
        self.next: dict[int, int] = {}
        self.opened = Undurable(self.machine, durable=10**9, options=OPTIONS)

    def append(self) -> None:
        rng = self.rng
        for _ in range(rng.choice((1, 3, 90))):
            values = [b"." * rng.choice((1, 40, 400)) for _ in range(rng.choice((1, 1, 5)))]
            producer = rng.choice((0, 0, 7, 8, 9, 2**64 - 1))
            pending = Waiting(values)
            named = (producer, self.next.get(producer, 0)) if producer else (0, 0)
            if producer:
                self.next[producer] = named[1] + 1
            pending.submission = Values(values, [b"k"] * len(values) if rng.random() < 0.2 else None, named)
            self.opened.log.append(pending)
        for _ in range(rng.choice((0, 1, 4))):
            names = rng.sample(NAMES, rng.choice((1, 1, 3)))
            puts = {name: rng.choice((None, 1, {"next": rng.randrange(9)}, "." * 900)) for name in names}
            parts = [Values([b"." * rng.choice((1, 900))])] * rng.choice((0, 0, 1))
            whole = Transaction(parts, CommitEntry.putting(puts).encode())
            self.opened.log.append(Waiting([], submission=whole))

    def checkpoint(self) -> None:
        self.opened.log.care.checkpointer.run()

    def rotate(self) -> None:
        self.opened.log.cycle.rotate("request")

    def durable(self) -> None:
        """The rest is not, from here on."""
        self.opened.log.view.raise_dtvlsn(self.opened.log.view.range.last_sync)
        self.opened.durable = int(self.opened.log.view.dtvlsn)

    def roll_back(self) -> None:
        log = self.opened.log
        ends = [block.decode(data).last_vlsn for data in blocks_of(self.opened, after=log.view.dtvlsn)]
        if ends:
            rolled_back(self.opened, self.rng.choice(ends))
            self.opened.take_term()
        self.next = {}
        for producer in (7, 8, 9, 2**64 - 1):
            life = log.view.history.producers.find(producer, at=log.view.range.last + 1)
            if life is not None:
                self.next[producer] = life.next

    def end(self) -> None:
        rng = self.rng
        if rng.random() < 0.3:
            self.opened.close()
            self.machine.kill()
        elif rng.random() < 0.5:
            self.machine.kill()
        else:
            self.machine.power_cut()
        if rng.random() < 0.2:
            self.machine.stores.set_aside(f"{DIRECTORY}/state")
        self.opened = Undurable(self.machine, durable=int(self.opened.log.view.dtvlsn), options=OPTIONS)

    def step(self) -> None:
        steps = (self.append,) * 6 + (
            self.checkpoint,
            self.checkpoint,
            self.rotate,
            self.durable,
            self.roll_back,
            self.end,
        )
        self.rng.choice(steps)()
        self.opened.log.tick()
        assert self.opened.failure is None


@pytest.mark.parametrize("seed", seeds(6))
def test_what_a_log_knows_of_producers_is_what_its_blocks_say(seed: int) -> None:
    story = Story(seed)
    for _ in range(40):
        story.step()
        assert known(story.opened) == read_anew(story.opened)
    story.end()
    assert known(story.opened) == read_anew(story.opened)
    story.opened.close()
    assert verify(story.machine.disk, story.machine.stores, DIRECTORY).ok


def fed(master: Opened) -> Opened:
    """Opens a replica, and feeds it all blocks of ``master``."""
    replica = Opened(Machine(2), OPTIONS, take_term=False)
    blocks = blocks_of(master)
    for start in range(0, len(blocks), 7):
        some = blocks[start : start + 7]
        first = block.decode(some[0]).first_vlsn
        message = blocks_message(Position(last_vlsn=1, dtvlsn=0, clock_us=0, term=1), some)
        errors: list[VlsnLogError | None] = []
        replica.log.append_blocks(split_blocks(message, expected_first=first, term_min=1, term_max=1), errors.append)
        assert errors == [None]
    return replica


def test_a_replica_knows_the_same_producers() -> None:
    story = Story(3)
    for _ in range(6):
        story.append()
    replica = fed(story.opened)
    producers, small = known(replica)
    assert len(replica.log.view.history.producers) == 4 and len(small.values) > 1
    assert (producers, small) == known(story.opened)


def test_a_replica_knows_the_same_transactions() -> None:
    master = Opened(Machine(1), OPTIONS)
    for number in range(40):
        part = Values([b"v" * 700] * (number % 5 + 1))
        put = CommitEntry.putting({"name": number}).encode() if number % 3 == 0 else b""
        whole = Transaction([part], put, (number + 1, HANDLE_SEQUENCE))
        master.log.append(Waiting([], submission=whole if number % 4 else part))
    replica = fed(master)
    mine, theirs = replica.log.view.history, master.log.view.history
    last = master.log.view.range.last
    assert replica.log.view.range == master.log.view.range
    assert mine.txn_ends[-1] == theirs.txn_ends[-1] == replica.log.view.range.last_txn_end > 0
    assert mine.commits.snapshot(last)() == theirs.commits.snapshot(last)()
    assert len(mine.commits) == 30
    assert mine.small.snapshot(last)() == theirs.small.snapshot(last)()
    assert len(mine.small) == 1
