"""Checkpoints: the mappings that they wait for, and the end of one that cannot go on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.vlsn.index import inspect
from tests.vlsn.logs import DIRECTORY, SMALL, Machine, Opened, Undurable
from tests.vlsn.logs import put as put_values
from tests.vlsn.oracle import places
from tests.vlsn.write.test_rollback import rolled_back
from vlsn.errors import LogClosed, LogFailed, VlsnLogError
from vlsn.format.block import decode_header
from vlsn.format.block_run import BlockRun
from vlsn.ids import Vlsn
from vlsn.state.options import Durability
from vlsn.state.state_store import Checkpoint
from vlsn.verify.verify import verify


class LatePuts:
    """A log whose mappings come later than the sync of their blocks, as from a thread that was held up."""

    def __init__(self, opened: Opened) -> None:
        self.index = opened.log.view.index
        self.late: list[Callable[[], None]] = []
        self._put, self._note = self.index.put_run, self.index.note_synced
        late: Any = self.index
        late.put_run = lambda *columns: self.late.append(lambda: self._put(*columns))
        late.note_synced = lambda vlsn: self.late.append(lambda: self._note(vlsn))

    def come(self) -> None:
        for put in self.late:
            put()
        self.late.clear()


class Asked:
    def __init__(self, opened: Opened) -> None:
        self.checkpoint: Checkpoint | None = None
        self.error: VlsnLogError | None = None
        opened.log.care.checkpointer.run(done=self._done, failed=self._failed)

    def _done(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint

    def _failed(self, error: VlsnLogError) -> None:
        self.error = error


def append(opened: Opened) -> None:
    for number in range(30):
        opened.append(str(number).encode() * 500)


def run_of(source: Opened, first: int, last: int) -> BlockRun:
    """Returns blocks of a master's log, as its feed would bring them."""
    ring = source.log.view.ring
    position, end = ring.position_of(Vlsn(first)), ring.position_of(Vlsn(last + 1))
    assert position is not None
    assert end is not None
    blocks = ring.take(position, end=end, bytes_max=1 << 30)
    headers = [decode_header(block) for block in blocks]
    return BlockRun(
        blocks,
        [header.first_vlsn for header in headers],
        [header.last_vlsn for header in headers],
        [header.term for header in headers],
        [header.kind for header in headers],
        [header.clock_us for header in headers],
        sum(map(len, blocks)),
    )


@pytest.fixture(params=["master", "replica"])
def held_up(request: pytest.FixtureRequest) -> tuple[Opened, LatePuts]:
    """Returns a log with a checkpoint, and 30 VLSNs after it that are synced but not in its index."""
    master = Opened(Machine())
    append(master)
    if request.param == "master":
        master.log.care.checkpointer.run()
        late = LatePuts(master)
        append(master)
        return master, late
    append(master)
    replica = Opened(Machine(1), take_term=False)
    replica.log.node_file.replace(replace(replica.log.node_file.record, term=1))
    replica.log.append_blocks(run_of(master, 1, 31), lambda _: None)
    replica.log.care.checkpointer.run()
    late = LatePuts(replica)
    replica.log.append_blocks(run_of(master, 32, 61), lambda _: None)
    return replica, late


def pointer(opened: Opened) -> int:
    checkpoint = opened.log.care.state.checkpoint()
    return checkpoint.id if checkpoint is not None else 0


def test_what_was_flushed_before_it_was_synced_may_be_lost() -> None:
    """A cleaning flushes all that is tracked: blocks, too, that are written and not on the medium yet."""
    for seed in range(10):
        machine = Machine(seed)
        opened = Opened(machine, replace(SMALL, retention_bytes=2 * SMALL.segment_bytes))
        held: dict[int, bytes] = {}
        put_values(opened, held, 40, size=6000)
        opened.log.care.checkpointer.run()
        for number in range(3):
            opened.append(bytes([number]) * 5000, durability=Durability.WRITE_NO_SYNC)
        opened.log.care.cleaner.run()
        first = opened.log.view.range.first
        assert first > 10
        machine.power_cut(tear=True)
        report = verify(machine.disk, machine.stores, DIRECTORY)
        assert report.ok, (seed, report.findings)
        again = Opened(machine)
        found = again.entries()
        assert {vlsn: found.get(vlsn) for vlsn in held if vlsn >= first} == {
            vlsn: value for vlsn, value in held.items() if vlsn >= first
        }
        for vlsn in range(first, again.log.view.range.last + 1):
            assert again.log.view.index.at_or_before(Vlsn(vlsn)) is not None


def test_a_checkpoint_waits_for_every_vlsn_given_before_its_start(held_up: tuple[Opened, LatePuts]) -> None:
    opened, late = held_up
    assert (opened.log.view.allocated, opened.log.view.range.last) == (61, 31)
    asked = Asked(opened)
    assert (asked.checkpoint, pointer(opened)) == (None, 1)
    assert opened.log.view.index.checkpoint_id == 1, "nothing was flushed"
    late.come()
    assert asked.checkpoint is not None
    assert (asked.checkpoint.last_vlsn, pointer(opened)) == (61, 2)
    assert opened.log.view.index.levels.covered == 61
    opened.machine.kill()
    again = Opened(opened.machine, take_term=False)
    assert again.notes == []
    assert {vlsn for vlsn, _ in inspect.mappings(again.log.view.index)} <= set(places(opened.machine.disk, DIRECTORY))
    assert again.log.view.range.last == 61


def test_a_kill_while_a_checkpoint_waits_loses_nothing(held_up: tuple[Opened, LatePuts]) -> None:
    opened, _ = held_up
    Asked(opened)
    opened.machine.kill()
    again = Opened(opened.machine, take_term=False)
    assert again.notes == []
    assert again.log.view.range.last == 61
    inspect.verify(again.log.view.index)


def test_a_checkpoint_that_waits_gives_up_when_the_log_fails(held_up: tuple[Opened, LatePuts]) -> None:
    opened, late = held_up
    first, second = Asked(opened), Asked(opened)
    opened.log.life.store_failed(OSError("the disk is gone"))
    for asked in (first, second):
        assert isinstance(asked.error, LogFailed)
        assert asked.checkpoint is None
    late.come()
    assert (first.checkpoint, pointer(opened)) == (None, 1)
    assert isinstance(Asked(opened).error, LogFailed), "none starts any more"


def test_a_role_change_ends_a_checkpoints_wait_and_the_next_one_runs(held_up: tuple[Opened, LatePuts]) -> None:
    opened, late = held_up
    asked = Asked(opened)
    opened.log.view.index.fail_waiters(LogClosed("not master any more"))
    assert isinstance(asked.error, LogClosed)
    again = Asked(opened)
    late.come()
    assert again.checkpoint is not None
    assert pointer(opened) == 2


def test_only_a_checkpoint_a_rollback_a_merge_and_a_stop_write_the_index() -> None:
    machine = Machine()

    seen: list[object] = [None]

    def written() -> bool:
        """Says whether the index was written since it was asked before."""
        seen.append(machine.stores.contents[f"{DIRECTORY}/index"])
        return seen[-1] is not seen[-2]

    opened = Undurable(machine)
    assert written()
    append(opened)
    opened.log.cycle.rotate("request", lambda _: None)
    opened.entries()
    for _ in range(20):
        opened.log.tick()
    assert not written(), "nothing but puts, lookups, a roll and ticks"
    opened.log.care.checkpointer.run()
    assert written()
    append(opened)
    assert not written()
    rolled_back(opened, 4)
    assert written(), "the cut of a rollback is durable"
    machine.kill()
    opened = Undurable(machine)
    assert written(), "what an open has merged is durable"
    append(opened)
    assert not written()
    opened.close()
    assert written(), "a clean stop"


@pytest.mark.parametrize("name", ["write", "sync"])
def test_a_disk_that_fails_under_a_checkpoint_ends_it_with_the_logs_error(name: str) -> None:
    opened = Opened(Machine())
    append(opened)
    calls = len(opened.machine.disk.calls)
    opened.machine.disk.fail_at(lambda call: call.number > calls and call.name == name, times=1_000)
    asked = Asked(opened)
    assert isinstance(asked.error, LogFailed)
    assert opened.failure is asked.error
    assert pointer(opened) == 0


@pytest.mark.parametrize("writes", [0, 1], ids=["index", "state"])
def test_a_store_that_fails_under_a_checkpoint_ends_it_with_the_logs_error(writes: int) -> None:
    opened = Opened(Machine())
    append(opened)
    opened.machine.stores.fail_writes_after = opened.machine.stores.writes + writes
    asked = Asked(opened)
    assert isinstance(asked.error, LogFailed)
    assert pointer(opened) == 0
    opened.machine.stores.fail_writes_after = None
    opened.machine.kill()
    again = Opened(opened.machine, take_term=False)
    assert again.log.view.range.last == 31
    inspect.verify(again.log.view.index)


def test_a_clean_stop_whose_checkpoint_fails_still_ends() -> None:
    opened = Opened(Machine())
    append(opened)
    opened.machine.stores.fail_writes_after = opened.machine.stores.writes
    ended: list[bool] = []
    opened.log.close(lambda: ended.append(True))
    assert ended == [True]
