"""``mode=physical`` in a real Spark; what its rows hold is in ``tests/repl/spark/test_physical_rows.py``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from repl.audit import VlsnLogDataSource
from repl.spark import datasource
from repl.spark.physical import SCHEMA
from tests.repl.audit.logs import STORY, Copy, blocks
from tests.repl.audit.test_live import DTVLSN, served

pytestmark = pytest.mark.real
ENTRIES = "kind = 'DATA' and durable"


@pytest.fixture
def registered(spark: Any) -> Any:
    spark.dataSource.register(VlsnLogDataSource)
    return spark.read.format("vlsnlog").option("mode", "physical")


def test_a_directory_is_read_by_sql(tmp_path: Path, spark: Any, registered: Any) -> None:
    copy = Copy(tmp_path / "n1", "n1").add(*STORY).write()
    file, offset = copy.flip(501, 130)
    frame = registered.load(str(copy.path))
    assert frame.columns == SCHEMA.names
    assert [kind for _, kind in frame.dtypes] == [
        *("string", "int", "bigint", "bigint", "bigint", "bigint", "string", "bigint"),
        *("binary", "binary", "boolean", "boolean", "boolean"),
    ]
    frame.createOrReplaceTempView("log")
    (row,) = spark.sql(
        "select count(*) as entries, count(distinct segment) as segments, min(vlsn) as first, max(vlsn) as last, "
        "sum(length(value)) as bytes, min(node) as node from log where kind = 'DATA' and not damaged"
    ).collect()
    assert row.asDict() == {
        "entries": 1995,
        "segments": len(copy.ends),
        "first": 1,
        "last": 2000,
        "bytes": 1995 * 60,
        "node": "n1",
    }
    (damaged,) = spark.sql("select segment, lsn, vlsn, value from log where damaged").collect()
    assert (damaged.segment, damaged.lsn & 0xFFFF_FFFF, damaged.vlsn, damaged.value) == (1, offset, 501, None)
    (value,) = spark.sql("select value from log where vlsn = 1234").collect()
    assert bytes(value[0]).rstrip(b".") == b"value 1234"
    assert file == "00000001.vlog"


def test_the_documented_filter_shows_what_a_majority_has(tmp_path: Path, spark: Any, registered: Any) -> None:
    """A master's directory whose last three entries no other member ever had, and a replica's."""
    shared, alone = blocks(["a", "b", "c"], ["d", "e"]), blocks(["x", "y", "z"], first_vlsn=6)
    paths = [
        str(Copy(tmp_path / "n1", "n1").add(*shared, *alone).checkpoint(5).write().path),
        str(Copy(tmp_path / "n2", "n2").add(*shared).checkpoint(5).write().path),
    ]
    copies = [registered.load(path).where(ENTRIES) for path in paths]
    for copy in copies:
        assert [bytes(row.value) for row in copy.orderBy("vlsn").collect()] == [b"a", b"b", b"c", b"d", b"e"]
    both = copies[0].union(copies[1])
    assert (both.count(), both.dropDuplicates(["vlsn"]).count()) == (10, 5)


def test_the_filter_that_is_tested_is_the_one_that_is_documented() -> None:
    shown = [(Path(__file__).parents[3] / "docs/spark.md").read_text(), datasource.__doc__ or ""]
    assert [f'.where("{ENTRIES}")' in text for text in shown] == [True, True]


def test_a_live_node_is_read_by_its_url_and_says_what_is_durable(tmp_path: Path, registered: Any) -> None:
    copy = Copy(tmp_path / "n1", "n1").add(*STORY).write()
    with served(copy) as server:
        rows = registered.load(server.url).where("not overmarked")
        assert (rows.count(), rows.where(ENTRIES).count()) == (2000, DTVLSN)
