"""Logs that nobody closes: lost by their users, or still open when the process ends."""

from __future__ import annotations

import gc
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import pytest

from vlsn.embedded.log import Log
from vlsn.errors import LogInUse
from vlsn.real.disk import PosixDisk
from vlsn.real.lmdb_store import LmdbStores
from vlsn.verify.verify import verify

WAIT_S = 120.0


def opened(directory: Path) -> Log:
    """Opens the log, once its present user has closed it."""
    until = time.monotonic() + WAIT_S
    while True:
        try:
            return Log.open(directory)
        except LogInUse:
            assert time.monotonic() < until, "it stays open"
            time.sleep(0.01)


def values(directory: Path) -> list[bytes]:
    assert verify(PosixDisk(), LmdbStores(), str(directory)).ok
    with opened(directory) as log:
        return [entry.value for entry in log.read()]


def test_a_log_that_is_lost_is_closed_and_whoever_lost_it_is_warned(tmp_path: Path) -> None:
    def lose() -> None:
        Log.open(tmp_path).append(b"kept")
        gc.collect()

    with pytest.warns(ResourceWarning, match="was not closed"):
        lose()
    with opened(tmp_path) as log:
        assert [entry.value for entry in log.read()] == [b"kept"]


def test_a_signal_between_the_end_of_open_and_whoever_called_it_loses_no_log(tmp_path: Path) -> None:
    class Interrupted(Exception):
        pass

    def at_return(frame: FrameType, event: str, _: object) -> None:
        if event == "return" and frame.f_code is Log.open.__func__.__code__:  # type: ignore[attr-defined]
            raise Interrupted

    def interrupted() -> None:
        sys.setprofile(at_return)
        try:
            Log.open(tmp_path)
        except Interrupted:
            pass
        else:
            raise AssertionError("it was not interrupted")
        finally:
            sys.setprofile(None)
        gc.collect()

    with pytest.warns(ResourceWarning, match="was not closed"):
        interrupted()
    opened(tmp_path).close()


@pytest.mark.parametrize("way", [Log.read, Log.pairs])
def test_whoever_reads_has_the_log(way: Callable[[Log], Iterator[object]], tmp_path: Path) -> None:
    with Log.open(tmp_path) as log:
        log.append([b"%d" % number for number in range(50)])

    def read() -> int:
        reading = way(Log.open(tmp_path))
        next(reading)
        gc.collect()
        time.sleep(0.1)
        return 1 + len(list(reading))

    with pytest.warns(ResourceWarning, match="was not closed"):
        assert read() == 50
    opened(tmp_path).close()


@pytest.mark.real
@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("log.append(b'x')", [b"x"]),
        ("log.append(b'x'); del log", [b"x"]),
        # The main thread is over, and another one goes on.
        (
            "import threading, time\n"
            "def later():\n    time.sleep(0.3)\n    log.append(b'x')\n"
            "threading.Thread(target=later).start()",
            [b"x"],
        ),
        # A child has the log, and none of its threads.
        (
            "import os\nchild = os.fork()\nif child:\n    assert os.waitpid(child, 0)[1] == 0\n    log.append(b'x')",
            [b"x"],
        ),
        # Its calls say so, instead of waiting for them for ever.
        (
            "import os\n"
            "from vlsn.errors import LogClosed\n"
            "def refused(call):\n"
            "    try:\n        call()\n"
            "    except LogClosed:\n        return\n"
            "    raise AssertionError(call)\n"
            "with log, log.hold('one', 1) as hold:\n"
            "    with log._log.latch:  # of one of the parent's threads, for ever\n"
            "        child = os.fork()\n"
            "    if child:\n"
            "        assert os.waitpid(child, 0)[1] == 0\n"
            "        log.append(b'x')\n"
            "    else:\n"
            "        log._log.latch.acquire()\n"
            "        def later():\n"
            "            for call in (\n"
            "                log.sync, log.checkpoint, log.rotate, log.clean, lambda: log.append(b'y'),\n"
            "                lambda: log.wait_for(9), lambda: log.raise_durable(1), lambda: log.rollback(1),\n"
            "                lambda: log.hold('two', 1), lambda: hold.advance(1),\n"
            "            ):\n"
            "                refused(call)\n"
            "            hold.release()\n"
            "            log.close()\n"
            "        import threading\n"
            "        thread = threading.Thread(target=later, daemon=True)\n"
            "        thread.start()\n"
            "        thread.join(20)\n"
            "        if thread.is_alive():\n"
            "            os._exit(3)",
            [b"x"],
        ),
        # A child that lives on does not keep the directory.
        (
            "import os\n"
            "mine, its = os.pipe()\n"
            "child = os.fork()\n"
            "if not child:\n    os.close(its)\n    os.read(mine, 1)\n    sys.exit()\n"
            "log.append(b'x')\n"
            "log.close()\n"
            "Log.open(sys.argv[1]).close()\n"
            "os.close(its)\n"
            "assert os.waitpid(child, 0)[1] == 0",
            [b"x"],
        ),
    ],
    ids=["open", "lost", "other thread", "fork", "used behind a fork", "child lives on"],
)
@pytest.mark.feature("embedded log")
def test_a_process_that_closes_no_log_ends_and_leaves_it_whole(
    script: str, expected: list[bytes], tmp_path: Path
) -> None:
    script = f"import sys\nfrom vlsn.embedded.log import Log\nlog = Log.open(sys.argv[1])\n{script}"
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", script, str(tmp_path)]
    ended = subprocess.run(command, timeout=60, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    assert values(tmp_path) == expected
