"""A short, fixed slice of ``make sim``."""

from __future__ import annotations

import pytest

from tests.fakes.loop import run
from tests.fakes.seeds import seeds
from tests.sim.world import simulated


@pytest.mark.parametrize("seed", seeds(8))
def test_a_cluster_under_faults_keeps_what_it_acknowledged(seed: int) -> None:
    report = run(simulated(seed))
    assert not report.short_of
    assert report.acknowledged > 10
