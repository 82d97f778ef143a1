"""Signals that end a command which has something to put away."""

from __future__ import annotations

import signal


def end_as_ctrl_c_does() -> None:
    """SIGTERM and SIGHUP unwind the command as Ctrl-C does, instead of ending it where it stands: what it started
    and its temporary files go with it, and the exit status is that of Ctrl-C.  From the main thread."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: signal.raise_signal(signal.SIGINT))
