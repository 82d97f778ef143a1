"""Spark's reads beside a bare Python source of the same rows: ``python -m repl.bench.spark``.

A log of its own is written to a temporary directory, then read by ``count()`` of three columns, again and again, each
time next to a source whose partitions yield one Arrow batch of constants as often as it takes: what PySpark itself
costs.  The ratio of the medians is what reading, checking and cutting leave of it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any, Final

import click
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from repl.audit.session import spark_context
from repl.spark import VlsnLogDataSource
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


def driver_mb(spark: SparkSession) -> float:
    """Returns the resident megabytes of the driver's JVM."""
    pid = int(spark._jvm.java.lang.ProcessHandle.current().pid())
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


def cpu_s() -> float:
    """Returns the processor seconds of this process and all below it, ended ones too: the driver and its workers. Other
    load on the machine hardly changes them, as it does the time of day."""
    parents: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(") ")[2].split()
        except OSError:
            continue  # it has just ended; whoever has waited for it counts it
        pid = int(path.parent.name)
        parents.setdefault(int(fields[1]), []).append(pid)
        ticks[pid] = sum(map(int, fields[11:15]))
    left, total = [os.getpid()], 0
    while left:
        pid = left.pop()
        total += ticks.get(pid, 0)
        left += parents.get(pid, [])
    return total / os.sysconf("SC_CLK_TCK")


@click.command()
@click.option("--megabytes", default=300, show_default=True, help="Values to write.")
@click.option("--size", default=100, show_default=True, help="Bytes of a value.")
@click.option("--batch", default=64, show_default=True, help="Entries in a block.")
@click.option("--rounds", default=5, show_default=True)
@click.option("--cores", default=2, show_default=True)
@click.option("--source", default="", help="Read this instead of a log of its own.")
@click.option("--json", "as_json", is_flag=True)
def main(megabytes: int, size: int, batch: int, rounds: int, cores: int, source: str, as_json: bool) -> None:
    """Time count() of three columns, of the log and of constants."""
    with TemporaryDirectory(prefix="vlsnlog-bench-") as directory, spark_context(f"local[{cores}]") as context:
        spark = SparkSession(context)
        for each in (VlsnLogDataSource, BareSource):
            spark.dataSource.register(each)
        small, place = Path(directory, "small"), source or os.path.join(directory, "log")
        write_log(small, 1000, size, batch)
        if not source:
            write_log(Path(place), megabytes * 1_000_000 // size, size, batch)
        read = spark.read.format("vlsnlog").schema(SCHEMA)
        read.load(str(small)).count()
        frame = read.load(place)
        rows, partitions = frame.count(), frame.rdd.getNumPartitions()
        bare = spark.read.format(BARE).option("rows", rows).option("partitions", partitions).option("size", size).load()
        before = driver_mb(spark)
        seconds, spent = timed({"vlsnlog": frame.count, "bare": bare.count}, rounds, rows)
        after = driver_mb(spark)
    found = {name: round(median(each), 3) for name, each in seconds.items()}
    report = {
        "rows": rows,
        "partitions": partitions,
        "seconds": found,
        "all_seconds": {name: [round(one, 3) for one in each] for name, each in seconds.items()},
        "rows_per_s": round(rows / found["vlsnlog"]),
        "ratio": round(found["bare"] / found["vlsnlog"], 3),
        "ratio_of_fastest": round(min(seconds["bare"]) / min(seconds["vlsnlog"]), 3),
        "cpu_seconds": {name: round(median(each), 3) for name, each in spent.items()},
        "cpu_ratio": round(median(spent["bare"]) / median(spent["vlsnlog"]), 3),
        "driver_mb": [round(before), round(after)],
    }
    if as_json:
        click.echo(json.dumps(report))
        return
    for name, value in report.items():
        click.echo(f"{name:18} {value}")


def timed(works: dict[str, Callable[[], int]], rounds: int, rows: int) -> tuple[Times, Times]:
    """Returns the seconds that each work took, round by round, side by side, and those of the processor."""
    seconds: Times = {name: [] for name in works}
    spent: Times = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            begun, used = monotonic(), cpu_s()
            assert work() == rows, name
            seconds[name].append(monotonic() - begun)
            spent[name].append(cpu_s() - used)
    return seconds, spent


if __name__ == "__main__":
    main()
