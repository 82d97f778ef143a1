"""The care of an open log: checkpoints, cleaning, the holds that keep it from going, free space.

At home only, under the log latch.
"""

from __future__ import annotations

from vlsn.ids import Vlsn
from vlsn.recover.recovery import Recovered
from vlsn.seams import Disk
from vlsn.state.consumers import ConsumerHolds
from vlsn.state.destinations import Destinations
from vlsn.state.holds import Holds
from vlsn.state.options import LogOptions
from vlsn.write.checkpointer import Checkpointer
from vlsn.write.cleaner import Cleaner
from vlsn.write.free_space import FreeSpace
from vlsn.write.log_life import LogLife
from vlsn.write.log_view import LogView
from vlsn.write.placement import Placement
from vlsn.write.survey import Survey
from vlsn.write.write_cycle import WriteCycle


class LogCare:
    """The parts of one log that keep it small, and quick to open again."""

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

    def rewrite_state(self) -> None:
        """Has a checkpoint write all of the ``state`` store anew, out of memory, which holds it whole."""
        with self._life.latch:
            self._view.history.keep_all()
        self.checkpointer.run()
