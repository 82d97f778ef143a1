"""Keeps one buffer for each thread that reads segments one after the other, because new memory is expensive.

The kernel zeroes each memory page at its first use, which takes 20 to 50 ms for 64 MiB. Reading and checking a segment
of that size takes 30 ms. A reader must be done with a segment before it requests the next buffer.
"""

from __future__ import annotations

import threading
from typing import Final

from vlsn.limits import SEGMENT_BYTES

KEPT_BYTES: Final = SEGMENT_BYTES
"""The size of the largest buffer that is kept: one segment of the default size."""


class _Kept(threading.local):
    buffer = bytearray()


_kept = _Kept()


def segment_buffer(size: int) -> bytearray:
    """Returns a buffer of at least ``size`` bytes with any content. The thread's next call may return the same
    buffer."""
    if size > KEPT_BYTES:
        return bytearray(size)
    if len(_kept.buffer) < size:
        _kept.buffer = bytearray(KEPT_BYTES)
    return _kept.buffer
