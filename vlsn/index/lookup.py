"""Lookups in the VLSN index: find a block near any VLSN of the log's range.

    at_or_before(15) → (11, lsn)     the closest mapping at or before 15; the reader walks block headers from there
    at_or_after(15)  → (21, lsn)     the closest mapping at or after 15, or else the last mapping

Inside the range both lookups always find a mapping. Outside the range both lookups return None. Recent VLSNs are found
in the tracker (a hit), all others in the store (a miss). A stored bucket (a run of mappings) that has rotted is treated
as a gap. The lookup then returns a mapping before the gap, at worst the range's first mapping. The lookup also sets
``wounded``, so that the gap is indexed again from the log.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

from vlsn import limits
from vlsn.ids import NULL_VLSN, Lsn, Vlsn
from vlsn.index.bucket import Bucket, Mapping, single
from vlsn.index.levels import Levels
from vlsn.index.range import EMPTY, VlsnRange
from vlsn.index.stats import IndexStats
from vlsn.index.tracker import Tracker
from vlsn.seams import KeyValue


class Lookups:
    """The lookups of the index. Any thread may use them, without the latch."""

    def __init__(
        self,
        store: KeyValue,
        latch: AbstractContextManager[object],
        *,
        stride: int = limits.INDEX_STRIDE,
        mapping_bytes_min: int = limits.INDEX_MAPPING_BYTES_MIN,
        max_distance: int = limits.INDEX_MAX_DISTANCE_BYTES,
        max_mappings: int = limits.INDEX_MAX_MAPPINGS,
    ) -> None:
        self.epoch = 0
        """A number that rises when mappings are removed. A reader that has kept a bucket since before then must look it
        up again."""
        self._latch = latch
        self._tracker = Tracker(
            stride=stride, mapping_bytes_min=mapping_bytes_min, max_distance=max_distance, max_mappings=max_mappings
        )
        self.stats: IndexStats = self._tracker.stats
        self.levels = Levels(store, self._tracker, self.stats)
        self._stored = self.levels.stored
        self._store = store
        self.range: VlsnRange = EMPTY
        """The VLSNs that can be looked up. The range is immutable; each change makes a new one."""

    @property
    def wounded(self) -> bool:
        """True if a stored bucket could not be read."""
        return self._stored.wounded

    def at_or_before(self, vlsn: Vlsn) -> Mapping | None:
        """Returns the closest mapping at or before ``vlsn``, or None if ``vlsn`` is outside the range."""
        held = self.range
        if not held.first <= vlsn <= held.last or vlsn == NULL_VLSN:
            return None
        with self._latch:
            found = self._tracker.at_or_before(vlsn)
            if found is not None:
                self.stats.hits += 1
                return found
        bucket = self._stored_at_or_before(vlsn)
        return None if bucket is None else bucket.at_or_before(vlsn)

    def exact(self, vlsn: Vlsn) -> Lsn | None:
        """Returns the LSN of the block that begins at ``vlsn``, if the index happens to have a mapping of that
        block."""
        found = self.at_or_before(vlsn)
        return found[1] if found is not None and found[0] == vlsn else None

    def at_or_after(self, vlsn: Vlsn) -> Mapping | None:
        """Returns the closest mapping at or after ``vlsn``, or the last mapping if ``vlsn`` is past it. Returns None if
        ``vlsn`` is outside the range."""
        while vlsn in self.range:
            covered = self.levels.covered
            found = self._stored_at_or_after(vlsn, covered) if vlsn <= covered else None
            with self._latch:
                if covered != self.levels.covered:
                    continue  # after a flush or a cut, the tracker's buckets are in the store, or were removed
                if found is None:
                    found = self._tracker.at_or_after(vlsn)
                    self.stats.hits += 1
            if found is not None or (found := self.at_or_before(vlsn)) is not None:
                return found
        return None

    def bucket_at_or_before(self, vlsn: Vlsn) -> Bucket | None:
        """Returns the bucket (run of mappings) that ``at_or_before(vlsn)`` uses now, or None outside the range."""
        if vlsn not in self.range:
            return None
        with self._latch:
            found = self._tracker.bucket_at_or_before(vlsn)
            if found is not None:
                self.stats.hits += 1
                return found if isinstance(found, Bucket) else found.freeze()
        return self._stored_at_or_before(vlsn)

    def _stored_at_or_before(self, vlsn: Vlsn) -> Bucket | None:
        self.stats.misses += 1
        while True:
            epoch = self.epoch
            bucket = self._stored.readable_at_or_before(vlsn)
            if bucket is not None and bucket.first >= self.levels.head[0]:
                return bucket
            with self._latch:
                if vlsn not in self.range:
                    return None
                head = self.levels.head
                if bucket is not None:  # the beginning of the bucket was cut off, but not yet in the store
                    return single(head[0], *head)
                if epoch == self.epoch:
                    self._stored.wounded = True
                    return single(head[0], *head)

    def _stored_at_or_after(self, vlsn: Vlsn, covered: Vlsn) -> Mapping | None:
        self.stats.misses += 1
        bucket = self._stored.readable_at_or_before(vlsn)
        found = bucket.at_or_after(vlsn) if bucket is not None else None
        if found is not None:
            return found
        bucket = self._stored.readable_at_or_after(vlsn)
        return bucket.at_or_after(vlsn) if bucket is not None and bucket.first <= covered else None
