"""``make sim SEEDS=1000 FIRST_SEED=1``: simulates whole clusters under faults, one for each seed, and prints the sums.

The exit status is 1 if a seed violates an invariant, or if the seeds show less than they must (``report``). The
transcript of such a seed ends with the command that replays it.
"""

from __future__ import annotations

import gc
import sys
import time
import traceback
from collections.abc import Sequence

import click
from rich.console import Console
from rich.progress import track

from tests.fakes.loop import run
from tests.sim.report import Report, shortfalls, sums
from tests.sim.world import simulated


@click.command()
@click.option("--seeds", default=100, show_default=True, help="How many.")
@click.option("--first-seed", default=1, show_default=True)
@click.option("--faults-s", default=60.0, show_default=True, help="Virtual seconds of faults in each.")
@click.option("--transcript", is_flag=True, help="Print the transcript of each seed that holds, too.")
@click.option("--until-failure", is_flag=True, help="Stop at the first seed that fails.")
def main(seeds: int, first_seed: int, faults_s: float, transcript: bool, until_failure: bool) -> None:
    """Runs simulated clusters and prints their results."""
    console = Console()
    reports: list[Report] = []
    failed: list[int] = []
    gc.freeze()
    gc.disable()
    began = time.process_time()
    every: Sequence[int] = range(first_seed, first_seed + seeds)
    for seed in track(every, "seeds", console=console, disable=not console.is_terminal, transient=True):
        try:
            reports.append(_report_of(seed, faults_s))
        except Exception:
            failed.append(seed)
            traceback.print_exc()
            print(f"again: make sim SEEDS=1 FIRST_SEED={seed}", file=sys.stderr, flush=True)
            if until_failure:
                break
        else:
            if transcript:
                print("\n".join(reports[-1].transcript), flush=True)
    console.print(sums(reports, time.process_time() - began))
    short = shortfalls(reports)
    for said in short:
        console.print(f"too little: {said}")
    console.print(f"{len(reports)} of {seeds} seeds hold" + (f"; violated: {failed}" if failed else ""))
    sys.exit(1 if failed or short else 0)


def _report_of(seed: int, faults_s: float) -> Report:
    """Runs a seed and makes its report at once, while its data are in memory."""
    try:
        return run(simulated(seed, faults_s=faults_s))
    finally:
        gc.collect()


if __name__ == "__main__":
    main()
