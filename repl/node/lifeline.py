"""The tie of a node's process to the command that started it, and its pid file.

Kept apart so that a node sets it up before it loads anything else.
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
    """Lets the kernel kill this process when the cluster's dies that started it. False in a node that stands alone."""
    parent = os.environ.pop(PARENT_VARIABLE, "")
    if not parent:
        return False
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(parent):  # it died before the kernel was asked
        os._exit(0)
    return True


def write_pid(directory: Path, pid: int) -> None:
    """Writes the pid file, whole at any moment."""
    temporary = directory / f"{PID_FILE}.new"
    temporary.write_text(f"{pid}\n")
    temporary.rename(directory / PID_FILE)
