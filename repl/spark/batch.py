"""Batch reads: what is visible, as partitions over the sources, and every frame of one copy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql.datasource import DataSourceReader, InputPartition

from repl.audit.columns import log_batches
from repl.audit.plan import Part, packed
from repl.audit.source import source_of
from repl.spark.errors import each_one_line, one_line
from repl.spark.options import ReadOptions
from vlsn.errors import BadArgument

CORES: Final = 4
"""Cores that a log is cut for at least; a reader cannot ask Spark."""


@dataclass
class SegmentsPartition(InputPartition):  # type: ignore[misc]
    """Whole segments of one copy."""

    node: str
    durable: int
    parts: tuple[Part, ...]


class PhysicalReader(DataSourceReader):  # type: ignore[misc]
    """Reads every frame of one source."""

    def __init__(self, options: ReadOptions, names: tuple[str, ...]) -> None:
        if len(options.sources) > 1:
            raise BadArgument("mode=physical shows one copy: load one source, and join what several show")
        self._source = source_of(options.sources[0])
        self._options = options
        self._names = names

    @one_line
    def partitions(self) -> list[InputPartition]:
        survey = self._source.survey(0)
        runs = packed([survey], cores=CORES)
        return [SegmentsPartition(survey.node, survey.dtvlsn, run) for run in runs or [()]]

    @each_one_line
    def read(self, partition: SegmentsPartition) -> Iterator[Any]:
        for batch in log_batches(self._source, partition.parts, partition.node, partition.durable):
            yield batch.select(list(self._names))


class VisibleReader(DataSourceReader):  # type: ignore[misc]
    """Reads the entries that a majority has synced, each once."""

    def __init__(self, options: ReadOptions, names: tuple[str, ...]) -> None:
        self._options = options
        self._names = names

    @one_line
    def partitions(self) -> list[InputPartition]:
        raise BadArgument("mode=visible is not there yet")

    @each_one_line
    def read(self, partition: InputPartition) -> Iterator[Any]:
        yield from ()
