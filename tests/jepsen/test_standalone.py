"""A standalone Spark of two workers: a job that is submitted runs on both, and nothing of it is left behind."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness.standalone import StandaloneSpark, processes

pytestmark = pytest.mark.real

JOB = """
import os, time
from pyspark.sql import SparkSession

def where(number):
    time.sleep(0.2)
    return os.getppid()

spark = SparkSession.builder.getOrCreate()
context = spark.sparkContext
while context._jsc.sc().getExecutorMemoryStatus().size() < 3:  # the driver's and two
    time.sleep(0.1)
places = set(context.range(16, numSlices=16).map(where).collect())
print("sum", context.range(100, numSlices=4).sum(), "on", len(places))
spark.stop()
"""


def test_a_submitted_job_runs_on_both_workers(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(JOB)
    with StandaloneSpark(tmp_path / "spark") as spark:
        driver = spark.submit(script)
        assert driver.wait(300) == 0, spark.err(script).read_text()[-4000:]
        assert spark.out(script).read_text() == "sum 4950 on 2\n"
    assert [pid for pid, _, command in processes() if str(tmp_path).encode() in command] == []
