"""From the start of a command to the first append that it acknowledges, on empty directories.

``node``: one ``vlsnlog node``, which founds a group of one.  ``cluster``: ``vlsnlog cluster --nodes N``, from the
command's start to its line ``ready cluster`` and to the first durable append.  A round is a start of each, in turn.
The append is tried again at once, by HTTP, until it is taken.  CPU seconds are those of the command and all its nodes
up to the end of the round.
"""

from __future__ import annotations

import argparse
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Final

from repl.cluster import free_base_port
from tests.bench.report import Sections

AGAIN_S: Final = 0.005
WAIT_S: Final = 60.0
NODE: Final = "one node"


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=10, help="starts of each kind")
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 3], help="sizes of the clusters")


def measured(options: argparse.Namespace) -> Sections:
    """Runs in a temporary directory (``TMPDIR``), which is removed."""
    kinds = {NODE: 0, **{f"a cluster of {size}": size for size in options.nodes}}
    taken: dict[str, list[tuple[float, float]]] = {kind: [] for kind in kinds}
    for _ in range(options.rounds):
        for kind, size in kinds.items():
            with tempfile.TemporaryDirectory(prefix="vlsnlog-bench-") as directory:
                taken[kind].append(started(Path(directory) / "data", size))
    load = os.getloadavg()[0]
    for kind, rounds in taken.items():
        seconds = sorted(each for each, _ in rounds)
        yield (
            f"the first append of {kind}",
            {
                "rounds": len(seconds),
                "median_s": round(statistics.median(seconds), 3),
                "p90_s": round(seconds[min(len(seconds) - 1, len(seconds) * 9 // 10)], 3),
                "least_s": round(seconds[0], 3),
                "cpu_s": round(statistics.median(cpu for _, cpu in rounds), 3),
                "load": round(load, 1),
            },
        )


def started(directory: Path, size: int) -> tuple[float, float]:
    """Starts a cluster of ``size`` nodes, or one node for 0. Returns the seconds until its first append was
    acknowledged, and the CPU seconds that it took until it was stopped."""
    port = free_base_port(max(1, size))
    vlsnlog = [sys.executable, "-P", "-m", "repl.cli.start"]
    url = f"http://127.0.0.1:{port}"
    one = ["node", "--name", "n1", "--group", "bench", "--dir", str(directory), "--listen", f"127.0.0.1:{port}"]
    several = ["cluster", "--nodes", str(size), "--dir", str(directory), "--base-port", str(port)]
    arguments = several if size else [*one, "--member", f"n1={url}"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen([*vlsnlog, *arguments], stdout=said, stderr=said)
        try:
            _append(port, process)
            seconds = time.perf_counter() - began
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _append(port: int, process: subprocess.Popen[bytes]) -> None:
    """Appends one entry to the node at ``port``, which founds the group. Raises ``RuntimeError`` if that fails."""
    deadline = time.perf_counter() + WAIT_S
    while process.poll() is None and time.perf_counter() < deadline:
        connection = HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
        try:
            connection.request("POST", "/v1/entries", b"first", {"Content-Type": "application/octet-stream"})
            if connection.getresponse().status == 200:
                return
        except (OSError, HTTPException):  # it does not listen yet
            pass
        finally:
            connection.close()
        time.sleep(AGAIN_S)
    raise RuntimeError(f"no append was taken in {WAIT_S} s; the command has ended with {process.poll()}")
