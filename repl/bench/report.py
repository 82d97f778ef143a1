"""The figures of a benchmark: the results of one work, and the percentiles of its latencies.

Only acknowledged operations are counted. A latency is the time from before the call of a single operation until its
acknowledgement. Percentiles are exact: every sample is kept in memory, 8 bytes each.
"""

from __future__ import annotations

import time
from array import array
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from repl.bench.memory import Touched


@dataclass(frozen=True, slots=True)
class Ceilings:
    """The speed of this machine's disk and sockets without our code, measured in the same run.

    ``fdatasync_p50_ms``: one 512-byte write and its ``fdatasync``, in a zero-filled file beside the data.
    ``ws_msgs_per_s``: WebSocket messages echoed between two processes, 64 of them unanswered at a time.
    ``seq_write_mb_per_s``: 1 MiB writes, each synced, into a zero-filled file.
    ``tls_stream_mb_per_s``: one TLS connection on loopback between two processes; None for a run without TLS.
    """

    fdatasync_p50_ms: float
    ws_msgs_per_s: float
    seq_write_mb_per_s: float
    tls_stream_mb_per_s: float | None = None

    def json(self) -> dict[str, float]:
        return {name: value for name, value in asdict(self).items() if value is not None}

    def line(self) -> str:
        shown = (
            f"this machine alone: fdatasync p50 {self.fdatasync_p50_ms:.3f} ms,"
            f" WebSocket echo {self.ws_msgs_per_s:,.0f} messages/s,"
            f" synced 1 MiB writes {self.seq_write_mb_per_s:,.0f} MB/s"
        )
        return (
            shown if self.tls_stream_mb_per_s is None else f"{shown}, TLS stream {self.tls_stream_mb_per_s:,.0f} MB/s"
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one work."""

    entries: int
    """The number of entries that were acknowledged, or read."""
    bytes: int
    """The bytes of values and keys; for ``catchup`` and ``recover`` the bytes of the log."""
    seconds: float
    latencies_ms: np.ndarray[Any, np.dtype[np.float64]]
    errors: int = 0
    more: dict[str, Any] = field(default_factory=dict)
    """The fields that only this kind of work has."""

    def percentile(self, percent: float) -> float | None:
        """Returns a percentile of the latencies in milliseconds, or None if the work has no single operations to
        time."""
        if not len(self.latencies_ms):
            return None
        return round(float(np.percentile(self.latencies_ms, percent)), 4)


class Samples:
    """Collects durations. Use ``start = samples.now()`` and later ``samples.since(start)``. A caller that reads the
    clock itself uses ``take`` with nanoseconds."""

    __slots__ = ("now", "take", "taken")

    def __init__(self) -> None:
        self.taken = array("q")
        self.take = self.taken.append
        self.now = time.perf_counter_ns

    def since(self, start_ns: int) -> None:
        self.take(self.now() - start_ns)

    def __len__(self) -> int:
        return len(self.taken)

    def milliseconds(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        return np.frombuffer(self.taken, dtype=np.int64) / 1e6 if self.taken else np.empty(0)


@dataclass(frozen=True, slots=True)
class BenchReport:
    """The figures of one run, as printed. ``json`` has the fields that ``--json`` promises, then the fields of the work
    itself."""

    work: str
    writers: int
    size: int
    batch: int
    acks: str
    outcome: Outcome
    ceilings: Ceilings
    memory: Touched = field(default_factory=Touched)
    durability: str | None = None

    @property
    def ok(self) -> bool:
        return not self.outcome.errors

    def json(self) -> dict[str, Any]:
        done = self.outcome
        seconds = max(done.seconds, 1e-9)
        return {
            "work": self.work,
            "writers": self.writers,
            "size": self.size,
            "batch": self.batch,
            "acks": self.acks,
            **({"durability": self.durability} if self.durability else {}),
            "seconds": round(done.seconds, 3),
            "entries": done.entries,
            "appends_per_s": round(done.entries / seconds, 1),
            "mb_per_s": round(done.bytes / seconds / 1e6, 3),
            "p50_ms": done.percentile(50),
            "p99_ms": done.percentile(99),
            "errors": done.errors,
            "ceilings": self.ceilings.json(),
            **self.memory.json(),
            **done.more,
        }

    def lines(self) -> list[str]:
        """Formats the result as lines of text."""
        row = self.json()
        what = "entries read" if self.work in ("tail", "scan") else "entries"
        asked = f" durability {self.durability}," if self.durability else ""
        shown = [
            f"{self.work}: {row['entries']:,} {what} in {row['seconds']:.2f} s"
            f" = {row['appends_per_s']:,.0f}/s, {row['mb_per_s']:,.1f} MB/s",
            f"  writers {self.writers}, {self.size} bytes an entry, {self.batch} a batch, acks {self.acks},{asked}"
            f" errors {row['errors']}",
        ]
        if row["p50_ms"] is not None:
            shown.append(f"  latency p50 {row['p50_ms']:.3f} ms, p99 {row['p99_ms']:.3f} ms")
        shown += [f"  {name.replace('_', ' ')}: {value}" for name, value in self.outcome.more.items()]
        shown.append(f"  {self.ceilings.line()}")
        if self.memory.bytes:
            shown.append(
                f"  memory used once before: {self.memory.bytes / 1e6:,.0f} MB in {self.memory.seconds:.1f} s,"
                f" {self.memory.fresh_bytes / 1e6:,.0f} MB of it new to the machine"
            )
        return shown
