"""The demonstration: its records, its verdict, and one whole run."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace

from repl.audit.findings import Finding
from repl.audit.report import AuditReport
from repl.cli import demo_run
from repl.cli.demo_run import Outcome, PlainTeller, digest_of, installed_records, records_of
from repl.cluster import Cluster, Node
from vlsn.errors import BadArgument, LogClosed


def test_installed_records_are_many_and_irregular() -> None:
    records = installed_records()
    assert len(records) > 2000
    assert b"" in records
    assert any(record.startswith(b"Metadata-Version: ") for record in records)
    assert any(b",sha256=" in record for record in records)
    assert records == installed_records()


def test_records_of_a_file_are_its_lines(tmp_path: Path) -> None:
    path = tmp_path / "input"
    path.write_bytes(b"a\r\n\n\xff\nlast\n")
    assert records_of(path, None) == [b"a\r", b"", b"\xff", b"last"]
    path.write_bytes(b"1\n2\n3\n4\n5\n")
    assert records_of(path, 4) == [b"1", b"2", b"3", b"4"]
    path.write_bytes(b"one")
    assert records_of(path, None) == [b"one"]
    path.write_bytes(b"")
    with pytest.raises(BadArgument, match="at least one line"):
        records_of(path, None)


def test_the_digest_is_that_of_the_printed_lines() -> None:
    assert digest_of([b"a", b"", b"b"]) == hashlib.sha256(b"a\n\nb\n").hexdigest()


def outcome() -> Outcome:
    report = AuditReport(
        equal=True,
        compared_from=1,
        compared_to=102,
        sources=[],
        findings=[],
        ranges_differing=0,
        tasks=6,
        seconds=1.0,
    )
    return Outcome(
        records=100, sha256="d", first=3, last=102, killed="n3", reads={"n1": "d", "n2": "d", "n3": "d"}, audit=report
    )


def test_the_verdict_asks_for_every_promise() -> None:
    assert outcome().holds
    audit = outcome().audit
    assert audit is not None
    finding = Finding(rule="block-crc", source="n1", file="f", offset=0, vlsn=5)
    changes: tuple[dict[str, Any], ...] = (
        {"last": 103},
        {"first": 4},
        {"own": 1},
        {"reads": {"n1": "d", "n2": "d", "n3": "other"}},
        {"reads": {}},
        {"killed": ""},
        {"audit": None},
        {"audit": replace(audit, equal=False)},
        {"audit": replace(audit, compared_to=101)},
        {"audit": replace(audit, findings=[finding])},
    )
    for change in changes:
        broken = outcome()
        for name, value in change.items():
            setattr(broken, name, value)
        assert not broken.holds, change


def demonstration(tmp_path: Path, lines: bytes) -> str:
    """Runs the demonstration on that input, with a promise kept in each of five lines."""
    source = tmp_path / "input"
    source.write_bytes(lines)
    done = subprocess.run(
        [sys.executable, "-m", "repl.cli.start", "demo", "--input", str(source), "--dir", str(tmp_path / "nodes")],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("ok ") == 5
    assert done.stdout.rstrip().endswith("all of it holds")
    return done.stdout


@pytest.mark.real
def test_the_demonstration_holds(tmp_path: Path) -> None:
    said = demonstration(tmp_path, b"".join(b"line %d\n" % number for number in range(2000)))
    assert ", the master, after 1,0" in said
    assert "append: 2,000 of 2,000\n" in said
    assert "2,000 records acknowledged on a majority" in said
    for name in ("n1", "n2", "n3"):
        assert (tmp_path / "nodes" / name / "node.id").exists()


@pytest.mark.real
def test_the_demonstration_kills_half_way_however_short_its_input_is(tmp_path: Path) -> None:
    said = demonstration(tmp_path, b"one\r\n\n\xff\nfour")
    assert ", the master, after 2 records" in said
    assert "4 records acknowledged on a majority" in said


class Silent:
    """A client whose appends get no answer before it is closed."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.closed = asyncio.Event()

    async def __aenter__(self) -> Silent:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.closed.set()
        await asyncio.sleep(0)

    async def append_many(self, _: object) -> tuple[int, int]:
        self.asked.set()
        await self.closed.wait()
        raise LogClosed("closed")


async def test_a_demonstration_that_is_cut_short_says_nothing_of_its_appends(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Silent()
    monkeypatch.setattr(demo_run, "connect", lambda *_, **__: client)
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    cluster, victim = cast(Cluster, SimpleNamespace(urls=[])), cast(Node, None)
    appending = asyncio.create_task(demo_run.Demo(cluster, [b"x"] * 10_000, PlainTeller())._append(victim))
    await client.asked.wait()
    appending.cancel()
    await asyncio.wait([appending])
    assert appending.cancelled()
    del appending  # and with it the tasks that it has: of one that failed and nobody asked, asyncio tells then
    gc.collect()
    assert told == []
