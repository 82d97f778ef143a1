"""Random healthy histories have no finding.  A thousand: ``make audit-histories``."""

from __future__ import annotations

from typing import Any

import pytest

from repl.audit.session import SparkJobs
from tests.repl.audit.histories import audited_histories

SEEDS = [range(1, 5), range(9, 13)]


@pytest.mark.parametrize("seeds", SEEDS, ids=lambda seeds: f"from {seeds.start}")
def test_no_healthy_history_has_a_finding(seeds: range) -> None:
    told = audited_histories(seeds, faults_s=8.0, moments=2)
    assert told.findings == []
    assert told.audited >= 2
    assert told.compared > 0
    assert told.entries > 100


@pytest.mark.real
def test_none_has_one_in_spark_tasks_either(spark: Any) -> None:
    """A slice of them in Spark, which carries the tasks' inputs and results."""
    made: list[SparkJobs] = []

    def jobs() -> SparkJobs:
        made.append(SparkJobs(spark.sparkContext, None))
        return made[-1]

    told = audited_histories(range(5, 9), faults_s=8.0, moments=2, jobs=jobs)
    assert told.findings == []
    assert told.compared > 0
    assert len(made) == told.audited >= 2
    assert sum(each.tasks for each in made) > 4 * told.audited
