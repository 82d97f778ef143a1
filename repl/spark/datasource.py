"""``format("vlsnlog")``: the log as a Spark data source.

    spark.dataSource.register(VlsnLogDataSource)
    spark.read.format("vlsnlog").option("from", 100).load("URL,URL")         visible entries, each once
    spark.read.format("vlsnlog").option("mode", "physical").load("DIR").where("kind = 'DATA' and durable")

Spark makes an instance in a process of its own for each step (schema, plan, tasks), so options are all that it keeps.
"""

from __future__ import annotations

from typing import Any

from pyspark import SparkContext
from pyspark.sql.datasource import DataSource, DataSourceReader
from pyspark.sql.types import StructType

from repl.spark.errors import one_line
from repl.spark.options import Mode, ReadOptions, Use, check_names, read_options
from repl.spark.schemas import SCHEMAS, check_schema
from repl.spark.workers import equip
from vlsn.errors import BadArgument


class VlsnLogDataSource(DataSource):  # type: ignore[misc]
    """The data source ``vlsnlog``; ``load`` takes a group's URLs, or directories of its nodes."""

    @classmethod
    def name(cls) -> str:
        """Returns the format's name; asked for by ``register``, it sees to Spark's workers, too."""
        if SparkContext._active_spark_context is not None:
            equip(SparkContext._active_spark_context)
        return "vlsnlog"

    @one_line
    def schema(self) -> StructType:
        check_names(self.options)
        return SCHEMAS[Mode.PHYSICAL if self.options.get("mode") == Mode.PHYSICAL else Mode.VISIBLE]

    @one_line
    def reader(self, schema: StructType) -> DataSourceReader:
        from repl.spark.batch import PhysicalReader, PushdownReader, VisibleReader

        options = read_options(self.options, Use.BATCH)
        names = check_schema(schema, options.mode)
        if options.mode is Mode.PHYSICAL:
            return PhysicalReader(options, names)
        return (PushdownReader if options.pushdown else VisibleReader)(options, names)

    @one_line
    def streamReader(self, schema: StructType) -> Any:  # noqa: N802
        options: ReadOptions = read_options(self.options, Use.STREAM)
        check_schema(schema, options.mode)
        raise BadArgument("vlsnlog cannot be read as a stream yet: use spark.read")

    @one_line
    def writer(self, schema: StructType, overwrite: bool) -> Any:
        raise BadArgument("vlsnlog cannot be written yet")

    @one_line
    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:  # noqa: N802
        raise BadArgument("vlsnlog cannot be written as a stream yet")
