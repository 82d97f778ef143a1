"""A lake of Parquet files, a folder a day, that grows with each run.

    spark-submit lake.py http://127.0.0.1:7701,http://127.0.0.1:7702 /srv/lake

However the export ends, its next run continues after the last committed batch: each entry is in the lake once.
"""

import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as sql

from repl.export import Request, run_export


def main(urls: str, lake: str) -> None:
    spark = SparkSession.builder.appName("lake").getOrCreate()  # of spark-submit, with its executors
    held = run_export(Request(source=urls, to=lake, format="parquet", partition_by="date"))
    if held is not None:
        entries = spark.read.parquet(lake)
        days = entries.groupBy("date").agg(sql.count("*").alias("entries"), sql.max("vlsn").alias("last"))
        for day in days.orderBy("date").collect():
            print(f"{day.date}: {day.entries} entries up to VLSN {day.last}")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
