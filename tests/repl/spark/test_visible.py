"""Visible mode in a real Spark; ``test_copies`` has the rows of partitions."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

from repl.spark import VlsnLogDataSource
from tests.repl.audit.logs import STORY, Copy, blocks
from tests.repl.audit.test_live import DTVLSN, served
from vlsn.limits import MIB

pytestmark = pytest.mark.real


@pytest.fixture
def source(spark: Any) -> Any:
    spark.dataSource.register(VlsnLogDataSource)
    return lambda: spark.read.format("vlsnlog")


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    directory = tmp_path_factory.mktemp("copies")
    made = [Copy(directory / node, node, segment_bytes=MIB).add(*STORY).checkpoint(2000) for node in ("n1", "n2")]
    return [copy.write().path for copy in made]


@pytest.mark.feature("Spark source")
def test_the_default_shows_each_visible_entry_once(copies: list[Path], source: Any, spark: Any) -> None:
    frame = source().option("from", 100).load(f"{copies[0]},{copies[1]}")
    assert frame.dtypes == [
        *(("vlsn", "bigint"), ("term", "bigint"), ("time", "timestamp"), ("txn", "bigint")),
        *(("key", "binary"), ("value", "binary")),
    ]
    frame.createOrReplaceTempView("log")
    (row,) = spark.sql("select count(*) n, count(distinct vlsn) d, min(vlsn) low, max(vlsn) high from log").collect()
    assert tuple(row) == (1901, 1901, 100, 2000)
    listed = source().load([str(path) for path in copies]).where("vlsn between 7 and 8").orderBy("vlsn")
    assert [bytes(row.value).rstrip(b".") for row in listed.collect()] == [b"value 7", b"value 8"]


def test_a_schema_chooses_columns(copies: list[Path], source: Any) -> None:
    frame = source().schema("value binary, vlsn long").option("to", 3).load(str(copies[0]))
    assert frame.columns == ["value", "vlsn"]
    assert [row.vlsn for row in frame.collect()] == [1, 2, 3]


def test_conditions_go_down_where_spark_lets_them(tmp_path: Path, source: Any, spark: Any) -> None:
    keys = [b"a", b"b", None]
    copy = Copy(tmp_path / "n1", "n1").add(*blocks(*[["x"] * 10] * 30, keys=keys)).checkpoint(300).write()
    setting = "spark.sql.python.filterPushdown.enabled"
    before = spark.conf.get(setting)
    wanted = "vlsn > 50 and vlsn <= 80 and key = X'61'"
    plain = [row.vlsn for row in source().load(str(copy.path)).where(wanted).orderBy("vlsn").collect()]
    assert plain == [vlsn for vlsn in range(51, 81) if keys[vlsn % 3] == b"a"]
    spark.conf.set(setting, "true")
    try:
        pushed = source().option("pushdown", "true").load(str(copy.path))
        assert [row.vlsn for row in pushed.where(wanted).orderBy("vlsn").collect()] == plain
        assert pushed.where("key = X'61' and key = X'62'").count() == 0
        assert pushed.where("key = X''").count() == 0
        assert pushed.where("vlsn = 7 or vlsn = 9").count() == 2
        assert pushed.where("vlsn > 9223372036854775806").count() == 0
    finally:
        spark.conf.set(setting, before)


def test_a_plan_is_of_one_load_as_the_page_says(tmp_path: Path, source: Any, spark: Any) -> None:
    """Spark keeps the plan of a load for all of its actions; a load, or a table's query, is planned anew."""
    path = tmp_path / "n1"
    log = Copy(path, "n1").add(*blocks(*[["x"] * 10] * 2)).checkpoint(20).write()
    frame = source().load(str(path))
    empty = source().option("from", 21).load(str(path))
    spark.sql("create table plans (vlsn bigint) using vlsnlog")
    queried = f"select count(*) from plans with (path = '{path}')"
    try:
        assert (frame.count(), empty.count(), spark.sql(queried).first()[0]) == (20, 0, 20)
        log.add(*blocks(["y"] * 5, first_vlsn=21)).checkpoint(25).write()
        assert (frame.count(), len(frame.collect()), empty.count()) == (20, 20, 0)
        assert source().load(str(path)).count() == spark.sql(queried).first()[0] == 25
        assert source().option("from", 21).load(str(path)).count() == 5
    finally:
        spark.sql("drop table plans")


def test_a_table_is_refused_by_what_it_lacks_and_a_view_is_read(copies: list[Path], spark: Any) -> None:
    spark.dataSource.register(VlsnLogDataSource)
    lacks = r"PySpark gives the options of a table in its catalog to no .* FROM name WITH \(path = 'URL,URL'\)"
    for how in ("options (path 'http://127.0.0.1:1')", f"location '{copies[0]}'", "options (url 'u', sink 's')", ""):
        with pytest.raises(PySparkException, match=f"BadArgument: CREATE TABLE … USING vlsnlog: {lacks}") as refused:
            spark.sql(f"create table refused using vlsnlog {how}")
        assert "Traceback" not in str(refused.value)
        assert not spark.catalog.tableExists("refused")
    for column, query in (("vlsn bigint", "select * from refused"), ("value string", "insert into refused select 'x'")):
        spark.sql(f"create table refused ({column}) using vlsnlog options (path '{copies[0]}')")
        try:
            with pytest.raises(PySparkException, match=f"BadArgument: vlsnlog needs a .* {lacks}"):
                spark.sql(query).collect()
        finally:
            spark.sql("drop table refused")
    spark.sql(f"create temporary view shown using vlsnlog options (path '{copies[0]},{copies[1]}', `from` '7')")
    assert spark.sql("select min(vlsn) from shown").first()[0] == 7
    spark.catalog.dropTempView("shown")


def test_a_live_node_that_goes_away_is_left_for_another(tmp_path: Path, source: Any) -> None:
    """The first node's port is closed before the read; the second serves it, up to what it calls durable."""
    first = Copy(tmp_path / "n1", "n1").add(*STORY).write()
    with served(first) as gone:
        dead = gone.url
    with served(Copy(tmp_path / "n2", "n2").add(*STORY).write()) as server:
        assert source().load(f"{dead},{server.url}").count() == DTVLSN
        assert source().option("to", 5).load(server.url).count() == 5


def test_a_directory_behind_a_url_is_read(copies: list[Path], source: Any, tmp_path: Path) -> None:
    assert source().load(f"file://{copies[0]}").count() == 2000
    packed = tmp_path / "backup.zip"
    from zipfile import ZipFile

    with ZipFile(packed, "w") as file:
        for path in sorted(copies[0].rglob("*")):
            file.write(path, Path("node1") / path.relative_to(copies[0]))
    assert source().load(f"zip://node1::file://{packed}").count() == 2000


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda read, path: read.option("startingVlsn", 1).load(path), "BadArgument: vlsnlog has no option 'starting"),
        (lambda read, path: read.option("form", 1).load(path), "did you mean 'from'?"),
        (lambda read, path: read.option("from", 0).load(path), "BadArgument: option 'from' is '0'"),
        (lambda read, path: read.schema("vlsn int").load(path), "column 'vlsn' is bigint, not int"),
        (lambda read, path: read.schema("valu binary").load(path), "no column 'valu'; did you mean 'value'?"),
        (lambda read, path: read.load(path + "x"), "No such file or directory"),
        (lambda read, path: read.load(), "vlsnlog needs a source"),
        (lambda read, path: read.load("nosuch://bucket/n1"), "BadArgument: nosuch://bucket/n1"),
        (lambda read, path: read.option("mode", "physical").load(f"{path},{path}x"), "mode=physical shows one copy"),
    ],
)
def test_a_bad_read_says_why_in_one_line(copies: list[Path], source: Any, ask: Any, message: str) -> None:
    with pytest.raises(PySparkException) as refused:
        ask(source(), str(copies[0])).count()
    assert message in str(refused.value)
    assert "Traceback" not in str(refused.value)


SCRIPT = """
import sys
from pyspark.sql import SparkSession
from repl.spark import VlsnLogDataSource

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
spark.dataSource.register(VlsnLogDataSource)
print("entries", spark.read.format("vlsnlog").load(sys.argv[1]).count())
"""


def test_a_script_runs_in_an_environment_that_is_not_activated(copies: list[Path], tmp_path: Path) -> None:
    script = tmp_path / "count.py"
    script.write_text(SCRIPT)
    keep = {name: value for name, value in os.environ.items() if name in ("HOME", "LANG", "JAVA_HOME")}
    environment = {**keep, "PATH": "/usr/local/bin:/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, str(script), str(copies[0])],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "entries 2000" in done.stdout, done.stderr[-2000:]
