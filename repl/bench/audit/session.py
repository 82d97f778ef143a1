"""One Spark, default configuration, in a process of its own, that audits what it is told, a JSON object a line.

    {"sources": [...], "out": "r.json"}                 {"seconds": 1.25, "bytes": 1200000000, "memory": {...}, ...}

``memory`` is what each kind of process had resident at most so far: the driver's Python, its JVM, Python workers.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

Answer = dict[str, Any]


def processes_below(pid: int) -> Iterator[int]:
    """Yields the processes that ``pid`` started, and those that they did."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(path.read_text().rpartition(") ")[2].split()[1])
        except OSError:
            continue  # it has just ended
        children.setdefault(parent, []).append(int(path.parent.name))
    left = [pid]
    while left:
        found = children.get(left.pop(), [])
        yield from found
        left += found


def peak_mb(pid: int) -> float:
    """Returns the megabytes that a process had resident at most; 0 of one that has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM")), 0.0)


def memory_mb() -> dict[str, int]:
    """Returns the peaks of this driver, of its JVM, of its largest worker and of all workers together."""
    peaks: dict[str, list[float]] = {"java": [], "python": []}
    for pid in processes_below(os.getpid()):
        try:
            name = Path(f"/proc/{pid}/comm").read_text()
        except OSError:
            continue
        peaks["java" if name.startswith("java") else "python"].append(peak_mb(pid))
    workers = peaks["python"]
    return {
        "driver": round(peak_mb(os.getpid())),
        "jvm": round(max(peaks["java"], default=0)),
        "worker": round(max(workers, default=0)),
        "workers": round(sum(workers)),
    }


class AuditSession:
    """The process: Spark on so many cores, bound to them."""

    def __init__(self, cores: Sequence[int], checksums: str) -> None:
        self._cores = cores
        self._checksums = checksums

    def __enter__(self) -> Self:
        bound = ["taskset", "-c", ",".join(map(str, self._cores))]
        command = [sys.executable, "-m", "repl.bench.audit.session", str(len(self._cores))]
        self._process = subprocess.Popen([*bound, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _pipe(self._process.stdin).close()
        self._process.wait()

    def audit(self, sources: Sequence[str], *, out: str = "", since: str = "") -> Answer:
        """Audits the sources, and returns what the process said of it. They must be equal, without a finding."""
        pipe = _pipe(self._process.stdin)
        asked = {"sources": sources, "out": out, "since": since, "checksums": self._checksums}
        pipe.write(json.dumps(asked) + "\n")
        pipe.flush()
        line = _pipe(self._process.stdout).readline()
        if not line:
            raise RuntimeError(f"the audit's process ended with {self._process.wait()}")
        answer: Answer = json.loads(line)
        return answer


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe


def main(cores: int) -> None:
    from repl.audit import run_audit
    from repl.audit.session import spark_context

    with spark_context(f"local[{cores}]"):
        for line in sys.stdin:
            asked = json.loads(line)
            out = [asked["out"]] if asked["out"] else []
            report = run_audit(
                asked["sources"], out=out, since_last=asked["since"] or None, checksums=asked["checksums"]
            )
            assert report.equal and not report.findings, report.findings
            kept = report.since.bytes_kept if report.since is not None else 0
            answer = {
                "seconds": report.seconds,
                "bytes": report.bytes - kept,
                "blocks": sum(source.blocks for source in report.sources),
                "tasks": report.tasks,
                "compared_to": report.compared_to,
                "digests": [[each.chain for each in source.ranges][-1:] for source in report.sources],
                "memory": memory_mb(),
            }
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
