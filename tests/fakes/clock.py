"""A clock that stands still, follows virtual time, or is wrong by hours."""

from __future__ import annotations

from collections.abc import Callable

EPOCH_US = 1_700_000_000_000_000


class FakeClock:
    """A clock whose ``now`` is a source of monotonic seconds: a virtual loop's ``time``, or none. Without one, only
    ``advance`` moves the clock. ``offset_us`` moves only the wall clock, forward or back."""

    def __init__(self, now: Callable[[], float] | None = None, *, offset_us: int = 0) -> None:
        self._now = now or (lambda: 0.0)
        self._advanced_s = 0.0
        self.offset_us = offset_us

    def advance(self, seconds: float) -> None:
        self._advanced_s += seconds

    def monotonic_s(self) -> float:
        return self._now() + self._advanced_s

    def wall_us(self) -> int:
        return max(EPOCH_US + self.offset_us + round(self.monotonic_s() * 1_000_000), 0)
