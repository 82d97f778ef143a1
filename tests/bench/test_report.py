"""The promises of a report: exact percentiles, and the fields of ``--json``."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from repl.bench.report import BenchReport, Ceilings, Outcome, Samples

CEILINGS = Ceilings(fdatasync_p50_ms=0.2, ws_msgs_per_s=50_000.0, seq_write_mb_per_s=1_500.0)


def _report(outcome: Outcome) -> BenchReport:
    return BenchReport("append", 64, 100, 1, "majority", outcome, CEILINGS)


def test_report_json_has_the_promised_fields_and_counts_by_its_own_seconds() -> None:
    times = np.arange(1, 101, dtype=np.float64)
    row = _report(Outcome(200_000, 20_000_000, 4.0, times, errors=3)).json()
    assert row == {
        "work": "append",
        "writers": 64,
        "size": 100,
        "batch": 1,
        "acks": "majority",
        "seconds": 4.0,
        "entries": 200_000,
        "appends_per_s": 50_000.0,
        "mb_per_s": 5.0,
        "p50_ms": 50.5,
        "p99_ms": 99.01,
        "errors": 3,
        "ceilings": {"fdatasync_p50_ms": 0.2, "ws_msgs_per_s": 50_000.0, "seq_write_mb_per_s": 1_500.0},
        "memory_touched_mb": 0,
        "memory_fresh_mb": 0,
        "memory_touch_s": 0.0,
    }
    assert json.loads(json.dumps(row)) == row


def test_report_of_a_work_without_single_operations_has_no_percentiles() -> None:
    report = _report(Outcome(10, 1_000, 2.0, np.empty(0), more={"log_bytes": 4096}))
    row = report.json()
    assert row["p50_ms"] is None
    assert row["p99_ms"] is None
    assert row["log_bytes"] == 4096
    assert not any("p50" in line and "latency" in line for line in report.lines())


def test_report_lines_name_the_ceilings_of_the_same_run() -> None:
    text = "\n".join(_report(Outcome(10, 1_000, 2.0, np.array([0.5, 1.5]))).lines())
    assert "fdatasync p50 0.200 ms" in text
    assert "p50 1.000 ms" in text


def test_report_has_the_ceiling_of_tls_only_if_tls_was_measured() -> None:
    plain = _report(Outcome(10, 1_000, 2.0, np.empty(0)))
    assert "TLS" not in "\n".join(plain.lines()) and "tls_stream_mb_per_s" not in plain.json()["ceilings"]
    secure = replace(plain, ceilings=replace(CEILINGS, tls_stream_mb_per_s=812.5))
    assert "TLS stream 812 MB/s" in "\n".join(secure.lines())
    assert secure.json()["ceilings"]["tls_stream_mb_per_s"] == 812.5


def test_samples_are_kept_in_nanoseconds_and_given_in_milliseconds(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = Samples()
    assert len(samples.milliseconds()) == 0
    clock = iter([5_000_000, 7_500_000])
    samples.now = lambda: next(clock)
    samples.since(samples.now())
    assert samples.milliseconds().tolist() == [2.5]
