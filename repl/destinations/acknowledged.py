"""The acknowledgements of one destination: the folded table, and VLSNs that a COMMIT will add to the table.

    table      1–40 · 45                               folded: set by durable COMMIT entries
    noted      41 · 46–47                              no longer delivered; durable with the next note
    skipped    48–90                                   no messages of this destination; the next note includes them

A *note* is a COMMIT entry that records acknowledgements. The table keeps at most ``ACK_INTERVALS_MAX`` intervals of
VLSNs, and ignores a note that needs more intervals. So room for one interval is reserved for each message that is
out (delivered, not acknowledged). An acknowledgement that needs more intervals than are left is refused before it is
noted.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from repl.destinations.limits import SKIPPED_NOTED
from repl.destinations.out_table import OutTable
from vlsn.errors import NotFound, QueueFull
from vlsn.format.vlsn_set import Vlsns, VlsnSet
from vlsn.limits import ACK_INTERVALS_MAX
from vlsn.state.acks import Acked


class Acknowledged:
    """All acknowledgements since a destination was created or last moved. ``folded`` returns the destination's
    table, or None if the destination was dropped."""

    def __init__(self, name: str, folded: Callable[[], Acked | None], out: OutTable) -> None:
        self._name = name
        self._folded = folded
        self._out = out
        self.since = self.table().since
        self._noted = VlsnSet()
        """VLSNs that are acknowledged, while the COMMIT that records the acknowledgement is not folded yet."""
        self._skipped: list[VlsnSet] = []

    def table(self) -> Acked:
        """Returns the current table of acknowledged VLSNs. Raises ``NotFound``."""
        acked = self._folded()
        if acked is None:
            raise NotFound(f"destination {self._name} is gone")
        return acked

    @property
    def floor(self) -> int:
        """The VLSN up to which every message is acknowledged."""
        acked = self._folded()
        return int(acked.floor) if acked is not None else 0

    @property
    def last(self) -> int:
        """The last VLSN that is acknowledged, or will be once pending notes are durable."""
        return max(self.table().done.last, self._noted.last)

    def has(self, vlsns: Vlsns) -> npt.NDArray[np.bool_]:
        """Marks the VLSNs that are acknowledged, or will be once pending notes are durable."""
        acked = self._folded()
        noted = self._noted.has(vlsns)
        return noted if acked is None else noted | acked.done.has(vlsns)

    # The intervals.

    @property
    def intervals_left(self) -> int:
        """The number of intervals of VLSNs that may still be added to the table."""
        acked = self._folded()
        taken = (acked.done.intervals if acked else 0) + self._noted.intervals + len(self._out)
        return ACK_INTERVALS_MAX - taken

    def check(self, vlsns: VlsnSet) -> None:
        """Raises ``QueueFull`` if the table has no room for the intervals of this acknowledgement. A message that is
        out uses the interval that was reserved when the message was delivered."""
        if vlsns.intervals <= self.intervals_left:
            return
        known, out = self.table().done.union(self._noted), self._out.vlsns
        left = len(out) - int(np.count_nonzero(vlsns.has(out)))
        more = known.union(vlsns).intervals
        if more + left > max(ACK_INTERVALS_MAX, known.intervals + left):
            raise QueueFull(
                f"{more} intervals of acknowledged VLSNs, {ACK_INTERVALS_MAX} are kept: acknowledge the VLSNs between"
            )

    def check_retry(self, dead: VlsnSet) -> None:
        """Raises ``QueueFull`` if the table has no room for the gaps that a retry of the ``dead`` messages would
        leave."""
        done = self.table().done
        more = done.minus(dead).intervals - done.intervals
        if more > max(0, self.intervals_left):
            raise QueueFull(
                f"{more} more intervals of acknowledged VLSNs, {ACK_INTERVALS_MAX} are kept: first acknowledge the "
                "messages that are out, and the VLSNs between"
            )

    # Pending acknowledgements.

    def add(self, vlsns: VlsnSet) -> None:
        self._noted = self._noted.union(vlsns)

    def give_back(self, vlsns: VlsnSet) -> None:
        """Cancels an acknowledgement, because its note was not logged or because its messages are tried again."""
        self._noted = self._noted.minus(vlsns)

    def fold(self) -> None:
        """Removes from the noted VLSNs those that the table contains now."""
        acked = self._folded()
        if acked is not None and acked.since == self.since:
            all_done = acked.floor >= self._noted.last
            self._noted = VlsnSet() if all_done else self._noted.minus(acked.done)

    def skip(self, first: int, last: int) -> None:
        """Notes that the VLSNs ``first`` to ``last`` are no messages of this destination. An empty span changes
        nothing."""
        if first <= last:
            self._skipped.append(VlsnSet.between(first, last))

    def skip_before(self, vlsns: Vlsns, before: Vlsns) -> None:
        """Skips the VLSNs between each message and the message before it."""
        gaps = before + 1 < vlsns
        if gaps.any():
            self._skipped.append(VlsnSet.covering(before[gaps] + 1, vlsns[gaps] - 1))

    @property
    def has_skipped_much(self) -> bool:
        return sum(each.count for each in self._skipped) >= SKIPPED_NOTED

    def take_skipped(self) -> VlsnSet:
        """Moves the skipped VLSNs (no messages of this destination) into the next note. Returns an empty set while the
        table has no room for the intervals of the skipped VLSNs."""
        taken = VlsnSet.covering_all(self._skipped)
        if taken.intervals > self.intervals_left:
            known = self.table().done.union(self._noted)
            if known.union(taken).intervals > known.intervals:
                return VlsnSet()  # the remaining intervals are kept free for acknowledgements
        self._skipped = []
        self.add(taken)
        return taken
