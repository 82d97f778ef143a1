"""The audit's speed: ``python -m tests.repl.audit.measure [MB a copy]``, in a temporary directory.

Three copies in blocks of 1 000 entries, and three of one-entry blocks, on local[2], each audited several times after
one small job of the data source.
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic

from repl.audit import run_audit
from repl.audit.session import spark_context
from repl.spark import VlsnLogDataSource
from tests.repl.audit.logs import Copy, numbered

ROUNDS = 3
ENTRY_BYTES = 100


def main(megabytes: int) -> None:
    from pyspark.sql import SparkSession

    batches, singles = megabytes * 1_000_000 // 104_100, megabytes * 1_000_000 // 600
    stories = {"1000-entry blocks": (batches, 1000), "one-entry blocks": (singles, 1)}
    with TemporaryDirectory(prefix="vlsnlog-measure-") as directory, spark_context("local[2]") as context:
        spark = SparkSession(context)
        spark.dataSource.register(VlsnLogDataSource)
        small = Copy(Path(directory, "small"), "n1").add(*numbered(10)).write()
        begun = monotonic()
        spark.read.format("vlsnlog").option("mode", "physical").load(str(small.path)).count()
        print(f"one small job of the data source: {monotonic() - begun:.1f} s")
        for name, (count, entries) in stories.items():
            blocks = numbered(count, entries, ENTRY_BYTES)
            paths = [Path(directory, name, node) for node in ("n1", "n2", "n3")]
            for path in paths:
                Copy(path, path.name, segment_bytes=64 << 20).add(*blocks).write()
            for _ in range(ROUNDS):
                report = run_audit([str(path) for path in paths])
                assert report.equal
                rate = 3 * len(blocks) / report.seconds
                speed = report.bytes / 1e6 / report.seconds
                print(f"{name}: {report.seconds:.2f} s, {speed:.0f} MB/s, {rate:,.0f} blocks/s, {report.tasks} tasks")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 300)
