"""``vlsn.Log`` on the real disk, with real threads and LMDB."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from vlsn import Log
from vlsn.embedded import log as embedded
from vlsn.errors import (
    BadArgument,
    LogClosed,
    LogFailed,
    LogInUse,
    NoSpace,
    NotMaster,
    RollbackProhibited,
    TooLarge,
    VlsnLogError,
)
from vlsn.format.segment import segment_name
from vlsn.limits import STATE_MAP_BYTES
from vlsn.real.disk import PosixDisk
from vlsn.real.lmdb_store import LmdbStores
from vlsn.state.options import Durability, LogOptions
from vlsn.state.state_store import StateStore
from vlsn.verify.verify import verify

SMALL = LogOptions(segment_bytes=64 << 10)


def test_append_read_and_reopen(tmp_path: Path) -> None:
    with Log.open(tmp_path / "log") as log:
        assert log.append([b"a", b"b"], keys=[b"k", None]) == (2, 3)
        assert log.append(b"c") == (4, 4)
        assert [(entry.vlsn, entry.key, entry.value) for entry in log.read()] == [
            (2, b"k", b"a"),
            (3, None, b"b"),
            (4, None, b"c"),
        ]
        assert [entry.value for entry in log.read(from_vlsn=3, to_vlsn=3)] == [b"b"]
        assert len(list(log.read(all_kinds=True))) == 4
    with Log.open(tmp_path / "log") as log:
        assert log.term == 2
        assert [entry.value for entry in log.read()] == [b"a", b"b", b"c"]
        assert log.append(b"d") == (6, 6)


def opened_often(directory: Path, options: LogOptions) -> None:
    for number in range(12):
        with Log.open(directory, options) as log:
            assert log.term == number + 1
            log.append(b"%d" % number)


def test_a_log_that_is_opened_often_keeps_its_newest_terms_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each open takes a term, and all that are kept are written with each checkpoint."""
    monkeypatch.setattr(embedded, "TERM_RUNS_KEPT", 4)
    opened_often(tmp_path, LogOptions(segment_bytes=64 << 10))
    store = StateStore(LmdbStores().open(str(tmp_path / "state"), map_bytes=STATE_MAP_BYTES, read_only=True))
    record = store.record()
    store.close()
    assert record is not None
    assert [term for term, _, _ in record.term_runs] == [8, 9, 10, 11, 12]  # four, and the last open's
    report = verify(PosixDisk(), LmdbStores(), str(tmp_path))
    assert report.ok, report.findings
    assert [run.term for run in report.term_runs] == list(range(1, 13))


def test_a_rollback_past_all_terms_that_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "TERM_RUNS_KEPT", 4)
    options = LogOptions(segment_bytes=64 << 10, durable_when_synced=False)
    opened_often(tmp_path, options)
    with Log.open(tmp_path, options) as log:
        log.rollback(4)
        assert log.term == 14
        log.append(b"on")
    with Log.open(tmp_path, options) as log:
        assert log.term == 15
        assert [entry.value for entry in log.read()] == [b"0", b"1", b"on"]
    assert verify(PosixDisk(), LmdbStores(), str(tmp_path)).ok


def test_rotation_checkpoint_and_waiting(tmp_path: Path) -> None:
    with Log.open(tmp_path, SMALL) as log:
        log.append(b"x")
        before = log.active_logs
        assert log.rotate() == before[0] + 1
        checkpoint = log.checkpoint()
        assert checkpoint.last_vlsn == 2
        assert not log.wait_for(3, timeout_s=0.01)
        waiting = threading.Thread(target=lambda: log.append(b"y"))
        waiting.start()
        assert log.wait_for(3, timeout_s=60)
        waiting.join()


def test_what_is_synced_of_a_segment_is_all_that_others_may_read(tmp_path: Path) -> None:
    """A file copied as far as that holds every append that has returned, and nothing torn."""
    with Log.open(tmp_path, SMALL) as log:
        log.append(b"one")
        first = log.active_logs[0]
        told = log.synced_length(first)
        with open(tmp_path / segment_name(first), "rb") as file:
            before = file.read(told)
        assert b"one" in before and log.synced_length(first + 7) == 0
        log.append(b"two")
        grown = log.synced_length(first)
        with open(tmp_path / segment_name(first), "rb") as file:
            after = file.read(grown)
        assert grown > told and after[:told] == before and b"two" in after[told:]
        assert log.stats.groups >= 2 and log.stats.unacked == 0


async def test_append_async_from_many_coroutines(tmp_path: Path) -> None:
    with Log.open(tmp_path, SMALL) as log:
        answers = await asyncio.gather(*(log.append_async(b"v%d" % number) for number in range(200)))
        assert sorted(first for first, _ in answers) == list(range(2, 202))


def test_an_open_log_stays_where_it_was_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log stays, whatever becomes of its name and of the working directory, with segments that come and go."""
    monkeypatch.chdir(tmp_path)
    other = tmp_path / "other"
    with Log.open("log", SMALL) as log:
        log.append(b"first")
        (other / "log").mkdir(parents=True)
        monkeypatch.chdir(other)
        values = [b"%d" % number + bytes(9000) for number in range(20)]
        for value in values[:10]:
            log.append(value)
        os.rename(tmp_path / "log", tmp_path / "moved")
        (tmp_path / "log").mkdir()
        for value in values[10:]:
            log.append(value)
        log.checkpoint()
        assert log.active_logs[0] > 3
        assert [entry.value for entry in log.read()] == [b"first", *values]
    assert not os.listdir(tmp_path / "log") and not os.listdir(other / "log")
    with Log.open(tmp_path / "moved", SMALL) as log:
        assert [entry.value for entry in log.read()] == [b"first", *values]


def test_a_directory_whose_lock_file_is_gone_is_in_use_all_the_same(tmp_path: Path) -> None:
    script = f"from vlsn import Log; Log.open({str(tmp_path)!r})"
    with Log.open(tmp_path, SMALL) as log:
        log.append(b"one")
        with pytest.raises(LogInUse):
            Log.open(tmp_path, SMALL)
        os.unlink(tmp_path / "LOCK")
        child = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
        assert child.returncode and "LogInUse" in child.stderr
        with pytest.raises(LogInUse):
            verify(PosixDisk(), LmdbStores(), str(tmp_path))
        log.append(b"two")
    with Log.open(tmp_path, SMALL) as log:
        assert [entry.value for entry in log.read()] == [b"one", b"two"]


def workers() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("vlsnlog-")}


@pytest.mark.parametrize("what", ["a file", "a file in its place", "no room"])
def test_an_open_that_the_system_refuses_says_so_and_leaves_nothing_behind(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"")
    directory = tmp_path / "log"
    error: type[VlsnLogError] = LogFailed
    if what == "a file":
        directory = tmp_path / "file"
    elif what == "a file in its place":
        directory.mkdir()
        (directory / "LOCK").mkdir()
    else:
        error = NoSpace

        def full(_: object, path: str, **__: object) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

        monkeypatch.setattr(PosixDisk, "open", full)
    before = workers()
    with pytest.raises(error, match=str(directory)):
        Log.open(directory, SMALL)
    assert workers() <= before


def test_a_log_without_room_for_a_segment_is_opened_for_reading(tmp_path: Path) -> None:
    options = replace(SMALL, durable_when_synced=False)
    with Log.open(tmp_path / "log", options) as log:
        values = [b"%d" % number for number in range(20)]
        for value in values:
            log.append(value)
        shutil.copytree(tmp_path / "log", tmp_path / "killed")
    nothing = replace(options, free_bytes_min=1 << 62)  # more than any disk has
    with Log.open(tmp_path / "killed", nothing) as log:
        assert [entry.value for entry in log.read()] == values
        log.raise_durable(10)
        for refused in (
            lambda: log.append(b"no"),
            lambda: log.append(b"no", durability=Durability.NO_SYNC),
            log.sync,
            log.rotate,
            log.checkpoint,
            lambda: log.rollback(15),
            log.sync,
        ):
            with pytest.raises(NoSpace):
                refused()
        assert log.clean().segments == []
        assert [entry.value for entry in log.read()] == values
    with Log.open(tmp_path / "killed", options) as log:
        assert log.term == 4  # one for each open, one for the rollback
        first, _ = log.append(b"room")
        assert [entry.value for entry in log.read(from_vlsn=2)] == [*values, b"room"]
        assert first == 23


@pytest.mark.parametrize(
    ("name", "low", "bad"),
    [
        ("segment_bytes", 64 << 10, (0, (64 << 10) - 8, (64 << 10) + 4, (1 << 31) + 8, 1e6, "64KiB")),
        ("block_bytes_max", 1, (0, -1, (1 << 20) + 1, 0.5)),
        *((name, 1, (0, -1, 1 << 63, 1.0, True)) for name in ("group_bytes_max", "queue_entries_max")),
        ("queue_bytes_max", 64 << 10, (0, -1, 1, 1e6)),
        ("checkpoint_bytes", 4 << 10, (0, -1, 1, None)),
        ("ring_bytes_max", 1, (0, -1, None)),
        ("checkpoint_period_s", 0.1, (0, -1.0, float("nan"), float("inf"))),
        *((name, 0, (-0.1, float("nan"), "1", True)) for name in ("flush_interval_s", "sync_interval_s", "idle_end_s")),
        *((name, 0.0, (-0.1, float("inf"), None)) for name in ("roll_period_s", "retention_age_s")),
        *((name, 0, (-1, 0.5)) for name in ("free_bytes_min", "retention_bytes", "hold_bytes_max")),
        ("durable_when_synced", False, (None, 1, "yes")),
    ],
)
def test_options_that_no_log_could_keep_are_refused_by_name(name: str, low: object, bad: tuple[object, ...]) -> None:
    assert getattr(LogOptions(**{name: low}), name) == low  # type: ignore[arg-type]
    for value in bad:
        with pytest.raises(BadArgument, match=name):
            LogOptions(**{name: value})  # type: ignore[arg-type]
        with pytest.raises(BadArgument, match=name):
            replace(SMALL, **{name: value})  # type: ignore[arg-type]


def test_limits(tmp_path: Path) -> None:
    with Log.open(tmp_path, SMALL) as log:
        with pytest.raises(TooLarge):
            log.append(b"x" * ((1 << 20) + 1))
        with pytest.raises(TooLarge):
            log.append(b"x" * (63 << 10))  # an entry that no segment of this log could hold
        assert log.append(b"x" * (50 << 10)) == (2, 2)
        assert log.range.last == 2


def test_sigkill_loses_nothing_that_was_returned(tmp_path: Path) -> None:
    script = f"""
import sys
from vlsn import Log
from vlsn.real.disk import PosixDisk
from vlsn.state.options import LogOptions
log = Log.open({str(tmp_path)!r}, LogOptions(segment_bytes=64 << 10))
while True:
    print(log.append(b"v" * 300)[0], flush=True)
"""
    told = 0
    for _ in range(3):
        child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        for line in child.stdout:
            told = int(line)
            if told % 97 == 0:
                child.kill()
                break
        told = max([told, *(int(line) for line in child.stdout.read().split("\n") if line)])
        child.stdout.close()
        child.wait()
    with Log.open(tmp_path, SMALL) as log:
        assert log.range.last > told
        kinds = [entry.kind for entry in log.read(all_kinds=True)]
        assert len(kinds) == log.range.last


def test_after_close_every_call_says_so(tmp_path: Path) -> None:
    log = Log.open(tmp_path, SMALL)
    log.close()
    log.close()
    for call in (
        lambda: log.append(b"x"),
        log.sync,
        log.rotate,
        log.checkpoint,
        log.clean,
        lambda: log.hold("late", 1),
        lambda: log.rollback(1),
        lambda: log.wait_for(9),
        lambda: list(log.read()),
    ):
        with pytest.raises(LogClosed):
            call()


def told(**changes: object) -> LogOptions:
    return replace(SMALL, durable_when_synced=False, **changes)  # type: ignore[arg-type]


def test_a_rollback_abandons_what_came_after_and_gives_its_vlsns_again(tmp_path: Path) -> None:
    with Log.open(tmp_path, told()) as log:
        assert log.append([b"a", b"b"]) == (2, 3)
        log.raise_durable(3)
        for value in (b"c", b"d"):
            log.append(value)
        log.rollback(3)
        assert (log.range.last, log.term, log.durable_vlsn) == (4, 2, 3)
        assert log.append(b"C") == (5, 5)
        assert [(entry.vlsn, entry.value) for entry in log.read()] == [(2, b"a"), (3, b"b"), (5, b"C")]
    with Log.open(tmp_path, told()) as log:
        assert [entry.value for entry in log.read()] == [b"a", b"b", b"C"]


def test_rollbacks_nested_and_disjoint_leave_one_life_of_each_vlsn(tmp_path: Path) -> None:
    with Log.open(tmp_path, told()) as log:
        log.append(b"2")
        log.append(b"3")
        log.rollback(2)  # TERM 3
        log.append(b"4")
        log.append(b"5")
        log.rollback(4)  # disjoint: TERM 5
        log.append(b"6")
        log.rollback(3)  # nested: TERM 4
        log.append(b"five")
        held = [(entry.vlsn, entry.term, entry.value) for entry in log.read(all_kinds=False)]
    assert held == [(2, 1, b"2"), (5, 4, b"five")]
    with Log.open(tmp_path, told()) as log:
        assert [(entry.vlsn, entry.term, entry.value) for entry in log.read()] == held
        log.rollback(0)
        assert (log.range.first, log.range.last) == (1, 1)
        assert list(log.read()) == []


def test_a_rollback_below_what_is_durable_or_within_a_block_is_refused_and_the_log_goes_on(tmp_path: Path) -> None:
    with Log.open(tmp_path, told()) as log:
        log.append([b"a", b"b"])
        log.append(b"c")
        log.raise_durable(3)
        with pytest.raises(RollbackProhibited) as refused:
            log.rollback(2)
        assert (refused.value.matchpoint, refused.value.durable) == (2, 3)
        with pytest.raises(BadArgument):
            log.raise_durable(5)
        with pytest.raises(BadArgument):
            log.rollback(99)
        assert log.append([b"d", b"e"]) == (5, 6)  # none of these took a new term
        with pytest.raises(BadArgument, match="not the last of its block"):
            log.rollback(5)
        assert [entry.value for entry in log.read()] == [b"a", b"b", b"c", b"d", b"e"]
        assert log.append(b"f") == (8, 8)
    with Log.open(tmp_path, SMALL) as log:  # what is synced is durable here
        with pytest.raises(RollbackProhibited):
            log.rollback(3)
        assert len(list(log.read())) == 6


def test_appends_beside_rollbacks_are_logged_and_kept_abandoned_or_refused(tmp_path: Path) -> None:
    answers: list[tuple[int, bytes]] = []
    refused = 0
    stop = threading.Event()
    with Log.open(tmp_path, told()) as log:

        def write(name: int) -> None:
            nonlocal refused
            number = 0
            while not stop.is_set():
                number += 1
                try:
                    answers.append((log.append(f"{name}/{number}".encode())[0], f"{name}/{number}".encode()))
                except NotMaster:
                    refused += 1

        threads = [threading.Thread(target=write, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(10):
                log.wait_for(log.range.last + 20, 10)
                log.rollback(0)
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert log.term == 11
        found = {entry.vlsn: entry.value for entry in log.read()}
        assert set(found.items()) <= set(answers)
        held = [(entry.vlsn, entry.value) for entry in log.read(all_kinds=True)]
    with Log.open(tmp_path, told()) as log:
        assert [(entry.vlsn, entry.value) for entry in log.read(to_vlsn=held[-1][0], all_kinds=True)] == held


def test_pairs_are_what_read_gives_within_its_bounds(tmp_path: Path) -> None:
    with Log.open(tmp_path, SMALL) as log:
        for number in range(200):
            log.append([b"%d" % number, b"x" * number], keys=[b"k", None] if number % 3 else None)
        for low, high in ((0, 0), (7, 7), (50, 130), (390, 10_000), (1, 1)):
            read = [(entry.vlsn, entry.value) for entry in log.read(from_vlsn=low, to_vlsn=high)]
            assert list(log.pairs(from_vlsn=low, to_vlsn=high)) == read
        assert list(log.pairs(from_vlsn=1, to_vlsn=1)) == []  # the term, the log's own
        abandoned = log.pairs()
        next(abandoned)
        del abandoned
        assert len(list(log.pairs())) == 400
    with Log.open(tmp_path, SMALL) as log:
        assert len(list(log.pairs())) == 400


@pytest.mark.parametrize("durability", [Durability.NO_SYNC, Durability.WRITE_NO_SYNC])
def test_a_rollback_takes_what_is_not_synced_yet_too(tmp_path: Path, durability: Durability) -> None:
    with Log.open(tmp_path, told(sync_interval_s=60.0, flush_interval_s=30.0)) as log:
        log.append(b"kept")
        for number in range(5):
            log.append(b"%d" % number, durability=durability)
        log.rollback(2)
        assert log.append(b"after") == (4, 4)
        held = [(2, b"kept"), (4, b"after")]
        assert [(entry.vlsn, entry.value) for entry in log.read()] == held
    with Log.open(tmp_path, told()) as log:
        assert [(entry.vlsn, entry.value) for entry in log.read()] == held
