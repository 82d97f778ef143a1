"""Upkeep: what a log does by the clock, a few times a second.

    lazy appends     flushed within ``flush_interval_s``, synced within ``sync_interval_s``
    segments         rolled after ``roll_period_s``
    the idle end     stated after ``idle_end_s`` of quiet: how far the log is surely whole without a sync after it
    checkpoints      by period; neither of these last two where the last look found too little free space
    free space       looked at each time while anything is written or there is too little, else every ``QUIET_LOOK_S``

At home, under the log latch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vlsn.ids import Lsn, Vlsn, lsn
from vlsn.state.state_store import IdleEnd
from vlsn.write.queue import Queue

if TYPE_CHECKING:
    from vlsn.write.local_log import LocalLog

QUIET_LOOK_S = 1.0
"""Of a log that takes nothing: as old may what is known of the disk be when the next append comes, whose place lies in
segments that were reserved before."""


class Upkeep:
    def __init__(self, log: LocalLog, queue: Queue) -> None:
        self._log = log
        self._queue = queue
        self._quiet_since: float | None = None
        self._idle_stated: tuple[Lsn, Vlsn] | None = None
        self._looked_s = -QUIET_LOOK_S
        self._allocated: Vlsn | None = None
        """The last VLSN given as of the last look."""

    def tick(self) -> None:
        log, cycle, queue, placement = self._log, self._log.cycle, self._queue, self._log.placement
        now = log.seams.clock.monotonic_s()
        if queue.lazy and now - queue.lazy_since_s >= log.options.flush_interval_s:
            cycle.pump(flush=True)
        if cycle.unsynced_since is not None and now - cycle.unsynced_since >= log.options.sync_interval_s:
            cycle.unsynced_since = None  # asked for once
            log.drain(lambda: None)
        period = log.options.roll_period_s
        if period and not placement.empty and now - placement.taken_s >= period:
            placement.taken_s = now  # asked for once
            log.rotate("period")
        if self._is_look_due(now):
            self._looked_s, self._allocated = now, log.allocated
            log.space.look(self._looked)
        else:
            self._looked()

    def _is_look_due(self, now: float) -> bool:
        log = self._log
        writes = log.cycle.group is not None or bool(self._queue) or log.allocated != self._allocated
        short = log.space.cramped or bool(log.no_space)
        return writes or short or now - self._looked_s >= QUIET_LOOK_S

    def _looked(self) -> None:
        """The part of a tick that needs room on the disk, which was looked at just now, or lately while nothing is
        written."""
        log = self._log
        with log.latch:
            if log.failure is not None or log.closed or log.closing or log.space.cramped:
                return
            now = log.seams.clock.monotonic_s()
            if log.cycle.group is not None or self._queue:
                self._quiet_since = None
            elif self._quiet_since is None:
                self._quiet_since = now
            elif now - self._quiet_since >= log.options.idle_end_s:
                self.state_idle_end()
            log.checkpointer.tick(now)

    def state_idle_end(self) -> None:
        """Says in the state where the log ends, once for each end."""
        log = self._log
        tail, span = log.placement.tail, log.range
        if tail is None or not span.last or span.last_sync < span.last:
            return
        at = lsn(tail.number, tail.synced)
        durable = min(log.dtvlsn, span.last_sync)
        if self._idle_stated == (at, durable):
            return
        self._idle_stated = (at, durable)
        end = IdleEnd(lsn=at, term=log.history.last_term, vlsn=span.last, dtvlsn=durable)
        log.keeper.submit(lambda: log.state.save(idle_end=end), lambda _: None, log.store_failed)
