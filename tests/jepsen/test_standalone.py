"""``spark-submit`` on a standalone Spark of two workers: the wheel's parts, and an export that another one continues;
tasks run on both workers."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from harness.standalone import StandaloneSpark, processes

from tests.e2e.calls import call
from tests.repl.audit.logs import Copy, numbered
from tests.repl.spark.groups import alone

pytestmark = pytest.mark.real

ROOT = Path(__file__).parents[2]
LAKE = ROOT / "docs" / "examples" / "lake.py"
BOTH = {
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "300s",
}
"""Nothing is run before both executors are there."""


def log(path: Path, blocks: int) -> None:
    copy = Copy(path, "n1", segment_bytes=2 << 20).add(*numbered(blocks, 10, 1000))
    copy.checkpoint(copy.last).write()


JOB = """
import sys
import repl
from pyspark.sql import SparkSession
from repl.audit import run_audit
from repl.spark import VlsnLogDataSource

one, two, directory, checkpoint = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
spark.dataSource.register(VlsnLogDataSource)
print("driver", repl.__file__)
tasks = spark.sparkContext.parallelize(range(8), 8)
print("workers", *sorted(set(tasks.map(lambda _: __import__("repl").__file__.split("/")[-3]).collect())))
print("source", spark.read.format("vlsnlog").load(one).count())
copied = spark.readStream.format("vlsnlog").option("maxEntriesPerTrigger", 60).load(one).select("key", "value")
writing = copied.writeStream.format("vlsnlog").option("url", two).option("sink", "copy")
writing.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()
print("stream and sink", spark.read.format("vlsnlog").load(two).count())
print("audit", run_audit([one, directory]).equal)
"""


def test_source_stream_sink_and_audit_run_on_both_workers_from_the_wheel(tmp_path: Path) -> None:
    """The driver has the wheel of ``--py-files`` alone, and the workers have what the driver sends them."""
    build = ["build", "--wheel", "--no-build-isolation", "--quiet", "--out-dir", str(tmp_path / "dist")]
    subprocess.run([str(Path(sys.executable).with_name("uv")), *build, str(ROOT)], check=True, timeout=600)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    job = tmp_path / "job.py"
    job.write_text(JOB)
    with (
        alone(tmp_path / "one", 100) as one,
        alone(tmp_path / "two", 0) as two,
        StandaloneSpark(tmp_path / "spark") as spark,
    ):
        call("POST", f"{one.url}/v1/admin/checkpoint", headers={"Content-Type": "application/json"}).ok()
        shutil.copytree(one.directory, tmp_path / "copy")
        arguments = one.url, two.url, str(tmp_path / "copy"), str(tmp_path / "checkpoint")
        driver = spark.submit(job, *arguments, conf=BOTH, py_files=str(wheel))
        assert driver.wait(600) == 0, spark.out(job).read_text() + spark.err(job).read_text()[-4000:]
        driver_has, *said = spark.out(job).read_text().splitlines()
        assert wheel.name in driver_has, "not what is installed beside it"
        assert said == ["workers vlsnlog.zip", "source 100", "stream and sink 100", "audit True"]
        assert both_ran(tmp_path / "spark") == [True, True]


def both_ran(spark: Path) -> list[bool]:
    """Says of each worker whether it ran tasks of the first application."""
    return ["Running task" in path.read_text() for path in sorted(spark.glob("worker*/app-*-0000/*/stderr"))]


def test_an_export_runs_on_both_workers_and_goes_on(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    with StandaloneSpark(tmp_path / "spark") as spark:
        for blocks in (900, 1200):  # some 9 MB in pieces of 1 MiB and more, and the rest
            source = tmp_path / f"n{blocks}"
            log(source, blocks)
            driver = spark.submit(LAKE, str(source), str(lake), conf=BOTH)
            assert driver.wait(600) == 0, spark.err(LAKE).read_text()[-4000:]
        assert spark.out(LAKE).read_text() == (
            "2023-11-14: 9000 entries up to VLSN 9000\n2023-11-14: 12000 entries up to VLSN 12000\n"
        )
        assert both_ran(tmp_path / "spark") == [True, True]
    vlsns = sorted(vlsn for path in lake.rglob("*.parquet") for vlsn in pq.read_table(path)["vlsn"].to_pylist())
    assert vlsns == list(range(1, 12_001))
    assert [pid for pid, _, command in processes() if str(tmp_path).encode() in command] == []
