"""Spark's reads beside a bare Python source of the same rows.

A log of its own is written to a temporary directory, then read by ``count()`` of three columns, again and again. Each
time a second source is read beside it, whose partitions yield one Arrow batch of constants often enough: that is
PySpark's own cost.  The ratio of the medians is what reading, checking and cutting leave of it.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from repl.audit.session import spark_context
from repl.spark import VlsnLogDataSource
from tests.bench.process import memory, tree_cpu_s
from tests.bench.report import Sections
from vlsn import Durability, Log

SCHEMA: Final = "vlsn bigint, key binary, value binary"
BARE: Final = "vlsnlog-bench-bare"
BATCH_BYTES: Final = 4 << 20
Times = dict[str, list[float]]
KEYS: Final = [b"key-%04d" % number for number in range(1000)]


@dataclass
class Batches(InputPartition):  # type: ignore[misc]
    """``count`` batches of ``rows`` rows, and one of ``rest``."""

    rows: int
    count: int
    rest: int


class BareSource(DataSource):  # type: ignore[misc]
    """Constant rows: as many as ``rows`` says, in ``partitions`` partitions."""

    @classmethod
    def name(cls) -> str:
        return BARE

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: Any) -> BareReader:
        return BareReader(*(int(self.options[name]) for name in ("rows", "partitions", "size")))


class BareReader(DataSourceReader):  # type: ignore[misc]
    """Yields the same batch again and again."""

    def __init__(self, rows: int, partitions: int, size: int) -> None:
        self._rows, self._partitions, self._size = rows, partitions, size

    def partitions(self) -> list[InputPartition]:
        each = BATCH_BYTES // (self._size + 40)
        cuts = [self._rows * at // self._partitions for at in range(self._partitions + 1)]
        counts = [high - low for low, high in pairwise(cuts)]
        return [Batches(each, count // each, count % each) for count in counts]

    def read(self, partition: Batches) -> Iterator[Any]:
        rows, value = partition.rows, b"." * self._size
        columns = [pa.array(range(rows), pa.int64()), pa.array((KEYS * (rows // 1000 + 1))[:rows], pa.binary())]
        batch = pa.RecordBatch.from_arrays(
            [*columns, pa.array([value] * rows, pa.binary())], names=["vlsn", "key", "value"]
        )
        for _ in range(partition.count):
            yield batch
        if partition.rest:
            yield batch.slice(0, partition.rest)


def write_log(directory: Path, entries: int, size: int, batch: int) -> None:
    """Writes a log of ``entries`` values of ``size`` bytes, ``batch`` in a block, each with one of 1,000 keys."""
    with Log.open(str(directory)) as log:
        for first in range(0, entries, batch):
            count = min(batch, entries - first)
            values = [(b"%d" % at).ljust(size, b".") for at in range(first, first + count)]
            keys = [KEYS[at % 1000] for at in range(first, first + count)]
            log.append(values, keys=keys, durability=Durability.NO_SYNC)
        log.sync()


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--megabytes", type=int, default=300, help="values to write")
    parser.add_argument("--size", type=int, default=100, help="bytes of a value")
    parser.add_argument("--batch", type=int, default=64, help="entries in a block")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--source", default="", help="read this instead of a log of its own")


def measured(options: argparse.Namespace) -> Sections:
    """Times ``count()`` of three columns, of the log and of constants."""
    size, batch = options.size, options.batch
    with (
        TemporaryDirectory(prefix="vlsnlog-bench-") as directory,
        spark_context(f"local[{options.cores}]") as context,
    ):
        spark = SparkSession(context)
        for each in (VlsnLogDataSource, BareSource):
            spark.dataSource.register(each)
        small, place = Path(directory, "small"), options.source or os.path.join(directory, "log")
        write_log(small, 1000, size, batch)
        if not options.source:
            write_log(Path(place), options.megabytes * 1_000_000 // size, size, batch)
        read = spark.read.format("vlsnlog").schema(SCHEMA)
        read.load(str(small)).count()
        frame = read.load(place)
        rows, partitions = frame.count(), frame.rdd.getNumPartitions()
        bare = spark.read.format(BARE).option("rows", rows).option("partitions", partitions).option("size", size).load()
        driver = int(spark._jvm.java.lang.ProcessHandle.current().pid())
        before = memory(driver, "VmRSS")
        seconds, spent = timed({"vlsnlog": frame.count, "bare": bare.count}, options.rounds, rows)
        after = memory(driver, "VmRSS")
    found = {name: round(median(each), 3) for name, each in seconds.items()}
    yield (
        "count() of vlsn, key, value",
        {
            "rows": rows,
            "partitions": partitions,
            "seconds": found,
            "all_seconds": {name: [round(one, 3) for one in each] for name, each in seconds.items()},
            "rows_per_s": round(rows / found["vlsnlog"]),
            "ratio": round(found["bare"] / found["vlsnlog"], 3),
            "ratio_of_fastest": round(min(seconds["bare"]) / min(seconds["vlsnlog"]), 3),
            "cpu_seconds": {name: round(median(each), 3) for name, each in spent.items()},
            "cpu_ratio": round(median(spent["bare"]) / median(spent["vlsnlog"]), 3),
            "driver_mb": [before >> 20, after >> 20],
        },
    )


def timed(works: dict[str, Callable[[], int]], rounds: int, rows: int) -> tuple[Times, Times]:
    """Returns the seconds that each work took, round by round, side by side, and those of the processor, of the driver
    and its workers: other load on the machine hardly changes these."""
    seconds: Times = {name: [] for name in works}
    spent: Times = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            begun, used = monotonic(), tree_cpu_s(os.getpid())
            assert work() == rows, name
            seconds[name].append(monotonic() - begun)
            spent[name].append(tree_cpu_s(os.getpid()) - used)
    return seconds, spent
