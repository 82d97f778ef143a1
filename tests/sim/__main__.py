"""``make sim SEEDS=1000 FIRST_SEED=1``: whole clusters under faults, a seed each, and the sums.

Exit status 1 when a seed violates anything; the line that replays it stands behind its transcript.
"""

from __future__ import annotations

import sys
import time
import traceback
from collections import Counter
from collections.abc import Sequence

import click
from rich.console import Console
from rich.progress import track
from rich.table import Table

from tests.fakes.loop import run
from tests.sim.world import Report, simulated


@click.command()
@click.option("--seeds", default=100, show_default=True, help="How many.")
@click.option("--first-seed", default=1, show_default=True)
@click.option("--faults-s", default=60.0, show_default=True, help="Virtual seconds of faults in each.")
def main(seeds: int, first_seed: int, faults_s: float) -> None:
    """Runs simulated clusters and prints what they lived through."""
    console = Console()
    reports: list[Report] = []
    failed: list[int] = []
    began = time.process_time()
    every: Sequence[int] = range(first_seed, first_seed + seeds)
    for seed in track(every, "seeds", console=console, disable=not console.is_terminal, transient=True):
        try:
            reports.append(run(simulated(seed, faults_s=faults_s)))
        except Exception:
            failed.append(seed)
            traceback.print_exc()
            print(f"again: SEED={seed} .venv/bin/pytest tests/sim", file=sys.stderr, flush=True)
    console.print(sums(reports, time.process_time() - began))
    console.print(f"{len(reports)} of {seeds} seeds hold" + (f"; violated: {failed}" if failed else ""))
    sys.exit(1 if failed else 0)


def sums(reports: Sequence[Report], core_s: float) -> Table:
    faults: Counter[str] = Counter()
    for report in reports:
        faults.update(report.faults)
    virtual_s = sum(report.virtual_s - 1000.0 for report in reports)
    table = Table(show_header=False, box=None)
    table.add_column(justify="right")
    for name in ("acknowledged", "refused", "unknown", "read", "replaced"):
        table.add_row(f"{sum(getattr(report, name) for report in reports):,}", name)
    table.add_row(f"{sum(report.cleaned > 0 for report in reports):,}", "seeds that cleaned segments away")
    for what, count in faults.most_common():
        table.add_row(f"{count:,}", f"fault: {what}")
    table.add_row(f"{virtual_s / 3600:,.2f}", "virtual hours")
    table.add_row(f"{virtual_s / max(core_s, 0.001):,.0f} x", "real time on one core")
    return table


if __name__ == "__main__":
    main()
