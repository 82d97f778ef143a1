"""Seeds of the tests that draw at random: a few by default, one to replay a failure, many for a night.

    @pytest.mark.parametrize("seed", seeds(20))      0 … 19, of which ``make test`` runs a few
    SEED=4711 pytest …                               that one alone, to replay a failure
    SEEDS=5000 pytest …                              0 … 4999

Everything that such a test draws comes from ``Random`` objects made of its seed.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

import pytest

QUICK: Final = 2
"""Seeds of each test that ``make test`` runs."""


def seeds(count: int, quick: int = QUICK) -> Sequence[object]:
    """Returns the seeds of one test; those from ``quick`` on are ``long``, unless the environment names them."""
    one, many = os.environ.get("SEED"), os.environ.get("SEEDS")
    if one or many:
        return [int(one)] if one else range(int(many or 0))
    return [pytest.param(seed, marks=() if seed < quick else pytest.mark.long) for seed in range(count)]
