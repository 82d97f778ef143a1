"""A segment takes as much disk as its log: the room behind a sealed end is given back."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from tests.vlsn.logs import SMALL, Machine, Opened, put
from tests.vlsn.recover.crash_operations import RealMachine
from vlsn.format.segment import FIRST_FRAME, parse_segment_name, segment_name
from vlsn.segments.holes import HOLE_BYTES_MIN, PAGE_BYTES, give_back
from vlsn.verify.verify import verify
from vlsnlog.testing.fakes.disk import FakeDisk, StopHere


def taken(machine: Machine) -> dict[int, int]:
    """Returns number → bytes of disk of each segment file."""
    found = {}
    for name in machine.disk.list(machine.directory):
        number = parse_segment_name(name)
        if number is not None:
            file = machine.disk.open(f"{machine.directory}/{name}")
            found[number] = file.allocated()
            assert file.size() == SMALL.segment_bytes
            file.close()
    return found


def pages(end: int) -> int:
    return -(-end // PAGE_BYTES) * PAGE_BYTES


def restarted(machine: Machine, held: dict[int, bytes], rounds: int) -> Opened:
    """Killed and opened again, a little appended each time; open in the end."""
    opened = Opened(machine)
    for _ in range(rounds):
        put(opened, held, 3, 100)
        machine.kill()
        opened = Opened(machine)
    put(opened, held, 3, 100)
    return opened


def test_a_loop_of_restarts_takes_no_more_disk_than_its_log() -> None:
    machine, held = Machine(3), dict[int, bytes]()
    opened = restarted(machine, held, 12)
    log, found = opened.log, taken(machine)
    current = log.placement.active_files()
    sealed = {number: size for number, size in found.items() if number not in current}
    assert len(sealed) == 12
    assert sealed == {number: pages(log.view.synced_end(number)) for number in sealed}
    assert sum(sealed.values()) < 12 * SMALL.segment_bytes / 4
    assert log.placement.disk_bytes == sum(found.values())
    assert opened.entries() == held
    opened.close()
    report = verify(machine.disk, machine.stores, machine.directory)
    assert not report.findings and not report.torn_tail
    again = Opened(machine, take_term=False)
    assert again.entries() == held
    assert again.log.placement.disk_bytes == sum(taken(machine).values())


def test_on_a_real_file_system_too(tmp_path: Path) -> None:
    options = replace(SMALL, segment_bytes=1 << 20)
    machine = RealMachine(str(tmp_path / "log"))
    for _ in range(5):
        opened = Opened(machine, options)  # type: ignore[arg-type]
        opened.append(b"." * 1000)
        machine.kill()
    files = sorted(os.stat(path).st_blocks * 512 for path in (tmp_path / "log").glob("*.vlog"))
    assert len(files) == 6 and files[3] <= 64 << 10 and files[4] >= 1 << 20, files


def test_rolled_segments_give_back_their_rest_and_what_is_open_keeps_it() -> None:
    machine, held = Machine(4), dict[int, bytes]()
    opened = Opened(machine)
    put(opened, held, 2, 500)
    opened.log.cycle.rotate("request")
    put(opened, held, 2, 500)
    found, log = taken(machine), opened.log
    first, current, standby = sorted(found)
    assert found[first] == pages(log.view.synced_end(first))
    assert found[current] == found[standby] == SMALL.segment_bytes
    assert log.placement.holes.given_bytes == SMALL.segment_bytes - found[first]
    assert opened.entries() == held


def test_nothing_is_punched_before_the_next_header_that_names_the_end_is_synced() -> None:
    machine, held = Machine(5), dict[int, bytes]()
    opened = Opened(machine)
    put(opened, held, 2, 500)
    first = opened.log.placement.active_files()[0]
    machine.disk.calls.clear()
    opened.log.cycle.rotate("request")
    put(opened, held, 1, 500)
    names = [(call.name, parse_segment_name(call.path.rpartition("/")[2])) for call in machine.disk.calls]
    (punch,) = [at for at, (name, _) in enumerate(names) if name == "punch"]
    assert names[punch] == ("punch", first)
    path = f"{machine.directory}/{segment_name(first + 1)}"
    calls = [call[1:4] if call.path == path else () for call in machine.disk.calls]
    header = calls.index(("write", path, 0))
    synced = calls.index(("sync", path, 0), header)
    assert header < synced < punch
    assert machine.disk.calls[punch].offset == pages(opened.log.view.synced_end(first))


def test_a_log_of_an_older_release_gives_back_what_it_holds_when_it_is_opened() -> None:
    machine, held = Machine(6), dict[int, bytes]()
    machine.disk.punches = False
    opened = restarted(machine, held, 5)
    assert set(taken(machine).values()) == {SMALL.segment_bytes}
    opened.close()
    machine.disk.punches = True
    opened = Opened(machine, take_term=False)
    assert sum(size < SMALL.segment_bytes for size in taken(machine).values()) == 5
    assert opened.entries() == held


def test_a_file_system_that_cannot_is_left_alone_and_said_once() -> None:
    machine, held = Machine(7), dict[int, bytes]()
    machine.disk.punches = False
    opened = restarted(machine, held, 3)
    for _ in range(3):
        opened.log.cycle.rotate("request")
        put(opened, held, 1, 100)
    assert opened.log.life.failure is None
    assert "not supported" in opened.log.placement.holes.fault
    tried = [call for call in machine.disk.calls if call.name == "punch"]
    assert len(tried) == 3  # once in the life of each process that sealed a segment
    assert opened.log.placement.disk_bytes == sum(taken(machine).values())
    assert opened.entries() == held


@pytest.mark.parametrize("call", ["punch", "allocated"])
def test_a_disk_that_fails_here_ends_nothing(call: str) -> None:
    machine, held = Machine(8), dict[int, bytes]()
    opened = Opened(machine)
    put(opened, held, 2, 500)
    machine.disk.fail_at(lambda each: each.name == call)
    opened.log.cycle.rotate("request")
    put(opened, held, 2, 500)
    assert opened.log.life.failure is None
    assert opened.log.life.background.failures["hole"] == 1
    assert taken(machine)[1] == pages(opened.log.view.synced_end(1)), "it is tried again at once"
    machine.disk.fail_at(lambda each: each.name == call, times=1 << 30)
    opened.log.cycle.rotate("request")
    put(opened, held, 2, 500)
    (fault,) = opened.log.life.background.faults()
    assert (fault.work, fault.name, fault.failures) == ("hole", segment_name(2), 2)
    machine.disk.mend()
    assert taken(machine)[2] == SMALL.segment_bytes
    opened.close()
    opened = Opened(machine, take_term=False)
    assert taken(machine)[2] == pages(opened.log.view.synced_end(2))
    assert opened.entries() == held


def test_frames_of_a_segment_that_was_never_synced_are_kept_aside_without_its_zeros() -> None:
    machine, held = Machine(9), dict[int, bytes]()
    opened = Opened(machine)
    put(opened, held, 2, 500)
    header = lambda call: (call.name, call.offset) == ("write", 0) and call.path.endswith(segment_name(2))  # noqa: E731
    machine.disk.stop_at(header, moment="after")
    with suppress(StopHere):
        for _ in range(20):
            put(opened, held, 1, 6000)
    assert machine.disk.stopped
    path = f"{machine.directory}/{segment_name(2)}"
    sectors = [sector for sector in machine.disk.unsynced_sectors(path) if sector >= FIRST_FRAME // 512]
    machine.disk.power_cut_keeping({path: sectors})
    machine.stores.abandon()
    again = Opened(machine, take_term=False)
    (aside,) = [name for name in machine.disk.list(machine.directory) if ".cut-" in name]
    file = machine.disk.open(f"{machine.directory}/{aside}")
    assert file.allocated() <= FIRST_FRAME + 2 * PAGE_BYTES < file.size()
    assert again.entries() == held


@pytest.mark.parametrize("end", [FIRST_FRAME, FIRST_FRAME + 8, 2 * PAGE_BYTES, (64 << 10) - HOLE_BYTES_MIN, 64 << 10])
def test_whole_pages_behind_the_end_and_no_byte_before(end: int) -> None:
    disk = FakeDisk()
    disk.write_content("/a", b"\xff" * (64 << 10))
    before, after = give_back(disk, "/a", end)
    content, start = disk.content("/a"), pages(end)
    if len(content) - start < HOLE_BYTES_MIN:
        start = len(content)
    assert content == b"\xff" * start + bytes(len(content) - start)
    assert (before, after) == (64 << 10, start)
