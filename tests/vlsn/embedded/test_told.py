"""Failures between the queue and the waiting callers: each gets an answer, and the log can be opened again."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from vlsn import Log
from vlsn.embedded.log import GROUP_NAME, NODE_NAME
from vlsn.errors import LogFailed, OutcomeUnknown
from vlsn.real.clock import SystemClock, SystemRandom
from vlsn.real.disk import PosixDisk
from vlsn.real.lmdb_store import LmdbStores
from vlsn.real.threads import CallerThreads
from vlsn.recover.recovery import recover
from vlsn.seams import Seams
from vlsn.state.options import Durability, LogOptions

OPTIONS = LogOptions(segment_bytes=1 << 20)
WRITERS = 8
BOUND_S = 30.0


class FailingClock(SystemClock):
    """A clock that fails from its ``calls``-th call on, as anything may that asks for memory."""

    def __init__(self) -> None:
        self.calls = 0

    def _count(self) -> None:
        if self.calls:
            self.calls -= 1
            if not self.calls:
                self.calls = 1
                raise MemoryError

    def monotonic_s(self) -> float:
        self._count()
        return super().monotonic_s()

    def wall_us(self) -> int:
        self._count()
        return super().wall_us()


@contextmanager
def reported() -> Iterator[list[BaseException | None]]:
    """Collects what the log's threads report, which is not to be an error of pytest's."""
    before, seen = threading.excepthook, list[BaseException | None]()
    threading.excepthook = lambda args: seen.append(args.exc_value)
    try:
        yield seen
    finally:
        threading.excepthook = before


@pytest.mark.parametrize("calls", [1, 2, 3, 4, 5, 6, 7, 8, 11, 17])
def test_a_failure_anywhere_on_the_way_is_told_to_all_who_wait(tmp_path: Path, calls: int) -> None:
    clock = FailingClock()
    seams = Seams(PosixDisk(), clock, SystemRandom(), CallerThreads(), LmdbStores())
    keeper = seams.threads.worker("keeper")
    recovered = recover(str(tmp_path), seams, group=GROUP_NAME, node=NODE_NAME, segment_bytes=OPTIONS.segment_bytes)
    log = Log(recovered, OPTIONS, seams, keeper)
    log._take_term()
    outcomes: list[BaseException] = []
    told: list[int] = []

    def write() -> None:
        try:
            while True:
                told.append(log.append(b"x")[0])
        except Exception as error:
            outcomes.append(error)

    with reported():
        threads = [threading.Thread(target=write, daemon=True) for _ in range(WRITERS)]
        clock.calls = calls
        for thread in threads:
            thread.start()
        until = time.monotonic() + BOUND_S
        for thread in threads:
            thread.join(max(until - time.monotonic(), 0))
        assert len(outcomes) == WRITERS, "some wait for ever"
        assert all(isinstance(error, LogFailed | OutcomeUnknown) for error in outcomes), outcomes
        closing = threading.Thread(target=log.close, daemon=True)
        closing.start()
        closing.join(BOUND_S)
        assert not closing.is_alive()
    with Log.open(tmp_path, OPTIONS) as again:
        kept = [entry.vlsn for entry in again.read()]
        assert set(told) <= set(kept)
        unknown = sum(isinstance(error, OutcomeUnknown) for error in outcomes)
        assert len(kept) <= len(told) + unknown, "what was refused is not logged"


def test_a_clock_before_1970_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: -86_400 * 10**9)
    with Log.open(tmp_path, OPTIONS) as log:
        log.append(b"early")
        log.append(b"soon", durability=Durability.NO_SYNC)
        log.rotate()
        log.checkpoint()
    monkeypatch.undo()
    with Log.open(tmp_path, OPTIONS) as log:
        assert [entry.value for entry in log.read()] == [b"early", b"soon"]
