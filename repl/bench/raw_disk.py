"""Synced writes into a file of zeros: the disk's speed for writes of one size, without our code."""

from __future__ import annotations

import os
import tempfile
import time
from array import array
from pathlib import Path
from typing import Any, Final

import numpy as np

FILE_BYTES: Final = 32 << 20
WRITES_MIN: Final = 20
SECONDS_MAX: Final = 1.0
Floats = np.ndarray[Any, np.dtype[np.float64]]


def synced_writes(directory: Path, size: int, count: int) -> Floats:
    """Returns the milliseconds that each write of ``size`` bytes with its ``fdatasync`` takes, one write after the
    other.

    The writes go to a temporary file of zeros in ``directory``. There are ``count`` writes, or fewer if ``SECONDS_MAX``
    is over before, but at least ``WRITES_MIN``.
    """
    with tempfile.NamedTemporaryFile(dir=directory, prefix="ceiling-") as file:
        descriptor = file.fileno()
        piece = bytes(1 << 20)
        room = max(FILE_BYTES, size)
        for at in range(0, room, len(piece)):
            os.pwrite(descriptor, piece, at)
        os.fsync(descriptor)
        data = os.urandom(size)
        times = array("d")
        until = time.perf_counter() + SECONDS_MAX
        at = 0
        while len(times) < max(WRITES_MIN, count) and (len(times) < WRITES_MIN or time.perf_counter() < until):
            began = time.perf_counter()
            os.pwrite(descriptor, data, at)
            os.fdatasync(descriptor)
            times.append((time.perf_counter() - began) * 1e3)
            at = at + size if at + 2 * size <= room else 0
    return np.array(times, dtype=np.float64)
