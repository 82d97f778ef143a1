"""The real clock and the real source of random numbers."""

from __future__ import annotations

import random
import secrets
import time


class SystemClock:
    def monotonic_s(self) -> float:
        return time.monotonic()

    def wall_us(self) -> int:
        return max(time.time_ns() // 1_000, 0)  # the clock of a machine without a battery may begin before 1970


class SystemRandom:
    """The random numbers of the kernel, so that two nodes started from one image never draw the same numbers. Delays,
    which are not secret, are drawn for every message of a feed. So delays come from a generator that the kernel has
    seeded."""

    def __init__(self) -> None:
        self._delays = random.Random()

    def u32(self) -> int:
        return secrets.randbits(32)

    def u64(self) -> int:
        return secrets.randbits(64)

    def uniform(self, low: float, high: float) -> float:
        return self._delays.uniform(low, high)
