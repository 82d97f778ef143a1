"""A process whose main thread is interrupted in calls of an embedded log, some hundred times, at random.

    python -m tests.vlsn.embedded.interrupted_process DIR (calls | close | open | exit) SEED

It ends by itself, with status 0 when every call that was not interrupted did what it should; ``exit`` ends as a program
does whose Ctrl-C falls into the end of ``with Log.open``, with the status of that exception.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable
from random import Random
from typing import Final

from vlsn.embedded.log import Log
from vlsn.errors import LogInUse
from vlsn.state.options import LogOptions

INTERRUPTS: Final = {"calls": 150, "close": 12, "open": 12}
WAIT_S: Final = 30.0
OPTIONS: Final = LogOptions(segment_bytes=256 << 10, durable_when_synced=False, retention_bytes=1 << 30)


class Interrupted(Exception):
    pass


def interrupted(within_s: float, call: Callable[[], object]) -> bool:
    """Says whether a signal came before ``call`` was over."""
    try:
        signal.setitimer(signal.ITIMER_REAL, within_s)
        call()
        signal.setitimer(signal.ITIMER_REAL, 0)
    except Interrupted:
        return True
    return False


def calls(directory: str, draws: Random) -> None:
    """Checkpoints, rolls, cleanings, syncs and rollbacks; entries up to a rollback's matchpoint stay."""
    kept: dict[int, bytes] = {}
    count = 0
    with Log.open(directory, OPTIONS) as log:
        while count < INTERRUPTS["calls"]:
            value = b"kept %d" % count
            matchpoint = log.append(value)[1]
            kept[matchpoint] = value
            log.append(b"may be abandoned")
            call = draws.choice([log.checkpoint, log.rotate, log.clean, log.sync, lambda: log.rollback(matchpoint)])  # noqa: B023
            if interrupted(draws.uniform(0.000_005, 0.004), call):
                count += 1
                log.rollback(matchpoint)  # which may have begun, and is over before this one begins
        log.checkpoint()
        found: dict[int, bytes] = {entry.vlsn: entry.value for entry in log.read()}
    assert {vlsn: found.get(vlsn) for vlsn in kept} == kept


def close(directory: str, draws: Random) -> None:
    """Interrupts ``close``, and calls it a second time."""
    count = 0
    while count < INTERRUPTS["close"]:
        log = opened(directory)
        log.append(b"x")
        count += interrupted(draws.uniform(0.000_005, 0.03), log.close)
        log.close()


def open_(directory: str, draws: Random) -> None:
    """Interrupts ``open``; nobody has the log that it was about to give, and it does not stay open."""
    count = 0
    while count < INTERRUPTS["open"]:
        found: list[Log] = []
        count += interrupted(draws.uniform(0.000_005, 0.06), lambda: found.append(Log.open(directory, OPTIONS)))  # noqa: B023
        for log in found:
            log.close()
        opened(directory).close()


def opened(directory: str) -> Log:
    until = time.monotonic() + WAIT_S
    while True:
        try:
            return Log.open(directory, OPTIONS)
        except LogInUse:
            assert time.monotonic() < until, "a log stays open"


def exit_(directory: str, draws: Random) -> None:
    with Log.open(directory, OPTIONS) as log:
        log.append(b"x")
        signal.setitimer(signal.ITIMER_REAL, draws.uniform(0.000_005, 0.01))
    signal.setitimer(signal.ITIMER_REAL, 0)


def main(directory: str, what: str, seed: int) -> None:
    def interrupt(*_: object) -> None:
        raise Interrupted

    signal.signal(signal.SIGALRM, interrupt)
    {"calls": calls, "close": close, "open": open_, "exit": exit_}[what](directory, Random(seed))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
