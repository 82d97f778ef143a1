"""Signals that end a command.

Ctrl-C ends the process where it stands (``start.py``), which is as quiet as an end can be.  ``run`` and
``unwound_by_signals`` change that for as long as something is to be put away, and raise ``KeyboardInterrupt``.

A program that calls ``main`` may have set SIGINT itself; then it keeps it, as with ``asyncio.run``.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    """Runs ``work`` as ``asyncio.run`` does. The first Ctrl-C cancels ``work`` and raises ``KeyboardInterrupt`` when
    that has ended; the second one ends the process where it stands."""
    try:
        return asyncio.run(_interruptible(work))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


async def _interruptible(work: Coroutine[Any, Any, T]) -> T:
    """Wakes the loop by its own file descriptor: ``asyncio.run`` alone sleeps over a Ctrl-C that comes just before it
    waits, until something else happens."""
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    if task is None or signal.getsignal(signal.SIGINT) is not signal.SIG_DFL:
        return await work
    loop.add_signal_handler(signal.SIGINT, task.cancel)
    signal.signal(signal.SIGINT, _end_at_the_next)  # at once, also while the loop is held up, as by a full pipe
    try:
        return await work
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def _end_at_the_next(number: int, _: FrameType | None) -> None:
    signal.signal(number, signal.SIG_DFL)


def unwound_by_signals() -> None:
    """Lets Ctrl-C, SIGTERM and SIGHUP unwind the command by ``KeyboardInterrupt`` from here on. Its child processes and
    temporary files go with it, and the exit status is that of Ctrl-C. From the main thread.

    Where Ctrl-C is ignored, as in the background of a script, it stays without effect, and those two have it."""
    ctrl_c = signal.getsignal(signal.SIGINT)
    if ctrl_c is signal.SIG_IGN:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    if ctrl_c in (signal.SIG_IGN, signal.SIG_DFL):
        signal.signal(signal.SIGINT, signal.default_int_handler)  # which a loop replaces by its own
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # else it is ignored, as under nohup
            signal.signal(number, _end)


def _end(_: int, frame: FrameType | None) -> None:
    """Calls what Ctrl-C would: raised, it would not arrive where it is blocked."""
    handler = signal.getsignal(signal.SIGINT)
    assert callable(handler)
    handler(signal.SIGINT, frame)


def end_at_once() -> None:
    """Lets signals end the process at once: nothing is left to put away."""
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
