"""Signals that end a command.

By default Ctrl-C ends the process at once (``start.py``), without output. If a command has something to clean up,
``run`` or ``unwound_by_signals`` makes Ctrl-C raise ``KeyboardInterrupt`` instead.

A program that calls ``main`` may have set its own handler for SIGINT. The program's handler stays, as with
``asyncio.run``.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    """Runs ``work`` as ``asyncio.run`` does. The first Ctrl-C cancels ``work``, and raises ``KeyboardInterrupt`` when
    ``work`` has ended. A second Ctrl-C ends the process at once."""
    try:
        return asyncio.run(_interruptible(work))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


async def _interruptible(work: Coroutine[Any, Any, T]) -> T:
    """Runs ``work`` so that a signal wakes the event loop through the loop's own file descriptor. Plain ``asyncio.run``
    could miss a Ctrl-C that comes just before it waits."""
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    if task is None or signal.getsignal(signal.SIGINT) is not signal.SIG_DFL:
        return await work
    loop.add_signal_handler(signal.SIGINT, task.cancel)
    # this handler takes effect at once, even while the loop is blocked, for example by a full pipe
    signal.signal(signal.SIGINT, _end_at_the_next)
    try:
        return await work
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def _end_at_the_next(number: int, _: FrameType | None) -> None:
    signal.signal(number, signal.SIG_DFL)


def unwound_by_signals() -> None:
    """Makes Ctrl-C, SIGTERM and SIGHUP raise ``KeyboardInterrupt`` from now on, so that the command removes its child
    processes and temporary files. The exit status is that of Ctrl-C. Call this from the main thread.

    If Ctrl-C is ignored, as in the background of a script, it stays ignored; the other two signals still raise.
    """
    ctrl_c = signal.getsignal(signal.SIGINT)
    if ctrl_c is signal.SIG_IGN:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    if ctrl_c in (signal.SIG_IGN, signal.SIG_DFL):
        signal.signal(signal.SIGINT, signal.default_int_handler)  # an event loop replaces this handler by its own
    for number in (signal.SIGTERM, signal.SIGHUP):
        # any other handler means that the signal is ignored, for example under nohup
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _end)


def _end(_: int, frame: FrameType | None) -> None:
    """Calls the handler of Ctrl-C directly. If SIGINT is blocked, raising it would have no effect."""
    handler = signal.getsignal(signal.SIGINT)
    assert callable(handler)
    handler(signal.SIGINT, frame)


def end_at_once() -> None:
    """Lets signals end the process at once, because nothing is left to clean up."""
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
