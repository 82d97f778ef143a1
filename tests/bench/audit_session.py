"""One Spark, default configuration, in a process of its own, that runs the audits asked for, a JSON object a line.

    {"sources": [...], "out": "r.json"}                 {"seconds": 1.25, "bytes": 1200000000, "memory": {...}, ...}

``memory`` is what each kind of process had resident at most so far, in MB: the driver's Python, its JVM, Python
workers.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from repl.audit import run_audit
from repl.audit.session import spark_context
from tests.bench.process import below, memory


def memory_mb() -> dict[str, int]:
    """Returns the peaks of this driver, of its JVM, of its largest worker and of all workers together."""
    peaks: dict[str, list[int]] = {"java": [], "python": []}
    for pid in below(os.getpid()):
        try:
            name = Path(f"/proc/{pid}/comm").read_text()
        except OSError:
            continue
        peaks["java" if name.startswith("java") else "python"].append(memory(pid, "VmHWM") >> 20)
    workers = peaks["python"]
    return {
        "driver": memory("self", "VmHWM") >> 20,
        "jvm": max(peaks["java"], default=0),
        "worker": max(workers, default=0),
        "workers": sum(workers),
    }


def main(cores: int) -> None:
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
