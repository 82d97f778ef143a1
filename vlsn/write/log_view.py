"""The readable contents of an open log: segments up to their synced ends, positions, the ring of recent blocks, and the
history of the log's entries.

    segments 1 (to 65536), 2 (to 40960)  ·  range 1–950  ·  durable up to 948  ·  terms, group, producers

The contents change on the owner's thread only (``seams.Worker``), under the log's latch. The objects for the range and
for the ends are immutable and replaced by new ones, so that readers on any thread can use them.
"""

from __future__ import annotations

from collections.abc import Callable

from vlsn.ids import NULL_VLSN, Vlsn
from vlsn.index.index import VlsnIndex
from vlsn.index.range import VlsnRange
from vlsn.recover.recovery import Recovered
from vlsn.seams import Disk
from vlsn.segments.reader import LogReader
from vlsn.state.history import History
from vlsn.state.log_table import TableChanges
from vlsn.state.state_store import StateRecord
from vlsn.write.ring import Ring


class LogView:
    """The readable contents of one log. All parts of the log share this object; each part changes only its own
    fields."""

    def __init__(self, recovered: Recovered, disk: Disk, *, ring_bytes_max: int) -> None:
        self.directory = recovered.directory
        self.disk = disk
        self.index: VlsnIndex = recovered.index
        self.history: History = recovered.history
        self.ring = Ring(ring_bytes_max)
        self.ring.restart(recovered.last_vlsn)
        self.allocated: Vlsn = recovered.last_vlsn
        """The highest VLSN assigned so far. This VLSN is at or above ``range.last``."""
        self.ends: dict[int, int] = dict(recovered.ends)
        """The synced end (an offset) of every live segment, by the segment's number."""
        self.dtvlsn: Vlsn = recovered.dtvlsn
        """The durable end (DTVLSN), as far as this node knows."""
        self.rollbacks = 0
        """A number that rises when a rollback begins and when it ends, so that it is odd while a rollback is under
        way."""
        self._cleaned = recovered.cleaned
        self._begins_after = recovered.begins_after
        self.tell_txn_end()

    @property
    def range(self) -> VlsnRange:
        """The range of visible VLSNs. The range is immutable; each change makes a new one."""
        return self.index.range

    @property
    def next_vlsn(self) -> Vlsn:
        """The VLSN that the next entry will have."""
        return Vlsn(self.allocated + 1)

    def tell_txn_end(self) -> None:
        """Notes in the index where the last transaction ends. The index loses that VLSN at a rollback and when it is
        opened."""
        self.index.note_txn_end(next(reversed(self.history.txn_ends), NULL_VLSN))

    @property
    def trimmed_to(self) -> Vlsn:
        """The last VLSN that was cleaned away or was never on this node; 0 if the log begins at VLSN 1."""
        first = self.index.range.first
        return Vlsn(first - 1) if first else self._begins_after

    @property
    def first_segment(self) -> int:
        """The segment in which the log begins since it was cleaned; 0 if it was never cleaned."""
        return min(self.ends, default=0) if self._cleaned else 0

    @property
    def level(self) -> int:
        """The level (version of the formats) that may be written: the newest level that is durable here."""
        return self.history.level_at(self.dtvlsn)

    def segments(self) -> dict[int, int]:
        """Returns the synced end (an offset) of every live segment, by the segment's number, ascending."""
        return dict(sorted(self.ends.items()))

    def synced_end(self, number: int) -> int:
        """Returns the end up to which segment ``number`` may be read by other parts, or 0 if the segment is not
        live."""
        return self.ends.get(number, 0)

    def reader(self, *, segments_max: int = 1) -> LogReader:
        """Makes a reader, which one user may use at a time. The reader raises ``Trimmed`` for entries that are cleaned
        away while it reads."""
        return LogReader(
            self.disk, self.directory, self.synced_end, lambda: self.range.first, segments_max=segments_max
        )

    def snapshot(self, vlsn: Vlsn) -> Callable[[], StateRecord]:
        """Copies the history of the entries up to ``vlsn``, and the log's first VLSN. The returned function makes the
        state record from the copy, on any thread."""
        return self.history.snapshot(vlsn, trimmed_to=self.trimmed_to, first_segment=self.first_segment)

    def checkpoint(self, vlsn: Vlsn) -> Callable[[], tuple[StateRecord, dict[str, TableChanges] | None]]:
        """Copies the part of the history that changed since the last checkpoint and must be stored in this checkpoint
        (``History.checkpoint``)."""
        return self.history.checkpoint(vlsn, trimmed_to=self.trimmed_to, first_segment=self.first_segment)

    def raise_dtvlsn(self, vlsn: Vlsn) -> None:
        """Raises the durable end (DTVLSN) to ``vlsn``. It never falls."""
        if vlsn > self.dtvlsn:
            self.dtvlsn = vlsn

    def truncate(self, matchpoint: Vlsn) -> None:
        """Drops everything about VLSNs after ``matchpoint`` from memory. The next block begins after ``matchpoint``."""
        self.ring.truncate(matchpoint)
        self.history.truncate(matchpoint)
        self.allocated = matchpoint
        self.tell_txn_end()

    def fold_acks(self) -> None:
        """Folds into the table the destinations' acknowledgements that are durable and synced here, since no rollback
        can undo them."""
        self.history.acks.advance(Vlsn(min(self.dtvlsn, self.range.last_sync)))

    def forget_before(self, number: int) -> None:
        """Forgets segments before ``number``, which are no longer part of the log: the index's range begins after those
        segments."""
        self._cleaned = True
        for each in [each for each in self.ends if each < number]:
            del self.ends[each]
        self.history.truncate_head(self.range.first)
