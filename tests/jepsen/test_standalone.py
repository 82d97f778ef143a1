"""``spark-submit`` on a standalone Spark of two workers: an export whose tasks run on both, gone on with by another."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from harness.standalone import StandaloneSpark, processes

from tests.repl.audit.logs import Copy, numbered

pytestmark = pytest.mark.real

LAKE = Path(__file__).parents[2] / "docs" / "examples" / "lake.py"
BOTH = {
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "300s",
}
"""Nothing is run before both executors are there."""


def log(path: Path, blocks: int) -> None:
    copy = Copy(path, "n1", segment_bytes=2 << 20).add(*numbered(blocks, 10, 1000))
    copy.checkpoint(copy.last).write()


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
        logs = [path.read_text() for path in sorted((tmp_path / "spark").glob("worker*/app-*-0000/*/stderr"))]
        assert ["Running task" in text for text in logs] == [True, True]
    vlsns = sorted(vlsn for path in lake.rglob("*.parquet") for vlsn in pq.read_table(path)["vlsn"].to_pylist())
    assert vlsns == list(range(1, 12_001))
    assert [pid for pid, _, command in processes() if str(tmp_path).encode() in command] == []
