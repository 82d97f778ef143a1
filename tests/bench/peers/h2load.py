"""The load generator ``h2load`` of nghttp2: one POST over and over on HTTP/2, so many at a time.

An answer of 200 counts.  A failed gRPC call is answered with 200, too: the server must be asked for the number of
successful calls.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.bench.peers.peer import run

CONNECTIONS_MAX = 8


@dataclass(frozen=True, slots=True)
class H2loadFigures:
    answered: int
    refused: int
    seconds: float
    """Seconds from the first request to the last answer."""
    p50_ms: float
    p99_ms: float


async def run_h2load(url: str, *, body: bytes, headers: Sequence[str], in_flight: int, seconds: float) -> H2loadFigures:
    """``in_flight`` requests at a time, over at most ``CONNECTIONS_MAX`` connections.  Raises ``RuntimeError`` with
    h2load's own words."""
    connections = min(in_flight, CONNECTIONS_MAX)
    with tempfile.TemporaryDirectory(prefix="vlsnlog-h2load-") as directory:
        given, log = Path(directory, "body"), Path(directory, "log")
        given.write_bytes(body)
        command = ["h2load", f"-D{max(1, round(seconds))}", f"-c{connections}", f"-m{in_flight // connections}"]
        command += ["-t1", f"-d{given}", f"--log-file={log}", *(f"-H{header}" for header in headers), url]
        await run(*command)
        return figures_of(log.read_text())


def figures_of(log: str) -> H2loadFigures:
    """``log`` has a line a request: when it began (µs), the status of its answer, how long it took (µs).

    figures_of("1000000\\t200\\t500\\n1000400\\t200\\t600\\n").seconds == 0.001
    """
    began, status, took = np.array([line.split() for line in log.splitlines()], dtype=np.int64).T
    good = status == 200
    p50, p99 = np.percentile(took[good] / 1e3, [50, 99]) if good.any() else (0.0, 0.0)
    seconds = float((began + took).max() - began.min()) / 1e6
    return H2loadFigures(int(good.sum()), int((~good).sum()), seconds, float(p50), float(p99))
