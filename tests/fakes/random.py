"""Random numbers from a seed."""

from __future__ import annotations

import random


class SeededRandom:
    """The ``Random`` seam over one ``random.Random``; ``rng`` is that generator, to share with other fakes."""

    def __init__(self, seed: int | str | random.Random = 0) -> None:
        self.rng = seed if isinstance(seed, random.Random) else random.Random(seed)

    def u32(self) -> int:
        return self.rng.getrandbits(32)

    def u64(self) -> int:
        return self.rng.getrandbits(64)

    def uniform(self, low: float, high: float) -> float:
        return self.rng.uniform(low, high)
