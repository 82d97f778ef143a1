"""The writer's replacement: a segment that fails costs nobody anything.

Stories on a disk in memory, each write or sync of which may fail; then the same under real threads, a thousand
times; then the disk stops at every call of a replacement.
"""

from __future__ import annotations

import errno
import threading
from contextlib import closing
from dataclasses import replace
from random import Random

import pytest

from tests.fakes.seeds import seeds
from tests.vlsn.logs import DIRECTORY, SMALL, Machine, Opened, Undurable, embedded_log
from vlsn.embedded.log import Log
from vlsn.errors import Damaged, LogFailed, NotMaster
from vlsn.format.frame import FRAME_BYTES, FrameKind, decode_header
from vlsn.format.segment import FIRST_FRAME, segment_name
from vlsn.ids import Lsn, Vlsn
from vlsn.recover import clean_stop, torn_tail
from vlsn.segments import tail as tail_module
from vlsn.segments.reader import LogReader, SegmentFile
from vlsn.segments.tail import PAGE_BYTES
from vlsn.state.options import LogOptions
from vlsn.verify.verify import verify
from vlsnlog.testing.fakes.disk import Call, FakeDisk, StopHere


def of_log(name: str) -> bool:
    return name.endswith(".vlog")


def fail_next(machine: Machine, kind: str, code: int = errno.EIO) -> None:
    """The next write or sync of the current segment fails, once."""
    machine.disk.fail_at(lambda call: call.name == kind and of_log(call.path), code=code)


def destroy_page(machine: Machine, number: int, at: int) -> None:
    """Destroys a page as a failed write may: the page in which it began, and the next."""
    with closing(machine.disk.open(f"{DIRECTORY}/{segment_name(number)}", write=True)) as file:
        file.write(at - at % 4096, [b"\xff" * 8192])
        file.sync()


def value(rng: Random, number: int) -> bytes:
    return f"{number}:".encode().ljust(rng.choice((10, 300, 3000, 9000)), b".")


def holds(machine: Machine, held: dict[int, bytes]) -> None:
    """Opened again, by any end of the process, the log has exactly what was acknowledged."""
    opened = Opened(machine)
    assert opened.entries() == held
    report = verify(machine.disk, machine.stores, DIRECTORY, live=True)
    assert report.ok, report.findings
    opened.close()


@pytest.mark.parametrize("seed", seeds(25))
def test_failures_at_random_points_change_nothing(seed: int) -> None:
    """Appends of all sizes, rolls and checkpoints meet a failure every few disk calls: no error, no loss. VLSNs come
    one after another; then a kill or a power cut."""
    rng = Random(seed)
    machine = Machine(seed)
    opened = Opened(machine)
    held: dict[int, bytes] = {}
    expected = 2
    failures = 0
    for number in range(120):
        step = rng.random()
        if step < 0.35:
            failures += 1
            fail_next(machine, rng.choice(("write", "sync")))
        if step > 0.93:
            opened.log.care.checkpointer.run()
        elif step > 0.88:
            opened.log.cycle.rotate("request")
        pending = opened.append(*[value(rng, number) for _ in range(rng.choice((1, 1, 3)))])
        assert opened.failure is None, opened.failure
        assert pending.synced
        assert pending.error is None
        assert pending.first == expected
        expected = pending.last + 1
        held.update(zip(range(pending.first, expected), pending.values, strict=True))
        machine.disk.mend()
        if step < 0.02:
            assert opened.entries() == held
    assert opened.log.stats.write_errors > failures // 2
    assert opened.entries() == held
    if seed % 3 == 0:
        opened.close()
    elif seed % 3 == 1:
        machine.kill()
    else:
        machine.power_cut(tear=True)
    holds(machine, held)


@pytest.mark.parametrize("size", [20, 700, 5000])
def test_the_page_that_a_failed_write_destroyed_is_not_needed_any_more(size: int) -> None:
    """The page in which it began held synced frames, and the end of one that began before it. They were written again,
    and nothing reads it."""
    machine = Machine()
    opened = Opened(machine)
    held = {}
    for number in range(4):
        pending = opened.append(f"{number}".encode().ljust(size, b"."))
        held[pending.first] = pending.values[0]
    number = opened.log.placement.active_files()[0]
    begun_at = opened.log.view.synced_end(number)
    fail_next(machine, "write")
    held[opened.append(b"after").first] = b"after"
    destroy_page(machine, number, begun_at)
    assert opened.entries() == held
    machine.kill()
    holds(machine, held)


@pytest.mark.parametrize("resumes", [False, True], ids=["open", "opened again"])
@pytest.mark.parametrize("page_bytes", [16 << 10, 64 << 10])
def test_a_larger_page_that_a_failed_write_destroyed_is_not_needed_any_more(
    page_bytes: int, resumes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels of ARM and POWER write pages of 16 and 64 KiB."""
    for module in (tail_module, torn_tail, clean_stop):
        monkeypatch.setattr(module, "PAGE_BYTES", page_bytes)
    machine = Machine()
    options = replace(SMALL, segment_bytes=1 << 20)
    opened = Opened(machine, options)
    held = {}
    for number in range(230):
        pending = opened.append(f"{number}".encode().ljust(900, b"."))
        held[pending.first] = pending.values[0]
    if resumes:
        opened.close()
        opened = Opened(machine, options, take_term=False)
    (number,) = opened.log.view.segments()
    begun_at = opened.log.view.synced_end(number)
    page = begun_at - begun_at % page_bytes
    assert page
    assert begun_at - page > PAGE_BYTES  # pages of 4 KiB would leave out what lies before the last of them
    fail_next(machine, "write")
    if resumes:
        opened.take_term()
    held[opened.append(b"after").first] = b"after"
    path = f"{DIRECTORY}/{segment_name(number)}"
    content = machine.disk.content(path)
    machine.disk.write_content(path, content[:page] + bytes([255]) * page_bytes + content[page + page_bytes :])
    assert opened.entries() == held
    machine.kill()
    holds(machine, held)


def test_a_larger_first_page_that_a_failed_write_destroyed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """The header page lies in it, and nothing has taken its place: damage, to be mended from a member."""
    for module in (tail_module, torn_tail, clean_stop):
        monkeypatch.setattr(module, "PAGE_BYTES", 64 << 10)
    machine = Machine()
    opened = Opened(machine, replace(SMALL, segment_bytes=1 << 20))
    held = {pending.first: pending.values[0] for pending in [opened.append(b"before")]}
    fail_next(machine, "write")
    held[opened.append(b"after").first] = b"after"
    path = f"{DIRECTORY}/{segment_name(1)}"
    machine.disk.write_content(path, bytes([255]) * (64 << 10) + machine.disk.content(path)[64 << 10 :])
    assert opened.entries() == held
    machine.kill()
    with pytest.raises(Damaged, match=segment_name(1)):
        Opened(machine)


def test_a_reader_that_stands_past_the_new_end_goes_on_without_a_repeat_or_a_gap() -> None:
    """The reader has read the page's blocks where they lay; the next lies behind their second copies."""
    opened = Opened(Machine())
    held = [opened.append(f"{number}".encode()) for number in range(5)]
    log = opened.log
    reader = log.view.reader()
    mapping = log.view.index.at_or_before(Vlsn(1))
    assert mapping is not None
    run = reader.entries(1, start=mapping[1], upto_vlsn=held[2].last, limit=100, bytes_max=1 << 20)
    assert run.next_vlsn == held[3].first
    ahead = reader.blocks(run.next_vlsn, start=run.next_lsn, upto_vlsn=held[3].last, bytes_max=1)
    fail_next(opened.machine, "write")
    after = opened.append(b"after")
    for at, start in ((run.next_vlsn, run.next_lsn), (ahead.next_vlsn, ahead.next_lsn)):
        assert start & 0xFFFFFFFF > log.view.synced_end(start >> 32)
        rest = reader.entries(at, start=start, upto_vlsn=after.last, limit=100, bytes_max=1 << 20)
        assert [entry.vlsn for entry in rest.entries] == list(range(at, after.last + 1))
    whole = reader.blocks(1, start=mapping[1], upto_vlsn=after.last, bytes_max=1 << 20)
    assert (whole.first, whole.last) == (1, after.last)
    reader.close()


class SegmentEndingMidway:
    """The owner's word of the segments' ends, which changes while one call of the reader walks."""

    def __init__(self, before: dict[int, int], opened: Opened) -> None:
        self.before = before
        self.opened = opened
        self.asked = 0

    def __call__(self, number: int) -> int:
        self.asked += 1
        if self.asked > 1:
            return self.opened.log.view.synced_end(number)
        return self.before.get(number, 0)


def test_a_segment_that_is_left_while_it_is_read_gives_each_block_once() -> None:
    opened = Opened(Machine())
    opened.machine.disk.punches = False  # dead frames are read before their room is given back
    for number in range(5):
        opened.append(f"{number}".encode())
    before = opened.log.view.segments()
    fail_next(opened.machine, "write")
    after = opened.append(b"after")
    reader = LogReader(opened.machine.disk, DIRECTORY, SegmentEndingMidway(before, opened))
    run = reader.blocks(1, start=Lsn(1 << 32 | 4096), upto_vlsn=after.last, bytes_max=1 << 20)
    assert (run.first, run.last) == (1, after.last)
    assert len(run.data) == after.last
    reader.close()


def test_a_log_whose_first_block_was_left_begins_where_it_lies_now() -> None:
    opened = Opened(Machine())
    fail_next(opened.machine, "write")
    opened.append(b"after")
    index, number = opened.log.view.index, max(opened.log.view.segments())
    assert index.levels.head == index.at_or_before(Vlsn(1)) == (1, number << 32 | FIRST_FRAME)


def test_an_index_whose_first_mapping_was_left_is_put_right_by_the_next_open() -> None:
    """The store learns of it with the next flush: an open merges what it reads again, and builds nothing anew."""
    machine = Machine()
    opened = Opened(machine, replace(SMALL, retention_bytes=SMALL.segment_bytes))
    opened.append(b"cleaned away")
    opened.log.cycle.rotate("request")
    first = opened.append(b"first").first
    opened.log.care.checkpointer.run()
    opened.log.care.cleaner.run(lambda report: None, dry_run=False)
    begins = opened.log.placement.active_files()[0]
    assert (opened.log.view.range.first, list(opened.log.view.segments())) == (first, [begins])
    fail_next(machine, "write")
    after = opened.append(b"after").first
    assert opened.log.view.synced_end(begins) == FIRST_FRAME, "all of it was left"
    machine.kill()
    again = Opened(machine, take_term=False)
    assert not any("anew" in note for note in again.notes), again.notes
    assert again.entries() == {first: b"first", after: b"after"}
    again.close()


def test_a_checkpoint_whose_place_was_left_is_a_good_start() -> None:
    """START and END of the last checkpoint lay in the page that was written again elsewhere."""
    machine = Machine()
    opened = Opened(machine)
    held = {pending.first: pending.values[0] for pending in [opened.append(b"before")]}
    opened.log.care.checkpointer.run()
    opened.log.care.checkpointer.run()
    last = opened.log.care.checkpointer.last
    assert last is not None
    fail_next(machine, "write")
    held[opened.append(b"after").first] = b"after"
    assert last.scan_lsn & 0xFFFFFFFF > opened.log.view.synced_end(last.scan_lsn >> 32)
    machine.kill()
    holds(machine, held)


@pytest.mark.parametrize("idle", [False, True])
def test_rot_in_what_was_written_again_is_damage_where_state_says_that_it_was_synced(idle: bool) -> None:
    """No frame behind it says so. The header of its segment was synced after it, and ``state`` names the place that it
    had before."""
    machine = Machine()
    opened = Opened(machine)
    opened.append(b"before")
    opened.log.care.checkpointer.run()
    held = opened.append(b"durable")
    if idle:
        opened.log.tick()
        machine.clock.advance(5.0)
        opened.log.tick()
    else:
        opened.log.care.checkpointer.run()
    fail_next(machine, "sync")
    opened.append(b"after")
    current = opened.log.placement.active_files()[0]
    machine.kill()
    path = f"{DIRECTORY}/{segment_name(current)}"
    content = bytearray(machine.disk.content(path))
    content[FIRST_FRAME + 40] ^= 1
    machine.disk.write_content(path, bytes(content))
    with pytest.raises(Damaged, match=f"was synced up to VLSN {held.last}"):
        Opened(machine)


def test_a_rolled_back_block_is_not_brought_back() -> None:
    machine = Machine()
    opened = Opened(machine, LogOptions(segment_bytes=64 << 10, checkpoint_bytes=1 << 30))
    kept = opened.append(b"kept")
    opened.append(b"abandoned")
    opened.log.view.dtvlsn = Vlsn(kept.last)
    opened.log.stop_sealing(LogFailed("a new term"))
    fail_next(machine, "write")
    over: list[int] = []
    opened.log.rollback(Vlsn(kept.last), lambda: over.append(1), lambda error: pytest.fail(str(error)))
    assert over == [1]
    assert opened.log.stats.rolls["error"] == 1
    assert opened.entries() == {kept.first: b"kept"}
    opened.take_term()
    fail_next(machine, "sync")
    again = opened.append(b"another life")
    assert opened.entries() == {kept.first: b"kept", again.first: b"another life"}
    machine.kill()
    holds(machine, {kept.first: b"kept", again.first: b"another life"})


@pytest.mark.parametrize("kind", ["write", "sync"])
def test_a_second_failure_at_once_ends_the_log(kind: str) -> None:
    machine = Machine()
    opened = Opened(machine)
    held = {opened.append(b"before").first: b"before"}
    machine.disk.fail_at(lambda call: call.name == kind and of_log(call.path), times=50)
    pending = opened.append(b"maybe")
    assert not pending.synced
    assert opened.failure is not None
    assert "again" in str(opened.failure) or "next segment" in str(opened.failure)
    with pytest.raises(LogFailed):
        opened.append(b"more")
    machine.kill()
    opened = Opened(machine)
    found = opened.entries()
    assert {vlsn: found[vlsn] for vlsn in held} == held


def test_no_space_for_another_segment_ends_the_log_with_a_word_of_it() -> None:
    machine = Machine()
    opened = Opened(machine)
    held = {opened.append(b"before").first: b"before"}
    opened.log.cycle.rotate("request")  # the standby is taken, and there is no room for the next one
    machine.disk.capacity_bytes = 1
    opened.log.cycle.rotate("request")
    opened.append(b"in the last one")
    opened.log.cycle.rotate("request")
    fail_next(machine, "sync", errno.ENOSPC)
    opened.append(b"lost")
    assert opened.failure is not None
    assert "no room" in str(opened.failure)
    machine.disk.capacity_bytes = None
    machine.kill()
    opened = Opened(machine)
    assert opened.entries()[min(held)] == b"before"


@pytest.mark.parametrize("end", ["kill", "power_cut", "torn"])
@pytest.mark.parametrize("kind", ["write", "sync"])
def test_nothing_acknowledged_is_lost_wherever_a_replacement_stops(kind: str, end: str) -> None:
    def story(machine: Machine, held: dict[int, bytes]) -> None:
        opened = Opened(machine)
        for number in range(30):
            if number % 7 == 3:
                fail_next(machine, kind)
            if number == 15:
                opened.log.care.checkpointer.run()
            data = f"{number}".encode().ljust(2500, b".")
            pending = opened.append(data)
            if pending.synced:
                held[pending.first] = data

    machine = Machine()
    story(machine, {})
    numbers = [call.number for call in machine.disk.calls if call.changes]
    print(f"{kind}: {len(numbers)} disk calls that change something")
    assert len(numbers) >= 90
    for number in numbers[:: 1 if end == "torn" else 3]:
        machine = Machine(seed=number)
        held: dict[int, bytes] = {}
        machine.stop_at(number)
        with pytest.raises(StopHere):
            story(machine, held)
        machine.kill() if end == "kill" else machine.power_cut(tear=end == "torn")
        opened = Opened(machine)
        found = opened.entries()
        assert {vlsn: found.get(vlsn) for vlsn in held} == held, f"{end} at call {number}"
        more = opened.append(b"more")
        assert more.first == opened.log.view.range.last == max(found, default=0) + (2 if found else 3) or more.synced


def test_a_segment_that_was_thrown_away_does_not_come_back_with_the_power() -> None:
    """Its header page may be on the medium, and names the same segment before it as its successor's does."""

    def story(machine: Machine, held: dict[int, bytes]) -> Opened:
        opened = Opened(machine)
        path = f"{DIRECTORY}/{segment_name(opened.log.placement.active_files()[1])}"
        machine.disk.fail_at(lambda call: (call.name, call.path) == ("write", path) and call.size > PAGE_BYTES)
        for number in range(6):
            pending = opened.append(f"{number}".encode().ljust(12_000, b"."))
            assert pending.synced
            held[pending.first] = pending.values[0]
        return opened

    machine = Machine()
    opened = story(machine, {})
    assert opened.log.stats.rolls["error"] == 1
    thrown = next(call for call in machine.disk.calls if call.name == "remove")
    assert thrown.path == f"{DIRECTORY}/{segment_name(2)}"
    later = [call.number for call in machine.disk.calls if call.changes and call.number > thrown.number]
    came_back = 0
    for number in later:
        for seed in range(12):
            machine = Machine(seed)
            machine.stop_at(number)
            held: dict[int, bytes] = {}
            with pytest.raises(StopHere):
                story(machine, held)
            machine.power_cut(tear=True)
            came_back += machine.disk.exists(thrown.path)
            again = Opened(machine)
            found = again.entries()
            assert {vlsn: found.get(vlsn) for vlsn in held} == held, f"at call {number}, seed {seed}"
    assert came_back, "as it may, until the directory is synced"


class FailingDisk(FakeDisk):
    """Fails a write or sync of a segment now and then, never while a replacement is under way."""

    def __init__(self, rng: Random, share: float) -> None:
        super().__init__(rng=rng)
        self.failed = 0
        self.log: Log | None = None
        self.draws = Random(rng.random())
        self.share = share
        self.hook = self._maybe

    def _maybe(self, call: Call) -> None:
        log = self.log
        if log is None or call.name not in ("write", "sync") or not of_log(call.path):
            return
        if threading.current_thread().name != "vlsnlog-writer" or log._log.replacer.active:
            return
        if self.draws.random() < self.share:
            self.failed += 1
            raise OSError(errno.EIO, "injected", call.path)


def test_a_thousand_failures_under_concurrent_appends() -> None:
    """No caller sees an error, nothing is lost, and each thread's appends stand in their order."""
    failures = 1_000
    disk = FailingDisk(Random(11), 0.4)
    log = embedded_log(disk, LogOptions(segment_bytes=64 << 10, checkpoint_bytes=256 << 10, ring_bytes_max=1 << 20))
    disk.log = log
    told: dict[int, bytes] = {}
    errors: list[BaseException] = []

    def writer(name: int) -> None:
        number = 0
        try:
            while disk.failed < failures:
                data = f"{name}/{number}".encode()
                first, last = log.append(data)
                assert first == last
                told[first] = data
                number += 1
        except BaseException as error:
            errors.append(error)
            disk.failed = failures

    threads = [threading.Thread(target=writer, args=(name,)) for name in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors[0]
    assert log.stats.write_errors >= failures
    found = {entry.vlsn: entry.value for entry in log.read()}
    assert found == told
    assert sorted(told) == list(range(2, len(told) + 2))
    for name in range(6):
        mine = [data for data in (found[vlsn] for vlsn in sorted(found)) if data.startswith(f"{name}/".encode())]
        assert mine == [f"{name}/{number}".encode() for number in range(len(mine))]
    disk.log = None
    log.close()
    print(f"{disk.failed} failures, {len(told)} appends, {log.stats.rolls['error']} rolls for errors")


@pytest.mark.parametrize("kind", ["write", "sync"])
def test_what_lay_in_the_page_before_a_clean_stop_is_written_again_with_the_page(kind: str) -> None:
    """The new end names the page's first frame, so an earlier process's acknowledged entries there go along."""
    machine = Machine()
    opened = Opened(machine)
    for number in range(5):
        opened.append(b"%d" % number)
    held = opened.entries()
    opened.close()
    machine.kill()
    again = Opened(machine, take_term=False)
    assert again.log.placement.active_files()[0] == 1, "it goes on in the same segment"
    fail_next(machine, kind)
    again.take_term()
    pending = again.append(b"after")
    assert pending.synced and again.log.stats.write_errors == 1
    held[pending.first] = b"after"
    path = f"{DIRECTORY}/{segment_name(1)}"
    content = machine.disk.content(path)
    lost = slice(FIRST_FRAME, FIRST_FRAME + PAGE_BYTES)  # the failed write may have taken it along
    machine.disk.write_content(path, content[: lost.start] + bytes(PAGE_BYTES) + content[lost.stop :])
    assert again.entries() == held
    machine.power_cut()
    holds(machine, held)


@pytest.mark.parametrize("kind", ["write", "sync"])
def test_a_checkpoint_whose_end_is_written_again_points_to_it(kind: str) -> None:
    machine = Machine()
    opened = Opened(machine)
    opened.append(b"before")
    flushes = machine.stores.writes

    def is_of_the_end(call: Call) -> bool:
        return call.name == kind and of_log(call.path) and machine.stores.writes > flushes

    machine.disk.fail_at(is_of_the_end)  # behind the flush of the index
    opened.log.care.checkpointer.run()
    assert opened.log.stats.rolls["error"] == 1
    last = opened.log.care.checkpointer.last
    assert last is not None
    number, offset = last.end_lsn >> 32, last.end_lsn & 0xFFFFFFFF
    assert number == max(opened.log.view.segments())
    assert offset < opened.log.view.synced_end(number)
    segment = SegmentFile(machine.disk, DIRECTORY, number)
    frame = decode_header(segment.read(offset, FRAME_BYTES), 0, offset=offset, salt=segment.header.salt)
    segment.close()
    assert frame is not None
    assert frame.kind == FrameKind.CHECKPOINT_END


def test_a_log_that_was_killed_behind_a_checkpoint_goes_on_in_a_new_segment() -> None:
    """The bytes that a crash left behind a log's end are never written over. Only a clean stop says that nothing is
    there."""
    for stopped, numbers in (("killed", [1, 3]), ("closed", [1])):
        machine = Machine()
        opened = Opened(machine)
        held = {opened.append(b"one").first: b"one"}
        opened.log.care.checkpointer.run()
        if stopped == "closed":
            opened.close()
        machine.kill()
        again = Opened(machine)
        held[again.append(b"two").first] = b"two"
        assert list(again.log.view.segments()) == numbers
        assert again.entries() == held


def test_what_was_rolled_back_before_a_clean_stop_is_not_written_again() -> None:
    machine = Machine()
    opened = Undurable(machine, durable=3)
    for number in range(5):
        opened.append(b"%d" % number)
    opened.log.stop_sealing(NotMaster("a rollback follows"))
    rolled: list[object] = []
    opened.log.rollback(Vlsn(3), lambda: rolled.append(None), rolled.append)
    assert rolled == [None]
    opened.take_term()
    opened.append(b"new")
    held = opened.entries()
    opened.close()
    machine.kill()
    again = Opened(machine, take_term=False)
    fail_next(machine, "write")
    again.take_term()
    pending = again.append(b"after")
    assert pending.synced and again.log.stats.write_errors == 1
    held[pending.first] = b"after"
    assert again.entries() == held
    machine.kill()
    holds(machine, held)
