"""A benchmark as a person runs it: the command, with ceilings and a cluster of its own."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import msgspec
import pytest

from tests.e2e.commands import VLSNLOG

pytestmark = pytest.mark.real


def test_a_benchmark_prints_what_it_measured_beside_the_ceilings_and_leaves_nothing(tmp_path: Path) -> None:
    ran = subprocess.run(
        [VLSNLOG, "bench", "append", "--seconds", "0.3", "--writers", "4", "--no-touch-memory", "--json"],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, b"")
    report = msgspec.json.decode(ran.stdout)
    assert (report["work"], report["writers"], report["acks"], report["errors"]) == ("append", 4, "majority", 0)
    assert report["entries"] > 0 and 0 < report["p50_ms"] <= report["p99_ms"]
    assert report["appends_per_s"] == pytest.approx(report["entries"] / report["seconds"], rel=0.01)
    assert all(report["ceilings"][each] > 0 for each in ("fdatasync_p50_ms", "ws_msgs_per_s", "seq_write_mb_per_s"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("work", ["append", "scan", pytest.param("http", marks=pytest.mark.long)])
def test_a_benchmark_by_tls_measures_its_own_cluster_beside_a_stream_of_tls(work: str, tmp_path: Path) -> None:
    ran = subprocess.run(
        [
            *(VLSNLOG, "bench", work, "--tls", "--seconds", "0.3", "--writers", "4", "--bytes-max", "300000000"),
            *("--no-touch-memory", "--json"),
        ],
        env={**os.environ, "TMPDIR": str(tmp_path), "VLSNLOG_TLS_CA": str(tmp_path / "of-another-group.pem")},
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, b"")
    report = msgspec.json.decode(ran.stdout)
    assert report["errors"] == 0 and report["entries"] > 0
    assert report["ceilings"]["tls_stream_mb_per_s"] > 0
    assert list(tmp_path.iterdir()) == [], "nor are certificates or keys left"
