"""The judge of the pipeline in Spark: a table of what it must notice."""

from __future__ import annotations

import pytest
from harness.spark_pipeline import Verdict, _judge


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
