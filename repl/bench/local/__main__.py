"""``python -m repl.bench.local``: opening, verifying and reading a local log, beside the machine's own ceilings.

A log for each number of entries a block, in a temporary directory (``TMPDIR``); medians of the rounds.  Exit
status 0 when every aim is reached, else 1.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from repl.bench.local.report import Figure, lines
from repl.bench.local.works import LocalBench
from repl.bench.memory import Reserve
from repl.bench.target import check_space
from vlsn.errors import VlsnLogError
from vlsn.limits import SEGMENT_BYTES

WORKS = ("single", "pairs", "arrow", "verify", "verify-cold", "verify-bare", "open")
"""The works in their order: the last two leave the log with segments that have no sidecar."""
ENTRIES = (1, 64, 1000)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m repl.bench.local", description=__doc__)
    parser.add_argument("--mb", type=int, default=500, help="of each log, at least")
    parser.add_argument("--size", type=int, default=100, help="bytes of an entry")
    parser.add_argument("--entries", type=int, nargs="+", default=ENTRIES, help="entries a block, a log for each")
    parser.add_argument("--only", nargs="+", choices=WORKS, default=WORKS, metavar="WORK", help=", ".join(WORKS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-touch-memory", action="store_true", help="see repl.bench.memory")
    parser.add_argument("--cpu-time", action="store_true", help="of our own process, but for what waits for the disk")
    parser.add_argument("--json", action="store_true", help="one object a figure, a line each")
    options = parser.parse_args()
    try:
        figures = []
        for figure in measured(options):
            figures.append(figure)
            if options.json:
                print(json.dumps(figure.json(), ensure_ascii=False), flush=True)
    except (VlsnLogError, OSError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    if not options.json:
        print("\n".join(lines(figures)))
    return 1 if any(figure.reached is False for figure in figures) else 0


def measured(options: argparse.Namespace) -> Iterator[Figure]:
    """Yields the figures, as they come."""
    bytes_max = options.mb * 1_000_000 + (options.rounds + 2) * 2 * SEGMENT_BYTES
    for entries in options.entries:
        with tempfile.TemporaryDirectory(prefix="vlsnlog-bench-") as directory:
            check_space(Path(directory), bytes_max)
            with Reserve(0 if options.no_touch_memory else 2 * bytes_max):
                bench = LocalBench(
                    Path(directory),
                    entries=entries,
                    size=options.size,
                    megabytes=options.mb,
                    rounds=options.rounds,
                    cpu_time=options.cpu_time,
                )
                bench.fill()
                for work in WORKS:
                    if work in options.only:
                        yield getattr(bench, work.replace("-", "_"))()


if __name__ == "__main__":
    sys.exit(main())
