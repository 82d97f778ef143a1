"""A histogram to which values are added cheaply."""

from __future__ import annotations

from bisect import bisect_left

SECONDS_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Histogram:
    """Counts of values by upper bound, with one more count for all higher values, and the sum of the values."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    @property
    def count(self) -> int:
        return sum(self.counts)

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


class Seconds(Histogram):
    """A histogram of durations, in seconds."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(SECONDS_BUCKETS)
