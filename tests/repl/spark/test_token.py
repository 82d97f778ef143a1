"""The data source with a token's file, called as Spark calls it, against a node that answers nobody without."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from repl import connect_sync
from repl.auth.tokens import new_secret
from repl.spark.datasource import VlsnLogDataSource
from repl.spark.options import Use
from repl.spark.schemas import VISIBLE
from repl.spark.sink import BatchSink, Rows
from repl.spark.stream import close_clients
from repl.spark.stream_options import sink_options
from tests.fakes.random import SeededRandom
from tests.repl.client.group import ServedNode
from tests.repl.credentials.test_bearer import written
from tests.repl.node.test_access import made
from tests.repl.web.one_node import OneNode, started
from vlsn.errors import BadArgument, Unauthorized, VlsnLogError
from vlsn.limits import MIB

ONE = new_secret(SeededRandom(1))


async def strict() -> OneNode:
    node = await started(segment_bytes=2 * MIB, keyed=True, anonymous="none")
    await made(node, ONE, "metrics", "read", "append", "consume", "define")
    return node


@pytest.fixture
def served() -> Iterator[ServedNode]:
    with ServedNode(strict) as one:
        with connect_sync(one.url, token=ONE.text) as log:
            log.append_many([b"a", b"b"])
        yield one
    close_clients()


def rows() -> Rows:
    """Returns what a task makes of one row."""
    out = pa.BufferOutputStream()
    batch = pa.RecordBatch.from_arrays([pa.array([b"v"], pa.binary())], names=["value"])
    with pa.ipc.new_stream(out, batch.schema) as writer:
        writer.write_batch(batch)
    return Rows("q", 1, batch.nbytes, out.getvalue().to_pybytes())


def values(made: Any, *ends: Any) -> list[bytes]:
    return [row["value"] for part in made.partitions(*ends) for batch in made.read(part) for row in batch.to_pylist()]


def test_reads_streams_and_sinks_have_the_token_of_the_file(served: ServedNode, tmp_path: Path) -> None:
    path = written(tmp_path / "token", ONE.text)
    options = {"path": served.url, "tokenFile": path}
    source = VlsnLogDataSource(options)
    assert values(source.reader(VISIBLE)) == [b"a", b"b"]
    assert values(VlsnLogDataSource({**options, "since": "2000-01-01"}).reader(VISIBLE)) == [b"a", b"b"]
    stream: Any = source.streamReader(VISIBLE)
    first = stream.initialOffset()
    assert values(stream, first, stream.latestOffset(first, ReadAllAvailable())) == [b"a", b"b"]
    sink = BatchSink(sink_options(options, Use.WRITE, overwrite=False))
    sink.commit([rows()])
    assert served.node.values == [b"a", b"b", b"v"]
    for each in (source.reader(VISIBLE), sink):
        assert ONE.secret.encode() not in pickle.dumps(each)


def test_without_a_token_the_refusal_is_told(served: ServedNode, tmp_path: Path) -> None:
    options = {"path": served.url, "giveUpSeconds": "2"}
    with pytest.raises(VlsnLogError, match="401"):
        values(VlsnLogDataSource(options).reader(VISIBLE))
    path = written(tmp_path / "token", ONE.text, 0o644)
    with pytest.raises(BadArgument, match="mode 0644"):
        values(VlsnLogDataSource({**options, "tokenFile": path}).reader(VISIBLE))
    with pytest.raises(Unauthorized):
        BatchSink(sink_options(options, Use.WRITE, overwrite=False)).commit([rows()])
