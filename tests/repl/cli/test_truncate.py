"""``vlsnlog truncate`` on a real directory: shown first, done with --yes only, refused where it must be."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from repl.cli.main import main
from tests.repl.cli.test_offline import flip, snapshot
from vlsn import Log
from vlsn.real.disk import PosixDisk
from vlsn.state import node_file


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    status = main([str(argument) for argument in arguments])
    said = capsys.readouterr()
    return status, said.out, said.err


def test_it_shows_first_and_cuts_only_with_yes(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = snapshot(directory)
    status, out, err = run(capsys, "truncate", directory, "--after", 5)
    assert (status, err) == (2, "vlsnlog truncate: nothing was changed; add --yes to do it\n")
    assert "would be lost: VLSN 6 to 11: 6 entries in 3 blocks" in out
    assert "VLSN 6 to 11 (6 entries) were DURABLE" in out
    assert snapshot(directory) == before

    status, out, _ = run(capsys, "truncate", directory, "--after", 5, "--yes", "--json")
    found: dict[str, Any] = json.loads(out)
    assert status == 0
    assert found.pop("bytes") > 300
    assert found == {
        "after": 5, "first": 6, "last": 11, "entries": 6, "blocks": 3, "dtvlsn": 11, "durable": 6,
        "terms": [{"term": 1, "first": 6, "last": 11}], "done": True,
    }  # fmt: skip
    status, out, _ = run(capsys, "verify", directory, "--json")
    assert (status, [each["rule"] for each in json.loads(out)["findings"]]) == (1, ["overmarked-durable"])
    _, out, _ = run(capsys, "dump", directory, "--json", "--all", "--from", 6)
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row["first"] for row in rows if row["overmarked"]] == [6, 8, 10]
    record = node_file.read(PosixDisk(), str(directory / "node.id"))
    assert (record.floor_term, record.floor_vlsn) == (1, 11)
    with Log.open(str(directory)) as log:
        assert [entry.value for entry in log.read()][-2:] == [b"entry 1", b"x" * 100]
        assert log.append(b"again")[0] == 7

    status, out, _ = run(capsys, "truncate", directory, "--after", 7)
    assert (status, out) == (0, f"{directory}: the log ends at VLSN 7 already: nothing to cut\n")


def test_what_cannot_be_is_refused_in_one_line(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for after, said in ((12, "it holds VLSN 1 to 11"), (4, "is inside a block of VLSN 4 to 5; cut after 3 or 5")):
        status, _, err = run(capsys, "truncate", directory, "--after", after, "--yes")
        assert (status, err.count("\n")) == (2, 1)
        assert said in err
    for wrong in ([], ["--after", 5, "--accept-floor"], ["--after", 0]):
        assert run(capsys, "truncate", directory, *wrong)[0] == 2
    status, _, err = run(capsys, "truncate", directory.parent, "--after", 5)
    assert (status, "holds no log; name one of its nodes: log" in err) == (2, True)
    with Log.open(str(directory)):
        for asked in (("--after", "5"), ("--accept-floor",)):
            status, _, err = run(capsys, "truncate", directory, "--yes", *asked)
            assert (status, "stop it first" in err) == (2, True)
    flip(directory, b"entry 3")
    status, _, err = run(capsys, "truncate", directory, "--after", 5, "--yes")
    assert (status, "is damaged at" in err) == (1, True)


def test_a_floor_is_shown_then_lifted(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "truncate", directory, "--accept-floor", "--yes")
    assert (status, out) == (0, f"{directory}: there is no vote floor\n")
    path = str(directory / "node.id")
    file = node_file.NodeFile.open(PosixDisk(), path)
    file.replace(replace(file.record, floor_term=1, floor_vlsn=20))
    file.close()
    status, out, _ = run(capsys, "truncate", directory, "--accept-floor")
    assert status == 2
    assert "VLSN 12 to 20, which this node once had, may be lost" in out
    assert node_file.read(PosixDisk(), path).floor_vlsn == 20
    status, out, _ = run(capsys, "truncate", directory, "--accept-floor", "--yes", "--json")
    assert (status, json.loads(out)) == (
        0,
        {
            "floor_term": 1, "floor_vlsn": 20, "last_term": 1, "last": 11,
            "first_lost": 12, "last_lost": 20, "done": True,
        },
    )  # fmt: skip
    assert node_file.read(PosixDisk(), path).floor_vlsn == 0
