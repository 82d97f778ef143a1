"""The pipeline in Spark: a table of faults that its judge must notice, and a short run under SIGKILL."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from harness.spark_pipeline import Verdict, _judge, run_spark_pipeline


@pytest.mark.parametrize(
    ("two", "difference"),
    [
        ([("in-1", "A"), ("in-2", "B"), ("in-1", "C")], ""),
        ([("in-2", "B"), ("in-1", "A"), ("in-1", "C"), ("other", "X")], ""),
        ([("in-1", "A"), ("in-2", "B")], "1 entries of key in-1, not 2"),
        ([("in-1", "A"), ("in-2", "B"), ("in-1", "C"), ("in-1", "C")], "3 entries of key in-1, not 2"),
        ([("in-1", "C"), ("in-2", "B"), ("in-1", "A")], "entry 0 of key in-1 is C, not A"),
    ],
)
def test_what_is_lost_doubled_or_in_another_order_is_noticed(two: list[tuple[str, str]], difference: str) -> None:
    one = [("in-1", "a"), ("in-2", "b"), ("in-1", "c")]
    verdict = Verdict(acknowledged=3)
    _judge(one, two, [b"a", b"b", b"c"], verdict)
    assert verdict.valid == (not difference)
    assert verdict.differences[:1] == ([difference] if difference else [])


@pytest.mark.real
def test_each_entry_comes_through_once_whoever_is_killed(tmp_path: Path) -> None:
    said: list[str] = []
    running = run_spark_pipeline(tmp_path, nodes=3, time_s=25.0, drivers=1, executors=1, seed=5, say=said.append)
    verdict = asyncio.run(running)
    assert verdict.valid, "\n".join([*said, *verdict.differences])
    assert verdict.outputs == verdict.acknowledged
    assert verdict.killed_drivers == 1
    assert verdict.killed_masters > 0
