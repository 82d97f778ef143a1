"""A pipeline of real processes, short: nodes and workers killed, each entry copied once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from harness.pipeline import Verdict, run_pipeline

pytestmark = pytest.mark.real


def ran(directory: Path, *, groups: int, seed: int) -> Verdict:
    said: list[str] = []
    verdict = asyncio.run(run_pipeline(directory, groups=groups, nodes=3, time_s=8.0, seed=seed, say=said.append))
    assert verdict.valid, "\n".join([*said, *verdict.differences])
    return verdict


@pytest.mark.parametrize(("groups", "seed"), [(1, 3), (2, 4)])
def test_a_pipeline_copies_each_entry_once_whoever_is_killed(tmp_path: Path, groups: int, seed: int) -> None:
    verdict = ran(tmp_path, groups=groups, seed=seed)
    assert verdict.outputs == verdict.acknowledged > 0
    assert verdict.killed_nodes + verdict.killed_workers + verdict.paused_workers > 0
