"""A short, fixed slice of ``make sim``."""

from __future__ import annotations

import pytest

from tests.fakes.loop import run
from tests.fakes.seeds import seeds
from tests.sim.stories import played
from tests.sim.world import simulated


@pytest.mark.parametrize("seed", seeds(8))
def test_a_cluster_under_faults_keeps_what_it_acknowledged(seed: int) -> None:
    report = run(simulated(seed))
    assert not report.short_of
    assert report.acknowledged > 10


@pytest.mark.parametrize(
    ("title", "events"),
    [
        ("An election", ["n1 is killed", "elected", "n1 is started again", "n1 state state=REPLICA"]),
        ("Syncup with a rollback", ["cut off", "steps_down", "elected", "rolled_back"]),
        ("A network restore", ["is killed", "cleaned", "restore.begin", "restore.from", "restore.done"]),
    ],
)
def test_the_stories_of_the_docs_go_as_they_are_told(title: str, events: list[str]) -> None:
    said = iter(run(played(title)))
    for event in events:
        assert any(event in line for line in said), event
