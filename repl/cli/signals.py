"""Signals that end a command which has something to put away."""

from __future__ import annotations

import signal
from types import FrameType


def end_as_ctrl_c_does() -> None:
    """SIGTERM and SIGHUP unwind the command as Ctrl-C does, instead of ending it where it stands: what it started
    and its temporary files go with it, and the exit status is that of Ctrl-C.  From the main thread.

    Where Ctrl-C is ignored, as in the background of a script, it stays without effect, and those two have it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        signal.signal(signal.SIGINT, signal.default_int_handler)  # which a loop puts its own in the place of
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)


def _end(_: int, frame: FrameType | None) -> None:
    """Calls what Ctrl-C would: raised, it would not arrive where it is blocked."""
    handler = signal.getsignal(signal.SIGINT)
    assert callable(handler)
    handler(signal.SIGINT, frame)
