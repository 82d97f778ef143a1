"""Ctrl-C in an append: the main thread may be interrupted at any point, and the log goes on as if it had waited."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from random import Random

from vlsn.disk import PosixDisk
from vlsn.embedded import Log
from vlsn.lmdb_store import LmdbStores
from vlsn.options import Durability, LogOptions
from vlsn.verify import verify

INTERRUPTS = 400
TRIES_MAX = 20_000
WAIT_S = 30.0


class _Interrupted(Exception):
    pass


def test_appends_that_a_signal_interrupts_hold_up_nobody_and_leave_no_hole(tmp_path: Path) -> None:
    def interrupt(*_: object) -> None:
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
