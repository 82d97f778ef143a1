"""Seeds of the tests that draw: a few by default, one to replay, many for a night.

    @pytest.mark.parametrize("seed", seeds(20))      0 … 19
    SEED=4711 pytest …                               that one alone: a failure again
    SEEDS=5000 pytest …                              0 … 4999

Everything that such a test draws comes from ``Random`` objects made of its seed.
"""

from __future__ import annotations

import os
from collections.abc import Sequence


def seeds(count: int) -> Sequence[int]:
    one = os.environ.get("SEED")
    return [int(one)] if one else range(int(os.environ.get("SEEDS", count)))
