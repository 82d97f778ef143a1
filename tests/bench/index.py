"""At-or-before lookups in a VLSN index of many VLSNs, and raw LMDB lookups beside them.

A process of its own builds the index through ``put_run`` and ``save``: blocks of one entry of 100 bytes in segments of
64 MiB, a flush a segment, as a node makes it.  Another opens it and looks random VLSNs up, in rounds with the raw
ceiling: ``set_range`` of the same keys with one cursor in one transaction, values read as views.  RssAnon is the whole
process's, interpreter and modules included; pages that LMDB maps are the page cache's, and counted as RssFile.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import lmdb

from tests.bench.process import command, environment, memory
from tests.bench.report import Sections
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


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--vlsns", type=int, default=100_000_000, help="how many the index covers")
    parser.add_argument("--lookups", type=int, default=100_000, help=f"of a round; there are {ROUNDS}")


def measured(options: argparse.Namespace) -> Sections:
    """Runs in a temporary directory (``TMPDIR``), which is removed: about 0.4 bytes a VLSN.  Medians of the rounds."""
    with tempfile.TemporaryDirectory(prefix="vlsnlog-bench-") as directory:
        path = f"{directory}/index"
        build_s = _child("build", path, options.vlsns)
        yield (
            "building",
            {"vlsns": options.vlsns, "seconds": round(build_s, 1), "puts_per_s": round(options.vlsns / build_s)},
        )
        yield f"{options.lookups:,} lookups at or before a VLSN, at random", _child("measure", path, options.lookups)


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
    opened = memory("self", "RssAnon")
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
        "rss_anon": memory("self", "RssAnon"),
        "rss_file": memory("self", "RssFile"),
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


def _child(step: str, path: str, number: int) -> Any:
    """Runs a step in a process of its own, so that no memory of the one before is counted."""
    asked = command("index", step, path, number)
    # Ctrl-C is ours: the call ends it.
    return json.loads(
        subprocess.run(asked, stdout=subprocess.PIPE, check=True, env=environment(), process_group=0).stdout
    )


if __name__ == "__main__":
    _STEPS: Final = {"build": build, "measure": measure}
    print(json.dumps(_STEPS[sys.argv[1]](sys.argv[2], int(sys.argv[3]))))
