"""Upkeep: what a log does by the clock, a few times a second.

    lazy appends     flushed within ``flush_interval_s``, synced within ``sync_interval_s``
    segments         rolled after ``roll_period_s``
    the idle end     stated after ``idle_end_s`` of quiet: how far the log is surely whole without a sync after it
    checkpoints      by period; neither of these last two where the last look found too little free space
    free space       looked at each time while anything is written or there is too little, else every ``QUIET_LOOK_S``

At home, under the log latch.
"""

from __future__ import annotations

from vlsn.ids import Vlsn
from vlsn.seams import Clock
from vlsn.state.options import LogOptions
from vlsn.write.checkpoint_schedule import Checkpointer
from vlsn.write.free_space import Space
from vlsn.write.idle_end import IdleEndStatement
from vlsn.write.lifecycle import Lifecycle
from vlsn.write.queue_consumer import Consumer
from vlsn.write.segment_roll import Placement
from vlsn.write.write_cycle import Cycle

QUIET_LOOK_S = 1.0
"""Seconds that the free-space figure of a quiet log may be old. The next append's place lies in segments that were
reserved before."""


class Upkeep:
    def __init__(
        self,
        options: LogOptions,
        clock: Clock,
        lifecycle: Lifecycle,
        consumer: Consumer,
        cycle: Cycle,
        placement: Placement,
        space: Space,
        checkpointer: Checkpointer,
        idle_end: IdleEndStatement,
    ) -> None:
        self.idle_end = idle_end
        self._options = options
        self._clock = clock
        self._lifecycle = lifecycle
        self._consumer = consumer
        self._queue = consumer.queue
        self._cycle = cycle
        self._placement = placement
        self._space = space
        self._checkpointer = checkpointer
        self._quiet_since: float | None = None
        self._looked_s = -QUIET_LOOK_S
        self._allocated: Vlsn | None = None
        """The last VLSN given as of the last look."""

    def tick(self) -> None:
        options, cycle, queue, placement = self._options, self._cycle, self._queue, self._placement
        now = self._clock.monotonic_s()
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
            self._looked_s, self._allocated = now, self._consumer.allocated
            self._space.look(self._looked)
        else:
            self._looked()

    def _is_look_due(self, now: float) -> bool:
        writes = self._cycle.group is not None or bool(self._queue) or self._consumer.allocated != self._allocated
        short = self._space.cramped or self._space.low or self._placement.no_space
        return writes or short or now - self._looked_s >= QUIET_LOOK_S

    def _looked(self) -> None:
        """Does the part of a tick that needs room on the disk. That was looked at just now, or lately while nothing is
        written."""
        lifecycle = self._lifecycle
        with lifecycle.latch:
            if lifecycle.over or lifecycle.closing or self._space.cramped:
                return
            now = self._clock.monotonic_s()
            if self._cycle.group is not None or self._queue:
                self._quiet_since = None
            elif self._quiet_since is None:
                self._quiet_since = now
            elif now - self._quiet_since >= self._options.idle_end_s:
                self.idle_end.make()
            self._checkpointer.tick(now)
