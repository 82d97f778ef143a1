"""The index as a plain model: a dict of VLSN → LSN for each bucket, and the rules of the design.

It shares no code with the product, knows no store and no bisection, and predicts exactly which mappings are kept:

1. A block's mapping is kept at a bucket's start; then when at least ``stride`` VLSNs *and* ``bytes_min`` bytes past
   the last one kept, or more than ``distance`` bytes; a bucket has at most ``mappings``, the last block's included.
2. The last block of a bucket is always mapped.  A bucket is of one segment.
3. A put that comes late is passed over.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field


@dataclass
class ModelBucket:
    kept: dict[int, int]
    last_kept: int
    block: tuple[int, int]
    """First VLSN and LSN of the last block."""
    file: int
    open: bool = True

    def mapped(self) -> dict[int, int]:
        return {**self.kept, self.block[0]: self.block[1]}


@dataclass
class Held:
    """The part that a flush makes durable."""

    buckets: list[ModelBucket] = field(default_factory=list)
    first: int = 0
    last: int = 0


class ModelIndex:
    def __init__(self, *, stride: int, mapping_bytes_min: int, max_distance: int, max_mappings: int) -> None:
        self.stride, self.bytes_min = stride, mapping_bytes_min
        self.distance, self.mappings_max = max_distance, max_mappings
        self.held = Held()
        self.stored: Held | None = None
        self._flushing: Held | None = None

    @property
    def first(self) -> int:
        return self.held.first

    @property
    def last(self) -> int:
        return self.held.last

    def mapped(self) -> dict[int, int]:
        every: dict[int, int] = {}
        for bucket in self.held.buckets:
            every.update(bucket.mapped())
        return every

    def at_or_before(self, vlsn: int) -> tuple[int, int] | None:
        """None outside the range."""
        mapped = self.mapped()
        return max(each for each in mapped.items() if each[0] <= vlsn) if self._inside(vlsn) else None

    def at_or_after(self, vlsn: int) -> tuple[int, int] | None:
        mapped = self.mapped()
        if not self._inside(vlsn):
            return None
        return min((each for each in mapped.items() if each[0] >= vlsn), default=max(mapped.items()))

    def _inside(self, vlsn: int) -> bool:
        return self.last > 0 and self.first <= vlsn <= self.last

    def put(self, first: int, last: int, at: int) -> None:
        held = self.held
        if first > held.last:
            self._append(first, at)
            held.first, held.last = held.first or first, last

    def _append(self, first: int, at: int) -> None:
        bucket = self.held.buckets[-1] if self.held.buckets else None
        if bucket is None or not bucket.open:
            self.held.buckets.append(ModelBucket({first: at}, first, (first, at), at >> 32))
            return
        step = at - bucket.kept[bucket.last_kept]
        keep = step > self.distance or (step >= self.bytes_min and first - bucket.last_kept >= self.stride)
        if keep and (at >> 32 != bucket.file or len(bucket.kept) == self.mappings_max - 1):
            bucket.open = False
            self.held.buckets.append(ModelBucket({first: at}, first, (first, at), at >> 32))
            return
        if keep:
            bucket.kept[first], bucket.last_kept = at, first
        bucket.block = first, at

    def close(self) -> None:
        for bucket in self.held.buckets:
            bucket.open = False

    # What is durable.

    def start_flush(self) -> None:
        self.close()
        self._flushing = deepcopy(self.held)

    def commit(self) -> None:
        self.stored = self._flushing

    def save(self) -> None:
        """Saves what a truncation and a merge write, once there was a checkpoint."""
        if self.stored is not None:
            self.start_flush()
            self.commit()

    def crash(self) -> None:
        self.held = deepcopy(self.stored) if self.stored is not None else Held()

    def clear(self) -> None:
        self.held, self.stored = Held(), None

    # Cutting.

    def truncate_tail(self, last: int, cap: tuple[int, int] | None) -> None:
        if last < self.held.last:
            self._cut(last, cap)
            self.save()

    def _cut(self, last: int, cap: tuple[int, int] | None) -> None:
        self.close()
        if last < self.held.first or not last:
            self.held = Held()
            return
        before = cap[0] if cap else last + 1
        mapped = {vlsn: at for vlsn, at in self.mapped().items() if vlsn < before} | dict([cap] if cap else [])
        self._keep(mapped)
        self.held.last = last

    def truncate_head(self, first: int, at: int) -> None:
        if first > self.held.first:
            self.close()
            self._keep({first: at} | {vlsn: place for vlsn, place in self.mapped().items() if vlsn > first})
            self.held.first = first
            self.save()

    def relocate(self, blocks: list[tuple[int, int, int]]) -> None:
        """Blocks up to the last lie elsewhere now."""
        self.close()
        self._keep({vlsn: at for vlsn, at in self.mapped().items() if vlsn < blocks[0][0]})
        for first, _, at in blocks:
            self._append(first, at)

    def _keep(self, mapped: dict[int, int]) -> None:
        """Closed buckets: only their mappings matter any more."""
        self.held.buckets = [
            ModelBucket({vlsn: at}, vlsn, (vlsn, at), at >> 32, open=False) for vlsn, at in sorted(mapped.items())
        ]

    def merge(self, base: int, blocks: list[tuple[int, int, int]]) -> None:
        loaded = self.held.first, self.held.last
        below = [block for block in blocks if block[0] < self.held.first]
        if below:
            base = below[-1][1]
        blocks = blocks[len(below) :]
        if base < self.held.last:
            self._cut(base, None)
        for block in blocks:
            self.put(*block)
        if blocks or loaded != (self.held.first, self.held.last):
            self.save()
