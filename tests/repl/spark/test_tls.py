"""TLS of the data source: options name files, which the driver checks; batch, stream and sink call nodes by https."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import StructType

from repl import connect_sync
from repl.spark import VlsnLogDataSource
from repl.spark.options import Use, read_options
from repl.spark.schemas import VISIBLE
from repl.spark.stream import RefusedReader, close_clients
from repl.spark.stream_options import sink_options
from repl.tls_files import TlsFiles, or_environment
from tests.e2e.commands import run
from tests.e2e.secure_node import SecureNode, secure_node
from tests.repl.net.tls.certificates import authority, files_of
from tests.repl.spark.groups import collected, ended
from vlsn.errors import BadArgument

WRITTEN = StructType().add("value", "binary")
URL = "https://127.0.0.1:1"
PLAIN = "this node speaks TLS alone: use https://"
"""The answer to a read by HTTP. A client that appends goes on by https, and cannot trust the node."""
UNTRUSTED = "TLS: certificate verify failed.*is its authority in tls_ca"


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return authority(tmp_path_factory.mktemp("authority"))


def opened(use: Use, **options: str) -> None:
    """Does what Spark does before the first call to a node."""
    source = VlsnLogDataSource(options)
    if use is Use.BATCH:
        source.reader(VISIBLE)
    elif use is Use.STREAM:
        reader = source.streamReader(VISIBLE)
        if isinstance(reader, RefusedReader):
            reader.initialOffset()
    elif use is Use.WRITE:
        source.writer(WRITTEN, overwrite=False)
    else:
        source.streamWriter(WRITTEN, overwrite=False)


@pytest.fixture(params=list(Use), ids=lambda use: use.value)
def opening(request: pytest.FixtureRequest) -> Callable[..., None]:
    use: Use = request.param
    needed = {"sink": "s"} if use is Use.SINK else {}
    return lambda **options: opened(use, path=URL, **needed, **options)


def test_files_that_cannot_be_used_are_refused_before_a_call(
    opening: Callable[..., None], tmp_path: Path, ca: Path
) -> None:
    here, junk = str(ca / "ca.pem"), tmp_path / "junk.pem"
    junk.write_text("a letter to a friend")
    one, other = files_of("n1", tmp_path, ca), files_of("n2", tmp_path, ca)
    for options, said in (
        ({"tlsCa": f"{tmp_path}/none.pem"}, f"option tlsCa: {tmp_path}/none.pem: No such file or directory"),
        ({"tlsCa": str(tmp_path)}, f"option tlsCa: {tmp_path} is a directory where a regular file belongs"),
        ({"tlsCa": str(junk)}, f"option tlsCa: {junk}: holds no certificates in PEM"),
        ({"tlsCa": here, "tlsCert": one.cert}, "option tlsKey: not given"),
        ({"tlsCa": here, "tlsCert": one.cert, "tlsKey": f"{tmp_path}/x"}, f"option tlsKey: {tmp_path}/x: No such file"),
        ({"tlsCa": here, "tlsCert": one.cert, "tlsKey": other.key}, "option tlsCert, tlsKey: "),
    ):
        with pytest.raises(BadArgument) as refused:
            opening(**options)
        assert str(refused.value).startswith(said)
        assert refused.value.slug == "bad-argument"
    opening(tlsCa=here, tlsCert=one.cert, tlsKey=one.key)
    opening(tlsCa=os.path.relpath(here))


def test_a_secret_that_is_passed_for_a_path_is_not_shown(
    opening: Callable[..., None], tmp_path: Path, ca: Path
) -> None:
    key = Path(files_of("n1", tmp_path, ca).key).read_text()
    for passed in (key, key.replace("\n", ""), key.splitlines()[1] + "\n", "k" * 5_000, " "):
        with pytest.raises(BadArgument, match="option 'tlsKey' is something else; it must be the path") as refused:
            opening(tlsKey=passed)
        assert not any(line in str(refused.value) for line in passed.splitlines() if line.strip())


@pytest.mark.parametrize("sources", ["http://a:1", "d", "http://a:1,d"])
def test_files_without_a_url_of_https_are_refused(sources: str) -> None:
    said = "option 'tlsCa' is for nodes' https:// URLs, and no source has one"
    with pytest.raises(BadArgument, match=said):
        read_options({"path": sources, "tlsCa": "/ca.pem"}, Use.BATCH)
    with pytest.raises(BadArgument, match=said):
        sink_options({"path": "http://a:1", "tlsCa": "/ca.pem"}, Use.WRITE, overwrite=False)


def test_an_option_takes_the_place_of_its_variable_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CA", "CERT", "KEY"):
        monkeypatch.setenv(f"VLSNLOG_TLS_{name}", f"/environment/{name}")
    asked = read_options({"path": "https://a:1", "tlsCa": "/option/ca"}, Use.BATCH).asked
    assert or_environment(asked.tls) == TlsFiles("/option/ca", "/environment/CERT", "/environment/KEY")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, ca: Path) -> Iterator[SecureNode]:
    with secure_node(tmp_path_factory.mktemp("node"), ca) as made:
        with connect_sync(made.url, tls=made.trusted) as log:
            log.append_many([b"%d" % number for number in range(100)])
        yield made
        close_clients()


@pytest.mark.real
@pytest.mark.long
@pytest.mark.parametrize("by", ["options", "environment"])
def test_spark_reads_streams_and_writes_by_tls(
    spark: Any, node: SecureNode, tmp_path: Path, ca: Path, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = files_of("app", tmp_path, ca, kind="client")
    options = {"tlsCa": node.ca, "tlsCert": mine.cert, "tlsKey": mine.key}
    if by == "environment":
        for name, path in zip(("CA", "CERT", "KEY"), options.values(), strict=True):
            monkeypatch.setitem(spark.sparkContext.environment, f"VLSNLOG_TLS_{name}", path)
        options = {}
    spark.dataSource.register(VlsnLogDataSource)
    rows = spark.read.format("vlsnlog").options(**options).load(node.url)
    written = rows.where("vlsn < 105 and value in (binary('7'), binary('8'))").selectExpr("value")
    assert written.count() == 2
    physical = spark.read.format("vlsnlog").options(mode="physical", **options).load(node.url)
    assert physical.where("kind = 'DATA'").count() >= 101
    written.write.format("vlsnlog").options(url=node.url, **options).mode("append").save()

    found: list[Any] = []
    stream = spark.readStream.format("vlsnlog").options(**options).load(node.url)
    collected(stream, tmp_path / "read", found)
    values = [bytes(row.value) for _, batch in found for row in batch]
    assert values[:101] == [b"begun", *(b"%d" % number for number in range(100))]
    assert values[-2:] == [b"7", b"8"]

    sink = stream.where("vlsn < 10").selectExpr("value").writeStream.format("vlsnlog")
    sink = sink.options(url=node.url, sink=f"by-{by}", checkpointLocation=str(tmp_path / "write"), **options)
    ended(sink.trigger(availableNow=True))
    with connect_sync(node.url, tls=node.trusted) as log:
        again = [entry.value for entry in log.read(consistency="linearizable")]
    assert again[: len(values)] == values and len(again) > len(values)


@pytest.mark.real
@pytest.mark.long
def test_spark_says_that_tls_is_the_reason(spark: Any, node: SecureNode, tmp_path: Path) -> None:
    spark.dataSource.register(VlsnLogDataSource)
    quick = {"giveUpSeconds": 3}
    for url, said in ((node.url, UNTRUSTED), (node.plain, f"{PLAIN}|{UNTRUSTED}")):
        with pytest.raises(Exception, match=said):
            spark.read.format("vlsnlog").options(**quick).load(url).count()
        with pytest.raises(Exception, match=said):
            collected(spark.readStream.format("vlsnlog").options(**quick).load(url), tmp_path / url[:5], [])
        rows = spark.createDataFrame([(b"v",)], "value binary")
        with pytest.raises(Exception, match=said):
            rows.write.format("vlsnlog").options(url=url, **quick).mode("append").save()
    with pytest.raises(Exception, match=r"BadArgument: option tlsCa: .*none.pem: No such file"):
        spark.read.format("vlsnlog").option("tlsCa", f"{tmp_path}/none.pem").load(node.url).count()


@pytest.mark.real
@pytest.mark.long
def test_an_audit_reads_a_node_by_tls(node: SecureNode) -> None:
    ended = run("audit", node.url, node.directory, "--tls-ca", node.ca)
    assert ended.status == 0, ended
