"""Slow syncs: when the current segment should be left for another one.

One sync that stalled, or a hundred slow ones within a minute.  The window slides, so a train of slow syncs long
ago and a straggler now are no trend.
Source: HBase (HBASE-22301; ``hbase.regionserver.wal.slowsync.*``).
"""

from __future__ import annotations

from collections import deque

from vlsn.limits import SLOW_SYNC_S, SLOW_SYNCS_MAX, SLOW_SYNCS_WINDOW_S, STALLED_SYNC_S


class SlowSyncs:
    def __init__(self) -> None:
        self.total = 0
        self._ends: deque[float] = deque(maxlen=SLOW_SYNCS_MAX)

    def should_roll(self, seconds: float, now: float) -> bool:
        """Counts a write and sync that took ``seconds`` and ended at ``now`` (monotonic, s); says whether to roll."""
        if seconds <= SLOW_SYNC_S:
            return False
        self.total += 1
        ends = self._ends
        ends.append(now)
        if seconds < STALLED_SYNC_S and (len(ends) < SLOW_SYNCS_MAX or now - ends[0] > SLOW_SYNCS_WINDOW_S):
            return False
        ends.clear()
        return True
