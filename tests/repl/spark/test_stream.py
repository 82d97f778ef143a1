"""The stream in a real Spark over real nodes: each entry once, whatever becomes of nodes and of the query."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from repl.spark import VlsnLogDataSource
from tests.e2e.group import Group
from tests.repl.spark.groups import client, collected, running, source, urls

pytestmark = pytest.mark.real
BATCH = 40


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    with running(tmp_path_factory.mktemp("group")) as made:
        with client(made) as log:
            for start in range(0, 400, BATCH):
                values = [f"{row}".encode() for row in range(start, start + BATCH)]
                log.append_many(values, keys=[b"a%d" % (row % 3) if row % 2 else b"b" for row in range(BATCH)])
        yield made


def values_of(found: list[Any]) -> list[int]:
    return [int(bytes(row.value)) for _, rows in sorted(found, key=lambda each: each[0]) for row in rows]


def test_what_is_there_comes_once_and_in_order_in_batches_of_the_size_asked_for(
    group: Group, spark: Any, tmp_path: Path
) -> None:
    found: list[Any] = []
    stream = source(spark, group, maxEntriesPerTrigger=150)
    assert stream.columns == ["vlsn", "term", "time", "txn", "key", "value"]
    query = collected(stream, tmp_path / "c", found)
    assert values_of(found) == list(range(400))
    sizes = [len(rows) for _, rows in sorted(found, key=lambda each: each[0])]
    assert len([size for size in sizes if size]) == 3
    assert max(sizes) <= 150
    assert "vlsn" in str(query.lastProgress["sources"][0]["endOffset"])
    # The same checkpoint again: nothing but what came since.
    with client(group) as log:
        log.append_many([b"400", b"401"])
    later: list[Any] = []
    collected(source(spark, group, maxEntriesPerTrigger=150), tmp_path / "c", later)
    assert values_of(later) == [400, 401]


def test_what_it_cannot_do_is_said_in_one_line(spark: Any, tmp_path: Path) -> None:
    spark.dataSource.register(VlsnLogDataSource)
    stream = spark.readStream.format("vlsnlog").option("maxEntriesPerTrigger", 0).load("http://127.0.0.1:9")
    with pytest.raises(Exception, match="BadArgument: option 'maxEntriesPerTrigger' is '0'; it must be a whole number"):
        collected(stream, tmp_path / "c", [])


def test_it_goes_on_through_a_change_of_master_and_with_a_url_that_is_dead(
    group: Group, spark: Any, tmp_path: Path
) -> None:
    stream = spark.readStream.format("vlsnlog").option("from", "end").load(f"http://127.0.0.1:9,{urls(group)}")
    found: list[Any] = []

    def take(batch: Any, number: int) -> None:
        found.append((number, batch.collect()))

    query = stream.writeStream.foreachBatch(take).option("checkpointLocation", str(tmp_path / "c")).start()
    try:
        group.until(lambda: query.lastProgress is not None or not query.isActive, "it has begun")
        with client(group) as log:
            for round_ in range(3):
                log.append_many([b"%d" % (1000 + 10 * round_ + row) for row in range(10)])
                name = group.leader
                group.kill(name)
                log.append_many([b"%d" % (2000 + 10 * round_ + row) for row in range(10)])
                group.start(name)
        group.until(lambda: len(values_of(found)) >= 60 or not query.isActive, "all was read")
        expected = [base + 10 * round_ + row for round_ in range(3) for base in (1000, 2000) for row in range(10)]
        assert query.exception() is None
        assert values_of(found) == expected
    finally:
        query.stop()


def test_the_directory_of_a_running_node_is_a_stream_that_its_kill_does_not_end(
    group: Group, spark: Any, tmp_path: Path
) -> None:
    """The same checkpoint goes on at the directory that the node has left, and at the one that it has gone on with."""
    spark.dataSource.register(VlsnLogDataSource)
    last = group.settle()
    replica = next(name for name in group.urls if name != group.leader)
    with client(group) as log:
        whole = [(int(entry.vlsn), entry.value) for entry in log.read(to_vlsn=last)]
    found: list[Any] = []

    def rows() -> list[tuple[int, bytes]]:
        return [(row.vlsn, bytes(row.value)) for _, some in sorted(found, key=lambda each: each[0]) for row in some]

    def stream() -> None:
        source = spark.readStream.format("vlsnlog").option("maxEntriesPerTrigger", 200).load(str(group.path(replica)))
        collected(source, tmp_path / "c", found)

    def take_all(expected: list[tuple[int, bytes]]) -> None:
        def took() -> bool:
            stream()
            assert rows() == expected[: len(rows())]
            return len(rows()) == len(expected)

        group.until(took, "the directory shows all that is durable")

    take_all(whole)
    with client(group) as log:
        first = log.append_many([b"more %d" % row for row in range(50)])[0]
    whole += [(first + row, b"more %d" % row) for row in range(50)]
    take_all(whole)
    group.settle()
    group.kill(replica)
    stream()
    assert rows() == whole
    group.start(replica)
    with client(group) as log:
        whole.append((log.append(b"the last one"), b"the last one"))
    take_all(whole)
