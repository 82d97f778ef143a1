"""``bench wal``: figures that add up, a read-back that finds what is wrong, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from repl.bench import wal
from repl.bench.raw_disk import synced_writes
from repl.bench.wal_report import Spread
from repl.cli.main import main
from vlsn import Log


@pytest.fixture(autouse=True)
def in_a_directory_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def test_its_figures_add_up_and_everything_is_read_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--threads", "3", "--entries", "40", "--size", "64", "--roll", "50", "--verify"]
    assert main(["bench", "wal", "--json", *arguments]) == 0
    row = json.loads(capsys.readouterr().out)
    promised = "work writers size batch acks seconds entries appends_per_s mb_per_s p50_ms p99_ms errors ceilings"
    assert set(promised.split()) <= set(row)
    assert (row["work"], row["writers"], row["entries"], row["errors"]) == ("wal", 3, 120, 0)
    assert row["latency_ms"]["count"] == 120
    shared = {int(number): syncs for number, syncs in row["appends_per_sync"]["histogram"].items()}
    assert sum(number * syncs for number, syncs in shared.items()) == 120
    assert sum(shared.values()) == row["syncs"] == row["sync_ms"]["count"]
    assert max(shared) <= 3
    assert row["rolls"]["request"] <= 2
    assert row["of_ceiling"] > 0
    assert row["verified"]["entries"] == 120
    assert row["verified"]["faults"] == []
    assert row["verified"]["segments"] >= 2
    assert list(tmp_path.iterdir()) == []

    assert main(["bench", "wal", "--entries", "5", "--verify"]) == 0
    text = capsys.readouterr().out
    assert "threads=1, entries=5 each" in text
    assert "verified 5 entries" in text


def test_with_a_sync_interval_few_appends_wait_and_all_are_there(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--threads", "2", "--entries", "300", "--size", "64", "--verify", "--json"]
    assert main(["bench", "wal", "--sync-interval", "100", *arguments]) == 0
    row = json.loads(capsys.readouterr().out)
    assert (row["sync_interval"], row["verified"]["entries"], row["verified"]["faults"]) == (100, 600, [])
    assert row["syncs"] < 100
    assert sum(int(number) * syncs for number, syncs in row["appends_per_sync"]["histogram"].items()) == 600


@pytest.mark.parametrize("harm", ["value", "number", "lost", "log"])
def test_reading_back_finds_what_is_not_as_it_was_acknowledged(harm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    load = wal._Run._load

    def harmed(run: wal._Run, log: Log) -> float:
        seconds = load(run, log)
        if harm == "value":
            run._pool = run._pool[::-1]
        elif harm == "number":
            log.append(run.value(0, 3))
        elif harm == "lost":
            run._samples[0].append(1)
        else:
            path = next(run._directory.glob("log/*1.vlog"))
            data = bytearray(path.read_bytes())
            data[data.index(run.value(0, 2))] ^= 1
            path.write_bytes(data)
        return seconds

    monkeypatch.setattr(wal._Run, "_load", harmed)
    assert main(["bench", "wal", "--entries", "6", "--size", "32", "--verify"]) == 1


def test_what_cannot_be_measured_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in (
        ["--threads", "0"],
        ["--size", "4"],
        ["--entries", "0"],
        ["--entries", "100000", "--bytes-max", "1000"],
    ):
        assert main(["bench", "wal", *wrong]) == 2
        assert capsys.readouterr().err.count("\n") == 1
    assert main(["bench"]) == 2


def test_a_spread_is_of_every_sample() -> None:
    spread = Spread(np.arange(1, 1002, dtype=np.float64)).json()
    assert (spread["count"], spread["min"], spread["p50"], spread["max"], spread["mean"]) == (1001, 1, 501, 1001, 501)
    assert (spread["p95"], spread["p999"]) == (951, 1000)
    assert Spread(np.zeros(0)).json() == {"count": 0}


def test_the_raw_ceiling_is_taken_of_groups_of_one_size(tmp_path: Path) -> None:
    assert len(synced_writes(tmp_path, 4096, 50)) == 50
