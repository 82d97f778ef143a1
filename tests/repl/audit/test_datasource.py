"""The data source in a real Spark; what its rows hold is in ``test_columns``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from repl.audit import VlsnLogDataSource
from repl.audit.columns import SCHEMA
from tests.repl.audit.logs import Copy, numbered
from tests.repl.audit.test_live import served
from vlsn.errors import BadArgument

pytestmark = pytest.mark.real
STORY = numbered(400, 5, 60)


@pytest.fixture
def registered(spark: Any) -> Any:
    spark.dataSource.register(VlsnLogDataSource)
    return spark.read.format("vlsnlog")


def test_a_directory_is_read_by_sql(tmp_path: Path, spark: Any, registered: Any) -> None:
    copy = Copy(tmp_path / "n1", "n1").add(*STORY).write()
    file, offset = copy.flip(501, 130)
    frame = registered.load(str(copy.path))
    assert frame.columns == SCHEMA.names
    assert [kind for _, kind in frame.dtypes] == [
        *("string", "int", "bigint", "bigint", "bigint", "bigint", "string", "bigint"),
        *("binary", "binary", "boolean", "boolean"),
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


def test_a_live_node_is_read_by_its_url(tmp_path: Path, registered: Any) -> None:
    copy = Copy(tmp_path / "n1", "n1").add(*STORY).write()
    with served(copy) as server:
        assert registered.load(server.url).where("not overmarked").count() == 2000


@pytest.mark.parametrize(
    ("load", "message"),
    [
        (lambda reader, path: reader.load(f"{path}/gone"), "gone"),
        (lambda reader, path: reader.load(), "needs a path"),
        (lambda reader, path: reader.schema("vlsn bigint").load(str(path)), "schema of its own"),
    ],
)
def test_what_cannot_be_read_says_why(tmp_path: Path, registered: Any, load: Any, message: str) -> None:
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException, match=message):
        load(registered, tmp_path).count()


def test_a_stream_is_refused_for_now() -> None:
    source = VlsnLogDataSource({"path": "d/n1"})
    with pytest.raises(BadArgument, match="cannot be read as a stream yet"):
        source.streamReader(source.schema())
