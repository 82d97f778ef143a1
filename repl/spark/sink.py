"""The sink: logs each micro-batch once, through changes of the master, of the driver and of executors.

    task ─► commit message: its rows as Arrow, LZ4 ─► driver ─► parts, each one transaction with the sink's state

Tasks write nothing to the log, because Spark decides only at the commit which attempt of a task counts. Rows keep
the order of the partitions, and the order within each partition. ``batchBytesMax`` limits the bytes that the driver
holds at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import BinaryType, StringType, StructType

from repl.client.batch_rows import BatchRows, Chunk
from repl.client.connect import connect, real_network
from repl.client.one_log import OneLog
from repl.client.sink_batch import Batch, Written, write_batch, write_rows
from repl.spark.errors import one_line, tell
from repl.spark.stream_options import SinkOptions
from repl.tls_files import or_environment
from vlsn.errors import BadArgument, TooLarge
from vlsn.limits import ENTRY_BYTES_MAX, KEY_BYTES_MAX

QUERY_ID: Final = "sql.streaming.queryId"
"""The task's property with Spark's id of the query. Spark stores the id in the checkpoint."""
CALL_S: Final = 30.0
"""One call to the log is repeated for this many seconds. After that the state of the whole batch is read again."""


@dataclass
class Rows(WriterCommitMessage):  # type: ignore[misc]
    """A task's rows as an Arrow stream, empty for no rows. ``size`` is the rows' size before compression."""

    query: str
    count: int
    size: int
    stream: bytes


def check_columns(schema: StructType) -> None:
    """Raises ``BadArgument`` unless the rows are ``value``, or ``key`` and ``value``, binary or strings."""
    names = list(schema.names)
    if "value" not in names or set(names) - {"key", "value"} or len(set(names)) < len(names):
        raise BadArgument(
            f"rows have the columns {', '.join(names) or '(none)'}; the log takes value, and key where there is one: "
            ".selectExpr('key', 'to_json(struct(*)) as value')"
        )
    for field in schema.fields:
        if not isinstance(field.dataType, BinaryType | StringType):
            raise BadArgument(
                f"column {field.name!r} is {field.dataType.simpleString()}; the log takes binary or string: cast it"
            )


def rows_of(batches: Iterator[Any], options: SinkOptions) -> Rows:
    """Makes a task's commit message. Raises ``BadArgument`` for a value that is null, ``TooLarge``."""
    task = TaskContext.get()
    query = (task.getLocalProperty(QUERY_ID) or "") if task is not None else ""
    count = size = 0
    out: Any = pa.BufferOutputStream()
    writer: Any = None
    for batch in batches:
        if not batch.num_rows:
            continue
        value = _binary(batch.column("value"))
        if value.null_count:
            raise BadArgument("a row's value is null; an entry has one: filter such rows, or give them a value")
        _check_longest(value, "value", ENTRY_BYTES_MAX)
        arrays, names = [value], ["value"]
        if "key" in batch.schema.names:
            key = pc.fill_null(_binary(batch.column("key")), b"")
            _check_longest(key, "key", KEY_BYTES_MAX)
            arrays, names = [key, value], ["key", "value"]
        made = pa.RecordBatch.from_arrays(arrays, names=names)
        count, size = count + made.num_rows, size + made.nbytes
        check_size(size, options)
        if writer is None:
            lz4 = pa.ipc.IpcWriteOptions(compression="lz4")
            writer = pa.ipc.new_stream(out, made.schema, options=lz4)
        writer.write_batch(made)
    if writer is None:
        return Rows(query, 0, 0, b"")
    writer.close()
    return Rows(query, count, size, out.getvalue().to_pybytes())


def check_size(size: int, options: SinkOptions) -> None:
    """Raises ``TooLarge`` if the batch exceeds the driver's limit."""
    if size > options.batch_bytes_max:
        raise TooLarge(
            f"a batch of {size} bytes or more; batchBytesMax is {options.batch_bytes_max}. The driver holds a batch "
            "whole: start again with a larger .option('batchBytesMax', …), and spark.driver.memory to go with it; "
            "smaller batches come of maxBytesPerTrigger at the source"
        )


def _binary(column: Any) -> Any:
    return column if column.type == pa.binary() else column.cast(pa.binary())


def _check_longest(column: Any, name: str, most: int) -> None:
    longest = pc.max(pc.binary_length(column)).as_py() or 0
    if longest > most:
        raise TooLarge(f"a {name} of {longest} bytes; an entry's {name} has at most {most}")


def batch_rows(messages: Sequence[Rows | None], options: SinkOptions) -> BatchRows:
    """Returns the rows of the messages, in the order of the partitions. Raises ``TooLarge``."""
    told = [message for message in messages if message is not None]
    check_size(sum(message.size for message in told), options)
    chunks: list[Chunk] = []
    for message in told:
        if message.stream:
            with pa.ipc.open_stream(message.stream) as batches:
                chunks += map(_chunk, batches)
    return BatchRows(chunks)


def _chunk(batch: Any) -> Chunk:
    offsets, values = _column(batch.column("value"))
    if "key" not in batch.schema.names:
        return Chunk(offsets, values)
    return Chunk(offsets, values, *_column(batch.column("key")))


def _column(column: Any) -> tuple[Any, Any]:
    _, offsets, data = column.buffers()
    places = np.frombuffer(offsets, "<i4", len(column) + 1, 4 * column.offset).astype(np.int64)
    return places, memoryview(data) if data is not None else memoryview(b"")


class _Sink:
    """The part that both sinks share: their tasks, and the collection of rows at the driver."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    @one_line
    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return rows_of(iterator, self._options)

    def _rows(self, messages: list[WriterCommitMessage | None]) -> BatchRows:
        """Returns the rows and drops the messages, because the driver has memory for only one of the two."""
        rows = batch_rows(messages, self._options)
        messages.clear()
        return rows


class StreamSink(_Sink, DataSourceStreamArrowWriter):  # type: ignore[misc]
    """``stream.writeStream.format("vlsnlog")``."""

    @one_line
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        query = next((message.query for message in messages if message is not None and message.query), "")
        if not query:
            raise BadArgument("Spark has not named the query in any task: exactly once cannot be promised")
        rows = self._rows(messages)
        asyncio.run(_written(self._options, Batch(self._options.sink, query, batchId, rows.count), rows))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Does nothing: the log has no rows of the batch, or Spark repeats the batch."""


class BatchSink(_Sink, DataSourceArrowWriter):  # type: ignore[misc]
    """``df.write.format("vlsnlog")``."""

    @one_line
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        rows, options = self._rows(messages), self._options
        batch = Batch(f"{options.sink or 'run'}/{options.run}", options.run, 0, rows.count) if options.run else None
        asyncio.run(_written(options, batch, rows))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Does nothing: tasks write nothing to the log, and a commit in the log stays."""


async def _written(options: SinkOptions, batch: Batch | None, rows: BatchRows) -> Written:
    real = real_network(or_environment(options.tls))
    network = OneLog(real, options.group) if options.group else real
    try:
        urls, timeout_s, token_file = ",".join(options.urls), min(CALL_S, options.give_up_s), options.token_file or None
        async with connect(urls, timeout_s=timeout_s, network=network, token_file=token_file) as log:
            if batch is None:
                return await write_rows(log, rows, give_up_s=options.give_up_s)
            written = await write_batch(log, batch, rows, reset=options.reset, give_up_s=options.give_up_s)
    finally:
        await network.close()
    if written.read_back:
        tell(f"{batch} came in another order; {written.read_back} rows of it were found in the log by their content")
    return written
