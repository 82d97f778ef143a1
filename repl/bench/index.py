"""``bench index``: at-or-before lookups in a VLSN index of many VLSNs, and raw LMDB lookups beside them.

A process of its own builds the index through ``put_run`` and ``save``: blocks of one entry of 100 bytes in segments
of 64 MiB, a flush a segment, as a node makes it.  Another opens it and looks random VLSNs up, in rounds with the
raw ceiling: ``set_range`` of the same keys with one cursor in one transaction, values read as views.  RssAnon is
the whole process's, interpreter and modules included; what LMDB maps is the page cache's, and counted as RssFile.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import lmdb

from vlsn.errors import BadArgument
from vlsn.ids import Vlsn, lsn
from vlsn.index.bucket import bucket_key
from vlsn.index.index import VlsnIndex
from vlsn.limits import INDEX_MAP_BYTES, SEGMENT_BYTES
from vlsn.real.lmdb_store import DATA_FILE, LmdbStores
from vlsn.real.threads import CallerThreads

FRAME_BYTES: Final = 200
"""A block of one entry of 100 bytes, in its frame."""
FIRST_FRAME: Final = 4096
ROUNDS: Final = 5


@dataclass(frozen=True, slots=True)
class IndexFigures:
    """Medians over the rounds; sizes in bytes."""

    vlsns: int
    mappings: int
    buckets: int
    store_bytes: int
    build_s: float
    puts_per_s: float
    """Blocks a second, flushes included."""
    lookups: int
    """The lookups of a round."""
    lookup_us: float
    raw_us: float
    rss_anon_opened: int
    rss_anon: int
    """The RssAnon after all lookups."""
    rss_file: int

    def lines(self) -> list[str]:
        return [
            f"index of {self.vlsns:,} VLSNs: {self.mappings:,} mappings in {self.buckets:,} buckets, "
            f"{self.store_bytes / 1e6:.1f} MB on disk; built in {self.build_s:.1f} s, {self.puts_per_s:,.0f} puts/s",
            f"at or before: {self.lookup_us:.2f} µs a lookup ({ROUNDS} rounds of {self.lookups:,}, at random)",
            f"raw set_range: {self.raw_us:.2f} µs",
            f"RssAnon {self.rss_anon / 1e6:.1f} MB ({self.rss_anon_opened / 1e6:.1f} before the lookups), "
            f"RssFile {self.rss_file / 1e6:.1f} MB",
        ]


def run_index(*, vlsns: int = 100_000_000, lookups: int = 100_000) -> IndexFigures:
    """Runs in a temporary directory (``TMPDIR``), which is removed: about 0.4 bytes a VLSN."""
    if vlsns < 1 or lookups < 1:
        raise BadArgument("at least one VLSN and one lookup")
    directory = Path(tempfile.mkdtemp(prefix="vlsnlog-bench-"))
    try:
        path = str(directory / "index")
        build_s = float(_child("--build", path, vlsns))
        measured = json.loads(_child("--measure", path, lookups))
        return IndexFigures(vlsns=vlsns, build_s=build_s, puts_per_s=round(vlsns / build_s, 1), **measured)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def build(path: str, vlsns: int) -> float:
    """Makes the index; how long that took, in seconds."""
    began = time.perf_counter()
    index = VlsnIndex(LmdbStores().open(path, map_bytes=INDEX_MAP_BYTES), CallerThreads().latch())
    blocks = (SEGMENT_BYTES - FIRST_FRAME) // FRAME_BYTES
    for number, first in enumerate(range(1, vlsns + 1, blocks), 1):
        vlsn_run = range(first, min(first + blocks, vlsns + 1))
        at = lsn(number, FIRST_FRAME)
        index.put_run(vlsn_run, vlsn_run, range(at, at + len(vlsn_run) * FRAME_BYTES, FRAME_BYTES))
        index.note_synced(index.range.last)
        index.save(number)
    index.close()
    return time.perf_counter() - began


def measure(path: str, lookups: int) -> dict[str, Any]:
    ours, raw = [], []
    index = VlsnIndex(LmdbStores().open(path, map_bytes=INDEX_MAP_BYTES), CallerThreads().latch())
    index.load()
    opened = memory("RssAnon")
    buckets = index.buckets()
    counts = [len(bucket) for bucket in buckets]
    last = index.range.last
    index.close()
    for number in range(ROUNDS):
        drawn = random.Random(number)
        wanted = [Vlsn(drawn.randint(1, last)) for _ in range(lookups)]
        ours.append(_ours(path, wanted))
        raw.append(_raw(path, wanted))
    return {
        "mappings": sum(counts),
        "buckets": len(counts),
        "store_bytes": (Path(path) / DATA_FILE).stat().st_size,
        "lookups": lookups,
        "lookup_us": round(statistics.median(ours), 3),
        "raw_us": round(statistics.median(raw), 3),
        "rss_anon_opened": opened,
        "rss_anon": memory("RssAnon"),
        "rss_file": memory("RssFile"),
    }


def _ours(path: str, wanted: list[Vlsn]) -> float:
    index = VlsnIndex(LmdbStores().open(path, map_bytes=INDEX_MAP_BYTES), CallerThreads().latch())
    index.load()
    look = index.at_or_before
    began = time.perf_counter()
    for vlsn in wanted:
        look(vlsn)
    seconds = time.perf_counter() - began
    index.close()
    return seconds / len(wanted) * 1e6


def _raw(path: str, wanted: list[Vlsn]) -> float:
    keys = [bucket_key(vlsn) for vlsn in wanted]
    environment = lmdb.open(path, map_size=INDEX_MAP_BYTES, readonly=True)
    with environment.begin(buffers=True) as transaction:
        cursor = transaction.cursor()
        began = time.perf_counter()
        for key in keys:
            cursor.set_range(key)
            cursor.value()
        seconds = time.perf_counter() - began
    environment.close()
    return seconds / len(wanted) * 1e6


def memory(field: str) -> int:
    """Reads what the kernel says that this process holds, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    return 0


def _child(step: str, path: str, number: int) -> str:
    """Runs a step in a process of its own, so that no memory of the one before is counted."""
    command = [sys.executable, "-m", "repl.bench.index", step, path, str(number)]
    # Ctrl-C is ours: the call ends it.
    return subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True, process_group=0).stdout


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m repl.bench.index", description=__doc__)
    parser.add_argument("--vlsns", type=int, default=100_000_000)
    parser.add_argument("--lookups", type=int, default=100_000)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--build", nargs=2, metavar=("PATH", "VLSNS"), help=argparse.SUPPRESS)
    parser.add_argument("--measure", nargs=2, metavar=("PATH", "LOOKUPS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.build:
        print(build(options.build[0], int(options.build[1])))
    elif options.measure:
        print(json.dumps(measure(options.measure[0], int(options.measure[1]))))
    else:
        figures = run_index(vlsns=options.vlsns, lookups=options.lookups)
        print(json.dumps(asdict(figures)) if options.json else "\n".join(figures.lines()))


if __name__ == "__main__":
    main()
