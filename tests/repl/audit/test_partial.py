"""A partial audit: it names the parts that cannot be read any more, keeps its findings, and blames no copy for the
gaps."""

from __future__ import annotations

import json
import os
import shutil
from contextlib import nullcontext
from io import BytesIO
from pathlib import Path
from typing import Any, TypeVar

import pyarrow.parquet as pq
import pytest

from repl.audit import live
from repl.audit.directory import DirectorySource
from repl.audit.history import parts_of
from repl.audit.outputs import write_outputs
from repl.audit.page import page_of
from repl.audit.repair import Repair
from repl.audit.report import Span, read_report
from repl.audit.since import read_since
from repl.audit.tables import parquet_of
from repl.cli.audit import print_report
from tests.e2e.calls import OCTETS, call
from tests.e2e.group import NAMES, Group
from tests.repl.audit.forge import Forge
from tests.repl.audit.jobs import Before, LocalJobs, audited
from tests.repl.audit.life import Left
from tests.repl.audit.logs import STORY, Copy, numbered
from tests.repl.audit.test_live import served
from vlsn.errors import BadArgument
from vlsn.format.segment import segment_name
from vlsn.real.disk import PosixDisk
from vlsn.real.lmdb_store import LmdbStores

T = TypeVar("T")
R = TypeVar("R")


@pytest.fixture
def copies(tmp_path: Path) -> list[Copy]:
    """Three whole copies in segments of one size: a segment holds the same VLSNs in all of them."""
    return [Copy(tmp_path / node, node, segment_bytes=48 << 10).add(*STORY).write() for node in ("n1", "n2", "n3")]


def without(copy: Copy, *numbers: int) -> LocalJobs:
    """Makes segments go between the survey and the reading, as a cleaning does."""

    def go() -> None:
        for number in numbers:
            (copy.path / segment_name(number)).unlink()

    return Before("read", go)


def span(copy: Copy, number: int) -> tuple[int, int]:
    frames = [frame for frame in Forge(copy.path).blocks() if frame.number == number]
    return frames[0].first, frames[-1].last


def test_a_segment_that_goes_is_not_audited_and_the_rest_is(copies: list[Copy]) -> None:
    first, last = span(copies[1], 2)
    report = audited(*copies, jobs=without(copies[1], 2))
    (gone,) = report.not_audited
    assert (gone.what, gone.source, gone.file) == ("segments", str(copies[1].path), segment_name(2))
    assert (gone.segments, gone.first, gone.last) == (1, first, last)
    assert "No such file" in gone.why
    assert (report.findings, report.equal, report.partial, report.exit_code) == ([], False, True, 2)
    hurt = report.sources[1]
    assert (hurt.unread, hurt.holes, hurt.ranges) == ([Span(first=first, last=last)], [], [])
    assert (hurt.first, hurt.last) == (1, 2000)
    assert [row.number for row in hurt.segments] == [1, 3, 4]
    assert report.sources[0].ranges == report.sources[2].ranges != []


def test_several_in_a_row_are_one_part(copies: list[Copy]) -> None:
    report = audited(*copies, jobs=without(copies[1], 1, 2, 4))
    assert [(each.file, each.segments) for each in report.not_audited] == [(segment_name(1), 2), (segment_name(4), 1)]
    assert [each.first for each in report.not_audited] == [1, span(copies[0], 4)[0]]
    assert (report.findings, report.exit_code) == ([], 2)


def test_what_was_found_stands(copies: list[Copy]) -> None:
    file, offset = copies[2].flip(span(copies[2], 3)[0], 100)
    report = audited(*copies, jobs=without(copies[1], 2))
    assert [(each.rule, each.source, each.file, each.offset) for each in report.findings] == [
        ("frame-crc", str(copies[2].path), file, offset)
    ]
    assert (report.partial, report.exit_code, report.ranges_differing) == (True, 1, 1)


def test_the_copies_that_were_read_are_compared_with_each_other(copies: list[Copy]) -> None:
    forged = Forge(copies[2].path)
    frame = forged.block(751)
    forged.body(frame, frame.get("body_bytes") - 1, b"!")
    report = audited(*copies, jobs=without(copies[1], 4))
    (finding,) = report.findings
    assert (finding.rule, finding.source) == ("divergence", str(copies[2].path))
    assert 751 <= finding.vlsn <= 755
    assert report.exit_code == 1


@pytest.mark.parametrize("node", NAMES)
def test_whatever_is_missing_nothing_is_blamed(left: Left, tmp_path: Path, node: str) -> None:
    """Rollbacks, producers, transactions, checkpoints and terms lie across what is missing."""
    numbers = Forge(left.paths[node]).active()
    missing = [{number} for number in numbers] + [set(numbers[:2]), set(numbers[-2:]), set(numbers)]
    for count, gone in enumerate(missing):
        path = tmp_path / f"{node}-{count}"
        shutil.copytree(left.paths[node], path)
        others = [left.paths[name] for name in NAMES if name != node]
        jobs = Before("read", lambda path=path, gone=gone: [(path / segment_name(at)).unlink() for at in gone])  # type: ignore[misc]
        report = audited(path, *others, jobs=jobs)
        assert report.findings == [], (gone, report.findings)
        assert (report.partial, report.exit_code) == (True, 2)
        assert sum(each.segments for each in report.not_audited) == len(gone)


def test_an_audit_that_goes_on_blames_no_past(tmp_path: Path, copies: list[Copy]) -> None:
    earlier = tmp_path / "report.json"
    earlier.write_text(audited(*copies).to_json())
    for deep in (False, True):
        since = read_since(str(earlier), deep=deep)
        kept = (copies[1].path / segment_name(4)).read_bytes()
        report = audited(*copies, since=since, jobs=without(copies[1], 4))
        assert (report.findings, report.exit_code, report.partial) == ([], 2, True)
        (copies[1].path / segment_name(4)).write_bytes(kept)


def test_no_history_is_held_against_what_was_not_read(tmp_path: Path, copies: list[Copy]) -> None:
    history = tmp_path / "history"
    history.write_text(json.dumps({"vlsn": span(copies[1], 2)[0], "value": "never"}) + "\n")
    report = audited(*copies, jobs=without(copies[1], 2), history=parts_of(str(history)))
    assert [each.what for each in report.not_audited] == ["segments", "history"]
    assert (report.history, report.findings) == (None, [])


def test_a_history_that_is_half_held_says_so(tmp_path: Path, copies: list[Copy]) -> None:
    history = tmp_path / "history"
    history.write_text(json.dumps({"vlsn": 7, "value": "never"}) + "\n")

    class Gone(LocalJobs):
        def grouped(self, what: str, *rest: Any) -> list[Any]:
            shutil.rmtree(copies[1].path)
            return super().grouped(what, *rest)

    report = audited(*copies, jobs=Gone(), history=parts_of(str(history)))
    assert [each.what for each in report.not_audited] == ["history"]
    assert report.exit_code == 2


@pytest.mark.parametrize("what", ["differences", "names"])
def test_what_cannot_be_looked_into_is_told(copies: list[Copy], what: str) -> None:
    if what == "differences":
        forged = Forge(copies[2].path)
        forged.body(frame := forged.block(751), frame.get("body_bytes") - 1, b"!")
    else:
        copies[0].add(*numbered(2, 5, 60, first_vlsn=2001)).rollback(2000).write()
    report = audited(*copies, jobs=Before(what, lambda: shutil.rmtree(copies[0].path)))
    assert [(each.what, each.first) for each in report.not_audited] == [(what, 1)]
    assert [each.rule for each in report.findings] == (["divergence"] if what == "differences" else [])
    assert report.exit_code == (1 if report.findings else 2)


def test_a_node_that_is_gone_is_not_asked_for_the_rest(copies: list[Copy], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    fetch = live._fetch_once

    def counted(url: str, *rest: Any) -> bytes:
        asked.append(url)
        return fetch(url, *rest)

    monkeypatch.setattr(live, "_fetch_once", counted)
    monkeypatch.setattr(live._fetch.retry, "wait", lambda state: 0)
    with served(copies[1]) as server:

        def gone() -> None:
            asked.clear()
            server.shutdown()
            server.server_close()

        report = audited(copies[0], server.url, copies[2], jobs=Before("read", gone))
    (left,) = report.not_audited
    assert (left.segments, left.first, left.last) == (4, 1, 2000)
    assert "is the node up" in left.why
    assert (report.findings, report.exit_code) == ([], 2)
    assert 6 <= len(asked) < 12  # one segment six times, and by each task behind it once


def test_a_segment_that_a_node_has_cleaned_meanwhile(copies: list[Copy]) -> None:
    with served(copies[1]) as server:
        jobs = Before("read", lambda: server.faults.append(410))
        report = audited(copies[0], server.url, copies[2], jobs=jobs)
    assert [(each.file, each.segments) for each in report.not_audited] == [(segment_name(1), 1)]
    assert "answered 410" in report.not_audited[0].why


def test_sizes_are_told_while_a_node_cleans(copies: list[Copy], monkeypatch: pytest.MonkeyPatch) -> None:
    path, listed = copies[1].path, os.scandir
    source = DirectorySource(str(path), str(path))
    gone = path / segment_name(1)
    freed = gone.stat().st_blocks * 512

    def cleaned_once_listed(where: str) -> Any:
        with listed(where) as there:
            found = list(there)
        gone.unlink(missing_ok=True)
        return nullcontext(found)

    before = source.sizes().segments
    monkeypatch.setattr("repl.audit.directory.os.scandir", cleaned_once_listed)
    assert source.sizes().segments == before - freed


def test_a_partial_report_is_written_and_read(
    tmp_path: Path, copies: list[Copy], capsys: pytest.CaptureFixture[str]
) -> None:
    report = audited(*copies, jobs=without(copies[1], 2))
    first, last = span(copies[0], 2)
    out = tmp_path / "report.json"
    write_outputs(report, [str(out)])
    again = read_report(str(out))
    assert again.not_audited == report.not_audited
    assert json.loads(out.read_text())["partial"] is True
    rows = [row for row in pq.read_table(BytesIO(parquet_of(report))).to_pylist() if row["record"] == "unread"]
    assert [(row["node"], row["file"], row["first"], row["last"]) for row in rows] == [
        ("n2", segment_name(2), first, last)
    ]
    page = page_of(report).decode()
    assert "partial: not everything was audited" in page
    assert "Not audited (1)" in page
    assert f"not audited: VLSN {first:,} to {last:,}" in page
    print_report(report)
    told = capsys.readouterr().out
    assert "PARTIAL, not everything was audited: equal as far as it was read, from VLSN 1 to 1990" in told
    assert f"not audited: segments {copies[1].path} {segment_name(2)} VLSN {first} to {last}: " in told
    with pytest.raises(BadArgument, match="was partial"):
        read_since(str(out), deep=False)


def test_nothing_is_repaired_by_a_partial_report(left: Left, tmp_path: Path) -> None:
    path = tmp_path / "n1"
    shutil.copytree(left.paths["n1"], path)
    number = Forge(path).active()[1]
    kept = (path / segment_name(number)).read_bytes()
    jobs = Before("read", lambda: (path / segment_name(number)).unlink())
    report = audited(path, left.paths["n2"], left.paths["n3"], jobs=jobs)
    (path / segment_name(number)).write_bytes(kept)
    with pytest.raises(BadArgument, match="partial"):
        Repair(str(path), report, PosixDisk(), LmdbStores()).plan()


def written(group: Group, entries: int) -> None:
    for number in range(entries):
        call("POST", f"{group.master}/v1/entries", body=b"%d " % number + b"." * 500_000, headers=OCTETS, timeout_s=30)


@pytest.mark.real
def test_real_nodes_that_are_killed_in_the_middle(group: Group) -> None:
    written(group, 8)
    group.settle()
    urls = [group.urls[name] for name in NAMES]
    victim = next(name for name in NAMES if name != group.leader)
    found = audited(*urls, jobs=Before("read", lambda: group.kill(victim)))
    assert (found.findings, found.exit_code, found.partial) == ([], 2, True)
    assert {each.source for each in found.not_audited} == {group.urls[victim]}
    assert all("is the node up" in each.why for each in found.not_audited)
    group.launch(victim)
    group.until(lambda: bool(group.status(victim)), f"{victim} answers")
    group.settle()

    def restarted() -> None:
        group.kill(victim)
        group.launch(victim)
        group.until(lambda: bool(group.status(victim)), f"{victim} answers")

    whole = audited(*urls, jobs=Before("read", restarted))
    assert (whole.findings, whole.partial, whole.equal) == ([], False, True)
