"""Bad inputs of the source, the stream, the sink, the repair and the export, as tables: a clear error, nothing written.

The audit gets the same directories; ``test_partial`` has sources that go away in the middle.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tenacity import wait_none

from repl.audit import live
from repl.audit.outputs import write_outputs
from repl.cli.main import main
from repl.spark import copies
from repl.spark.batch import VisibleReader
from repl.spark.datasource import VlsnLogDataSource
from repl.spark.options import Use, read_options
from repl.spark.schemas import VISIBLE
from repl.spark.stream_options import sink_options
from tests.repl.audit.jobs import audited
from tests.repl.audit.logs import Copy, numbered
from tests.repl.audit.test_live import served, serving
from vlsn.errors import BadArgument, Restoring, VlsnLogError
from vlsn.real.disk import PosixDisk
from vlsn.segments.restore_marker import MARKER_NAME, Marker
from vlsn.state import node_file
from vlsn.state.node_file import NodeRecord

STORY = numbered(100, 5, 60)
LAST = 500


def log(path: Path, node: str = "n3", group: str = "g") -> Path:
    copy = Copy(path, node, group=group, segment_bytes=24 << 10).add(*STORY).checkpoint(LAST).write()
    record = NodeRecord(group=group, node=node, incarnation=sum(node.encode()), term=1)
    node_file.create(PosixDisk(), str(path / "node.id"), record).close()
    return copy.path


def half_restored(path: Path) -> None:
    log(path)
    marker = Marker(first_segment=1, after=0, why="test", begun_us=1)  # type: ignore[arg-type]
    (path / MARKER_NAME).write_bytes(marker.encode())


def unreadable(path: Path) -> None:
    """A directory where a segment should be: missing permissions are another ``OSError``."""
    log(path)
    (path / "00000001.vlog").unlink()
    (path / "00000001.vlog").mkdir()


def fifo(path: Path) -> None:
    log(path)
    (path / "00000002.vlog").unlink()
    os.mkfifo(path / "00000002.vlog")


def junk(path: Path) -> None:
    path.mkdir()
    (path / "00000001.vlog").write_text("a letter to a friend")


DIRECTORIES: dict[str, Callable[[Path], object]] = {
    "not there": lambda path: None,
    "empty": Path.mkdir,
    "a file": lambda path: path.write_text("no log"),
    "no log": junk,
    "half restored": half_restored,
    "unreadable": unreadable,
    "a FIFO": fifo,
}
SAID = {
    "not there": "No such file or directory|is no directory|does not exist",
    "empty": r"no segments \(\*\.vlog\) that can be read; name a node's directory|holds no log; name the directory of",
    "a file": "Not a directory|is no directory|is a file",
    "no log": "no segments .* that can be read|node.id: No such file or directory",
    "half restored": "a network restore of .* has begun; its node continues the restore when it is started",
    "unreadable": "is a directory where a regular file belongs: put it away",
    "a FIFO": "is a FIFO where a regular file belongs: put it away",
}


def tree(path: Path) -> list[tuple[str, bytes]]:
    found = (each for each in sorted(path.rglob("*")) if each.is_file() and each.name not in ("LOCK", "report.json"))
    return [(str(each.relative_to(path)), each.read_bytes()) for each in found]


def read(*sources: Path | str, **options: str) -> int:
    """Plans and reads as Spark does, and returns the number of rows."""
    given = {"path": ",".join(map(str, sources)), **options}
    reader = VisibleReader(read_options(given, Use.BATCH), ("vlsn",))
    return sum(batch.num_rows for partition in reader.partitions() for batch in reader.read(partition))


@pytest.fixture
def good(tmp_path: Path) -> Path:
    return log(tmp_path / "n1", "n1")


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside a whole copy"])
@pytest.mark.parametrize("what", DIRECTORIES)
def test_the_source_refuses_a_directory_by_its_name(tmp_path: Path, good: Path, what: str, beside: bool) -> None:
    path = tmp_path / "bad"
    DIRECTORIES[what](path)
    with pytest.raises(VlsnLogError, match=SAID[what]) as refused:
        read(*([good] if beside else []), path)
    assert str(path) in str(refused.value)
    assert isinstance(refused.value, Restoring) == (what == "half restored")


@pytest.mark.parametrize("what", DIRECTORIES)
def test_the_export_refuses_a_directory_and_writes_nothing(
    tmp_path: Path, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path, lake = tmp_path / "bad", tmp_path / "lake"
    DIRECTORIES[what](path)
    before = tree(tmp_path)
    assert main(["export", str(path), "--to", str(lake), "--format", "parquet"]) == 2
    said = capsys.readouterr().err
    assert str(path) in said
    (line,) = said.splitlines()
    assert any(part in line for part in plain(SAID[what])), line
    assert not lake.exists()
    assert tree(tmp_path) == before


@pytest.mark.parametrize("what", DIRECTORIES)
def test_the_repair_refuses_a_directory_and_changes_nothing(
    tmp_path: Path, good: Path, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    others = [good, log(tmp_path / "n2", "n2"), log(tmp_path / "bad")]
    report = audited(*others)
    write_outputs(report, [str(tmp_path / "report.json")])
    path = tmp_path / "bad"
    os.rename(path, tmp_path / "kept")
    DIRECTORIES[what](path)
    before = tree(tmp_path)
    assert main(["repair", str(path), "--from-audit", str(tmp_path / "report.json")]) == 2
    said = capsys.readouterr().err
    assert str(path) in said
    assert any(part in said for part in plain(SAID[what])), said
    assert tree(tmp_path) == before


def plain(pattern: str) -> list[str]:
    """The longest literal words of each way to say it."""
    return [max(each.replace("\\", "").split(".*"), key=len).strip() for each in pattern.split("|")]


def test_another_groups_copy_is_refused_by_all(tmp_path: Path, good: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = log(tmp_path / "other", "n3", "h")
    with pytest.raises(BadArgument, match=r"one load reads one group: .*n1 is of 'g', .*other is of 'h'"):
        read(good, other)
    assert main(["export", f"{good},{other}", "--to", str(tmp_path / "lake"), "--format", "json"]) == 2
    assert "one load reads one group" in capsys.readouterr().err
    assert not (tmp_path / "lake").exists()
    report = audited(good, log(tmp_path / "n2", "n2"), log(tmp_path / "n3", "n3"))
    write_outputs(report, [str(tmp_path / "report.json")])
    before = tree(tmp_path)
    assert main(["repair", str(other), "--from-audit", str(tmp_path / "report.json")]) == 2
    assert "of group g" in capsys.readouterr().err
    assert tree(tmp_path) == before


def test_one_in_use_is_read_and_not_repaired(tmp_path: Path, good: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A running node's directory is read up to its synced end; only its node writes to it."""
    lock = PosixDisk().lock(str(good / "LOCK"))
    try:
        assert 0 < read(good) <= LAST
        report = audited(good, log(tmp_path / "n2", "n2"), log(tmp_path / "n3", "n3"))
        assert (report.findings, report.exit_code) == ([], 0)
        write_outputs(report, [str(tmp_path / "report.json")])
        before = tree(tmp_path)
        assert main(["repair", str(good), "--from-audit", str(tmp_path / "report.json")]) == 2
        assert "its node runs; stop it, and repair then" in capsys.readouterr().err
        assert tree(tmp_path) == before
    finally:
        lock.release()


class NoNode(BaseHTTPRequestHandler):
    """Somebody else's server."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "7")
        self.end_headers()
        self.wfile.write(b"welcome")

    do_POST = do_PUT = do_DELETE = do_GET  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def no_node() -> Iterator[str]:
    with serving(ThreadingHTTPServer(("127.0.0.1", 0), NoNode)) as server:
        yield f"http://127.0.0.1:{server.server_address[1]}"


def dead_url(path: Path) -> str:
    with served(Copy(path, "n9").add(*STORY).write()) as server:
        return server.url


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live._fetch.retry, "wait", wait_none())


@pytest.mark.long
@pytest.mark.usefixtures("hurried")
def test_a_url_that_is_no_node_or_dead_is_refused_by_its_name(tmp_path: Path, no_node: str) -> None:
    dead = dead_url(tmp_path / "n9")
    with pytest.raises(VlsnLogError, match=rf"{no_node}.*is it a vlsnlog node\?"):
        read(no_node)
    with pytest.raises(VlsnLogError, match=rf"{dead}.*is the node up\?"):
        read(dead)
    for url in (no_node, dead):
        lake = tmp_path / "lake"
        assert main(["export", url, "--to", str(lake), "--format", "json"]) != 0
        assert not lake.exists()


STREAMS = {
    "nothing": ({}, "vlsnlog needs a source"),
    "two ends": ({"path": "http://a:1", "from": "1", "since": "2026-01-01"}, "only one of them says where it is"),
    "no such option": ({"path": "http://a:1", "form": "1"}, "did you mean 'from'"),
    "no entries": ({"path": "http://a:1", "maxEntriesPerTrigger": "0"}, "it must be a whole number, 1 to"),
    "no bytes": ({"path": "http://a:1", "maxBytesPerTrigger": "12 apples"}, "it must be bytes"),
    "an end": ({"path": "http://a:1", "to": "5"}, "option 'to' is for spark.read, not for spark.readStream"),
    "a sink": ({"path": "http://a:1", "sink": "a"}, "option 'sink' is for df.write and df.writeStream"),
    "physical": ({"path": "http://a:1", "mode": "physical"}, "is for spark.read, not for spark.readStream"),
}


@pytest.mark.parametrize("what", STREAMS)
def test_the_stream_refuses_what_it_cannot_follow(tmp_path: Path, what: str) -> None:
    given, said = STREAMS[what]
    options = {name: value.format(path=tmp_path) for name, value in given.items()}
    reader = VlsnLogDataSource(options).streamReader(VISIBLE)
    for ask in (
        reader.initialOffset,
        lambda: reader.latestOffset({"vlsn": 1, "term": 0}, reader.getDefaultReadLimit()),
    ):
        with pytest.raises(BadArgument) as refused:
            ask()
        assert said in str(refused.value)


@pytest.mark.parametrize("what", DIRECTORIES)
def test_the_stream_refuses_a_directory_by_its_name(
    tmp_path: Path, good: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "PAUSE_S", 0.0)
    path = tmp_path / "bad"
    DIRECTORIES[what](path)
    for given in (str(path), f"{good},{path}"):
        reader = VlsnLogDataSource({"path": given}).streamReader(VISIBLE)
        with pytest.raises(VlsnLogError, match=SAID[what]) as refused:
            reader.initialOffset()
        assert str(path) in str(refused.value)


SINKS: dict[str, tuple[dict[str, Any], Use, str]] = {
    "a directory": ({"path": "{path}", "sink": "s"}, Use.SINK, "a log is written by its running group"),
    "no group": ({"sink": "s"}, Use.SINK, "vlsnlog needs a group to write to"),
    "no name": ({"url": "http://a:1"}, Use.SINK, "the sink needs a name"),
    "a bad name": ({"url": "http://a:1", "sink": "a b"}, Use.SINK, "it must be 1 to 64 of [A-Za-z0-9._-]"),
    "two groups": ({"url": "http://a:1", "path": "http://b:1", "sink": "s"}, Use.SINK, "only one of them names"),
    "a bad reset": ({"url": "http://a:1", "sink": "s", "sinkReset": "0"}, Use.SINK, "it must be true, or the VLSN"),
    "a run of a stream": ({"url": "http://a:1", "sink": "s", "run": "r"}, Use.SINK, "is for df.write, not"),
    "a bad run": ({"url": "http://a:1", "run": "ü"}, Use.WRITE, "it must be 1 to 64 of"),
    "overwriting": ({"url": "http://a:1", "overwrite": "yes"}, Use.WRITE, "has no option 'overwrite'"),
}


@pytest.mark.parametrize("what", SINKS)
def test_the_sink_refuses_before_anything_is_sent(tmp_path: Path, what: str) -> None:
    given, use, said = SINKS[what]
    with pytest.raises(BadArgument) as refused:
        sink_options({name: str(value).format(path=tmp_path) for name, value in given.items()}, use, overwrite=False)
    assert said in str(refused.value)


@pytest.mark.usefixtures("hurried")
def test_a_node_that_goes_away_in_the_middle_of_a_read(tmp_path: Path) -> None:
    """Alone it ends the read, which names it; another that has the rest goes on at the VLSN reached."""
    one = Copy(tmp_path / "n1", "n1", segment_bytes=1 << 20).add(*numbered(400, 5, 300)).write()
    two = Copy(tmp_path / "n2", "n2", segment_bytes=1 << 20).add(*numbered(400, 5, 300)).write()
    for others in (0, 1):
        with served(one) as gone, served(two) as left:
            urls = [gone.url, left.url][: 1 + others]
            given = {"path": ",".join(urls), "partitionBytes": "65536"}
            reader = VisibleReader(read_options(given, Use.BATCH), ("vlsn",))
            partitions = reader.partitions()
            found: list[int] = []

            def rest(
                reader: VisibleReader = reader, partitions: list[Any] = partitions, found: list[int] = found
            ) -> None:
                for partition in partitions[len(partitions) // 2 :]:
                    for batch in reader.read(partition):
                        found.extend(batch.column("vlsn").to_pylist())

            gone.shutdown()
            gone.server_close()
            if others:
                rest()
                assert found == list(range(partitions[len(partitions) // 2].piece.first, 1996))
            else:
                with pytest.raises(VlsnLogError, match=rf"{gone.url}.*is the node up\?"):
                    rest()
                assert found == []
