"""Limits how fast a node sends its segments: a number of bytes a second for all scans together, in order of arrival.

    rate 4 MiB/s    1 MiB asked for at 0.00 s: at once    at 0.05 s: waits until 0.25 s    at 0.06 s: until 0.5 s

The audit and Spark scan the log as fast as they can. Scans without a limit would leave too little of the disk, the
socket and the event loop to appends. Bytes that are not used in quiet times are not saved up.
"""

from __future__ import annotations

import asyncio

from vlsn.seams import Clock


class ScanPace:
    """A rate that all callers of ``take`` share; 0 means no limit."""

    def __init__(self, clock: Clock, bytes_per_s: int) -> None:
        self._clock = clock
        self._rate = bytes_per_s
        self._free_s = 0.0
        """The time from which the next piece may be read."""

    async def take(self, count: int) -> None:
        """Returns when a piece of ``count`` bytes may be read. If the caller is cancelled, its share of the rate is not
        passed to other callers."""
        if not self._rate:
            return
        now = self._clock.monotonic_s()
        at = max(now, self._free_s)
        self._free_s = at + count / self._rate
        if at > now:
            await asyncio.sleep(at - now)
