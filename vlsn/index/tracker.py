"""The tracker: the buckets (runs of mappings from VLSN to LSN) that are not stored yet.

1. The tracker's buckets are in order and do not overlap, but there may be gaps. Only the last bucket, the current one,
   changes.
2. All buckets of the tracker are for later VLSNs than the store's.
3. The first block of a bucket gets a mapping. A later block gets a mapping if it is at least ``stride`` VLSNs *and*
   ``mapping_bytes_min`` bytes past the last mapping, or more than ``max_distance`` bytes past it. A bucket has at most
   ``max_mappings`` mappings.

For example, each block has one entry of 1 KiB, ``stride`` is 10 and ``mapping_bytes_min`` is 4 KiB. VLSN 1 gets a
mapping. VLSNs 2 … 10 are within the stride and get no mapping. VLSN 11 is 10 KiB past VLSN 1 and gets a mapping.
Between two segments LSNs differ by more than ``max_distance``, so each segment begins a new bucket. The model is JE's
``VLSNTracker``.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from vlsn.ids import Lsn, Vlsn
from vlsn.index.bucket import Bucket, CurrentBucket, Mapping
from vlsn.index.stats import IndexStats

WINDOW = 128
"""The number of blocks that are searched at once. A search over all blocks would exceed the processor's caches."""


class Tracker:
    """The tracker of one index. Every method is called under the log's latch."""

    __slots__ = ("_bytes_min", "_far", "_mappings_max", "_stride", "buckets", "current", "stats")

    def __init__(
        self,
        *,
        stride: int,
        mapping_bytes_min: int,
        max_distance: int,
        max_mappings: int,
    ) -> None:
        assert stride >= 1
        assert max_mappings >= 2, "a bucket has a first and a closing mapping"
        assert 0 < max_distance < 1 << 31, "or a step into the next segment would not exceed it"
        self._stride = stride
        self._bytes_min = mapping_bytes_min
        self._far = max_distance
        self._mappings_max = max_mappings
        self.stats = IndexStats()
        self.clear()

    def scratch(self) -> Tracker:
        """Makes an empty tracker with the same settings."""
        empty = Tracker(
            stride=self._stride,
            mapping_bytes_min=self._bytes_min,
            max_distance=self._far,
            max_mappings=self._mappings_max,
        )
        empty.stats = self.stats
        return empty

    def clear(self) -> None:
        self.buckets: list[Bucket] = []
        self.current: CurrentBucket | None = None

    @property
    def first(self) -> Vlsn | None:
        """The first VLSN that the tracker covers."""
        if self.buckets:
            return self.buckets[0].first
        return self.current.first if self.current else None

    def track(self, first: Vlsn, last: Vlsn, at: Lsn) -> None:
        """Adds a block that is after all blocks added before."""
        current = self.current
        if current is None:
            self._open(first, last, at)
            return
        assert at > current.block_lsn, f"LSN {at:#x} of VLSN {first} is not past {current.block_lsn:#x}"
        step = at - current.kept_lsn
        if step > self._far or (step >= self._bytes_min and first - current.kept_vlsn >= self._stride):
            if not current.takes(first, at, self._mappings_max):
                self._open(first, last, at)
                return
            current.vlsns.append(first)
            current.lsns.append(at)
            current.kept_vlsn, current.kept_lsn = first, at
        current.block_first, current.block_lsn, current.last = first, at, last

    def track_run(self, firsts: Sequence[int], lasts: Sequence[int], lsns: Sequence[int]) -> None:
        """Adds many blocks in order, with the same result as calls of ``track``. The search jumps from one kept mapping
        to the next."""
        at, end = 0, len(firsts)
        while at < end:
            self.track(Vlsn(firsts[at]), Vlsn(lasts[at]), Lsn(lsns[at]))
            current = self.current
            assert current is not None
            if at + 1 == end:
                return
            following = self._next_kept(current, firsts, lsns, at + 1)
            # Blocks between two kept mappings have none, but the last of these blocks may be the last one of the
            # bucket.
            if following > at + 1:
                at = following - 1
                assert lsns[at] > current.block_lsn, f"LSN {lsns[at]:#x} is not past {current.block_lsn:#x}"
                current.block_first, current.block_lsn, current.last = Vlsn(firsts[at]), Lsn(lsns[at]), Vlsn(lasts[at])
            at += 1

    def _next_kept(self, current: CurrentBucket, firsts: Sequence[int], lsns: Sequence[int], start: int) -> int:
        vlsn, near, far = (
            current.kept_vlsn + self._stride,
            current.kept_lsn + self._bytes_min,
            current.kept_lsn + self._far,
        )
        while True:
            end = min(start + WINDOW, len(lsns))
            spaced = max(bisect_left(lsns, near, start, end), bisect_left(firsts, vlsn, start, end))
            following = min(spaced, bisect_right(lsns, far, start, end))
            if following < end or end == len(lsns):
                return following
            start = end

    def close_current(self) -> None:
        if self.current is not None:
            self.buckets.append(self.current.freeze())
            self.current = None

    def forget(self, count: int) -> None:
        """Removes the first ``count`` buckets, which are in the store now."""
        del self.buckets[:count]

    def at_or_before(self, vlsn: Vlsn) -> Mapping | None:
        current = self.current
        if current is not None and vlsn >= current.first:
            return current.at_or_before(vlsn)
        bucket = self.bucket_at_or_before(vlsn) if self.buckets else None
        return None if bucket is None else bucket.at_or_before(vlsn)

    def at_or_after(self, vlsn: Vlsn) -> Mapping | None:
        """Returns the closest mapping at or after ``vlsn``, or None past the last mapping."""
        start = max(0, bisect_right(self.buckets, vlsn, key=lambda bucket: bucket.first) - 1)
        for bucket in self.buckets[start : start + 2]:
            found = bucket.at_or_after(vlsn)
            if found is not None:
                return found
        return self.current.at_or_after(vlsn) if self.current is not None else None

    def bucket_at_or_before(self, vlsn: Vlsn) -> Bucket | CurrentBucket | None:
        if self.current is not None and vlsn >= self.current.first:
            return self.current
        at = bisect_right(self.buckets, vlsn, key=lambda bucket: bucket.first) - 1
        return self.buckets[at] if at >= 0 else None

    def _open(self, first: Vlsn, last: Vlsn, at: Lsn) -> None:
        self.close_current()
        self.current = CurrentBucket(first, last, at)
        self.stats.buckets_created += 1
