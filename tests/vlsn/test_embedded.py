"""``vlsn.Log`` on the real disk, with real threads and LMDB."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from vlsn import Log
from vlsn.errors import BadArgument, LogFailed, LogInUse, TooLarge, WrongDirectory
from vlsn.options import LogOptions

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


def test_many_threads_share_syncs_and_keep_their_own_order(tmp_path: Path) -> None:
    told: dict[int, bytes] = {}
    with Log.open(tmp_path, SMALL) as log:

        def write(name: int) -> None:
            for number in range(100):
                value = f"{name}/{number}".encode()
                first, last = log.append(value)
                assert first == last
                told[first] = value

        threads = [threading.Thread(target=write, args=(name,)) for name in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert {entry.vlsn: entry.value for entry in log.read()} == told
        assert len(told) == 800
        assert log._log.stats.groups < 800  # some appends shared a sync
        for name in range(8):
            mine = [value for _, value in sorted(told.items()) if value.startswith(f"{name}/".encode())]
            assert mine == [f"{name}/{number}".encode() for number in range(100)]


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
        assert log.wait_for(3, timeout_s=10)
        waiting.join()


async def test_append_async_from_many_coroutines(tmp_path: Path) -> None:
    with Log.open(tmp_path, SMALL) as log:
        answers = await asyncio.gather(*(log.append_async(b"v%d" % number) for number in range(200)))
        assert sorted(first for first, _ in answers) == list(range(2, 202))


def test_a_directory_in_use_or_of_another_owner_is_refused(tmp_path: Path) -> None:
    with Log.open(tmp_path, SMALL):
        with pytest.raises(LogInUse):
            Log.open(tmp_path, SMALL)
        child = subprocess.run(
            [sys.executable, "-c", f"from vlsn import Log; Log.open({str(tmp_path)!r})"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert "LogInUse" in child.stderr
    from vlsn import embedded

    name, embedded.NODE_NAME = embedded.NODE_NAME, "other"
    try:
        with pytest.raises(WrongDirectory):
            Log.open(tmp_path, SMALL)
    finally:
        embedded.NODE_NAME = name


def test_limits(tmp_path: Path) -> None:
    with Log.open(tmp_path, SMALL) as log:
        with pytest.raises(TooLarge):
            log.append(b"x" * ((1 << 20) + 1))
        with pytest.raises(BadArgument):
            log.append(b"x" * (63 << 10))  # an entry that no segment of this log could hold
        assert log.append(b"x" * (50 << 10)) == (2, 2)
        assert log.range.last == 2


def test_sigkill_loses_nothing_that_was_returned(tmp_path: Path) -> None:
    script = f"""
import sys
from vlsn import Log
from vlsn.options import LogOptions
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
    with pytest.raises(Exception, match=r"closed|not sealing") as raised:
        log.append(b"x")
    assert not isinstance(raised.value, LogFailed)
