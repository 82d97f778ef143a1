"""Rows on their way through commit messages, and the options of writes: rows come out as they went in, or are
refused."""

from __future__ import annotations

import pickle
from collections.abc import Sequence

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from repl.spark.datasource import VlsnLogDataSource
from repl.spark.options import Use
from repl.spark.sink import Rows, batch_rows, check_columns, rows_of
from repl.spark.stream_options import SinkOptions, sink_options
from vlsn.errors import BadArgument, TooLarge

OPTIONS = SinkOptions(urls=("http://127.0.0.1:9",))
ROWS = st.lists(st.tuples(st.none() | st.binary(max_size=4), st.binary(max_size=9)), max_size=20)


def batch(rows: Sequence[tuple[bytes | None, bytes]], *, keyed: bool, start: int = 0) -> pa.RecordBatch:
    values = pa.array([b"before"] * start + [value for _, value in rows], pa.binary()).slice(start)
    if not keyed:
        return pa.RecordBatch.from_arrays([values], names=["value"])
    keys = pa.array([b"k"] * start + [key for key, _ in rows], pa.binary()).slice(start)
    return pa.RecordBatch.from_arrays([values, keys], names=["value", "key"])


@given(st.lists(st.lists(ROWS, max_size=3), max_size=4), st.booleans(), st.integers(0, 2))
def test_rows_come_out_of_the_messages_in_their_order(
    tasks: list[list[list[tuple[bytes | None, bytes]]]], keyed: bool, start: int
) -> None:
    messages: list[Rows | None] = []
    for batches in tasks:
        made = rows_of((batch(rows, keyed=keyed, start=start) for rows in batches), OPTIONS)
        messages += [pickle.loads(pickle.dumps(made)), None]
    found = list(batch_rows(messages, OPTIONS).pairs())
    pairs = [(key or b"" if keyed else b"", value) for task in tasks for rows in task for key, value in rows]
    assert found == pairs
    assert sum(message.count for message in messages if message) == len(pairs)


def test_strings_are_utf_8_and_an_absent_key_is_none() -> None:
    made = pa.RecordBatch.from_arrays([pa.array(["é", "b"]), pa.array([None, "k"])], names=["value", "key"])
    assert list(batch_rows([rows_of(iter([made]), OPTIONS)], OPTIONS).pairs()) == [
        (b"", "é".encode()),
        (b"k", b"b"),
    ]


def test_a_row_that_is_no_entry_is_refused_by_its_task() -> None:
    null = pa.RecordBatch.from_arrays([pa.array([b"a", None], pa.binary())], names=["value"])
    with pytest.raises(BadArgument, match="value is null"):
        rows_of(iter([null]), OPTIONS)
    with pytest.raises(TooLarge, match="a value of 1048577 bytes"):
        rows_of(iter([batch([(None, bytes(1_048_577))], keyed=False)]), OPTIONS)
    with pytest.raises(TooLarge, match="a key of 65537 bytes"):
        rows_of(iter([batch([(bytes(65_537), b"")], keyed=True)]), OPTIONS)


def test_a_batch_past_the_drivers_limit_is_refused_by_task_and_driver() -> None:
    small = SinkOptions(urls=OPTIONS.urls, batch_bytes_max=10_000)
    rows = [(None, bytes(100))] * 60
    made = rows_of(iter([batch(rows, keyed=False)]), small)
    with pytest.raises(TooLarge, match="batchBytesMax is 10000"):
        batch_rows([made, made], small)
    with pytest.raises(TooLarge, match="batchBytesMax is 10000"):
        rows_of(iter([batch(rows, keyed=False)] * 2), small)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"key": BinaryType()}, "rows have the columns key; the log takes value"),
        ({"value": BinaryType(), "vlsn": LongType()}, "the columns value, vlsn"),
        ({"value": LongType()}, "column 'value' is bigint"),
        ({}, r"\(none\)"),
    ],
)
def test_other_columns_are_refused(names: dict[str, object], message: str) -> None:
    with pytest.raises(BadArgument, match=message):
        check_columns(StructType([StructField(name, kind) for name, kind in names.items()]))
    check_columns(StructType([StructField("value", StringType()), StructField("key", BinaryType())]))


@pytest.mark.parametrize(
    ("given", "use", "message"),
    [
        ({}, Use.SINK, "the sink needs a name"),
        ({"sink": "a"}, Use.SINK, "a group to write to"),
        ({"sink": "a/b", "url": "http://a"}, Use.SINK, "'a/b'; it must be 1 to 64"),
        ({"sink": "a", "url": "data/n1"}, Use.SINK, "a log is written by its running group"),
        ({"sink": "a", "url": "http://a", "path": "http://b"}, Use.SINK, "only one of them names the group"),
        ({"sink": "a", "url": "http://a", "run": "x"}, Use.SINK, "option 'run' is for df.write,"),
        ({"sink": "a", "url": "http://a", "sinkReset": "yes"}, Use.SINK, "true, or the VLSN"),
        ({"url": "http://a", "batchBytesMax": "1"}, Use.WRITE, "bytes, 65536"),
        ({"url": "http://a", "from": "1"}, Use.WRITE, "option 'from' is for spark.read"),
        ({"url": "http://a", "sinks": "a"}, Use.WRITE, "did you mean 'sink'"),
    ],
)
def test_options_that_cannot_be_are_refused(given: dict[str, str], use: Use, message: str) -> None:
    with pytest.raises(BadArgument, match=message):
        sink_options(given, use, overwrite=False)


def test_options_are_taken_in_any_case_and_a_log_is_not_overwritten() -> None:
    given = {"SINK": "a", "URL": "http://a, http://b", "sinkreset": "90", "batchbytesmax": "1m", "giveupseconds": "5"}
    options = sink_options(given, Use.SINK, overwrite=False)
    assert (options.sink, options.urls, options.reset) == ("a", ("http://a", "http://b"), 90)
    assert (options.batch_bytes_max, options.give_up_s) == (1 << 20, 5)
    assert sink_options({"path": "http://a", "sinkReset": "true"}, Use.WRITE, overwrite=False).reset is True
    with pytest.raises(BadArgument, match=r"mode\('append'\)"):
        sink_options({"path": "http://a"}, Use.WRITE, overwrite=True)
    writer = VlsnLogDataSource({"path": "http://a"}).writer(StructType([StructField("value", StringType())]), False)
    assert type(writer).__name__ == "BatchSink"
