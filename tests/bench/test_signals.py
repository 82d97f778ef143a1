"""A benchmark that is told to end puts away what it started."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.commands import VLSNLOG

pytestmark = pytest.mark.real


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
    """Also one that a script has started in the background, where Ctrl-C is ignored."""
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
