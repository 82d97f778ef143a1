"""``make track-record``: bugs that other systems had, put into this one; how many seeds the simulation takes for each.

    python -m tests.mutants.record [NAME …]

A bug is a patch in this folder, whose first lines say what it is and where it was met:

    bug: what is wrong, in a few words
    source: whose it was

Each is applied to a copy of the tree, and ``tests.sim`` runs there, one seed after another from 1 on, until one fails;
then the tree itself runs the same seeds, all of which must hold.  Exit status 1 when a bug is not found within
``--seeds``, its patch does not apply, or a seed fails without it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from tests.mutants.__main__ import apply_patch, copy_tree

HERE = Path(__file__).parent
SEEDS_MAX = 200
SAID_MAX = 110
_BLOCK = re.compile(r"Block\(first=(\d+), last=(\d+), term=(\d+), check=\d+\)")
_FOUND = re.compile(r"violated: \[(\d+)")
_ERROR = re.compile(r"[A-Za-z_.]*(Violation|Error|Deadlock|OutOfTime|Group): ")


@dataclass(frozen=True, slots=True)
class Bug:
    name: str
    what: str
    source: str
    patch: Path


@dataclass(frozen=True, slots=True)
class Hunt:
    """``seed``: the first that failed, 0 when none did; ``said``: how."""

    bug: Bug
    seed: int
    said: str


def bugs(names: tuple[str, ...] = ()) -> list[Bug]:
    """Returns all of them, or those named. Raises ``ValueError`` for a patch without its two lines."""
    found = []
    for patch in sorted(HERE.glob("*.patch")):
        head = dict(line.split(": ", 1) for line in patch.read_text().splitlines()[:2] if ": " in line)
        if set(head) != {"bug", "source"}:
            raise ValueError(f"{patch.name} does not begin with its bug and its source")
        found.append(Bug(patch.stem, head["bug"], head["source"], patch))
    unknown = set(names) - {bug.name for bug in found}
    if unknown:
        raise ValueError(f"no bug {', '.join(sorted(unknown))}")
    return [bug for bug in found if not names or bug.name in names]


def simulate(directory: Path, seeds: int) -> tuple[int, str]:
    """Returns the first seed that fails in the tree at ``directory``, 0 when none does, and what it says."""
    environment = {**os.environ, "PYTHONPATH": str(directory), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "tests.sim", "--seeds", str(seeds), "--until-failure"]
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)
    found = _FOUND.search(done.stdout)
    if found is None and "seeds hold" not in done.stdout:
        raise RuntimeError(f"the simulation could not be run:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return int(found[1]) if found else 0, _how(done.stderr) if found else ""


def _how(transcript: str) -> str:
    """Returns the failure in a line: the last one, for nodes log what they survive."""
    found = [line.partition(": ") for line in transcript.splitlines() if _ERROR.match(line)]
    return found[-1][2] if found else ""


def hunt(bug: Bug, seeds: int) -> Hunt:
    with tempfile.TemporaryDirectory(prefix="vlsnlog-bug-") as name:
        directory = Path(name)
        copy_tree(directory)
        fault = apply_patch(bug.patch, directory)
        if fault is not None:
            return Hunt(bug, 0, f"does not apply: {fault}")
        return Hunt(bug, *simulate(directory, seeds))


@click.command()
@click.argument("names", nargs=-1)
@click.option("--seeds", default=SEEDS_MAX, show_default=True, help="Seeds in which a bug must be found.")
@click.option("--markdown", is_flag=True, help="Print the rows of the tables in docs/track-record.md, too.")
def main(names: tuple[str, ...], seeds: int, markdown: bool) -> None:
    """Hunts each bug with the simulation, and prints how many seeds that took."""
    console = Console()
    hunts = []
    for bug in bugs(names):
        with console.status(bug.name):
            hunts.append(hunt(bug, seeds))
        if not console.is_terminal:
            print(f"{bug.name}: {hunts[-1].seed or 'NOT FOUND'}: {hunts[-1].said[:150]}", flush=True)
    console.print(table_of(hunts))
    if markdown:
        print("\n".join(row_of(each) for each in hunts))
    with tempfile.TemporaryDirectory(prefix="vlsnlog-bug-") as name:
        copy_tree(Path(name))
        most = max((each.seed for each in hunts), default=0)
        failed, said = simulate(Path(name), most)
    console.print(f"without any of them: seed {failed} fails: {said}" if failed else f"without any: {most} seeds hold")
    sys.exit(1 if failed or not all(each.seed for each in hunts) else 0)


def row_of(hunt: Hunt) -> str:
    """Returns ``| bug (source) | seeds | what was violated |``; a block is named without its checksum."""
    said = _BLOCK.sub(r"block (\3, \1)", hunt.said)
    said = said if len(said) <= SAID_MAX else said[:SAID_MAX].rsplit(" ", 1)[0] + " …"
    return f"| Bug: {hunt.bug.what} ({hunt.bug.source}) | {hunt.seed or 'not found'} | `{said}` |"


def table_of(hunts: list[Hunt]) -> Table:
    table = Table("bug", "met in", box=SIMPLE_HEAD)
    table.add_column("seeds", justify="right")
    table.add_column("found by")
    for each in hunts:
        seeds = f"[green]{each.seed}" if each.seed else "[bold red]NOT FOUND"
        table.add_row(each.bug.what, each.bug.source, seeds, each.said[:90].replace("[", "\\["))
    return table


if __name__ == "__main__":
    main()
