"""Entries as Parquet files: the columns, and a file that is written one row group (part) at a time."""

from __future__ import annotations

import io
from typing import Any, Final, Protocol

import crc32c
import pyarrow as pa
import pyarrow.parquet as pq

from vlsn.seams import Buffer

SCHEMA: Final = pa.schema(
    [
        pa.field("vlsn", pa.int64(), nullable=False),
        pa.field("term", pa.int64(), nullable=False),
        pa.field("time", pa.timestamp("us", "UTC"), nullable=False),
        pa.field("txn", pa.int64()),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary(), nullable=False),
    ]
)
COLUMNS: Final = tuple(SCHEMA.names)


class Output(Protocol):
    """A new file that is written sequentially from its beginning."""

    def write(self, data: Buffer) -> None: ...

    def close(self) -> None:
        """Closes the file: complete and durable on return."""
        ...

    def abandon(self) -> None:
        """Closes the file and removes it, as far as possible."""
        ...


class Sink(io.RawIOBase):
    """An output stream for PyArrow that keeps the size and the CRC-32C of its bytes."""

    def __init__(self, output: Output) -> None:
        self.output = output
        self.size = self.crc = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.size

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self.output.write(view)
        self.crc = crc32c.crc32c(view, self.crc)
        self.size += len(view)
        return len(view)


class ParquetFile:
    """A Parquet file of entries in rising order of VLSN."""

    def __init__(self, output: Sink, compression: str) -> None:
        self._writer = pq.ParquetWriter(
            output,
            SCHEMA,
            compression=compression,
            use_dictionary=["term", "txn", "key"],
            write_statistics=["vlsn", "term", "time", "txn", "key"],
            sorting_columns=[pq.SortingColumn(SCHEMA.get_field_index("vlsn"))],
        )

    def write_group(self, table: Any) -> None:
        """Writes a table of ``SCHEMA`` as one row group."""
        self._writer.write_table(table, row_group_size=max(table.num_rows, 1))

    def close(self) -> None:
        """Writes the footer of the Parquet file; the output stays open."""
        self._writer.close()
