"""Streams the entries of one group into another, each entry once, the entries of a key in order.

    spark-submit copy_stream.py FROM_URL,FROM_URL TO_URL,TO_URL CHECKPOINT [PREFIX]

The query continues where it was, whatever ended it. Its position in the first log is in the checkpoint, and the second
log has the progress of its writes under the sink's name.
"""

import sys

from pyspark.sql import SparkSession

from repl.spark import VlsnLogDataSource


def main(source: str, target: str, checkpoint: str, prefix: str = "") -> None:
    spark = SparkSession.builder.appName("copy").getOrCreate()
    spark.dataSource.register(VlsnLogDataSource)
    read = spark.readStream.format("vlsnlog").option("maxEntriesPerTrigger", 10_000).option("keyPrefix", prefix)
    rows = read.load(source).selectExpr("key", "upper(cast(value as string)) as value")
    write = rows.writeStream.format("vlsnlog").option("url", target).option("sink", "copy")
    write.option("checkpointLocation", checkpoint).start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
