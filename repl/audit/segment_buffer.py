"""One buffer for each thread that reads segments, one after the other: memory that is new costs more than all else.

A page of it that a process has never used is zeroed by the kernel first, 64 MiB of them in 20 to 50 ms; reading and
checking a segment of that size takes 30.  So a reader must be done with the segment before.
"""

from __future__ import annotations

import threading
from typing import Final

from vlsn.limits import SEGMENT_BYTES

KEPT_BYTES: Final = SEGMENT_BYTES
"""The largest buffer that is kept: of one segment in its default size."""


class _Kept(threading.local):
    buffer = bytearray()


_kept = _Kept()


def segment_buffer(size: int) -> bytearray:
    """Returns ``size`` bytes or more, of any content, that the thread's next call may return again."""
    if size > KEPT_BYTES:
        return bytearray(size)
    if len(_kept.buffer) < size:
        _kept.buffer = bytearray(KEPT_BYTES)
    return _kept.buffer
