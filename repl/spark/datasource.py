"""``format("vlsnlog")``: the log as a Spark data source.

    spark.dataSource.register(VlsnLogDataSource)
    spark.read.format("vlsnlog").option("from", 100).load("URL,URL")         visible entries, each once
    spark.readStream.format("vlsnlog").load("URL,URL")                       new durable entries, each once
    rows.write.format("vlsnlog").option("url", "URL,URL").mode("append")     key (optional) and value
    rows.writeStream.format("vlsnlog").option("url", "URL,URL").option("sink", "NAME")
    spark.read.format("vlsnlog").option("mode", "physical").load("DIR").where("kind = 'DATA' and durable")

Spark makes an instance in a separate process for each step (schema, plan, tasks), so an instance keeps only options.
"""

from __future__ import annotations

from dataclasses import replace

from pyspark import SparkContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from repl.audit.workers import equip
from repl.spark.errors import one_line
from repl.spark.options import Mode, Use, check_names, read_options
from repl.spark.schemas import SCHEMAS, check_schema
from repl.spark.stream_options import SinkOptions, sink_options, stream_options
from vlsn.errors import VlsnLogError


class VlsnLogDataSource(DataSource):  # type: ignore[misc]
    """The data source ``vlsnlog``; ``load`` takes a group's URLs, or directories of its nodes."""

    @classmethod
    def name(cls) -> str:
        """Returns the format's name. Because ``register`` calls this method, it also prepares Spark's workers."""
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
        from repl.spark.places import with_files

        options = with_files(read_options(self.options, Use.BATCH))
        names = check_schema(schema, options.mode)
        if options.mode is Mode.PHYSICAL:
            return PhysicalReader(options, names)
        return (PushdownReader if options.pushdown else VisibleReader)(options, names)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        from repl.spark.places import is_url, with_files
        from repl.spark.stream import LogStreamReader, RefusedReader
        from repl.spark.stream_copies import CopiesStreamReader

        try:
            options = with_files(stream_options(self.options))
            reader = LogStreamReader if all(map(is_url, options.sources)) else CopiesStreamReader
            return reader(options, check_schema(schema, options.mode))
        except VlsnLogError as error:
            return RefusedReader(error)

    @one_line
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from repl.spark.sink import BatchSink, check_columns

        check_columns(schema)
        return BatchSink(self._sink_options(Use.WRITE, overwrite=overwrite))

    @one_line
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        from repl.spark.sink import StreamSink, check_columns

        check_columns(schema)
        return StreamSink(self._sink_options(Use.SINK, overwrite=overwrite))

    def _sink_options(self, use: Use, *, overwrite: bool) -> SinkOptions:
        from repl.spark.places import checked

        options = sink_options(self.options, use, overwrite=overwrite)
        return replace(options, tls=checked(options.tls))
