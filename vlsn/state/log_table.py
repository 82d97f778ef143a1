"""A table that follows the log: what all of these have (``producers``, ``handles``, ``small_state``, ``acks``).

Above ``settled`` it is exact as of any VLSN, and is taken back to any by a rollback.  A log that was cleaned, and has
lost its state record, lacks what was noted up to ``lacks_to``, until another copy of the table has filled that in.
"""

from __future__ import annotations

from vlsn.ids import NULL_VLSN, Vlsn


class LogTable:
    """The two ends of a table.  At home only."""

    settled: int
    """The VLSN from which on it is exact."""
    lacks_to: int
    """The VLSN up to which entries were cleaned away before they were noted; 0 for a whole table."""

    def lose_before(self, vlsn: Vlsn) -> None:
        """Notes that what lies before ``vlsn`` was never noted here, and is in the log no more."""
        self.lacks_to = max(self.lacks_to, vlsn - 1)
        self.settled = max(self.settled, self.lacks_to)

    def give_up_lost(self) -> None:
        """Gives up what this table lacks, and nobody has: it counts as never set, or as forgotten."""
        self.lacks_to = NULL_VLSN

    def check_exact(self, vlsn: Vlsn, what: str) -> None:
        """Raises ``ValueError`` where this table is not exact as of ``vlsn``, as of which another copy is."""
        if vlsn < self.settled:
            raise ValueError(f"{what} as of VLSN {vlsn}: what is known here is exact from {self.settled} on")
