"""Reads of an embedded log beside a write that fails, and takes a page that was synced before with it."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from random import Random

import pytest

from tests.fakes.clock import FakeClock
from tests.vlsn.logs import DIRECTORY, embedded_log
from vlsn.embedded.log import Log
from vlsn.errors import BadArgument, Damaged, LogFailed
from vlsn.limits import KIB
from vlsn.state.options import LogOptions
from vlsnlog.testing.fakes.disk import Call, FakeDisk

WAIT_S = 120.0


class BadPage(FakeDisk):
    """A disk with a bad page: from a sync that fails on, nothing of its segment can be read."""

    def __init__(self) -> None:
        super().__init__(rng=Random(1))
        self.armed = False
        self.bad = ""
        self.begun, self.tried = threading.Event(), threading.Event()
        self.hook = self._hook

    def _hook(self, call: Call) -> None:
        if call.name == "sync" and self.armed and call.path == f"{DIRECTORY}/00000001.vlog":  # not the standby's
            self.armed, self.bad = False, call.path
            self.begun.set()
            assert self.tried.wait(WAIT_S)
            raise OSError(errno.EIO, "the sync failed", call.path)
        if call.name == "read" and call.path == self.bad:
            self.tried.set()
            raise OSError(errno.EIO, "the page cannot be read", call.path)


@pytest.fixture
def disk() -> BadPage:
    return BadPage()


@pytest.fixture
def log(disk: BadPage) -> Iterator[Log]:
    opened = embedded_log(disk, LogOptions(segment_bytes=64 * KIB))
    yield opened
    disk.tried.set()
    disk.bad = ""
    opened.close()


def test_what_a_failed_write_took_is_read_where_it_was_written_again(log: Log, disk: BadPage) -> None:
    """This small log lies in the page that the failed write took, so all is written again."""
    values = [b"value %d" % number for number in range(5)]
    for value in values:
        log.append(value)
    disk.armed = True
    appending = threading.Thread(target=log.append, args=(b"last",))
    appending.start()
    assert disk.begun.wait(WAIT_S)
    assert [entry.value for entry in log.read()] == values
    appending.join(WAIT_S)
    assert not appending.is_alive()
    assert log.stats.write_errors == 1
    assert [value for _, value in log.pairs()] == [*values, b"last"]


def test_what_cannot_be_read_when_nothing_is_under_way_is_told(log: Log, disk: BadPage) -> None:
    log.append(b"value")
    disk.bad = f"{DIRECTORY}/00000001.vlog"
    with pytest.raises(Damaged, match=r"00000001\.vlog: .* cannot be read"):
        list(log.read())
    disk.bad = ""
    assert [entry.value for entry in log.read()] == [b"value"]


def test_a_log_that_has_failed_tells_what_it_cannot_read(log: Log, disk: BadPage) -> None:
    log.append(b"value")
    log._log.life.fail("injected", OSError("injected"))
    disk.bad = f"{DIRECTORY}/00000001.vlog"
    with pytest.raises(Damaged, match=r"00000001\.vlog: .* cannot be read"):
        list(log.read())
    with pytest.raises(LogFailed):
        log.append(b"more")


class OneFlagSet(FakeDisk):
    """Holds a rollback up behind its first flag, until somebody has read what it abandons."""

    def __init__(self) -> None:
        super().__init__(rng=Random(1))
        self.flags = 0
        self.flagged, self.tried = threading.Event(), threading.Event()
        self.hook = self._hook

    def _hook(self, call: Call) -> None:
        if call.name == "write" and call.size == 1:
            self.flags += 1
            if self.flags != 2:
                return
            self.flagged.set()
            assert self.tried.wait(WAIT_S)
            time.sleep(0.05)  # a reader that does not wait for its end has given up by now
        elif call.name == "read" and self.flagged.is_set():
            self.tried.set()


@pytest.mark.parametrize("from_vlsn", [4, 5])
def test_what_is_being_rolled_back_is_no_damage(from_vlsn: int) -> None:
    disk = OneFlagSet()
    log = embedded_log(disk, LogOptions(segment_bytes=64 * KIB, durable_when_synced=False))
    for number in range(2, 8):
        log.append(b"%d" % number)
    rolling = threading.Thread(target=log.rollback, args=(4,))
    rolling.start()
    assert disk.flagged.wait(WAIT_S)
    assert [entry.vlsn for entry in log.read(from_vlsn=from_vlsn)] == list(range(from_vlsn, 5))
    rolling.join(WAIT_S)
    assert [vlsn for vlsn, _ in log.pairs(from_vlsn=2)] == [2, 3, 4]
    log.close()


def test_a_time_is_found_though_the_clock_goes_back_and_the_log_is_rolled_back() -> None:
    clock = FakeClock()
    log = embedded_log(FakeDisk(), LogOptions(segment_bytes=64 * KIB, durable_when_synced=False), clock=clock)

    def check() -> None:
        times = {entry.vlsn: entry.time for entry in log.read(all_kinds=True)}
        for time_us in {0, *times.values(), max(times.values()) + 1}:
            wanted = next((vlsn for vlsn, time in times.items() if time >= time_us), log.range.last + 1)
            assert log.find_time(time_us) == wanted

    hours = [3, 0, -2, 5, 1, 9, 2]
    for number in range(70):
        clock.offset_us = hours[number % 7] * 3_600_000_000
        log.append(b"x" * 5_000)
        if number in (20, 45):
            log.checkpoint()
        if number % 30 == 29:
            check()
            clock.offset_us = 7 * 3_600_000_000
            log.rollback(number - 10)
            check()
    check()
    at = datetime.fromtimestamp(clock.wall_us() / 1e6, UTC)
    assert log.find_time(at) == log.find_time(at.replace(tzinfo=None)) == log.find_time(clock.wall_us())
    with pytest.raises(BadArgument):
        log.find_time(-1)
    log.close()
