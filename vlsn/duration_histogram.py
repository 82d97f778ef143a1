"""A histogram of durations, in seconds."""

from __future__ import annotations

from vlsn.histogram import Histogram

SECONDS_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Seconds(Histogram):
    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(SECONDS_BUCKETS)
