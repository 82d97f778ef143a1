"""The entries of a log as a Spark data source.

    spark.dataSource.register(VlsnLogDataSource)
    spark.read.format("vlsnlog").load("DIR or URL").where("kind = 'DATA' and durable")

A row an entry, of every frame of the log: what was rolled back, what may be yet, and a damaged frame as one row
without a value.  ``durable`` are the entries that a majority is known to have synced, and no others.
``time`` is in µs since the epoch, ``lsn`` is the entry's block's, ``key`` is null where there is none.  Partitions
are runs of segments of 128 MB or more; rows come as Arrow batches over many blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import BinaryType, BooleanType, IntegerType, LongType, StringType, StructField, StructType

from repl.audit.columns import log_batches
from repl.audit.plan import Part, packed
from repl.audit.source import Source, source_of
from vlsn.errors import BadArgument

SCHEMA: Final = StructType(
    [
        StructField("node", StringType()),
        StructField("segment", IntegerType()),
        StructField("lsn", LongType()),
        StructField("vlsn", LongType()),
        StructField("term", LongType()),
        StructField("time", LongType()),
        StructField("kind", StringType()),
        StructField("txn", LongType()),
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("overmarked", BooleanType()),
        StructField("damaged", BooleanType()),
        StructField("durable", BooleanType()),
    ]
)
CORES: Final = 4
"""Cores that a log is cut for at least; a reader cannot ask Spark."""


@dataclass
class SegmentsPartition(InputPartition):  # type: ignore[misc]
    node: str
    durable: int
    parts: tuple[Part, ...]


class VlsnLogDataSource(DataSource):  # type: ignore[misc]
    """``format("vlsnlog")``; ``load`` takes a node's directory or URL."""

    @classmethod
    def name(cls) -> str:
        return "vlsnlog"

    def schema(self) -> StructType:
        return SCHEMA

    def reader(self, schema: StructType) -> VlsnLogReader:
        if schema.names != SCHEMA.names:
            raise BadArgument("vlsnlog has a schema of its own: leave .schema(…) out, and select columns")
        if (mode := self.options.get("mode", "physical")) != "physical":
            raise BadArgument(f"mode={mode} is not there yet: leave it out, and filter by kind and durable")
        return VlsnLogReader(self._source())

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        raise BadArgument("vlsnlog cannot be read as a stream yet: use spark.read")

    def simpleStreamReader(self, schema: StructType) -> Any:  # noqa: N802
        return self.streamReader(schema)

    def _source(self) -> Source:
        path = self.options.get("path")
        if not path:
            raise BadArgument("vlsnlog needs a path: .load('DIR or URL')")
        return source_of(path)


class VlsnLogReader(DataSourceReader):  # type: ignore[misc]
    def __init__(self, source: Source) -> None:
        self._source = source

    def partitions(self) -> list[InputPartition]:
        survey = self._source.survey(0)
        runs = packed([survey], cores=CORES)
        return [SegmentsPartition(survey.node, survey.dtvlsn, run) for run in runs or [()]]

    def read(self, partition: SegmentsPartition) -> Iterator[Any]:
        return log_batches(self._source, partition.parts, partition.node, partition.durable)
