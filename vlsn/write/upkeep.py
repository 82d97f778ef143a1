"""Upkeep: what a log does by the clock, a few times a second.

    lazy appends     flushed within ``flush_interval_s``, synced within ``sync_interval_s``
    segments         rolled after ``roll_period_s``
    the idle end     stated after ``idle_end_s`` of quiet: how far the log is surely whole without a sync after it
    checkpoints      by period; neither of these last two where the last look found too little free space
    free space       looked at each time while anything is written or there is too little, else every ``QUIET_LOOK_S``

At home, under the log latch.
"""

from __future__ import annotations

from vlsn.ids import Lsn, Vlsn, lsn
from vlsn.state.options import LogOptions
from vlsn.state.state_store import IdleEnd
from vlsn.write.log_care import LogCare
from vlsn.write.log_life import LogLife
from vlsn.write.log_view import LogView
from vlsn.write.placement import Placement
from vlsn.write.queue import Queue
from vlsn.write.write_cycle import WriteCycle

QUIET_LOOK_S = 1.0
"""Seconds that the free-space figure of a quiet log may be old. The next append's place lies in segments that were
reserved before."""


class Upkeep:
    """The upkeep of one log."""

    def __init__(
        self,
        options: LogOptions,
        view: LogView,
        life: LogLife,
        queue: Queue,
        cycle: WriteCycle,
        placement: Placement,
        care: LogCare,
    ) -> None:
        self._options = options
        self._view = view
        self._life = life
        self._queue = queue
        self._cycle = cycle
        self._placement = placement
        self._care = care
        self._quiet_since: float | None = None
        self._looked_s = -QUIET_LOOK_S
        self._allocated: Vlsn | None = None
        """The last VLSN given as of the last look."""
        self._stated: tuple[Lsn, Vlsn] | None = None
        """The idle end that was stated last, and the durable end with it."""

    def tick(self) -> None:
        options, cycle, queue, placement = self._options, self._cycle, self._queue, self._placement
        now = self._life.clock.monotonic_s()
        if queue.lazy and now - queue.lazy_since_s >= options.flush_interval_s:
            cycle.pump(flush=True)
        if cycle.unsynced_since is not None and now - cycle.unsynced_since >= options.sync_interval_s:
            cycle.unsynced_since = None  # asked for once
            cycle.drain(lambda: None)
        period = options.roll_period_s
        if period and not placement.empty and now - placement.taken_s >= period:
            placement.taken_s = now  # asked for once
            cycle.rotate("period")
        if self._is_look_due(now):
            self._looked_s, self._allocated = now, self._view.allocated
            self._care.space.look(self._looked)
        else:
            self._looked()

    def _is_look_due(self, now: float) -> bool:
        writes = self._cycle.group is not None or bool(self._queue) or self._view.allocated != self._allocated
        short = self._care.space.cramped or self._care.space.low or self._placement.no_space
        return writes or short or now - self._looked_s >= QUIET_LOOK_S

    def _looked(self) -> None:
        """Does the part of a tick that needs room on the disk. That was looked at just now, or lately while nothing is
        written."""
        life = self._life
        with life.latch:
            if life.over or life.closing or self._care.space.cramped:
                return
            now = self._life.clock.monotonic_s()
            if self._cycle.group is not None or self._queue:
                self._quiet_since = None
            elif self._quiet_since is None:
                self._quiet_since = now
            elif now - self._quiet_since >= self._options.idle_end_s:
                self._state_idle_end()
            self._care.checkpointer.tick(now)

    def _state_idle_end(self) -> None:
        """Says in the state where the log ends, surely whole and without a sync for it, once for each end."""
        view, tail, span = self._view, self._placement.tail, self._view.range
        if tail is None or not span.last or span.last_sync < span.last:
            return
        at = lsn(tail.number, tail.synced)
        durable = min(view.dtvlsn, span.last_sync)
        if self._stated == (at, durable):
            return
        self._stated = (at, durable)
        end = IdleEnd(lsn=at, term=view.history.last_term, vlsn=span.last, dtvlsn=durable)
        self._life.keep(lambda: self._care.state.save(idle_end=end))
