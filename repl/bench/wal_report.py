"""The options and figures of ``bench wal``: distributions of all samples, as text or as JSON."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from struct import Struct
from typing import Any, Final

import numpy as np

from repl.bench.raw_disk import Floats
from repl.bench.target import check_range
from vlsn.errors import BadArgument
from vlsn.limits import ENTRY_BYTES_MAX

STAMP: Final = Struct("<II")
"""The beginning of each value: the number of its thread, and the number of the append in that thread."""
FRAMING_BYTES: Final = 120
"""The overhead in bytes of an entry that is alone in its block."""
THREADS_MAX: Final = 1024
ENTRIES_MAX: Final = 10_000_000
BYTES_MAX: Final = 16 << 30
_PERCENTS: Final = {"p50": 50, "p75": 75, "p95": 95, "p98": 98, "p99": 99, "p999": 99.9}
_COLUMNS: Final = ("min", "mean", "max", "stddev", *_PERCENTS)
_ROWS: Final = (
    ("append (ms)", "latency_ms"),
    ("write+sync (ms)", "sync_ms"),
    ("appends a sync", "appends_per_sync"),
    ("bytes a sync", "group_bytes"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WalOptions:
    """The options of ``bench wal``. ``entries`` is the number of appends for each thread. ``roll`` starts a new segment
    after so many entries (0: by size only). With a ``sync_interval`` of N a thread waits for a sync only at every Nth
    of its appends."""

    threads: int = 1
    entries: int = 10_000
    size: int = 512
    sync_interval: int = 1
    roll: int = 0
    verify: bool = False
    bytes_max: int = BYTES_MAX

    def check(self) -> None:
        """Raises ``BadArgument`` if an option is out of range."""
        check_range("threads", self.threads, 1, THREADS_MAX)
        check_range("entries", self.entries, 1, ENTRIES_MAX)
        check_range("size", self.size, STAMP.size, ENTRY_BYTES_MAX)
        check_range("sync-interval", self.sync_interval, 1, ENTRIES_MAX)
        check_range("roll", self.roll, 0, THREADS_MAX * ENTRIES_MAX)
        total = self.threads * self.entries * (self.size + FRAMING_BYTES)
        if total > self.bytes_max:
            raise BadArgument(f"about {total >> 20} MiB would be written, over the cap of {self.bytes_max >> 20} MiB")


@dataclass(frozen=True, slots=True)
class Spread:
    """The distribution of all samples of one figure."""

    samples: Floats

    def json(self) -> dict[str, float | int]:
        values = self.samples
        if not len(values):
            return {"count": 0}
        percents = np.percentile(values, list(_PERCENTS.values())).tolist()
        found = {
            "min": float(values.min()),
            "mean": float(values.mean()),
            "max": float(values.max()),
            "stddev": float(values.std()),
            **dict(zip(_PERCENTS, percents, strict=True)),
        }
        return {"count": len(values), **{name: round(value, 4) for name, value in found.items()}}


@dataclass(slots=True)
class WalReport:
    """The results of one run of ``bench wal``."""

    options: WalOptions
    seconds: float
    latency_ms: Spread
    sync_ms: Spread
    appends_per_sync: Spread
    group_bytes: Spread
    rolls: dict[str, int]
    late_standbys: int
    ceiling_ms: Spread
    ceiling_bytes: int
    errors: list[str] = field(default_factory=list)
    verified: dict[str, Any] | None = None

    @property
    def ok(self) -> bool:
        return not self.errors and (self.verified is None or not self.verified["faults"])

    def json(self) -> dict[str, Any]:
        options, done = self.options, len(self.latency_ms.samples)
        seconds = max(self.seconds, 1e-9)
        syncs = len(self.sync_ms.samples)
        raw = 1e3 / float(self.ceiling_ms.samples.mean())
        shared = float(self.appends_per_sync.samples.mean()) if syncs else 0.0
        latency = self.latency_ms.json()
        counts = Counter(int(each) for each in self.appends_per_sync.samples.tolist())
        return {
            "work": "wal",
            "writers": options.threads,
            "size": options.size,
            "batch": 1,
            "acks": "none",
            "seconds": round(self.seconds, 3),
            "entries": done,
            "appends_per_s": round(done / seconds, 1),
            "mb_per_s": round(done * options.size / seconds / 1e6, 3),
            "p50_ms": latency.get("p50"),
            "p99_ms": latency.get("p99"),
            "errors": len(self.errors),
            "entries_per_thread": options.entries,
            "sync_interval": options.sync_interval,
            "roll": options.roll,
            "syncs": syncs,
            "syncs_per_s": round(syncs / seconds, 1),
            "latency_ms": latency,
            "sync_ms": self.sync_ms.json(),
            "appends_per_sync": self.appends_per_sync.json() | {"histogram": dict(sorted(counts.items()))},
            "group_bytes": self.group_bytes.json(),
            "rolls": self.rolls,
            "late_standbys": self.late_standbys,
            "ceilings": {
                "fdatasync_p50_ms": self.ceiling_ms.json()["p50"],
                "group_bytes": self.ceiling_bytes,
                "syncs_per_s": round(raw, 1),
                "appends_per_s": round(raw * shared, 1),
                "mb_per_s": round(raw * self.ceiling_bytes / 1e6, 3),
            },
            "of_ceiling": round(done / seconds / (raw * shared), 3) if shared else None,
            "verified": self.verified,
        }

    def lines(self) -> list[str]:
        """Formats the report as lines; times in ms."""
        row = self.json()
        disk = row["ceilings"]
        shown = [
            f"wal: threads={row['writers']}, entries={row['entries_per_thread']} each, size={row['size']},"
            f" syncInterval={row['sync_interval']}, roll={row['roll']} took {row['seconds']:.3f} s",
            f"  {row['appends_per_s']:,.1f} ops/s, {row['mb_per_s']:,.2f} MB/s; {row['syncs']:,} syncs,"
            f" {row['syncs_per_s']:,.1f}/s; errors {row['errors']}",
            f"  {'':<18}" + "".join(f"{name:>10}" for name in _COLUMNS),
        ]
        for name, key in _ROWS:
            if row[key]["count"]:
                shown.append(f"  {name:<18}" + "".join(_cell(row[key][each]) for each in _COLUMNS))
        shown += _bars(row["appends_per_sync"]["histogram"])
        rolls = ", ".join(f"{reason} {number}" for reason, number in row["rolls"].items())
        shown.append(f"  rolls: {rolls}; late standbys {row['late_standbys']}")
        shown.append(
            f"  this disk alone, {disk['group_bytes']:,} bytes a write and fdatasync:"
            f" p50 {disk['fdatasync_p50_ms']:.3f} ms,"
            f" {disk['syncs_per_s']:,.1f}/s = {disk['appends_per_s']:,.1f} ops/s, {disk['mb_per_s']:,.2f} MB/s;"
            f" the log reached {row['of_ceiling']} of it"
        )
        if self.verified is not None:
            found = self.verified
            faults = "; ".join(found["faults"]) or "all there, in order, every checksum right"
            shown.append(f"  verified {found['entries']:,} entries in {found['seconds']:.2f} s: {faults}")
        return shown + [f"  error: {error}" for error in self.errors[:10]]


def _cell(value: float) -> str:
    return f"{value:>10,.2f}" if value < 1000 else f"{value:>10,.0f}"


def _bars(histogram: dict[int, int]) -> list[str]:
    """Draws bars for the number of appends in each sync, by powers of two."""
    bins: Counter[int] = Counter()
    for shared, number in histogram.items():
        bins[max(int(shared) - 1, 0).bit_length()] += number
    most = max(bins.values(), default=1)
    lines = []
    for power in range(min(bins, default=0), max(bins, default=-1) + 1):
        label = "1" if not power else f"{(1 << power - 1) + 1}–{1 << power}" if power > 1 else "2"
        lines.append(f"  {label:>12} {bins[power]:>8,} {'█' * round(40 * bins[power] / most)}")
    return ["  appends a sync, syncs:", *lines] if lines else []
