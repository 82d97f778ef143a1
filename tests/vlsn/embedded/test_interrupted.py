"""Ctrl-C in an append: the main thread may be interrupted anywhere, and the log goes on."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from itertools import count
from pathlib import Path
from random import Random
from types import FrameType

import pytest

from vlsn.embedded.log import Log
from vlsn.real.disk import PosixDisk
from vlsn.real.lmdb_store import LmdbStores
from vlsn.state.options import Durability, LogOptions
from vlsn.verify.verify import verify

INTERRUPTS = 400
TRIES_MAX = 20_000
WAIT_S = 120.0
AGAIN_S = 0.000_05
UNHEARD = ("_weakrefset.py", "junkdrawer.py")
"""Files of callbacks, of weak references and of the collector, out of which no exception comes."""


pytestmark = pytest.mark.skipif(
    sys.version_info[:2] == (3, 14),
    reason="in Python 3.14 a signal's exception may leave a lock held, between `with lock` and the block (GH-148874)",
)


class _Interrupted(Exception):
    pass


def test_appends_that_a_signal_interrupts_hold_up_nobody_and_leave_no_hole(tmp_path: Path) -> None:
    def interrupt(_: int, frame: FrameType | None) -> None:
        if frame is not None and frame.f_code.co_filename.endswith(UNHEARD):
            signal.setitimer(signal.ITIMER_REAL, AGAIN_S)  # raised there, it reaches nobody
            return
        raise _Interrupted

    told: dict[int, bytes] = {}
    over = False
    draws = Random(7)
    with Log.open(tmp_path, LogOptions(segment_bytes=256 << 10)) as log:

        def append() -> None:
            while not over:
                told[log.append(b"other")[1]] = b"other"

        other = threading.Thread(target=append, daemon=True)
        old = signal.signal(signal.SIGALRM, interrupt)
        interrupted = tries = 0
        try:
            other.start()
            while interrupted < INTERRUPTS and tries < TRIES_MAX:
                tries += 1
                try:
                    signal.setitimer(signal.ITIMER_REAL, draws.uniform(0.000_005, 0.000_3))
                    told[log.append(b"main", durability=draws.choice(list(Durability)))[1]] = b"main"
                    signal.setitimer(signal.ITIMER_REAL, 0)
                except _Interrupted:
                    interrupted += 1
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, old)
            over = True
        other.join(WAIT_S)
        assert not other.is_alive()
        assert interrupted == INTERRUPTS
    assert verify(PosixDisk(), LmdbStores(), str(tmp_path)).ok
    with Log.open(tmp_path) as log:
        found: dict[int, bytes] = {entry.vlsn: entry.value for entry in log.read()}
    assert {vlsn: found.get(vlsn) for vlsn in told} == told


class _AtEvent:
    """A profiler that raises in this thread at one call of a function, or return of a built-in one. A signal's handler
    may run there as well."""

    def __init__(self, number: int) -> None:
        self._left = number

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if event in ("call", "c_return") and frame.f_globals["__name__"].startswith("vlsn."):
            self._left -= 1
            if not self._left:
                raise _Interrupted


def test_an_append_that_is_interrupted_at_any_of_its_calls_holds_up_nobody(tmp_path: Path) -> None:
    """The interruption comes at each of them in turn: a signal seldom comes while a group would be made."""
    told: dict[int, bytes] = {}
    with Log.open(tmp_path) as log:

        def append() -> None:
            told[log.append(b"other")[1]] = b"other"

        for number in count(1):
            sys.setprofile(_AtEvent(number))
            try:
                told[log.append(b"main")[1]] = b"main"
            except _Interrupted:
                pass
            else:
                break
            finally:
                sys.setprofile(None)
            other = threading.Thread(target=append, daemon=True)
            other.start()
            other.join(WAIT_S)
            assert not other.is_alive() and len(told) == number
        assert number > 20, "an append makes more calls than that"
    with Log.open(tmp_path) as log:
        found: dict[int, bytes] = {entry.vlsn: entry.value for entry in log.read()}
    assert {vlsn: found.get(vlsn) for vlsn in told} == told


@pytest.mark.real
@pytest.mark.parametrize(
    ("what", "seed"), [("calls", 1), ("close", 2), ("open", 3), *[("exit", n) for n in range(4, 8)]]
)
def test_a_signal_in_another_call_ends_the_waiting_and_not_what_was_begun(what: str, seed: int, tmp_path: Path) -> None:
    """Nothing hangs, neither the calls after it nor the end of the process, and the log is whole."""
    command = [sys.executable, "-m", "tests.vlsn.embedded.interrupted_process", str(tmp_path), what, str(seed)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0 or (what == "exit" and "Interrupted" in ended.stderr), ended.stderr
    report = verify(PosixDisk(), LmdbStores(), str(tmp_path))
    assert report.ok, report.findings
    with Log.open(tmp_path) as log:
        assert log.range.last == report.last + 1  # its TERM
