"""The works on one log, and the ceiling of each: the same bytes touched without our code.

    open       a log whose process was killed nearly a checkpoint's worth after its last checkpoint
    verify     all of it, with sidecars; ``verify-bare`` without, so frame by frame
    single     one entry at a random VLSN
    pairs      all of it as (VLSN, value) pairs
    arrow      all of it as Arrow batches, as Spark is given them

Reads come from the page cache unless they say *cold*: that is the higher ceiling.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

from repl.bench.memory import Reserve
from repl.bench.target import check_space
from tests.bench.process import command, environment
from tests.bench.report import Aimed, Figures, Sections
from vlsn.embedded.log import Log
from vlsn.errors import LogFailed
from vlsn.limits import MIB, SEGMENT_BYTES
from vlsn.real.disk import PosixDisk
from vlsn.real.lmdb_store import LmdbStores
from vlsn.real.threads import ReadAhead
from vlsn.verify.verify import verify

SINGLE_S = 1.0
SINGLE_CHECK = 256
"""Reads between two looks at the clock."""
PAIRS_AIM = {1: "≥ 1500000", 64: "≥ 3000000", 1000: "≥ 3000000"}
WORKS = ("single", "pairs", "arrow", "verify", "verify-cold", "verify-bare", "open")
"""The works in their order: the last two leave the log with segments that have no sidecar."""


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--mb", type=int, default=500, help="of each log, at least")
    parser.add_argument("--size", type=int, default=100, help="bytes of an entry")
    parser.add_argument("--entries", type=int, nargs="+", default=(1, 64, 1000), help="entries a block, a log for each")
    parser.add_argument("--only", nargs="+", choices=WORKS, default=WORKS, metavar="WORK", help=", ".join(WORKS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-touch-memory", action="store_true", help="see repl.bench.memory")
    parser.add_argument("--cpu-time", action="store_true", help="of our own process, but for what waits for the disk")


def measured(options: argparse.Namespace) -> Sections:
    """Yields the figures, as they come: medians of the rounds."""
    bytes_max = options.mb * 1_000_000 + (options.rounds + 2) * 2 * SEGMENT_BYTES
    for entries in options.entries:
        with tempfile.TemporaryDirectory(prefix="vlsnlog-bench-") as directory:
            check_space(Path(directory), bytes_max)
            with Reserve(0 if options.no_touch_memory else 2 * bytes_max):
                bench = LocalBench(
                    Path(directory),
                    entries=entries,
                    size=options.size,
                    megabytes=options.mb,
                    rounds=options.rounds,
                    cpu_time=options.cpu_time,
                )
                bench.fill()
                for work in options.only:
                    yield f"{work}, {entries} a block", getattr(bench, work.replace("-", "_"))()


class LocalBench:
    """One log of blocks of ``entries`` values in ``directory``, made by ``fill``."""

    def __init__(
        self, directory: Path, *, entries: int, size: int, megabytes: int, rounds: int, cpu_time: bool = False
    ) -> None:
        self.directory = directory
        self._clock = time.process_time if cpu_time else time.perf_counter
        """``process_time`` where other work has the processors; what waits for the disk is timed by the wall's."""
        self.entries, self.size, self.megabytes, self.rounds = entries, size, megabytes, rounds
        self.after_checkpoint = 0
        self.log_mb = 0.0
        self.last = 0
        """The last of the entries that ``fill`` made before anything else was logged."""

    def fill(self) -> None:
        """Makes the log (or adds to it what makes the next checkpoint nearly due) and kills its process."""
        filling = command("local_fill", self.directory, self.megabytes, self.entries, self.size)
        with subprocess.Popen(filling, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment()) as process:
            assert process.stdout is not None
            try:
                said = process.stdout.readline().split()
                if not said:
                    raise LogFailed(f"filling {self.directory} ended with {process.wait()}")
                self.after_checkpoint, self.last = int(said[0]), self.last or int(said[2])
                self.log_mb = int(said[1]) / 1e6
            finally:
                process.kill()

    def segments(self) -> list[Path]:
        return sorted(self.directory.glob("*.vlog"))

    # The works.

    def open(self) -> Figures:
        """Measures opens, each after a kill. Beside it: reading as many bytes, dropped from the page cache, as an open
        must."""
        seconds, ceilings = [], []
        for _ in range(self.rounds):
            self.fill()
            ceilings.append(self._read_cold(self.after_checkpoint))
            began = time.perf_counter()
            log = Log.open(self.directory)
            seconds.append(time.perf_counter() - began)
            log.close()
        return self._figure("s", seconds, "cold read", ceilings, aim="≤ 0.5", lower=True)

    def verify(self) -> Figures:
        rates, ceilings = self._beside_reads(self._verified, self.log_mb)
        return self._figure("MB/s", rates, "read", ceilings, ratio_aim="≥ 0.5")

    def verify_cold(self) -> Figures:
        """Measures verification and reads, each twice in a row, of which the faster counts. Dropped pages go back to a
        virtual machine's host. Every second time it takes them away and makes them anew during the next read."""
        rates, ceilings = [], []
        for _ in range(self.rounds):
            ceilings.append(self.log_mb / min(self._read_cold(round(self.log_mb * 1e6)) for _ in range(2)))
            rates.append(self.log_mb / min(self._verified_cold() for _ in range(2)))
        return self._figure("MB/s", rates, "cold read", ceilings, ratio_aim="≥ 0.5")

    def verify_bare(self) -> Figures:
        """Sidecars are derived, and not made again: works that need them come before."""
        for path in self.directory.glob("*.vidx"):
            path.unlink()
        rates, ceilings = self._beside_reads(self._verified, self.log_mb)
        return self._figure("MB/s", rates, "read", ceilings, aim="≥ 250" if self.entries == 1 else "")

    def single(self) -> Figures:
        rates, ceilings = [], []
        self._read()  # what comes before may have dropped the page cache
        with Log.open(self.directory) as log:
            first, last = self._data_span(log)
            for number in range(self.rounds):
                ceilings.append(self._raw_reads(random.Random(number)))
                vlsns = random.Random(number)
                rates.append(self._per_second(lambda vlsns=vlsns: _one(log, vlsns.randint(first, last))))  # type: ignore[misc]
        return self._figure("/s", rates, "pread", ceilings, aim="≥ 20000")

    def pairs(self) -> Figures:
        with Log.open(self.directory) as log:
            first, last = self._data_span(log)
            count = last - first + 1

            def scan() -> None:
                seen = sum(1 for _ in log.pairs(from_vlsn=first, to_vlsn=last))
                assert seen == count, (seen, count)

            rates, ceilings = self._beside_reads(scan, count)
        as_entries = [rate * 1e6 * count / (self.log_mb * 1e6) for rate in ceilings]
        return self._figure("/s", rates, "read", as_entries, aim=PAIRS_AIM.get(self.entries, ""))

    def arrow(self) -> Figures:
        from repl.audit.directory import DirectorySource
        from repl.spark.physical import log_batches

        def batches() -> None:
            rows = sum(batch.num_rows for batch in log_batches(DirectorySource(str(self.directory), "log")))
            assert rows >= self.log_mb * 1e6 / (self.size + 200), rows

        rates, ceilings = self._beside_reads(batches, self.log_mb)
        return self._figure("MB/s", rates, "read", ceilings, aim="≥ 800")

    # What they are made of.

    def _figure(
        self, unit: str, rounds: list[float], ceiling_of: str, ceilings: list[float], *,
        aim: str = "", ratio_aim: str = "", lower: bool = False,
    ) -> Figures:  # fmt: skip
        """Makes a figure of medians; its aim, or that of its share of the ceiling.  Where ``lower`` is better the share
        is the ceiling's of the figure."""
        value, ceiling = median(rounds), median(ceilings)
        seen, share = significant(value), significant(ceiling / value if lower else value / ceiling)
        return {
            "measured": Aimed(seen, aim) if aim else seen,
            "unit": unit,
            "ceiling": significant(ceiling),
            "ceiling_of": ceiling_of,
            "of_it": Aimed(share, ratio_aim) if ratio_aim else share,
        }

    def _beside_reads(self, work: Callable[[], object], size: float) -> tuple[list[float], list[float]]:
        """Measures how much of ``size`` (any unit) a second ``work`` does, and MB/s of plain reads, in turns."""
        rates, ceilings = [], []
        for _ in range(self.rounds):
            ceilings.append(self._read())
            began = self._clock()
            work()
            rates.append(size / (self._clock() - began))
        return rates, ceilings

    def _verified(self) -> None:
        report = verify(PosixDisk(), LmdbStores(), str(self.directory), reading=ReadAhead())
        assert report.ok, report.findings

    def _verified_cold(self) -> float:
        """Verifies without the page cache; returns the seconds."""
        self._drop_cache()
        began = time.perf_counter()
        self._verified()
        return time.perf_counter() - began

    def _data_span(self, log: Log) -> tuple[int, int]:
        """Returns first and last VLSN of the entries of ``fill``: before them nothing, behind them each open's own."""
        return int(log.range.first), self.last

    def _read(self) -> float:
        """MB/s of reading every segment in pieces of 1 MiB into one buffer."""
        began = self._clock()
        size = sum(_read_file(path) for path in self.segments())
        return size / (self._clock() - began) / 1e6

    def _read_cold(self, size: int) -> float:
        """Returns the seconds for ``size`` bytes of the newest segments, which were dropped from the page cache."""
        self._drop_cache()
        began = time.perf_counter()
        for path in reversed(self.segments()):
            size -= _read_file(path, size)
        return time.perf_counter() - began

    def _drop_cache(self) -> None:
        for path in self.directory.iterdir():
            if path.is_file():
                with _descriptor(path) as file:
                    os.fdatasync(file)
                    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)

    def _raw_reads(self, places: random.Random) -> float:
        """Reads a second of one entry's bytes at random places."""
        with ExitStack() as opened:
            files = [(opened.enter_context(_descriptor(path)), path.stat().st_size) for path in self.segments()]
            files = [(file, size) for file, size in files if size > self.size]  # without a standby that is being made

            def read() -> None:
                file, size = places.choice(files)
                os.pread(file, self.size, places.randrange(size - self.size))

            return self._per_second(read)

    def _per_second(self, call: Callable[[], None]) -> float:
        """Counts calls a second, over about ``SINGLE_S``."""
        began = self._clock()
        count = 0
        while self._clock() - began < SINGLE_S:
            for _ in range(SINGLE_CHECK):
                call()
            count += SINGLE_CHECK
        return count / (self._clock() - began)


@contextmanager
def _descriptor(path: Path) -> Iterator[int]:
    file = os.open(path, os.O_RDONLY)
    try:
        yield file
    finally:
        os.close(file)


def significant(value: float) -> float:
    """Rounds to four digits."""
    return float(f"{value:.4g}")


def _read_file(path: Path, size_max: int = 1 << 62) -> int:
    """Reads a file, at most about ``size_max`` bytes, and returns how many."""
    size = 0
    with _descriptor(path) as file:
        while size < size_max and (got := os.preadv(file, [_BUFFER], size)):
            size += got
    return size


def _one(log: Log, vlsn: int) -> None:
    (entry,) = log.read(from_vlsn=vlsn, to_vlsn=vlsn)
    assert entry.vlsn == vlsn


_BUFFER = bytearray(MIB)
