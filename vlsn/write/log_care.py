"""The maintenance of an open log: checkpoints, cleaning, holds, free space, and periodic work.

    lazy appends     flushed within ``flush_interval_s``, synced within ``sync_interval_s``
    segments         rolled after ``roll_period_s``
    the idle end     stored after ``idle_end_s`` of quiet: the position up to which the log is certainly whole
    checkpoints      by period; these last two wait while the last check found too little free space
    free space       checked each time while anything is written or space is short, otherwise every ``QUIET_LOOK_S``

This module is used on the owner's thread only (``seams.Worker``), under the log's latch.
"""

from __future__ import annotations

from vlsn.ids import Lsn, Vlsn, lsn
from vlsn.recover.recovery import Recovered
from vlsn.seams import Disk
from vlsn.state.consumers import ConsumerHolds
from vlsn.state.destinations import Destinations
from vlsn.state.holds import Holds
from vlsn.state.options import LogOptions
from vlsn.state.state_store import IdleEnd
from vlsn.write.checkpointer import Checkpointer
from vlsn.write.cleaner import Cleaner
from vlsn.write.free_space import FreeSpace
from vlsn.write.log_life import LogLife
from vlsn.write.log_view import LogView
from vlsn.write.placement import Placement
from vlsn.write.survey import Survey
from vlsn.write.write_cycle import WriteCycle

QUIET_LOOK_S = 1.0
"""How many seconds old the free-space figure of a quiet log may be, at most. An older figure is safe because the next
append is written to a segment whose space was reserved before."""


class LogCare:
    """The parts of one log that keep the log small, and quick to open again."""

    def __init__(
        self,
        recovered: Recovered,
        view: LogView,
        life: LogLife,
        placement: Placement,
        cycle: WriteCycle,
        options: LogOptions,
        disk: Disk,
    ) -> None:
        self._view = view
        self._life = life
        self._placement = placement
        self._cycle = cycle
        self._options = options
        self.state = recovered.state
        small = view.history.small
        self.space = FreeSpace(disk, view.directory, life, free_bytes_min=options.free_bytes_min)
        self.holds = Holds(clock=life.clock.monotonic_s, floor=Vlsn(max(0, view.range.first - 1)))
        self.consumer_holds = ConsumerHolds(self.holds, small)
        self.destinations = Destinations(self.holds, small, view.history.acks)
        self.checkpointer = Checkpointer(
            view,
            life,
            self.state,
            cycle,
            options,
            self.space,
            self.holds,
            last=recovered.checkpoint,
            settled=recovered.settled,
        )
        self.cleaner = Cleaner(
            view,
            life,
            self.state,
            self.holds,
            self.consumer_holds,
            self.destinations,
            self.checkpointer,
            placement,
            Survey(view, placement, self.space, life.clock, segment_bytes=options.segment_bytes),
            options.retention,
        )
        self._quiet_since: float | None = None
        self._looked_s = -QUIET_LOOK_S
        self._allocated: Vlsn | None = None
        """The last VLSN that was assigned when the log was last checked for activity."""
        self._stated: tuple[Lsn, Vlsn] | None = None
        """The idle end (the log's end after a quiet time) that was stored last, and the durable end stored with it."""

    def rewrite_state(self) -> None:
        """Makes the next checkpoint write the whole ``state`` store again. The memory has everything that is in the
        store."""
        with self._life.latch:
            self._view.history.keep_all()
        self.checkpointer.run()

    def tick(self) -> None:
        """Does the periodic work. ``tick`` is called a few times a second."""
        options, cycle, queue, placement = self._options, self._cycle, self._cycle.queue, self._placement
        now = self._life.clock.monotonic_s()
        if queue.lazy and now - queue.lazy_since_s >= options.flush_interval_s:
            cycle.pump(flush=True)
        if cycle.unsynced_since is not None and now - cycle.unsynced_since >= options.sync_interval_s:
            cycle.unsynced_since = None  # so that the sync is requested once
            cycle.drain(lambda: None)
        period = options.roll_period_s
        if period and not placement.empty and now - placement.taken_s >= period:
            placement.taken_s = now  # so that the change of segment is requested once
            cycle.rotate("period")
        if self._is_look_due(now):
            self._looked_s, self._allocated = now, self._view.allocated
            self.space.look(self._looked)
        else:
            self._looked()

    def _is_look_due(self, now: float) -> bool:
        writes = self._cycle.group is not None or bool(self._cycle.queue) or self._view.allocated != self._allocated
        short = self.space.cramped or self.space.low or self._placement.no_space
        return writes or short or now - self._looked_s >= QUIET_LOOK_S

    def _looked(self) -> None:
        """Does the part of a tick that needs room on the disk. The figure of the free space is fresh at this moment, or
        recent while nothing is written."""
        life = self._life
        with life.latch:
            if life.over or life.closing or self.space.cramped:
                return
            now = self._life.clock.monotonic_s()
            if self._cycle.group is not None or self._cycle.queue:
                self._quiet_since = None
            elif self._quiet_since is None:
                self._quiet_since = now
            elif now - self._quiet_since >= self._options.idle_end_s:
                self._state_idle_end()
            self.checkpointer.tick(now)

    def _state_idle_end(self) -> None:
        """Stores the log's present end in the state, as an end up to which the log is certainly complete. The same end
        is stored only once, and without a sync."""
        view, tail, span = self._view, self._placement.tail, self._view.range
        if tail is None or not span.last or span.last_sync < span.last:
            return
        at = lsn(tail.number, tail.synced)
        durable = min(view.dtvlsn, span.last_sync)
        if self._stated == (at, durable):
            return
        self._stated = (at, durable)
        end = IdleEnd(lsn=at, term=view.history.last_term, vlsn=span.last, dtvlsn=durable)
        self._life.keep(lambda: self.state.save(idle_end=end))
