"""The local bench: what it says of figures, and that its works do what they say on a real log."""

from __future__ import annotations

from pathlib import Path

import pytest

from repl.bench.local.__main__ import WORKS
from repl.bench.local.fill import block_runs
from repl.bench.local.report import Figure, lines
from repl.bench.local.works import LocalBench
from vlsn import Log
from vlsn.format.block import decode, entries
from vlsn.real.disk import PosixDisk
from vlsn.real.lmdb_store import LmdbStores
from vlsn.verify.verify import verify


def test_a_figure_is_the_median_of_its_rounds_against_that_of_its_ceilings() -> None:
    rate = Figure("pairs", 64, "/s", (90.0, 400.0, 100.0), "read", (1_000.0, 10.0, 800.0), aim=100.0)
    assert (rate.value, rate.ceiling, rate.ratio, rate.reached) == (100, 800, 0.125, True)
    share = Figure("verify", 1, "MB/s", (399.0,), "read", (800.0,), aim_ratio=0.5)
    assert (share.reached, share.aimed) == (False, "≥ 0.5 of it")
    seconds = Figure("open", 1, "s", (0.25,), "cold read", (0.05,), aim=0.5, lower=True)
    assert (seconds.ratio, seconds.reached, seconds.aimed) == (0.2, True, "≤ 0.5 s")
    assert Figure("verify-bare", 64, "MB/s", (1.0,), "read", (2.0,)).json()["reached"] is None
    assert [line.split()[-1] for line in lines([rate, share])] == ["aim", "reached", "MISSED"]


@pytest.mark.parametrize("count", [1, 64, 1000])
def test_filled_blocks_are_right_and_follow_on(count: int) -> None:
    runs = block_runs(5, term=3, entries=count, size=100, run_bytes=300_000)
    first = 5
    for run in (next(runs), next(runs)):
        assert run.bytes >= 300_000
        for block in run.blocks:
            header = decode(block)
            assert (header.term, header.first_vlsn, header.count) == (3, first, count)
            assert all(len(entry.value) == 100 for entry in entries(block, header))
            first += count
        assert run.last_vlsn == first - 1


@pytest.mark.real
def test_every_work_runs_on_a_log_whose_process_was_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("repl.bench.local.works.SINGLE_S", 0.05)
    bench = LocalBench(tmp_path / "log", entries=64, size=100, megabytes=5, rounds=1)
    bench.fill()
    assert bench.after_checkpoint > 50_000_000
    assert bench.log_mb > bench.after_checkpoint / 1e6
    figures = {work: getattr(bench, work.replace("-", "_"))() for work in WORKS}
    assert all(figure.value > 0 and figure.ceiling > 0 for figure in figures.values())
    assert not list(tmp_path.glob("log/*.vidx"))
    with Log.open(tmp_path / "log") as log:
        assert sum(1 for _ in log.pairs(to_vlsn=bench.last)) == bench.last
    assert verify(PosixDisk(), LmdbStores(), str(tmp_path / "log")).ok
