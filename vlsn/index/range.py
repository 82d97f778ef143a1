"""The range: the VLSNs that this node holds, and within them the last synced VLSN and the last end of a transaction.

A range is ``{first, last, last_sync, last_txn_end}``, all 0 if the log is empty. A range is immutable; each change
makes a new one. So a reader without the latch never sees half of a change. The model is JE's ``VLSNRange``.

    adding 11–20        {1, 10, 10, 0} → {1, 20, 10, 0}       last rises, last_sync does not yet
    the sync after it   {1, 20, 10, 0} → {1, 20, 20, 0}
    a rollback to 15    {1, 20, 20, 0} → {1, 15, 15, 0}
    a trim below 11     {1, 15, 15, 0} → {11, 15, 15, 0}
"""

from __future__ import annotations

import msgspec

from vlsn.errors import Damaged
from vlsn.ids import NULL_VLSN, Vlsn


class VlsnRange(msgspec.Struct, frozen=True, gc=False):
    """A contiguous run of VLSNs, with inclusive ends. The range is a Struct because every added block makes a new
    one."""

    first: Vlsn = NULL_VLSN
    last: Vlsn = NULL_VLSN
    last_sync: Vlsn = NULL_VLSN
    """The last VLSN synced on this node."""
    last_txn_end: Vlsn = NULL_VLSN
    """The last COMMIT or ABORT in the range; 0 if none is known."""

    @property
    def empty(self) -> bool:
        return self.last == NULL_VLSN

    def __contains__(self, vlsn: int) -> bool:
        return self.first <= vlsn <= self.last and vlsn != NULL_VLSN

    def verify(self) -> None:
        """Raises ``Damaged`` for values that no sequence of changes can produce."""
        landmarks = self.last_sync, self.last_txn_end
        if self.empty:
            right = self.first == NULL_VLSN and landmarks == (NULL_VLSN, NULL_VLSN)
        else:
            right = 1 <= self.first <= self.last and all(0 <= mark <= self.last for mark in landmarks)
        if not right:
            raise Damaged(f"a VLSN range cannot be {self}")

    def cut_tail(self, last: Vlsn) -> VlsnRange:
        """Returns the range up to ``last``. If the end of the last transaction is after ``last``, ``last_txn_end``
        becomes 0 (not known)."""
        if last < self.first or last == NULL_VLSN:
            return EMPTY
        assert last <= self.last
        txn_end = self.last_txn_end if self.last_txn_end <= last else NULL_VLSN
        return VlsnRange(self.first, last, min(self.last_sync, last), txn_end)

    def cut_head(self, first: Vlsn) -> VlsnRange:
        """Returns the range from ``first`` on. ``first`` must be in the range."""
        assert self.first <= first <= self.last
        txn_end = self.last_txn_end if self.last_txn_end >= first else NULL_VLSN
        return VlsnRange(first, self.last, self.last_sync, txn_end)


EMPTY = VlsnRange()
