"""``bench wal``: measures the embedded log alone, with threads that append, and the raw disk in the same run.

The figures are those of HBase's WALPerformanceEvaluation: operations a second, and three distributions (of append
times, of sync times, and of the number of appends in each sync). An operation is one append of one entry.

The upper limit is measured by a loop without our code. The loop writes and syncs as many bytes as the log's mean group
in one call, into a file of zeros in the same directory.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import time
from array import array
from contextlib import AbstractContextManager
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final

import numpy as np

from repl.bench.raw_disk import synced_writes
from repl.bench.target import check_space
from repl.bench.wal_report import FRAMING_BYTES, STAMP, Spread, WalOptions, WalReport
from vlsn import Log
from vlsn.embedded.waiting_appends import WaitingAppends
from vlsn.errors import QueueFull, VlsnLogError
from vlsn.ids import Vlsn
from vlsn.state.options import Durability

CEILING_SYNCS_MAX: Final = 5_000
_POOL_BYTES: Final = 1 << 16


class _Syncs(WaitingAppends):
    """Records for each sync the duration, including its write, and its numbers of entries and bytes."""

    def __init__(self, latch: AbstractContextManager[object]) -> None:
        super().__init__(latch)
        self.sync_ms, self.shared, self.group_bytes = array("d"), array("q"), array("q")
        self._last = 0
        self._before = (0.0, 0)

    def synced(self, last_vlsn: Vlsn) -> None:
        stats = self.log.stats
        now = (stats.sync_seconds.sum, stats.bytes)
        self.sync_ms.append((now[0] - self._before[0]) * 1e3)
        self.group_bytes.append(now[1] - self._before[1])
        self.shared.append(last_vlsn - self._last)
        self._before, self._last = now, last_vlsn
        super().synced(last_vlsn)

    def restart(self) -> None:
        """Drops all records so far."""
        for column in (self.sync_ms, self.shared, self.group_bytes):
            del column[:]


class CountedLog(Log):
    _waiting: _Syncs
    _listener = _Syncs

    @property
    def syncs(self) -> _Syncs:
        return self._waiting

    @property
    def rolls(self) -> dict[str, int]:
        return dict(self._log.stats.rolls)

    @property
    def late_standbys(self) -> int:
        return self._log.placement.late_standbys


def run_wal(options: WalOptions) -> WalReport:
    """Runs ``bench wal`` in a temporary directory (``TMPDIR``), which is removed at the end. Raises ``BadArgument``,
    ``NoSpace``, ``LogFailed``."""
    options.check()
    directory = Path(tempfile.mkdtemp(prefix="vlsnlog-bench-"))
    try:
        check_space(directory, options.threads * options.entries * (options.size + FRAMING_BYTES))
        return _Run(options, directory).run()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


class _Run:
    def __init__(self, options: WalOptions, directory: Path) -> None:
        self._options = options
        self._directory = directory
        self._pool = os.urandom(_POOL_BYTES) + bytes(options.size)
        self._samples = [array("q") for _ in range(options.threads)]
        self._errors: list[str] = []
        self._rolls: SimpleQueue[bool] = SimpleQueue()
        self._done = count(1)

    def run(self) -> WalReport:
        log = CountedLog.open(str(self._directory / "log"))
        assert isinstance(log, CountedLog)
        try:
            log.append([b""])  # creates and zeroes the first segment before any measurement
            log.syncs.restart()
            seconds = self._load(log)
            syncs = log.syncs
            columns = [
                np.array(column, dtype=np.float64) for column in (syncs.sync_ms, syncs.shared, syncs.group_bytes)
            ]
            rolls, late = log.rolls, log.late_standbys
        finally:
            log.close()
        sync_ms, shared, group_bytes = columns
        size = max(8, round(float(group_bytes.mean()))) if len(group_bytes) else 8
        latencies = np.concatenate([np.array(each, dtype=np.int64) for each in self._samples]) / 1e6
        return WalReport(
            options=self._options,
            seconds=seconds,
            latency_ms=Spread(latencies),
            sync_ms=Spread(sync_ms),
            appends_per_sync=Spread(shared),
            group_bytes=Spread(group_bytes),
            rolls=rolls,
            late_standbys=late,
            ceiling_ms=Spread(synced_writes(self._directory, size, min(len(sync_ms), CEILING_SYNCS_MAX))),
            ceiling_bytes=size,
            errors=self._errors,
            verified=self._verify() if self._options.verify else None,
        )

    def _load(self, log: Log) -> float:
        start = threading.Barrier(self._options.threads + 1)
        threads = [
            threading.Thread(target=self._append, args=(log, number, start), name=f"bench-{number}")
            for number in range(self._options.threads)
        ]
        roller = threading.Thread(target=self._roll, args=(log,), name="bench-roller")
        for thread in (*threads, roller):
            thread.start()
        start.wait()
        began = time.perf_counter()
        for thread in threads:
            thread.join()
        log.sync()
        seconds = time.perf_counter() - began
        self._rolls.put(False)
        roller.join()
        return seconds

    def _append(self, log: Log, thread: int, start: threading.Barrier) -> None:
        options, samples, now = self._options, self._samples[thread], time.perf_counter_ns
        start.wait()
        try:
            for number in range(options.entries):
                began = now()
                self._put(log, self.value(thread, number), wait=(number + 1) % options.sync_interval == 0)
                samples.append(now() - began)
                if options.roll and next(self._done) % options.roll == 0:
                    self._rolls.put(True)
        except VlsnLogError as error:
            self._errors.append(f"thread {thread}: {error}")

    def _put(self, log: Log, value: bytes, *, wait: bool) -> None:
        if wait:
            log.append(value)
            return
        try:
            log.append(value, durability=Durability.NO_SYNC)
        except QueueFull:
            log.sync()
            log.append(value)

    def value(self, thread: int, number: int) -> bytes:
        at = (thread * 7919 + number * 104_729) % _POOL_BYTES
        return STAMP.pack(thread, number) + self._pool[at : at + self._options.size - STAMP.size]

    def _roll(self, log: Log) -> None:
        """Starts a new segment on another thread, so that no append waits for it."""
        try:
            while self._rolls.get():
                log.rotate()
        except VlsnLogError as error:
            self._errors.append(f"roll: {error}")

    def _verify(self) -> dict[str, Any]:
        """Opens the log again, reads all entries, and verifies the directory."""
        from vlsn.real.disk import PosixDisk
        from vlsn.real.lmdb_store import LmdbStores
        from vlsn.verify.verify import verify

        began = time.perf_counter()
        acknowledged = [len(each) for each in self._samples]
        found: list[int] = [0] * self._options.threads
        faults: list[str] = []
        try:
            faults += self._read_back(found)
        except VlsnLogError as error:
            faults.append(str(error))
        missing = sum(acknowledged) - sum(found)
        if missing > 0 and not faults:
            faults.append(f"{missing} acknowledged entries are not there")
        report = verify(PosixDisk(), LmdbStores(), str(self._directory / "log"))
        faults += [f"{each.rule} at {each.offset} of {each.file}: {each.detail}" for each in report.findings[:10]]
        seconds = round(time.perf_counter() - began, 3)
        return {"entries": sum(found), "segments": report.segments, "seconds": seconds, "faults": faults}

    def _read_back(self, found: list[int]) -> list[str]:
        """Counts each thread's entries into ``found``, up to the first wrong entry. Returns a description of that
        entry."""
        last = 0
        with Log.open(str(self._directory / "log")) as log:
            for entry in log.read():
                if len(entry.value) < STAMP.size:
                    continue  # the entry from before the threads started
                thread, number = STAMP.unpack_from(entry.value)
                if entry.vlsn <= last or thread >= len(found) or number != found[thread]:
                    return [f"VLSN {entry.vlsn} is number {number} of thread {thread}, out of order"]
                if entry.value != self.value(thread, number):
                    return [f"VLSN {entry.vlsn} has another value than was appended"]
                found[thread] += 1
                last = entry.vlsn
        return []
