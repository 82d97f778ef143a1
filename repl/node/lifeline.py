"""Ties a node's process to the command that started it, and writes its pid file.

This is a file of its own, so that a node does it before it imports anything else.
"""

from __future__ import annotations

import ctypes
import os
import signal
from pathlib import Path
from typing import Final

PID_FILE: Final = "node.pid"
PARENT_VARIABLE: Final = "VLSNLOG_PARENT_PID"
_PR_SET_PDEATHSIG: Final = 1


def tie_to_parent() -> bool:
    """Asks the kernel to kill this process when the cluster's process that started it dies. Returns False in a node
    that no cluster started."""
    parent = os.environ.pop(PARENT_VARIABLE, "")
    if not parent:
        return False
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(parent):  # the parent died before the kernel was asked
        os._exit(0)
    return True


def write_pid(directory: Path, pid: int) -> None:
    """Writes the pid file, which is complete at any moment."""
    temporary = directory / f"{PID_FILE}.new"
    temporary.write_text(f"{pid}\n")
    temporary.rename(directory / PID_FILE)
