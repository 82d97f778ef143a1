"""A benchmark that gets a signal ends the processes that it started, and removes their files."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

import pytest

from repl.bench import run
from repl.bench.memory import Reserve
from tests.e2e.commands import VLSNLOG

pytestmark = pytest.mark.real

UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)
MESSAGE = struct.pack("!BBH4x", 0x82, 0x80 | 126, 4096) + bytes(4096)


def until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("ctrl_c", [signal.SIG_DFL, signal.SIG_IGN], ids=["foreground", "background"])
def test_a_benchmark_that_is_told_to_end_leaves_no_node_and_no_file(ctrl_c: signal.Handlers, tmp_path: Path) -> None:
    """Ends also a benchmark that a script has started in the background, where Ctrl-C is ignored."""
    begun = "vlsnlog-bench-*/n*/node.pid"
    process = subprocess.Popen(
        [VLSNLOG, "bench", "append", "--seconds", "600", "--bytes-max", "64000000"],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, ctrl_c),
    )
    try:
        until(lambda: len(list(tmp_path.glob(begun))) == 3 or process.poll() is not None, "it has begun")
        pids = [int(path.read_text()) for path in tmp_path.glob(begun)]
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=90)
    finally:
        process.kill()
    assert (process.returncode, out, err.strip()) == (130, b"", b"")
    until(lambda: not any(map(alive, pids)), "its nodes have ended")
    assert list(tmp_path.iterdir()) == []


def test_a_benchmark_that_touches_memory_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    touched = []

    class Struck(Reserve):
        def __enter__(self) -> Self:
            signal.raise_signal(signal.SIGINT)
            touched.append(self)
            raise AssertionError

    monkeypatch.setattr(run, "Reserve", Struck)
    with pytest.raises(KeyboardInterrupt):
        run.run_bench(run.BenchOptions(work="append"))
    assert not touched


def test_who_echoes_says_nothing_when_a_benchmark_is_cut_short() -> None:
    command = [sys.executable, "-m", "repl.bench.ceilings"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as echo:
        assert echo.stdout is not None
        port = int(echo.stdout.readline())
        for _ in range(20):
            with socket.create_connection(("127.0.0.1", port), 60) as link:
                link.sendall(UPGRADE)
                link.recv(4096)
                link.sendall(MESSAGE * 64)
                link.recv(1)  # it is in the middle of them
                link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        assert echo.communicate(timeout=60) == (b"", b"")
