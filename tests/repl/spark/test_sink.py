"""The sink in a real Spark over real nodes: batches once, also when their driver dies between two parts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from repl.client.sink_batch import Batch, write_batch
from repl.spark import VlsnLogDataSource
from tests.e2e.group import Group
from tests.repl.client.test_batch_rows import rows
from tests.repl.spark.groups import client, ended, entries, running, source, urls

pytestmark = pytest.mark.real
COUNT = 300


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    with running(tmp_path_factory.mktemp("group")) as made:
        with client(made) as log:
            log.append_many([b"%d" % row for row in range(COUNT)], keys=[b"in-%d" % (row % 3) for row in range(COUNT)])
        yield made


def written(spark: Any, group: Group, checkpoint: Path, sink: str, **options: object) -> Any:
    """Copies what has a key ``in-…`` under ``SINK-…``, until all that is there was copied."""
    stream = source(spark, group, keyPrefix="in-", maxEntriesPerTrigger=250)
    copied = stream.selectExpr(f"concat('{sink}-', substr(cast(key as string), 4)) as key", "value")
    query = copied.writeStream.format("vlsnlog").option("url", urls(group)).option("sink", sink)
    query = query.options(**options).option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    return ended(query)


@pytest.mark.feature("Spark stream and sink")
def test_a_stream_is_copied_once_and_a_new_checkpoint_is_refused(group: Group, spark: Any, tmp_path: Path) -> None:
    written(spark, group, tmp_path / "a", "orders")
    expected = [(b"orders-%d" % (row % 3), b"%d" % row) for row in range(COUNT)]
    assert entries(group, b"orders-") == expected
    with client(group) as log:
        before = log.sinks.get("orders")
    assert before is not None
    assert before.state.finished
    # The last batch's commit is lost with its driver: Spark repeats the batch, and it is recognised.
    commits = sorted((tmp_path / "a" / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    commits[-1].unlink()
    (commits[-1].parent / f".{commits[-1].name}.crc").unlink(missing_ok=True)
    written(spark, group, tmp_path / "a", "orders")
    assert entries(group, b"orders-") == expected
    with pytest.raises(Exception, match=rf"sink 'orders' has batch {before.state.batch} .*batch 0 .*sinkReset") as told:
        written(spark, group, tmp_path / "b", "orders")
    assert "Traceback" not in str(told.value).partition("=== Streaming Query ===")[0]
    assert entries(group, b"orders-") == expected


def test_a_batch_of_several_parts_goes_on_at_the_first_that_is_missing(
    group: Group, spark: Any, tmp_path: Path
) -> None:
    """A run of 70,000 rows is two transactions.  Another process has written part of it before, in another order."""
    count = 70_000
    pairs = [(b"big", b"%d" % row) for row in range(count)]
    spark.dataSource.register(VlsnLogDataSource)
    frame = spark.range(0, count, 1, 3).selectExpr("'big' as key", "cast(id as string) as value")
    writing = frame.write.format("vlsnlog").option("url", urls(group)).option("run", "night").mode("append")
    with client(group) as log:

        async def write_some() -> None:
            inner = log._inner
            sent = 0
            commit = inner.sinks.commit

            async def dying(*arguments: Any) -> Any:
                nonlocal sent
                sent += 1
                if sent > 1:
                    raise InterruptedError
                return await commit(*arguments)

            inner.sinks.commit = dying  # type: ignore[method-assign,assignment]
            batch = Batch("run/night", "night", 0, count)
            await write_batch(inner, batch, rows([pairs[::-1]]), part_entries_max=30_000)

        with pytest.raises(InterruptedError):
            log.run(write_some())
    assert len(entries(group, b"big")) == 30_000
    writing.save()
    found = entries(group, b"big")
    assert sorted(found) == sorted(pairs)
    assert found[30_000:] == pairs[: count - 30_000], "what is left is in its order"
    writing.save()
    other = spark.range(7).selectExpr("'big' as key", "cast(id as string) as value").write.format("vlsnlog")
    with pytest.raises(Exception, match=r"SinkRefused: sink 'run/night' has batch 0 .* had 70000 rows .*, and has 7"):
        other.option("url", urls(group)).option("run", "night").mode("append").save()
    assert len(entries(group, b"big")) == count, "a run is written once"
    with client(group) as log:
        placed = log.sinks.get("run/night")
        assert placed is not None
        assert (placed.state.part, placed.state.parts) == (2, 2)


def test_a_write_without_a_run_is_there_as_often_as_it_is_made(group: Group, spark: Any) -> None:
    frame = spark.createDataFrame([(bytearray(b"x"),), (bytearray(b""),)], "value binary")
    before = len(entries(group))
    for _ in range(2):
        frame.write.format("vlsnlog").mode("append").save(urls(group))
    assert [value for _, value in entries(group)[before:]] == [b"x", b"", b"x", b""]


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ("id as value", {}, "column 'value' is bigint; the log takes binary or string"),
        ("cast(id as string) as value; id", {}, "rows have the columns value, id; the log takes value, and key"),
        ("cast(id as string) as key", {}, "rows have the columns key"),
        ("cast(null as string) as value", {}, "a row's value is null"),
        ("repeat('x', 1048577) as value", {}, "a value of 1048577 bytes; an entry's value has at most 1048576"),
        ("repeat('x', 70000) as value", {"batchBytesMax": "64k"}, "batchBytesMax is 65536"),
        ("cast(id as string) as value", {"runs": "a"}, "no option 'runs'; did you mean 'run'"),
        ("cast(id as string) as value", {"run": "a b"}, "option 'run' is 'a b'; it must be 1 to 64"),
        ("cast(id as string) as value", {"checkpointLocation": "x"}, "is for df.writeStream, not for df.write"),
    ],
)
def test_what_the_log_does_not_take_is_said_and_nothing_is_written(
    group: Group, spark: Any, columns: str, options: dict[str, str], message: str
) -> None:
    spark.dataSource.register(VlsnLogDataSource)
    before = len(entries(group))
    writing = spark.range(1).selectExpr(*columns.split("; ")).write.format("vlsnlog").options(**options)
    with pytest.raises(Exception, match=message):
        writing.option("url", urls(group)).mode("append").save()
    assert len(entries(group)) == before


def test_a_log_is_not_overwritten_and_a_directory_is_not_written(group: Group, spark: Any) -> None:
    writing = spark.range(1).selectExpr("cast(id as string) as value").write.format("vlsnlog")
    with pytest.raises(Exception, match="a log is not overwritten"):
        writing.option("url", urls(group)).mode("overwrite").save()
    with pytest.raises(Exception, match="a log is written by its running group"):
        spark.range(1).selectExpr("cast(id as string) as value").write.format("vlsnlog").mode("append").save("/tmp/x")
