"""Two groups that their nodes call by one name: a read of the one never continues in the other."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.datasource import ReadMaxBytes

from repl import connect_sync
from repl.audit.directory import DirectorySource
from repl.cluster import Node
from repl.spark.copies import again
from repl.spark.datasource import VlsnLogDataSource
from repl.spark.schemas import PHYSICAL, VISIBLE
from repl.spark.stream import Offset
from tests.e2e.calls import call
from tests.repl.spark.groups import OFTEN, alone, collected
from vlsn.errors import BadArgument, NotInLog, WrongGroup

pytestmark = pytest.mark.real
LIMIT = ReadMaxBytes(1)
MANY, FEW = 60, 20


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with alone(tmp_path_factory.mktemp("groups") / "one", MANY) as node:
        yield node


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with alone(tmp_path_factory.mktemp("groups") / "two", FEW) as node:
        yield node


def founding(node: Node) -> str:
    return str(call("GET", f"{node.url}/v1/status").json()["founding"])


def source(*paths: object, **options: object) -> VlsnLogDataSource:
    return VlsnLogDataSource({"path": ",".join(map(str, paths)), **{name: str(each) for name, each in options.items()}})


def stream(*paths: object, **options: object) -> Any:
    return source(*paths, **options).streamReader(VISIBLE)


def batch(*paths: object, **options: object) -> list[int]:
    made = source(*paths, **options).reader(VISIBLE)
    return [vlsn for part in made.partitions() for each in made.read(part) for vlsn in each.column("vlsn").to_pylist()]


def read_to_the_end(*paths: object) -> Offset:
    """The offset of a stream that has read all there is, by way of its checkpoint."""
    made = stream(*paths)
    at: Offset = json.loads(json.dumps(made.initialOffset()))
    while (end := made.latestOffset(at, LIMIT)) != at:
        assert sum(len(each) for part in made.partitions(at, end) for each in made.read(part)) > 0
        at = json.loads(json.dumps(end))
    return at


@pytest.mark.parametrize("ends_by_itself", [False, True])
@pytest.mark.parametrize("of_directories", [False, True])
def test_an_offset_of_one_group_is_refused_by_another(
    one: Node, two: Node, tmp_path: Path, ends_by_itself: bool, of_directories: bool
) -> None:
    names = founding(one), founding(two)
    paths = [copied(node, tmp_path / name) if of_directories else node.url for name, node in (("1", one), ("2", two))]
    end = read_to_the_end(paths[0])
    assert (end["group"], end["vlsn"] > MANY) == (names[0], True)
    for start in (end, {**end, "vlsn": 5, "term": 0}):
        made = stream(paths[1])
        if ends_by_itself:
            made.prepareForTriggerAvailableNow()
        with pytest.raises(WrongGroup, match=f"founded as {names[0]}, .* founded as {names[1]}: .* a new checkpoint"):
            made.latestOffset(start, LIMIT)
        with pytest.raises(WrongGroup, match=f"founded as {names[0]}"):
            made.partitions(start, end)
    went_on = stream(paths[0])
    assert went_on.latestOffset(end, LIMIT) == end
    # Nodes of another group answer at the same URL since the batch was planned.
    part = went_on.partitions({"vlsn": 1, "term": 0, "group": names[0]}, {"vlsn": 9, "term": 1, "group": names[0]})[0]
    if not of_directories:
        with pytest.raises(WrongGroup, match=f"'.*' that was founded as {names[1]}, and {names[0]} is asked for"):
            list(stream(paths[1]).read(part))


@pytest.mark.parametrize("ends_by_itself", [False, True])
@pytest.mark.parametrize("of_directories", [False, True])
def test_an_offset_of_before_groups_were_named_goes_on_and_not_past_the_end(
    one: Node, two: Node, tmp_path: Path, ends_by_itself: bool, of_directories: bool
) -> None:
    paths = [copied(node, tmp_path / name) if of_directories else node.url for name, node in (("1", one), ("2", two))]
    end = read_to_the_end(paths[0])
    middle = {"vlsn": 5, "term": end["term"]}
    found = stream(paths[0]).latestOffset(middle, LIMIT)
    assert found == end, "from here on it is named"
    rows = [each for part in stream(paths[0]).partitions(middle, found) for each in stream(paths[0]).read(part)]
    assert sum(map(len, rows)) == end["vlsn"] - 5
    last = {"vlsn": end["vlsn"], "term": end["term"]}
    assert stream(paths[0]).latestOffset(last, LIMIT) == last
    made = stream(paths[1])
    if ends_by_itself:
        made.prepareForTriggerAvailableNow()
    with pytest.raises(
        NotInLog, match=f"has read up to VLSN {end['vlsn'] - 1}, .* new checkpoint|.*name those that it"
    ):
        made.latestOffset(last, LIMIT)
    if not of_directories:
        with pytest.raises(
            NotInLog, match=f"has read up to VLSN {end['vlsn'] - 1}, of term 1, and the log of .* ends with"
        ):
            made.partitions({"vlsn": 50, "term": 0}, last)


def test_sources_of_two_groups_are_told_apart_and_one_may_be_named(one: Node, two: Node, tmp_path: Path) -> None:
    directory = copied(two, tmp_path / "copy")
    for paths in ((one.url, two.url), (one.url, directory), (copied(one, tmp_path / "other"), directory)):
        told = rf"one load reads one group: .* \(founded as {founding(one)}\), .* \(founded as {founding(two)}\)"
        with pytest.raises(BadArgument, match=told):
            batch(*paths)
        with pytest.raises(BadArgument, match=told):
            stream(*paths).initialOffset()
    for path in (two.url, directory):
        assert len(batch(path, group=founding(two))) == FEW
        assert stream(path, group=founding(two)).initialOffset()["group"] == founding(two)
        for reading in (
            lambda path=path: batch(path, group=founding(one)),
            lambda path=path: stream(path, group=founding(one)).initialOffset(),
            lambda path=path: source(path, group=founding(one), mode="physical").reader(PHYSICAL).partitions(),
        ):
            with pytest.raises(WrongGroup, match=f"founded as {founding(two)}.*{founding(one)}"):
                reading()


def test_a_plan_is_not_read_from_another_group_at_the_same_place(one: Node, two: Node) -> None:
    made = source(one.url).reader(VISIBLE)
    (part,) = made.partitions()
    made._options = replace(made._options, sources=(two.url,))
    with pytest.raises(WrongGroup, match=f"{founding(one)} is asked for"):
        list(made.read(part))


def test_rows_are_written_to_the_group_that_is_named(one: Node, two: Node, spark: Any) -> None:
    spark.dataSource.register(VlsnLogDataSource)
    rows = spark.range(2).selectExpr("cast(id as string) as value").write.format("vlsnlog").mode("append")
    before = batch(two.url)
    with pytest.raises(Exception, match=f"WrongGroup: .*founded as {founding(two)}, and {founding(one)} is asked for"):
        rows.option("url", two.url).option("group", founding(one)).option("run", "a").save()
    with pytest.raises(Exception, match=f"WrongGroup: .*founded as {founding(two)}, and {founding(one)} is asked for"):
        rows.option("url", two.url).option("group", founding(one)).save()
    assert batch(two.url) == before
    rows.option("url", two.url).option("group", founding(two)).option("run", "a").save()
    assert len(batch(two.url)) == len(before) + 2


def test_a_query_does_not_go_on_in_another_group(one: Node, two: Node, spark: Any, tmp_path: Path) -> None:
    spark.dataSource.register(VlsnLogDataSource)
    found: list[Any] = []
    query = collected(spark.readStream.format("vlsnlog").load(one.url), tmp_path / "checkpoint", found)
    assert sum(len(rows) for _, rows in found) == MANY
    assert json.loads(query.lastProgress["sources"][0]["endOffset"])["group"] == founding(one)
    with pytest.raises(
        StreamingQueryException,
        match=f"WrongGroup: the checkpoint of this stream is of the group that .*{founding(one)}",
    ):
        collected(spark.readStream.format("vlsnlog").load(two.url), tmp_path / "checkpoint", found)
    assert sum(len(rows) for _, rows in found) == MANY


def test_a_directory_names_its_group_also_once_its_first_entry_was_cleaned_away(tmp_path: Path) -> None:
    with alone(tmp_path / "one", 1, segment_bytes=65_536, retention_bytes=131_072, **OFTEN) as node:
        name = founding(node)
        with connect_sync(node.url, timeout_s=60.0) as log:
            while log.first_vlsn() <= 3:
                log.append(b"x" * 20_000)
        for live in (True, False):
            directory = DirectorySource(str(node.directory), "it")
            assert again(partial(directory.survey, 0)).founding == name
            path = node.directory if live else copied(node, tmp_path / "copy")
            assert batch(path, group=name, failOnTrim="false")
            node.kill()


def copied(node: Node, path: Path) -> Path:
    """A copy of the node's directory, in which nobody runs."""
    if not path.exists():
        if node.running:
            call("POST", f"{node.url}/v1/admin/checkpoint", headers={"Content-Type": "application/json"})
        shutil.copytree(node.directory, path)
    return path
