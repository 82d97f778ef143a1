"""``make bench``: every work on a cluster of its own, one after another."""

from __future__ import annotations

import argparse
import json

from repl.bench.run import BenchOptions, run_bench
from repl.bench.works import WORKS

RUNS = (
    BenchOptions(work="append", writers=1),
    BenchOptions(work="append", writers=64),
    BenchOptions(work="append", writers=1024),
    BenchOptions(work="bulk"),
    BenchOptions(work="http"),
    BenchOptions(work="catchup"),
    BenchOptions(work="recover"),
    BenchOptions(work="tail"),
    BenchOptions(work="scan"),
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m repl.bench", description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--only", choices=sorted(WORKS))
    parser.add_argument("--json", action="store_true", help="one object a line")
    options = parser.parse_args()
    for run in RUNS:
        if options.only not in (None, run.work):
            continue
        report = run_bench(BenchOptions(work=run.work, writers=run.writers, batch=run.batch, seconds=options.seconds))
        print(json.dumps(report.json()) if options.json else "\n".join([*report.lines(), ""]), flush=True)


if __name__ == "__main__":
    main()
