"""``vlsnlog export`` of a group of real nodes: its files are what a read gives, whenever it is stopped and started."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from repl import connect_sync
from repl.arrow.read import read_arrow
from repl.export.delta import run_delta_export
from repl.export.request import Request
from repl.web import ndjson
from tests.e2e.commands import Command, run, run_all
from tests.e2e.group import Group

pytestmark = pytest.mark.real
ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs" / "examples"
QUERY = "select count(*), count(distinct vlsn), max(vlsn) from entries"


def urls_of(group: Group) -> str:
    return ",".join(group.urls.values())


def filled(group: Group, prefix: str) -> None:
    """Appends plain entries and a transaction, under keys with this prefix and without."""
    with connect_sync(urls_of(group)) as log:
        log.append_many([b"%d" % n for n in range(90)], keys=[f"{prefix}{n % 3}".encode() for n in range(90)])
        log.append(b"\xff", key=prefix.encode() + b"\xfe")
        log.append(b"another", key=b"other")
        with log.transaction() as txn:
            txn.append_many([b"t"] * 5, keys=[prefix.encode()] * 5)


def lines(lake: Path) -> list[bytes]:
    """Returns the lines of every file there is, by VLSN."""
    found = [line for path in lake.rglob("*.jsonl") for line in path.read_bytes().splitlines(keepends=True)]
    return sorted(found, key=lambda line: json.loads(line)["vlsn"])


@pytest.mark.feature("export")
def test_files_are_what_read_prints(group: Group, tmp_path: Path) -> None:
    filled(group, "exported-")
    urls, lake = urls_of(group), tmp_path / "lake"
    ended = run("export", urls, "--to", lake, "--format", "json", "--key-prefix", "exported-",
                "--partition-by", "key-prefix:10", "--batch-entries", "40", "--json")  # fmt: skip
    assert (ended.status, ended.err) == (0, ""), ended
    batches = [json.loads(line) for line in ended.out.splitlines()]
    assert [set(batch) for batch in batches] == [{"manifest", "first", "last", "rows", "files", "bytes", "gap"}] * len(
        batches
    )
    assert [batch["first"] for batch in batches[1:]] == [batch["last"] + 1 for batch in batches[:-1]]
    read = run("read", "--url", urls, "--format", "json", "--key-prefix", "exported-", "--to", str(batches[-1]["last"]))
    assert b"".join(lines(lake)) == read.out
    assert sum(batch["rows"] for batch in batches) == len(lines(lake)) == 96
    folders = sorted(path.name for path in lake.glob("key_prefix=*"))
    assert folders == ["key_prefix=exported-", *(f"key_prefix=exported-{n}" for n in ("%FE", 0, 1, 2))]
    assert all(ndjson.decode_printed(line, 1) for line in lines(lake))


def test_a_continuous_export_ends_quietly_and_goes_on(group: Group, tmp_path: Path) -> None:
    urls, lake = urls_of(group), tmp_path / "lake"
    filled(group, "c-")
    follow = ("export", urls, "--to", lake, "--format", "parquet", "--partition-by", "date", "--continuous",
              "--interval", "0.2", "--json", "--key-prefix", "c-")  # fmt: skip
    for start in range(2):  # SIGTERM: a script's background, where the suite may run, ignores Ctrl-C
        with Command(*follow) as command:
            if start:
                filled(group, "c-")
            assert json.loads(command.out.readline())["rows"] > 0
            second = run(*follow)
            assert second.status == 2
            said = f"{lake}: another export writes there now; stop it first, or choose another --to"
            assert json.loads(second.err)["detail"] == said
            filled(group, "c-")
            command.process.send_signal(signal.SIGTERM)
            ended = command.ended()
        assert (ended.status in (130, -signal.SIGTERM), ended.err.strip()) == (True, ""), ended
    done = run(*follow[:6], "--partition-by", "date", "--key-prefix", "c-")
    assert (done.status, done.err) == (0, "")
    with connect_sync(urls) as log:
        entries = [(each.vlsn, each.key, each.value) for each in log.read(key_prefix=b"c-")]
    tables = [pq.ParquetFile(path).read(["vlsn", "key", "value"]).to_pylist() for path in lake.rglob("*.parquet")]
    assert sorted(tuple(row.values()) for table in tables for row in table) == entries
    assert len(entries) == 4 * 96


def test_what_cannot_be_exported_is_one_line_and_leaves_nothing(group: Group, tmp_path: Path) -> None:
    url, lake = urls_of(group), tmp_path / "lake"
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "photo.jpg").touch()
    good = ("--to", lake, "--format", "parquet")
    ended = run_all(
        ("export", url, "--to", lake),
        ("export", url, "--to", lake, "--format", "csv"),
        ("export", url, *good, "--partition-by", "week"),
        ("export", url, *good, "--from", "9", "--to-vlsn", "3"),
        ("export", url, "--to", tmp_path / "there", "--format", "parquet"),
        ("export", url, "--to", "nostore://x/y", "--format", "parquet"),
        ("export", tmp_path / "none", *good),
        ("export", group.path("n1"), *good, "--continuous"),
    )
    words = ("--format", "csv", "--partition-by", "--from", "photo.jpg", "nostore", "none", "--continuous")
    for each, word in zip(ended, words, strict=True):
        assert word in each.refused()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["there"]


def test_the_lake_and_its_sql(group: Group, tmp_path: Path) -> None:
    urls, lake = urls_of(group), tmp_path / "lake"
    filled(group, "lake-")
    subprocess.run([sys.executable, EXAMPLES / "lake.py", urls, lake], check=True, capture_output=True)
    done = subprocess.run(
        [sys.executable, EXAMPLES / "lake_sql.py", lake, QUERY],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    with connect_sync(urls) as log:
        vlsns = [entry.vlsn for entry in log.read()]
    assert done.stdout.split() == [str(len(vlsns)), str(len(vlsns)), str(vlsns[-1])]


def test_a_delta_table_has_each_entry_once_whenever_the_export_is_killed(group: Group, tmp_path: Path) -> None:
    from deltalake import DeltaTable

    urls, to = urls_of(group), tmp_path / "table"
    follow = ("export", urls, "--to", to, "--format", "delta", "--continuous", "--interval", "0.1", "--json")
    for kill in range(6):
        filled(group, f"delta-{kill}-")
        with Command(*follow, "--batch-entries", "20") as command:
            command.out.readline()
            time.sleep(kill * 0.02)  # the kill comes between commits, and within one
            command.process.kill()
    last = run("export", urls, "--to", to, "--format", "delta")
    assert (last.status, last.err) == (0, ""), last
    table = DeltaTable(to).to_pyarrow_table().sort_by("vlsn")
    with connect_sync(urls) as log:
        entries = [entry for entry in log.read() if entry.vlsn <= table["vlsn"][-1].as_py()]
    assert table["vlsn"].to_pylist() == [entry.vlsn for entry in entries]
    assert table["value"].to_pylist() == [bytes(entry.value) for entry in entries]
    assert table["key"].to_pylist() == [entry.key and bytes(entry.key) for entry in entries]


def test_each_batch_of_a_table_is_read_from_a_node_that_has_it(
    group: Group, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that is behind the one that named the batch's end would answer without its last entries."""
    asked: list[object] = []

    def read(*args: Any, **more: Any) -> Any:
        asked.append(more.get("consistency"))
        return read_arrow(*args, **more)

    monkeypatch.setattr("repl.arrow.read.read_arrow", read)
    filled(group, "fresh-")
    run_delta_export(Request(source=urls_of(group), to=str(tmp_path / "table"), format="delta", batch_entries=50))
    assert len(asked) > 1 and set(asked) == {"linearizable"}
