"""A real process with a real LMDB, killed as it appends: the index it leaves is its log's."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.fakes.seeds import seeds
from vlsn.embedded.log import Log
from vlsn.index.report import read_report
from vlsn.real.disk import PosixDisk
from vlsn.real.lmdb_store import LmdbStores
from vlsn.state.options import LogOptions
from vlsn.state.state_store import StateStore
from vlsn.verify.verify import verify

OPTIONS = LogOptions(segment_bytes=256 << 10, checkpoint_bytes=1 << 30)
WRITER = """
import sys, threading
from vlsn import Log
from vlsn.state.options import LogOptions

log = Log.open(sys.argv[1], LogOptions(segment_bytes=256 << 10, checkpoint_bytes=1 << 30))

def append():
    while True:
        log.append([b"x" * 700] * 3)

for _ in range(3):
    threading.Thread(target=append, daemon=True).start()
while True:
    print(log.checkpoint().last_vlsn, flush=True)
"""


def pointer(directory: Path) -> int:
    state = StateStore(LmdbStores().open(str(directory / "state"), map_bytes=1 << 30, read_only=True))
    checkpoint = state.checkpoint()
    state.close()
    return checkpoint.id if checkpoint is not None else 0


@pytest.mark.real
@pytest.mark.parametrize("seed", seeds(2))
def test_an_index_whose_process_was_killed_is_good_and_the_logs(tmp_path: Path, seed: int) -> None:
    directory = tmp_path / "log"
    drawn = random.Random(seed)
    before = last = 0
    for _ in range(3):
        with subprocess.Popen([sys.executable, "-c", WRITER, str(directory)], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            for _ in range(drawn.randint(2, 12)):
                before, last = last, int(process.stdout.readline())
            time.sleep(drawn.random() * 0.02)  # anywhere in the next one
            process.send_signal(signal.SIGKILL)
        report = read_report(LmdbStores(), str(directory / "index"))
        assert report.findings == []
        assert report.checkpoint in (pointer(directory), pointer(directory) + 1)
        assert report.range.last >= before, "the log as it was when the last one began"
        assert verify(PosixDisk(), LmdbStores(), str(directory)).ok, "every mapping leads to its block"
    with Log.open(str(directory), OPTIONS) as log:
        assert log.range.last > last
        assert sum(1 for _ in log.read()) >= last - 3
    assert verify(PosixDisk(), LmdbStores(), str(directory)).ok
    assert not list(tmp_path.glob("log/index.aside*"))
