"""Runs the load generator ``wrk`` for one measurement.

wrk counts answers of 400 and above as errors, but not redirects, so the URL must be the master's.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

_REPORT = """
done = function(summary, latency, requests)
  io.write(string.format('{"requests":%d,"duration_us":%d,"status":%d,"socket":%d,"p50_us":%d,"p99_us":%d}\\n',
    summary.requests, summary.duration, summary.errors.status,
    summary.errors.connect + summary.errors.read + summary.errors.write + summary.errors.timeout,
    latency:percentile(50), latency:percentile(99)))
end
"""


@dataclass(frozen=True, slots=True)
class WrkFigures:
    """The number of requests with an answer below 400, and their times."""

    requests: int
    seconds: float
    errors: int
    p50_ms: float
    p99_ms: float

    @property
    def per_s(self) -> float:
        return self.requests / self.seconds


def wrk_installed() -> bool:
    return shutil.which("wrk") is not None


async def run_wrk(url: str, *, script: str, connections: int, seconds: float, threads: int = 1) -> WrkFigures:
    """Runs wrk; ``script`` is Lua that prepares or makes the requests. Raises ``RuntimeError`` with wrk's output."""
    with tempfile.TemporaryDirectory(prefix="vlsnlog-wrk-") as directory:
        path = Path(directory, "work.lua")
        path.write_text(script + _REPORT)
        command = ["wrk", f"-t{threads}", f"-c{connections}", f"-d{max(1, round(seconds))}s", "-s", str(path), url]
        process = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        output = (await process.communicate())[0].decode()
    found = [line for line in output.splitlines() if line.startswith("{")]
    if process.returncode != 0 or not found:
        raise RuntimeError(f"wrk ended with {process.returncode}: {output.strip()[-400:]}")
    row = json.loads(found[-1])
    return WrkFigures(
        requests=row["requests"] - row["status"],
        seconds=row["duration_us"] / 1e6,
        errors=row["status"] + row["socket"],
        p50_ms=row["p50_us"] / 1e3,
        p99_ms=row["p99_us"] / 1e3,
    )
