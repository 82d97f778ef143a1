"""The commands that look at a directory: dump, verify, and the audit's report."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import pytest

from repl.audit.findings import Finding
from repl.audit.report import AuditReport, SourceReport
from repl.cli.audit import print_report, verdict
from repl.cli.main import main
from vlsn import Log


def flip(directory: Path, text: bytes) -> None:
    path = next(path for path in sorted(directory.glob("*.vlog")) if text in path.read_bytes())
    data = bytearray(path.read_bytes())
    data[data.index(text)] ^= 1
    path.write_bytes(data)


def snapshot(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}


def test_a_whole_directory_verifies(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = snapshot(directory)
    assert main(["verify", str(directory)]) == 0
    assert ": ok: VLSN 1 to " in capsys.readouterr().out
    assert main(["verify", str(directory), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["ok"], report["torn_tail"], report["findings"]) == (True, False, [])
    assert snapshot(directory) == before


def test_a_flipped_bit_is_found_with_its_place(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dump", str(directory), "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    flip(directory, b"entry 3")
    damaged = next(row for row in rows if row["first"] <= rows[-1]["last"] - 3 <= row["last"])
    assert main(["verify", str(directory), "--json"]) == 1
    findings = json.loads(capsys.readouterr().out)["findings"]
    assert (damaged["file"], damaged["offset"], damaged["first"]) in [
        (each["file"], each["offset"], each["vlsn"]) for each in findings
    ]
    assert main(["verify", str(directory)]) == 1
    assert "NOT OK, 1 finding: " in capsys.readouterr().out
    assert main(["dump", str(directory)]) == 1
    assert "DAMAGED" in capsys.readouterr().out


def test_dump_shows_one_object_a_frame_in_the_documented_fields(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["dump", str(directory), "--json", "--all"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    fields = ["file", "offset", "lsn", "kind", "term", "first", "last", "count", "overmarked", "damaged"]
    assert all(list(row)[: len(fields)] == fields for row in rows)
    blocks = [row for row in rows if row["kind"] == "BLOCK"]
    assert blocks[0]["first"] == 1
    assert all(one["last"] + 1 == two["first"] for one, two in pairwise(blocks))
    assert len(rows) > len(blocks)
    last = blocks[-1]["last"]
    assert main(["dump", str(directory), "--json", "--from", str(last), "--to", str(last)]) == 0
    assert [json.loads(line)["last"] for line in capsys.readouterr().out.splitlines()] == [last]


def test_a_directory_without_pages_says_so(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["page", "print", str(directory)]) == 0
    assert capsys.readouterr().out == "there are no pages\n"
    assert main(["page", "print", str(directory), "--json"]) == 0
    assert capsys.readouterr().out == ""


def test_dump_filters_reverses_and_lines_up(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def rows(*options: str) -> list[dict[str, Any]]:
        assert main(["dump", str(directory), "--json", *options]) == 0
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    every = rows("--all")
    assert rows("--all", "--reverse") == every[::-1]
    assert {row["kind"] for row in rows("--kind", "checkpoint-end", "--kind", "checkpoint-start")} == {
        "CHECKPOINT_START",
        "CHECKPOINT_END",
    }
    assert [row["first"] for row in rows("--kind", "term")] == [1]
    assert rows("--term", "9") == []
    place = every[3]
    assert rows("--all", "--from-lsn", f"1:{place['offset']}")[0] == place
    assert rows("--all", "--to-lsn", str(place["lsn"]))[-1] == place
    assert rows("--from-lsn", f"00000001.vlog:{place['offset']}") == rows("--from-lsn", hex(place["lsn"]))
    assert main(["dump", str(directory), "--all"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(every)
    assert len({line.index("  ", 26) for line in lines if "BLOCK" in line}) == 1
    for wrong in (["--from-lsn", "x"], ["--from-lsn", "2:1", "--to-lsn", "1:1"], ["--kind", "x"], ["--term", "0"]):
        assert main(["dump", str(directory), *wrong]) == 2
    capsys.readouterr()


def test_one_unreadable_slot_of_the_node_file_is_a_note_with_status_0(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = directory / "node.id"
    whole = path.read_bytes()
    path.write_bytes(b"\xff" + whole[1:])
    assert main(["verify", str(directory)]) == 0
    said = capsys.readouterr().out
    assert "note: node.id: slot 1 of 2 cannot be read (no node file); the other one is whole" in said
    assert ": ok: VLSN 1 to " in said
    assert main(["verify", str(directory), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["notes"]) == 1
    with Log.open(str(directory)):
        pass
    assert path.read_bytes()[:4096] == path.read_bytes()[4096:]
    assert main(["verify", str(directory), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["notes"] == []


def test_verify_of_an_open_log_asks_for_live(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Log.open(str(directory)) as log:
        log.append([b"while open"])
        assert main(["verify", str(directory)]) == 2
        assert "--live" in capsys.readouterr().err
        assert main(["verify", str(directory), "--live"]) == 0
        assert main(["dump", str(directory)]) == 0


def report(**changes: object) -> AuditReport:
    source = SourceReport(
        source="DIR/n1", node="n1", first=1, last=90, dtvlsn=80, bytes=5000, blocks=9, entries=90, live=False,
        torn_tail=False,
    )  # fmt: skip
    fields: dict[str, object] = {
        "equal": True, "compared_from": 1, "compared_to": 80, "sources": [source], "findings": [],
        "ranges_differing": 0, "tasks": 7, "seconds": 1.5,
    }  # fmt: skip
    return AuditReport(**{**fields, **changes})  # type: ignore[arg-type]


def test_the_audits_report_says_verdict_sources_and_findings(capsys: pytest.CaptureFixture[str]) -> None:
    print_report(report())
    said = capsys.readouterr().out
    assert said.startswith("equal from VLSN 1 to 80\n")
    assert "DIR/n1" in said
    assert "7 Spark tasks" in said
    finding = Finding(
        rule="divergence", source="DIR/n3", file="00000002.vlog", offset=8192, vlsn=31, more={"value": "x"}
    )
    print_report(report(equal=False, findings=[finding] * 30))
    said = capsys.readouterr().out
    assert said.startswith("NOT EQUAL")
    assert "finding: divergence: DIR/n3 00000002.vlog offset 8192 VLSN 31: value x" in said
    assert "and 10 more findings" in said
    other = {"source": "DIR/n1", "file": "00000001.vlog", "offset": 4096, "key": None, "value": "y"}
    more = {"key": None, "value": "x", "other": other}
    print_report(report(equal=False, findings=[replace(finding, detail="two copies differ in value", more=more)]))
    assert (
        "finding: divergence: two copies differ in value\n"
        "  DIR/n3 00000002.vlog offset 8192: value x\n"
        "  DIR/n1 00000001.vlog offset 4096: value y\n"
    ) in capsys.readouterr().out
    print_report(report(compared_from=0, compared_to=0))
    assert "nothing was compared" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("terminal", "no_color", "start"),
    [(True, False, "\x1b[32m\x1b[1mequal"), (True, True, "equal"), (False, False, "equal")],
)
def test_the_verdict_is_coloured_on_a_terminal_that_wants_it(
    terminal: bool, no_color: bool, start: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    if no_color:
        monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr("sys.stdout.isatty", lambda: terminal)
    click.echo(verdict(report()), color=True)
    assert capsys.readouterr().out.startswith(start)


# index


def test_the_index_is_shown_as_the_log_has_it(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Log.open(str(directory)) as log:
        for number in range(300):
            log.append(b"%d" % number * 1_000)
        last = log.range.last
    before = snapshot(directory) | snapshot(directory / "index")
    assert main(["index", str(directory), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["range"] == {"first": 1, "last": last, "last_sync": last, "last_txn_end": 0}
    assert (shown["ok"], shown["running"], shown["unfinished"], shown["findings"]) == (True, False, False, [])
    buckets = shown["buckets"]
    assert (buckets[0]["first"], buckets[-1]["last"]) == (1, last)
    assert all(low["last"] < high["first"] for low, high in pairwise(buckets))
    assert shown["mappings"] == sum(bucket["mappings"] for bucket in buckets) > 20
    assert shown["vlsns_per_mapping"] == round(last / shown["mappings"], 2)
    assert 4_000 < shown["distance_max"] <= 100_000
    assert shown["bytes"] < shown["store_bytes"] == (directory / "index" / "data.mdb").stat().st_size
    assert main(["index", str(directory)]) == 0
    text = capsys.readouterr().out
    assert text.splitlines()[0].split()[:4] == ["first", "last", "segment", "mappings"]
    assert f"VLSN 1 to {last}; " in text.splitlines()[-1]
    assert snapshot(directory) | snapshot(directory / "index") == before


def test_the_index_of_a_running_log_is_that_of_its_last_checkpoint(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Log.open(str(directory)) as log:
        at = log.checkpoint().last_vlsn
        log.append(b"later")
        assert main(["index", str(directory), "--json"]) == 0
        shown = json.loads(capsys.readouterr().out)
    assert (shown["running"], shown["range"]["last"]) == (True, at)


def test_one_is_counted_as_one(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["index", str(directory)]) == 0
    assert " in 1 bucket, one for " in capsys.readouterr().out
    assert main(["verify", str(directory)]) == 0
    assert " in 6 blocks, 1 segment, " in capsys.readouterr().out


def test_a_rotten_bucket_of_the_index_is_a_finding(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = directory / "index" / "data.mdb"
    data = bytearray(path.read_bytes())
    at = data.rindex(b"b" + (1).to_bytes(8, "big"))  # the bucket's key; its value follows
    data[at + 9 + 4 + 6] ^= 1
    path.write_bytes(data)
    assert main(["index", str(directory), "--json"]) == 1
    shown = json.loads(capsys.readouterr().out)
    assert not shown["ok"]
    assert "checksum" in shown["findings"][0]
    data[4096 + 16] ^= 1
    path.write_bytes(data)
    assert main(["index", str(directory)]) == 1
    assert "finding: " in capsys.readouterr().out


def test_no_index_to_show_is_refused(directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["index", str(tmp_path)]) == 2
    for path in (directory / "index").iterdir():
        path.unlink()
    assert main(["index", str(directory)]) == 2
    assert "has no index" in capsys.readouterr().err
