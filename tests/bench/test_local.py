"""The bench of a local log: its works do what they say on a real log."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench import local_log
from tests.bench.local_fill import block_runs
from tests.bench.local_log import WORKS, LocalBench
from tests.bench.report import Aimed, lines, missed
from vlsn import Log
from vlsn.format.block import decode, entries
from vlsn.real.disk import PosixDisk
from vlsn.real.lmdb_store import LmdbStores
from vlsn.verify.verify import verify


def test_a_figure_is_the_median_of_its_rounds_against_that_of_its_ceilings(tmp_path: Path) -> None:
    bench = LocalBench(tmp_path, entries=64, size=100, megabytes=1, rounds=3)
    rate = bench._figure("/s", [90.0, 400.0, 100.0], "read", [1_000.0, 10.0, 800.0], aim="≥ 100")
    assert (rate["measured"], rate["ceiling"], rate["of_it"]) == (Aimed(100, "≥ 100"), 800, 0.125)
    share = bench._figure("MB/s", [399.0], "read", [800.0], ratio_aim="≥ 0.5")
    assert missed(("verify", share)) == ["verify: of it 0.4988, wanted ≥ 0.5"]
    seconds = bench._figure("s", [0.25], "cold read", [0.05], aim="≤ 0.5", lower=True)
    assert seconds["of_it"] == 0.2 and not missed(("open", seconds))
    assert "MISSED" in "\n".join(lines(("verify", share)))


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
    monkeypatch.setattr(local_log, "SINGLE_S", 0.05)
    bench = LocalBench(tmp_path / "log", entries=64, size=100, megabytes=5, rounds=1)
    bench.fill()
    assert bench.after_checkpoint > 50_000_000
    assert bench.log_mb > bench.after_checkpoint / 1e6
    for work in WORKS:
        figure = getattr(bench, work.replace("-", "_"))()
        assert all(getattr(figure[each], "value", figure[each]) > 0 for each in ("measured", "ceiling", "of_it"))
    assert not list(tmp_path.glob("log/*.vidx"))
    with Log.open(tmp_path / "log") as log:
        assert sum(1 for _ in log.pairs(to_vlsn=bench.last)) == bench.last
    assert verify(PosixDisk(), LmdbStores(), str(tmp_path / "log")).ok
