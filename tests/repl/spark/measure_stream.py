"""The rate of a stream beside that of a batch read of the same entries, in one session, by turns.

python -m tests.repl.spark.measure_stream [ENTRIES] [BYTES_EACH] [ROUNDS]
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

from pyspark.sql import SparkSession

from repl.audit.session import spark_context
from repl.spark import VlsnLogDataSource
from tests.repl.spark.groups import client, running, urls


def main(entries: int = 400_000, bytes_each: int = 200, rounds: int = 5) -> None:
    with tempfile.TemporaryDirectory() as directory, running(Path(directory) / "nodes") as group:
        with client(group) as log:
            for start in range(0, entries, 10_000):
                log.append_many([b"%0*d" % (bytes_each, row) for row in range(start, min(start + 10_000, entries))])
        with spark_context("local[2]") as context:
            spark = SparkSession(context)
            spark.dataSource.register(VlsnLogDataSource)
            spark.read.format("vlsnlog").option("to", 100).load(urls(group)).count()
            batches, streams = [], []
            for round_ in range(rounds):
                began = time.monotonic()
                spark.read.format("vlsnlog").load(urls(group)).write.format("noop").mode("overwrite").save()
                batches.append(time.monotonic() - began)
                stream = spark.readStream.format("vlsnlog").option("maxBytesPerTrigger", "1g").load(urls(group))
                writing = stream.writeStream.format("noop").trigger(availableNow=True)
                began = time.monotonic()
                query = writing.option("checkpointLocation", f"{directory}/{round_}").start()
                query.awaitTermination()
                streams.append(time.monotonic() - began)
                assert sum(progress["numInputRows"] for progress in query.recentProgress) == entries
    batch, stream_s = statistics.median(batches), statistics.median(streams)
    print(f"batch  {entries / batch:>10,.0f} rows/s, {batch:.2f} s, {min(batches):.2f} to {max(batches):.2f}")
    print(f"stream {entries / stream_s:>10,.0f} rows/s, {stream_s:.2f} s, {min(streams):.2f} to {max(streams):.2f}")
    print(f"stream / batch {batch / stream_s:.2f}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
