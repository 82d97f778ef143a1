"""Ctrl-C, whenever it comes, ends a command without a word."""

from __future__ import annotations

import array
import fcntl
import os
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from repl import connect_sync
from tests.repl.client.group import ServedNode

ENDS_S = 60
INTERRUPTED = 130
KILLED = -signal.SIGINT
VALUE = b"x" * 500_000
"""More than a pipe holds."""

LOADING = """
import signal, sys
from repl.cli.start import main

class Dropped:
    def __del__(self):  # what is raised in here goes to stderr and no further
        signal.raise_signal(signal.SIGINT)

class Finder:
    @staticmethod
    def find_spec(name, *_):
        if name == struck:
            Dropped()

struck = sys.argv.pop(1)
sys.meta_path.insert(0, Finder)
sys.exit(main())
"""

ENDING = """
import atexit, signal, sys
from repl.cli.start import main
atexit.register(signal.raise_signal, signal.SIGINT)
sys.exit(main())
"""

WAITING = """
import asyncio, ctypes, operator, selectors, signal, sys
from functools import partial
from repl.cli.signals import run

class Poll:
    def __init__(self, epoll):
        self._epoll = epoll

    def __getattr__(self, name):
        return getattr(self._epoll, name)

    def poll(self, timeout, events_max):
        poll = partial(self._epoll.poll, timeout, events_max)
        if timeout >= 0:
            return poll()
        strike = partial(ctypes.CDLL(None)["raise"], signal.SIGINT)
        return list(map(operator.call, (strike, poll)))[1]  # no bytecode between them, so no handler written in Python

class Selector(selectors.EpollSelector):
    def __init__(self):
        super().__init__()
        self._selector = Poll(self._selector)

selectors.DefaultSelector = Selector
signal.signal(signal.SIGINT, signal.SIG_DFL)

async def forever():
    await asyncio.Event().wait()

try:
    run(forever())
except KeyboardInterrupt:
    sys.exit(130)
"""


def ended(program: str, *arguments: str | Path) -> tuple[int, bytes, bytes]:
    command = [sys.executable, "-c", program, *map(str, arguments)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=ENDS_S)
    return done.returncode, done.stdout, done.stderr.strip()


def test_nothing_that_takes_time_is_loaded_before_ctrl_c_is_quiet() -> None:
    program = "import sys; before = {*sys.modules}; import repl.cli.start; print(*sorted({*sys.modules} - before))"
    assert ended(program) == (0, b"__future__ repl repl.cli repl.cli.start\n", b"")


@pytest.mark.parametrize("module", ["click", "repl.config"])
def test_ctrl_c_while_a_command_is_loaded_ends_it_quietly(module: str, directory: Path) -> None:
    assert ended(LOADING, module, "dump", directory) == (KILLED, b"", b"")


def test_ctrl_c_while_a_command_runs_that_has_nothing_to_put_away_ends_it_quietly(directory: Path) -> None:
    assert ended(LOADING, "numpy", "dump", directory) == (KILLED, b"", b"")


@pytest.mark.parametrize("module", ["repl.client.connect", "aiohttp"])
@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (("append", "value"), INTERRUPTED),
        (("read", "--follow"), 0),
        (("status", "--watch"), 0),
        (("group", "show"), INTERRUPTED),
    ],
)
def test_ctrl_c_while_a_client_is_loaded_ends_the_command_quietly(
    arguments: tuple[str, ...], status: int, module: str
) -> None:
    assert ended(LOADING, module, *arguments, "--url", "http://127.0.0.1:9") == (status, b"", b"")


def test_ctrl_c_while_the_process_ends_says_nothing() -> None:
    status, out, err = ended(ENDING, "--version")
    assert (status, out.split()[0], err) == (KILLED, b"vlsnlog", b"")


def test_ctrl_c_is_not_slept_over_when_it_comes_just_before_the_loop_waits() -> None:
    assert ended(WAITING) == (INTERRUPTED, b"", b"")


@contextmanager
def reading_into_a_full_pipe(unbuffered: str) -> Iterator[subprocess.Popen[bytes]]:
    with ServedNode() as served:
        with connect_sync(served.url) as log:
            log.append(VALUE)
        command = [sys.executable, "-m", "repl.cli.start", "read", "--url", served.url]
        environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as reading:
            try:
                assert reading.stdout is not None
                pipe = reading.stdout.fileno()
                until(lambda: waiting_bytes(pipe) == fcntl.fcntl(pipe, fcntl.F_GETPIPE_SZ), "the pipe is full")
                yield reading
            finally:
                reading.kill()


def waiting_bytes(pipe: int) -> int:
    count = array.array("i", [0])
    fcntl.ioctl(pipe, termios.FIONREAD, count)
    return count[0]


def until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + ENDS_S
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_second_ctrl_c_ends_a_command_whose_output_nobody_takes(unbuffered: str) -> None:
    def struck_again() -> bool:
        reading.send_signal(signal.SIGINT)
        return reading.poll() is not None

    with reading_into_a_full_pipe(unbuffered) as reading:
        until(struck_again, "it has ended")
        assert reading.stderr is not None
        assert (reading.returncode, reading.stderr.read()) == (KILLED, b"")


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_command_that_is_stopped_in_the_middle_of_a_write_goes_on_with_the_rest(unbuffered: str) -> None:
    with reading_into_a_full_pipe(unbuffered) as reading:
        reading.send_signal(signal.SIGSTOP)
        until(lambda: stopped(reading.pid), "it is stopped")
        reading.send_signal(signal.SIGCONT)
        out, err = reading.communicate(timeout=ENDS_S)
        assert (reading.returncode, out == VALUE + b"\n", err) == (0, True, b"")


def stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].startswith("T")


def test_what_nohup_ignores_stays_ignored() -> None:
    program = (
        "import signal; from repl.cli.signals import unwound_by_signals; signal.signal(signal.SIGHUP, signal.SIG_IGN);"
        "unwound_by_signals(); signal.raise_signal(signal.SIGHUP); signal.raise_signal(signal.SIGTERM)"
    )
    status, _, err = ended(program)
    assert (status, err.splitlines()[-1]) == (KILLED, b"KeyboardInterrupt")


def watching(url: str, *arguments: str, stdout: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "repl.cli.start", "status", "--watch", "--url", url, *arguments]
    return subprocess.Popen(command, stdout=stdout, stderr=subprocess.PIPE)


@pytest.mark.parametrize("arguments", [(), ("--json",)])
def test_a_status_that_is_watched_comes_again_and_ends_quietly(arguments: tuple[str, ...]) -> None:
    with ServedNode() as served, watching(served.url, *arguments, stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        lines: list[bytes] = []
        while sum(b"n1" in line for line in lines) < 2:
            lines.append(running.stdout.readline())
            assert lines[-1], running.stderr.read()
        assert b"\x1b" not in b"".join(lines)
        assert (b"{" in lines[0]) == bool(arguments)
        running.send_signal(signal.SIGINT)
        assert (running.wait(ENDS_S), running.stderr.read()) == (0, b"")


def test_a_status_that_is_watched_on_a_terminal_is_drawn_in_place() -> None:
    ours, theirs = os.openpty()
    with ServedNode() as served, watching(served.url, stdout=theirs) as running:
        os.close(theirs)
        seen = b""
        while seen.count(b"\x1b[H\x1b[2J") < 2:
            seen += os.read(ours, 4096)
        running.send_signal(signal.SIGINT)
        try:
            while os.read(ours, 4096):
                pass
        except OSError:  # Linux says so when the other end is closed
            pass
        assert running.stderr is not None
        assert (running.wait(ENDS_S), running.stderr.read()) == (0, b"")
    os.close(ours)
