"""Lookups: find a block near any VLSN of the range.

    at_or_before(15) → (11, lsn)     the closest mapping at or before; the reader walks block headers from there
    at_or_after(15)  → (21, lsn)     the closest at or after; past the last mapping, that one

Inside the range both lookups always have an answer. Outside the range they return None. The tracker answers for recent
VLSNs (a hit), and the store for all others (a miss). A bucket of the store that has rotted counts as a gap. The mapping
before it answers, at worst the range's first, and ``wounded`` asks for the gap to be tracked again from the log.
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
    """The reading side of the index, for any thread, without the latch."""

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
        """This number rises when mappings are removed. A bucket that a reader kept from before may be outdated then."""
        self._latch = latch
        self._tracker = Tracker(
            stride=stride, mapping_bytes_min=mapping_bytes_min, max_distance=max_distance, max_mappings=max_mappings
        )
        self.stats: IndexStats = self._tracker.stats
        self.levels = Levels(store, self._tracker, self.stats)
        self._stored = self.levels.stored
        self._store = store
        self.range: VlsnRange = EMPTY
        """The VLSNs for which the index answers. The range is immutable, and replaced whole."""

    @property
    def wounded(self) -> bool:
        """True if a bucket of the store could not be read."""
        return self._stored.wounded

    def at_or_before(self, vlsn: Vlsn) -> Mapping | None:
        """Returns the closest mapping at or before ``vlsn``, or None outside the range."""
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
        """Returns the LSN of the block that begins at ``vlsn``, if the index happens to have its mapping."""
        found = self.at_or_before(vlsn)
        return found[1] if found is not None and found[0] == vlsn else None

    def at_or_after(self, vlsn: Vlsn) -> Mapping | None:
        """Returns the closest mapping at or after ``vlsn``, or the last mapping if ``vlsn`` is past it. Returns None
        outside the range."""
        while vlsn in self.range:
            covered = self.levels.covered
            found = self._stored_at_or_after(vlsn, covered) if vlsn <= covered else None
            with self._latch:
                if covered != self.levels.covered:
                    continue  # after a flush or a cut, the tracker's buckets are in the store, or removed
                if found is None:
                    found = self._tracker.at_or_after(vlsn)
                    self.stats.hits += 1
            if found is not None or (found := self.at_or_before(vlsn)) is not None:
                return found
        return None

    def bucket_at_or_before(self, vlsn: Vlsn) -> Bucket | None:
        """Returns the bucket that now answers ``at_or_before(vlsn)``, or None outside the range."""
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
                if bucket is not None:  # the bucket's head was trimmed, but not yet in the store
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
