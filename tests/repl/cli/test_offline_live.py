"""dump and verify beside a log that appends, rolls, rolls back and makes checkpoints in real threads."""

from __future__ import annotations

import json
import os
from pathlib import Path
from threading import Event, Thread

import pytest

from repl.cli.main import main
from vlsn import Log
from vlsn.state.options import LogOptions

OPTIONS = LogOptions(segment_bytes=128 << 10, checkpoint_bytes=256 << 10, durable_when_synced=False, idle_end_s=0.05)
LOOKS_MAX = 400


def busy(log: Log, stop: Event, counts: dict[str, int]) -> None:
    number = 0
    while not stop.is_set():
        number += 1
        first, _ = log.append([b"%d" % number, os.urandom(700)])
        if number % 40 == 0:
            log.rotate()
            counts["rolls"] += 1
        if number % 25 == 0:
            last = first
            for _ in range(12):
                _, last = log.append([os.urandom(3000)])
            assert log.durable_vlsn < last
            log.rollback(first + 1)
            counts["rollbacks"] += 1
        if number % 30 == 0:
            log.raise_durable(log.range.last_sync)
            log.checkpoint()


def test_no_false_finding_beside_a_busy_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = str(tmp_path / "log")
    counts = {"rolls": 0, "rollbacks": 0}
    stop = Event()
    with Log.open(directory, OPTIONS) as log:
        log.append([b"first"])
        writer = Thread(target=busy, args=(log, stop, counts))
        writer.start()
        try:
            lasts = []
            for _ in range(LOOKS_MAX):
                if counts["rollbacks"] >= 6 and counts["rolls"] >= 3:
                    break
                status = main(["verify", directory, "--live", "--json"])
                report = json.loads(capsys.readouterr().out)
                assert (status, report["findings"], report["torn_tail"]) == (0, [], False)
                lasts.append(report["last"])
                assert main(["dump", directory, "--all", "--json", "--reverse"]) == 0
                capsys.readouterr()
        finally:
            stop.set()
            writer.join()
    assert counts["rollbacks"] >= 6, counts
    assert counts["rolls"] >= 3, counts
    assert len(set(lasts)) > 2
    assert main(["verify", directory, "--json"]) == 0
    capsys.readouterr()
