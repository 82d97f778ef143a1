"""The relay: every waiting thread is woken, even when some were interrupted."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable

import pytest

from vlsn.real.threads import OneShot, Relay

WAIT_S = 120.0


class _Interrupted(Exception):
    pass


def _waiting(shots: list[OneShot], woken: list[int], on_woken: Callable[[int], None]) -> list[threading.Thread]:
    def wait(number: int) -> None:
        shots[number].wait()
        woken.append(number)
        on_woken(number)

    threads = [threading.Thread(target=wait, args=(number,), daemon=True) for number in range(len(shots))]
    for thread in threads:
        thread.start()
    return threads


def _join(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join(WAIT_S)
    assert not [thread for thread in threads if thread.is_alive()]


def test_each_thread_that_is_woken_wakes_the_next_one() -> None:
    shots, woken = [OneShot() for _ in range(40)], list[int]()
    threads = _waiting(shots, woken, lambda _: None)
    Relay(shots).pass_on()
    _join(threads)
    assert sorted(woken) == list(range(40))


def test_one_that_takes_its_time_after_it_was_woken_holds_nobody_up() -> None:
    last = threading.Event()
    shots, woken = [OneShot() for _ in range(8)], list[int]()

    def dawdle(number: int) -> None:
        if number == 7:
            last.set()
        last.wait(WAIT_S)

    threads = _waiting(shots, woken, dawdle)
    Relay(shots).pass_on()
    assert last.wait(WAIT_S)
    _join(threads)


def test_the_end_of_a_relay_gives_what_is_left_and_each_only_once() -> None:
    shots, woken = [OneShot() for _ in range(8)], list[int]()
    relay = Relay(shots)
    relay.finish()
    relay.finish()
    relay.pass_on()
    _join(_waiting(shots, woken, lambda _: None))  # a second ``give`` would have raised
    assert sorted(woken) == list(range(8))


@pytest.mark.parametrize("before", [True, False], ids=["before-the-relay-came-to-be", "after"])
@pytest.mark.parametrize("at", [0, 3, 7])
def test_a_thread_that_a_signal_interrupted_does_not_hold_up_the_others(at: int, before: bool) -> None:
    shots, woken = [OneShot() for _ in range(8)], list[int]()
    others = shots[:at] + shots[at + 1 :]
    threads = _waiting(others, woken, lambda _: None)
    relay = None if before else Relay(shots)

    def interrupt(*_: object) -> None:
        raise _Interrupted

    old = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        with pytest.raises(_Interrupted):
            shots[at].wait()
    finally:
        signal.signal(signal.SIGALRM, old)
    (relay or Relay(shots)).pass_on()
    _join(threads)
    assert sorted(woken) == list(range(7))
