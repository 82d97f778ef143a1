"""The write path at its edges: no space, the end of a log, rollbacks and clean stops before a failure."""

from __future__ import annotations

import errno
import threading
import time
from dataclasses import replace

import pytest

from tests.vlsn.logs import DIRECTORY, SMALL, Machine, Opened, Undurable, Waiting, embedded_log, put
from tests.vlsn.recover.crash_operations import room
from tests.vlsn.write.test_checkpoint import run_of
from tests.vlsn.write.test_segment_rewrite import destroy_page, fail_next, holds, of_log
from vlsn.errors import LogClosed, LogFailed, NoSpace, NotMaster, OutcomeUnknown, TooLarge, VlsnLogError
from vlsn.format.segment import segment_name
from vlsn.ids import Vlsn
from vlsn.limits import RETRY_S_MAX
from vlsn.segments.directory import survey
from vlsn.state.options import Durability, LogOptions
from vlsn.verify.verify import verify
from vlsn.write.queue import Pending
from vlsnlog.testing.fakes.disk import Call, FakeDisk

WAIT_S = 120.0


def lazy(opened: Opened, *values: bytes) -> Waiting:
    pending = Waiting(list(values))
    pending.durability = Durability.NO_SYNC
    opened.log.append(pending)
    return pending


def fill(opened: Opened, left: int, held: dict[int, bytes] | None = None) -> None:
    """Appends until less than ``left`` bytes remain in the current segment."""
    tail = opened.log.placement.tail
    assert tail is not None
    while (size := tail.size - tail.offset - left - 160) > 0:
        value = bytes(min(size, 8000))
        pending = opened.append(value)
        assert pending.synced
        if held is not None:
            held[pending.first] = value


def without_room(held: dict[int, bytes] | None = None, room: int = 1) -> tuple[Machine, Opened]:
    """Returns a log with one entry in its last segment: there is no room for another one."""
    machine = Machine()
    opened = Opened(machine)
    used = sum(len(machine.disk.content(path)) for path in machine.disk.files(DIRECTORY))
    machine.disk.capacity_bytes = used + room
    opened.log.cycle.rotate("request")  # takes the standby
    pending = opened.append(b"in the last one")
    if held is not None:
        held[pending.first] = b"in the last one"
    assert opened.log.placement.no_space
    return machine, opened


# No room for another segment.


def test_a_roll_that_finds_no_room_holds_nobody_up() -> None:
    held: dict[int, bytes] = {}
    _, opened = without_room(held)
    rolled: list[int] = []
    opened.log.cycle.rotate("request", rolled.append)
    pending = opened.append(b"behind it")
    assert pending.synced
    assert rolled == [opened.log.placement.active_files()[0]]
    held[pending.first] = b"behind it"
    assert opened.entries() == held


def test_appends_that_found_no_room_are_refused_whatever_waits_behind_them() -> None:
    machine, opened = without_room()
    stuck: list[Waiting] = []
    over: list[str] = []

    def arrive(call: Call) -> None:
        if call.name == "sync" and of_log(call.path):
            machine.disk.hook = None
            tail = opened.log.placement.tail
            assert tail is not None
            stuck.extend(opened.append(bytes(tail.size - tail.offset - 200)) for _ in range(2))
            opened.log.cycle.drain(lambda: over.append("drained"))

    machine.disk.hook = arrive
    assert opened.append(b"x").synced
    assert [(pending.synced, isinstance(pending.error, NoSpace)) for pending in stuck] == [(True, False), (False, True)]
    assert over == ["drained"]


def test_a_log_without_room_for_its_checkpoint_closes() -> None:
    held: dict[int, bytes] = {}
    machine, opened = without_room(held, room=3 << 20)
    fill(opened, 20, held)
    tail = opened.log.placement.tail
    assert tail is not None
    assert tail.size - tail.offset < 200
    over: list[int] = []
    opened.log.close(lambda: over.append(1))
    for _ in range(3):
        opened.log.tick()
    assert over == [1]
    opened.log.node_file.close()
    machine.disk.capacity_bytes = None
    holds(machine, held)


def test_what_was_told_its_vlsns_is_written_by_a_close_without_space() -> None:
    held: dict[int, bytes] = {}
    machine, opened = without_room(held)
    pending = lazy(opened, b"told")
    held[pending.first] = b"told"
    over: list[int] = []
    opened.log.close(lambda: over.append(1))
    assert over == [1]
    opened.log.node_file.close()
    machine.disk.capacity_bytes = None
    holds(machine, held)


# The end of a log.


@pytest.mark.parametrize("left", [72, 120, 160])
def test_a_rollback_without_room_for_its_records_is_refused_and_takes_nothing(left: int) -> None:
    """The log writes both records or none: the blocks that it was to abandon are written again when the next write
    fails."""
    machine = Machine()
    opened = Undurable(machine)
    held: dict[int, bytes] = {}
    put(opened, held, 6)
    used = sum(len(machine.disk.content(path)) for path in machine.disk.files(DIRECTORY))
    machine.disk.capacity_bytes = used + 1
    opened.log.cycle.rotate("request")  # takes the standby
    put(opened, held, 1)
    fill(opened, 2000, held)
    put(opened, held, 1, size=room(opened) - left - 96)
    assert opened.log.placement.no_space
    assert room(opened) == left
    opened.log.stop_sealing(NotMaster("a rollback follows"))
    ended: list[VlsnLogError | None] = []
    opened.log.rollback(Vlsn(4), lambda: ended.append(None), ended.append)
    rolled_back = left == 160
    assert [type(error) for error in ended] == [type(None) if rolled_back else NoSpace]
    if rolled_back:
        held = {vlsn: value for vlsn, value in held.items() if vlsn <= 4}
    machine.disk.capacity_bytes = None
    opened.log.tick()
    opened.take_term()
    fail_next(machine, "write")
    put(opened, held, 1)
    assert opened.log.stats.write_errors == 1
    assert opened.entries() == held
    machine.power_cut(tear=True)
    holds(machine, held)


def test_a_close_that_fails_says_so_and_ends_the_threads() -> None:
    disk = FakeDisk()
    log = embedded_log(disk)
    keeper = log._log.life.keeper
    log.append(b"kept")
    log.append(b"told", durability=Durability.NO_SYNC)
    while keeper.pending():  # the standby is being zeroed: that is not to fail before the close
        time.sleep(0.001)
    disk.fail_at(lambda call: call.name in ("write", "sync") and of_log(call.path), times=9)
    with pytest.raises(LogFailed):
        log.close()
    assert not log._end._workers[0]._thread.is_alive()  # type: ignore[attr-defined]
    assert not keeper._thread.is_alive()  # type: ignore[attr-defined]
    log.close()


def test_a_wait_that_begins_after_the_end_of_the_log_ends_at_once() -> None:
    log = embedded_log(FakeDisk())
    log.append(b"kept")
    log._log.life.fail("for a test", OSError())
    with pytest.raises(LogFailed):
        log.wait_for(99, 5.0)
    log.close()


def test_a_replacement_does_not_wait_for_a_flush_that_failed() -> None:
    """The index takes a replacement's places when no flush is under way; the one that failed always is."""
    disk = FakeDisk()
    log = embedded_log(disk)
    keeper = log._log.life.keeper
    while keeper.pending():  # the standby is complete
        time.sleep(0.001)
    refused: list[VlsnLogError] = []

    def append() -> None:
        try:
            log.append(b"with a failed sync")
        except VlsnLogError as error:
            refused.append(error)

    appending = threading.Thread(target=append)

    def fail_both(call: Call) -> None:
        if call.name != "commit" or not call.path.endswith("index"):
            return
        disk.hook = None
        disk.fail_at(lambda call: call.name == "sync" and of_log(call.path))
        appending.start()
        while keeper.pending() < 2:  # the flush, and the replacement that waits for it
            time.sleep(0.001)
        raise LogFailed("no index is written any more")

    disk.hook = fail_both
    with pytest.raises(LogFailed):
        log.checkpoint()
    appending.join(WAIT_S)
    assert [type(error) for error in refused] == [OutcomeUnknown]
    submitted: list[int] = []
    submit = keeper.submit
    keeper.submit = lambda *job: (submitted.append(1), submit(*job))  # type: ignore[assignment, func-returns-value, method-assign]
    time.sleep(0.05)
    assert not submitted
    log.close()


@pytest.mark.parametrize("name", ["sync", "rotate"])
def test_a_call_that_a_close_overtakes_says_so(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The call comes when the clean stop's checkpoint is all but over, and is behind it in the queue."""
    reported: list[object] = []
    monkeypatch.setattr(threading, "excepthook", reported.append)
    disk = FakeDisk()
    log = embedded_log(disk)
    log.append(b"kept")
    ended: list[object] = []

    def call() -> None:
        try:
            ended.append(getattr(log, name)())
        except VlsnLogError as error:
            ended.append(type(error))

    late = threading.Thread(target=call)

    def held_up() -> None:
        while not log._log.writer._closed:  # type: ignore[attr-defined]
            time.sleep(0.001)

    def overtaken(disk_call: Call) -> None:
        if disk_call.name == "commit" and disk_call.path.endswith("state") and log._log.life.closing:
            log._log.writer.submit(held_up, lambda _: None, lambda _: None)
            late.start()
            while not log._log.queue:
                time.sleep(0.001)

    log.checkpoint()
    disk.hook = overtaken
    log.close()
    late.join(WAIT_S)
    assert ended == [LogClosed]
    assert not reported


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.EIO])
@pytest.mark.parametrize("step", [1, 2, 3])
@pytest.mark.parametrize("times", [1, 2, 6])
def test_a_sidecar_that_cannot_be_written_is_done_without_until_it_can(code: int, step: int, times: int) -> None:
    machine = Machine()
    opened = Opened(machine)
    held: dict[int, bytes] = {}
    put(opened, held, 4)
    calls: list[Call] = []

    def is_it(call: Call) -> bool:
        if not call.path.endswith(".vidx.new") or call.name in ("exists", "remove", "close"):
            return False
        calls.append(call)
        return len(calls) >= step

    machine.disk.fail_at(is_it, code=code, times=times)
    opened.log.cycle.rotate("request")
    put(opened, held, 4)
    assert opened.failure is None
    assert len(calls) >= step
    path = f"{DIRECTORY}/00000001.vidx"
    assert (path in machine.disk.files(DIRECTORY)) == (times == 1), "the first failure is tried again at once"
    assert path + ".new" not in machine.disk.files(DIRECTORY)
    for _ in range(times):
        machine.clock.advance(RETRY_S_MAX)
        opened.log.tick()
    assert opened.log.life.background.failures["sidecar"] == times
    assert not opened.log.life.background.faults()
    opened.log.cycle.rotate("request")
    put(opened, held, 4)
    assert machine.disk.exists(path)
    assert machine.disk.exists(f"{DIRECTORY}/00000002.vidx")
    opened.close()
    assert verify(machine.disk, machine.stores, DIRECTORY).ok
    holds(machine, held)


# Replacements after a rollback, a clean stop, and near a segment's end.


@pytest.mark.parametrize("size", [20, 700, 3000])
def test_the_page_of_abandoned_blocks_is_not_needed_after_a_failed_rollback(size: int) -> None:
    """The record of the rollback goes behind the blocks that it abandons. The damage of its failed write to them does
    not matter."""
    machine = Machine()
    opened = Undurable(machine, durable=3)
    held = {opened.append(bytes([65 + number]) * size).first: bytes([65 + number]) * size for number in range(2)}
    for _ in range(3):
        opened.append(b"abandoned".ljust(size, b"."))
    opened.log.stop_sealing(LogFailed("a new term"))
    number = opened.log.placement.active_files()[0]
    begun_at = opened.log.view.synced_end(number)
    fail_next(machine, "write")
    errors: list[VlsnLogError] = []
    opened.log.rollback(Vlsn(3), lambda: None, errors.append)
    assert not errors
    assert opened.log.stats.rolls["error"] == 1
    destroy_page(machine, number, begun_at)
    assert opened.entries() == held
    machine.kill()
    holds(machine, held)


def test_the_page_of_overmarked_blocks_is_not_needed_after_a_clean_stop_and_a_failure() -> None:
    machine = Machine()
    opened = Undurable(machine, durable=2)
    held = {opened.append(b"kept").first: b"kept"}
    opened.append(b"abandoned")
    opened.log.stop_sealing(LogFailed("a new term"))
    opened.log.rollback(Vlsn(2), lambda: None, lambda error: pytest.fail(str(error)))
    number = opened.log.placement.active_files()[0]
    opened.close()
    opened = Undurable(machine, durable=2)
    begun_at = opened.log.view.synced_end(number)
    fail_next(machine, "write")
    value = b"after"
    held[opened.append(value).first] = value
    destroy_page(machine, number, begun_at)
    machine.kill()
    holds(machine, held)


def test_the_header_after_a_failure_names_the_last_vlsn_before_it() -> None:
    """Nothing but a record was written since a clean stop; before it, and after a rollback."""
    machine = Machine()
    opened = Undurable(machine, durable=4)
    held = {}
    for _ in range(3):
        held[opened.append(bytes(5000)).first] = bytes(5000)
    opened.append(bytes(9000))
    opened.log.stop_sealing(LogFailed("a new term"))
    opened.log.rollback(Vlsn(4), lambda: None, lambda error: pytest.fail(str(error)))
    opened.close()
    opened = Undurable(machine, durable=4)
    opened.log.stop_sealing(LogFailed("a new term"))
    opened.close()
    again = Opened(machine, take_term=False)
    log = again.log
    last = log.view.range.last
    for _ in range(60):  # until the last page holds no block
        log.care.checkpointer.run()
    fail_next(machine, "sync")
    log.care.checkpointer.run()
    assert log.stats.rolls["error"] == 1
    header = survey(machine.disk, DIRECTORY)[-2].header
    assert header is not None
    assert header.prev_last_vlsn == last
    report = verify(machine.disk, machine.stores, DIRECTORY, live=True)
    assert report.ok, report.findings
    machine.kill()
    holds(machine, held)


def test_a_group_on_both_sides_of_a_roll_fits_one_segment_with_the_page_before_it() -> None:
    """A large synced block reaches into the page where the next group begins, which fills what is left and more."""
    machine = Machine()
    opened = Opened(machine, LogOptions(segment_bytes=64 << 10, checkpoint_bytes=1 << 30, block_bytes_max=16 << 10))
    number = opened.log.placement.active_files()[0]
    arrived: list[Waiting] = []

    def arrive(call: Call) -> None:
        if call.name == "sync" and of_log(call.path):
            machine.disk.hook = None
            arrived.extend(opened.append(bytes(size)) for size in (14_000, 14_000, 14_000))
            path = f"{DIRECTORY}/{segment_name(number)}"
            machine.disk.fail_at(lambda call: call.name == "write" and call.path == path and call.size > 10_000)

    first = opened.append(bytes(34_000))
    machine.disk.hook = arrive
    second = opened.append(b"x")
    assert [pending.synced for pending in (first, second, *arrived)] == [True] * 5, opened.failure
    assert opened.log.stats.rolls["error"] == 1
    found = {pending.first: pending.values[0] for pending in (first, second, *arrived)}
    assert opened.entries() == found
    machine.kill()
    holds(machine, found)


# Ticks while a write takes long.


def test_ticks_during_a_stalled_write_pile_nothing_up() -> None:
    machine = Machine()
    options = LogOptions(segment_bytes=64 << 10, checkpoint_bytes=1 << 30, roll_period_s=5.0, sync_interval_s=1.0)
    opened = Opened(machine, options)
    pending = Waiting([b"a"])
    pending.durability = Durability.WRITE_NO_SYNC
    opened.log.append(pending)
    waited: list[int] = []

    def stall(call: Call) -> None:
        if call.name == "sync" and of_log(call.path):
            machine.disk.hook = None
            for _ in range(100):
                machine.clock.advance(6.0)
                opened.log.tick()
            waited.append(len(opened.log.queue.items))

    machine.disk.hook = stall
    opened.append(b"b")
    assert waited[0] <= 101, waited  # a roll each period, which has passed with each tick
    assert opened.log.stats.rolls["period"] == 1


def test_many_checkpoints_asked_for_on_many_threads_run_one_after_the_other() -> None:
    log = embedded_log(FakeDisk())
    errors: list[BaseException] = []

    def ask() -> None:
        try:
            for _ in range(60):
                log.append(b"x")
                log.checkpoint()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors[0]
    log.close()


# The replica's side.


def replica_of(master: Opened, options: LogOptions = SMALL) -> tuple[Machine, Opened]:
    machine = Machine(1)
    replica = Opened(machine, options, take_term=False)
    replica.log.node_file.replace(replace(replica.log.node_file.record, term=1))
    return machine, replica


@pytest.mark.parametrize("kind", ["write", "sync"])
@pytest.mark.parametrize("skip", range(4))
def test_a_run_that_takes_several_groups_outlives_a_failure_in_each_of_them(kind: str, skip: int) -> None:
    master = Opened(Machine(), LogOptions(segment_bytes=1 << 20))
    held = {pending.first: pending.values[0] for pending in (master.append(bytes(9_000)) for _ in range(20))}
    machine, replica = replica_of(master)
    seen = [0]

    def when(call: Call) -> bool:
        group = replica.log.cycle.group
        if group is None or call.name != kind or replica.log.replacer.active:
            return False
        if call.path not in [f"{DIRECTORY}/{segment_name(chunk.tail.number)}" for chunk in group.chunks]:
            return False
        seen[0] += 1
        return seen[0] > skip

    machine.disk.fail_at(when)
    told: list[VlsnLogError | None] = []
    replica.log.append_blocks(run_of(master, 1, 12), told.append)
    replica.log.append_blocks(run_of(master, 13, 21), told.append)
    assert told == [None, None]
    assert replica.log.stats.write_errors == 1
    assert replica.entries() == held
    machine.power_cut()
    again = Opened(machine, take_term=False)
    assert again.entries() == held


def test_runs_that_find_no_room_are_refused_before_another_may_come() -> None:
    master = Opened(Machine(), LogOptions(segment_bytes=1 << 20))
    for _ in range(40):
        master.append(bytes(9_000))
    machine, replica = replica_of(master)
    machine.disk.capacity_bytes = 1
    told: list[VlsnLogError | None] = []

    def arrive(call: Call) -> None:
        if call.name == "sync" and of_log(call.path) and replica.log.cycle.group is not None:
            machine.disk.hook = None
            replica.log.append_blocks(run_of(master, 31, 40), told.append)

    machine.disk.hook = arrive
    replica.log.append_blocks(run_of(master, 1, 30), told.append)
    assert [type(error) for error in told] == [NoSpace, NoSpace]
    kept = replica.log.view.allocated
    assert 1 < kept < 30
    machine.disk.capacity_bytes = None
    replica.log.tick()
    replica.log.append_blocks(run_of(master, kept + 1, 41), told.append)
    assert told[2] is None
    assert replica.entries() == master.entries()


def test_a_block_that_fits_no_segment_is_refused_by_name() -> None:
    master = Opened(Machine(), LogOptions(segment_bytes=1 << 20))
    master.append(b"small")
    master.append(bytes(70_000))
    _, replica = replica_of(master)
    told: list[VlsnLogError | None] = []
    with pytest.raises(TooLarge):
        replica.log.append_blocks(run_of(master, 1, 3), told.append)
    replica.log.append_blocks(run_of(master, 1, 2), told.append)
    assert told == [None]


def test_a_checkpoint_without_room_is_refused_and_holds_up_no_cleaning() -> None:
    held: dict[int, bytes] = {}
    machine, opened = without_room(held, room=3 << 20)
    fill(opened, 20, held)
    errors: list[VlsnLogError] = []
    for _ in range(3):
        opened.log.care.checkpointer.run(failed=errors.append)
    assert errors
    assert all(isinstance(error, NoSpace) for error in errors)
    alone: list[int] = []
    opened.log.care.checkpointer.hold(lambda: alone.append(1))
    assert alone == [1]
    opened.log.care.checkpointer.release()
    assert opened.entries() == held
    machine.disk.capacity_bytes = None
    opened.log.tick()
    over: list[object] = []
    opened.log.care.checkpointer.run(done=over.append)
    assert len(over) == 1
    machine.kill()
    holds(machine, held)


class Breaking(Opened):
    """A log whose listener fails when it gets sealed appends, from ``breaks`` on."""

    breaks = False

    def sealed(self, pendings: list[Pending]) -> None:
        super().sealed(pendings)
        if self.breaks:
            raise RuntimeError("it breaks")


def test_a_group_that_cannot_be_made_ends_the_log() -> None:
    """Its sealed entries have VLSNs, and are never written: whatever followed on them would lie behind a hole."""
    held: dict[int, bytes] = {}
    machine = Machine()
    opened = Breaking(machine)
    put(opened, held, 3)
    opened.breaks = True
    with pytest.raises(RuntimeError, match="it breaks"):
        opened.append(b"sealed, and lost")
    (lost,) = opened.waiting
    assert isinstance(opened.failure, LogFailed) and isinstance(opened.failure.__cause__, RuntimeError)
    assert lost.error is opened.failure and not lost.synced
    opened.breaks = False
    with pytest.raises(LogFailed, match="the next group could not be made"):
        opened.append(b"behind it")
    assert opened.entries() == held
    machine.kill()
    holds(machine, held)
