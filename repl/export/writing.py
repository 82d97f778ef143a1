"""The part of an export that runs in tasks: writes the rows of some VLSNs to staged files, as Parquet or lines of JSON.

    batches ─► partitions ─► row groups ─► staged file ─► next one at ``file_bytes``

The rows of a file are in the order of their VLSNs. Row groups (parts of a Parquet file) are small, so that readers can
skip most of a file by the statistics of ``vlsn``, ``time`` and ``key``. A task keeps only unfinished row groups in
memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

import pyarrow as pa

from repl.export.manifest import DataFile
from repl.export.objects import Target
from repl.export.partitioning import Partitioning, partitioning_of
from repl.files.parquet import COLUMNS, SCHEMA, ParquetFile, Sink
from repl.web import ndjson
from vlsn.errors import BadArgument
from vlsn.format.block import Entry, EntryKind
from vlsn.limits import MIB

ROW_GROUP_BYTES: Final = 16 * MIB
"""A file's rows are written as a row group when they take this many bytes of memory."""
ROW_GROUP_ROWS: Final = 131_072
PENDING_BYTES_MAX: Final = 64 * MIB
"""The most bytes of unfinished row groups in one task. If there are more, the largest row group is written early."""
PARTITIONS_MAX: Final = 256
"""The most partitions that one task writes at a time. Each partition has an open file."""
_ENDINGS: Final = {"parquet": "parquet", "json": "jsonl"}
FORMATS: Final = tuple(_ENDINGS)
_DATA: Final = int(EntryKind.DATA)


@dataclass(frozen=True, slots=True)
class Plan:
    """The settings of the tasks' writing. All tasks of an export have the same plan."""

    target: Target
    exporter: str
    format: str
    partition_by: str
    file_bytes: int

    def write(self, batches: Iterator[Any]) -> list[DataFile]:
        """Writes all rows to staged files. On return the files are durable, but not their names. After an error all of
        them are removed, as far as possible."""
        writer = _Writer(self)
        try:
            for batch in batches:
                writer.add(batch)
            return writer.end()
        except BaseException:
            writer.abandon()
            raise


class _Writer:
    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._by: Partitioning | None = partitioning_of(plan.partition_by)
        self._open: dict[str, _DataWriter] = {}
        self._done: list[DataFile] = []

    def add(self, batch: Any) -> None:
        for directory, rows in self._by.split(batch) if self._by is not None else (("", batch),):
            if not rows.num_rows:
                continue
            writer = self._open.get(directory)
            if writer is None:
                if len(self._open) >= PARTITIONS_MAX:
                    raise BadArgument(
                        f"--partition-by {self._plan.partition_by} makes more than {PARTITIONS_MAX} partitions in one "
                        "task: partition by fewer bytes"
                    )
                writer = self._open[directory] = _DataWriter(self._plan, directory)
            writer.add(rows)
            if writer.bytes >= self._plan.file_bytes:
                self._done.append(self._open.pop(directory).end())
        while sum(writer.pending_bytes for writer in self._open.values()) > PENDING_BYTES_MAX:
            max(self._open.values(), key=lambda writer: writer.pending_bytes).flush()

    def end(self) -> list[DataFile]:
        while self._open:
            _, writer = self._open.popitem()
            self._done.append(writer.end())
        return self._done

    def abandon(self) -> None:
        for writer in self._open.values():
            writer.abandon()
        for file in self._done:
            self._plan.target.remove(file.staged)


class _DataWriter:
    """One staged file."""

    def __init__(self, plan: Plan, directory: str) -> None:
        self._directory, self._format = directory, plan.format
        self._staged = plan.target.staged_name(directory, plan.exporter, uuid4().hex)
        self._sink = Sink(plan.target.new_file(self._staged))
        self._parquet: ParquetFile | None = None
        self._pending: list[Any] = []
        self._first = self._last = self._rows = self._pending_rows = 0
        self.pending_bytes = 0

    @property
    def bytes(self) -> int:
        return self._sink.size

    def add(self, rows: Any) -> None:
        vlsns = rows.column("vlsn")
        first, last = vlsns[0].as_py(), vlsns[-1].as_py()
        assert self._last < first <= last, f"VLSN {first} to {last} behind {self._last}"
        self._first, self._last = self._first or first, last
        self._rows += rows.num_rows
        self._pending.append(rows)
        self._pending_rows += rows.num_rows
        self.pending_bytes += rows.nbytes
        if self.pending_bytes >= ROW_GROUP_BYTES or self._pending_rows >= ROW_GROUP_ROWS:
            self.flush()

    def flush(self) -> None:
        """Writes the rows that are in memory as one row group."""
        pending, self._pending = self._pending, []
        self.pending_bytes = self._pending_rows = 0
        if not pending:
            return
        if self._format == "json":
            for rows in pending:
                self._sink.write(_lines(rows))
            return
        if self._parquet is None:
            self._parquet = ParquetFile(self._sink, "zstd")
        self._parquet.write_group(pa.Table.from_batches(pending).select(COLUMNS).cast(SCHEMA))

    def end(self) -> DataFile:
        try:
            self.flush()
            if self._parquet is not None:
                self._parquet.close()
            self._sink.output.close()
        except BaseException:
            self.abandon()
            raise
        name = f"{self._first:020}-{self._last:020}.{_ENDINGS[self._format]}"
        name = f"{self._directory}/{name}" if self._directory else name
        return DataFile(name, self._staged, self._first, self._last, self._rows, self._sink.size, self._sink.crc)

    def abandon(self) -> None:
        self._sink.output.abandon()


def _lines(rows: Any) -> bytes:
    """Returns rows as JSON lines in the format of ``vlsnlog read --format json``."""
    columns = (rows.column(name).cast(pa.int64()) if name == "time" else rows.column(name) for name in COLUMNS)
    values = zip(*(column.to_pylist() for column in columns), strict=True)
    entries = [Entry(vlsn, term, time, _DATA, txn or 0, key, value) for vlsn, term, time, txn, key, value in values]
    return ndjson.encode(entries, kinds=False)
