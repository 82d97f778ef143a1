"""Two logs joined as streams: each order with its payments within the hour, as Parquet files.

    spark-submit join_logs.py ORDERS_URLS PAYMENTS_URLS DIR

A second run continues where the first one ended: entries that wait for the other side are in the query's checkpoint.
"""

import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import expr

from repl.spark import VlsnLogDataSource

WITHIN = "1 hour"


def stream(spark: SparkSession, urls: str, prefix: str, name: str) -> DataFrame:
    """Returns the entries with this key prefix; their columns begin with `name`."""
    entries = spark.readStream.format("vlsnlog").option("keyPrefix", prefix).load(urls)
    of = f"substring(cast(key as string), {len(prefix) + 1}) as {name}_id"
    renamed = entries.selectExpr(of, f"time as {name}_time", f"vlsn as {name}_vlsn", f"cast(value as string) as {name}")
    return renamed.withWatermark(f"{name}_time", WITHIN)


def main(orders_urls: str, payments_urls: str, directory: str) -> None:
    spark = SparkSession.builder.appName("join").getOrCreate()
    spark.conf.set("spark.sql.shuffle.partitions", "2")  # of a small join
    spark.dataSource.register(VlsnLogDataSource)
    orders = stream(spark, orders_urls, "order-", "ordered")
    payments = stream(spark, payments_urls, "payment-", "paid")
    together = f"ordered_id = paid_id and paid_time between ordered_time and ordered_time + interval {WITHIN}"
    paid = orders.join(payments, expr(together))
    query = (
        paid.writeStream.format("parquet")
        .option("path", f"{directory}/paid")
        .option("checkpointLocation", f"{directory}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
