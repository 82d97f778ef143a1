"""``make mutants``: each defence taken away makes a named test fail that passes with it.

    python -m tests.mutants [NAME …]

A mutant is a patch in this folder whose first lines say what it takes away and which test shows it:

    defence: what was removed, in a few words
    test: tests/vlsn/test_x.py::test_y

Their tests run without any of them first.  Then each is applied to a copy of the tree, never to the tree, as many at
once as there are cores, and nothing in the product knows of it.  Exit status 1 when a mutant survives its test, does
not apply any more, or its test fails without it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from tempfile import TemporaryDirectory

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
COPIED = ("vlsn", "feeder", "replica", "repl", "tests", "docs", "jepsen-like/harness", "pyproject.toml")
TEST_S_MAX = 300
TESTS_S_MAX = 7200
_FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)
_NAMED = re.compile(r"^(?:---|\+\+\+) [ab]/(\S+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Mutant:
    name: str
    defence: str
    test: str
    patch: Path


@dataclass(frozen=True, slots=True)
class Outcome:
    mutant: Mutant
    killed: bool
    what: str
    seconds: float


def mutants(names: list[str] | None = None) -> list[Mutant]:
    """Returns all of them, or those named; ordered by name. Raises ``ValueError`` for a patch without its two lines."""
    found = []
    for patch in sorted(HERE.glob("*.patch")):
        head = dict(line.split(": ", 1) for line in patch.read_text().splitlines()[:2] if ": " in line)
        if set(head) != {"defence", "test"}:
            raise ValueError(f"{patch.name} does not begin with its defence and its test")
        found.append(Mutant(patch.stem, head["defence"], head["test"], patch))
    unknown = set(names or ()) - {mutant.name for mutant in found}
    if unknown:
        raise ValueError(f"no mutant {', '.join(sorted(unknown))}")
    return [mutant for mutant in found if not names or mutant.name in names]


def copy_tree(directory: Path) -> None:
    for name in COPIED:
        source, target = ROOT / name, directory / name
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, target)


def apply(mutant: Mutant, directory: Path, *, dry_run: bool = False) -> str | None:
    return apply_patch(mutant.patch, directory, dry_run=dry_run)


def apply_patch(patch: Path, directory: Path, *, dry_run: bool = False) -> str | None:
    """Returns what speaks against the patch; None when it applies. No fuzz: a patch means the lines that it names."""
    command = ["patch", "-p1", "--fuzz=0", "--no-backup-if-mismatch", "-s", "-i", str(patch)]
    done = subprocess.run(
        [*command, *(["--dry-run"] if dry_run else [])], cwd=directory, capture_output=True, text=True, check=False
    )
    return None if done.returncode == 0 else (done.stdout + done.stderr).strip().splitlines()[-1]


def failing(tests: Iterable[str], directory: Path, *options: str, timeout_s: float = TEST_S_MAX) -> list[str]:
    """Returns which of ``tests`` fail in the copy at ``directory``. One that never ends is found out, too."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(directory),
        "HYPOTHESIS_PROFILE": "ci",
        "PYTHONPYCACHEPREFIX": str(directory / "__pycache__"),
    }
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    asked = sorted(set(tests))
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-rfE", "--tb=no", "-p", "no:cacheprovider", *options, *asked],
            cwd=directory,
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return asked
    if done.returncode not in (0, 1):
        raise RuntimeError(f"{', '.join(asked)[:200]} could not be run:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    failed = _FAILED.findall(done.stdout)
    assert bool(failed) == bool(done.returncode), done.stdout[-2000:]
    return [
        test for test in asked if any(each == test or each.startswith((f"{test}::", f"{test}[")) for each in failed)
    ]


def judge(mutant: Mutant, directory: Path) -> Outcome:
    """Applies the mutant to the copy at ``directory``, runs its test there, and takes it out again."""
    began = time.perf_counter()
    if fault := apply(mutant, directory):
        what, killed = f"does not apply: {fault}", False
    else:
        killed = bool(failing([mutant.test], directory, "-x"))
        what = "killed" if killed else "SURVIVED"
    restore(mutant.patch, directory)
    return Outcome(mutant, killed, what, time.perf_counter() - began)


def restore(patch: Path, directory: Path) -> None:
    """Copies what the patch names from the tree again, with its old times: bytecode is known by them."""
    for name in set(_NAMED.findall(patch.read_text())):
        if (ROOT / name).exists():
            shutil.copy2(ROOT / name, directory / name)
        else:
            (directory / name).unlink(missing_ok=True)


def main(names: list[str]) -> int:
    console = Console()
    outcomes = []
    asked = mutants(names)
    cores = os.cpu_count() or 1
    with TemporaryDirectory(prefix="vlsnlog-mutants-") as home, console.status("their tests, without any") as status:
        copies: Queue[Path] = Queue()
        for number in range(cores):
            copy_tree(directory := Path(home, str(number)))
            copies.put(directory)
        options = ("-n", str(cores), "--dist", "loadfile")
        wrong = failing((mutant.test for mutant in asked), Path(home, "0"), *options, timeout_s=TESTS_S_MAX)

        def judged(mutant: Mutant) -> Outcome:
            if mutant.test in wrong:
                return Outcome(mutant, False, "its test fails without it", 0.0)
            directory = copies.get()
            try:
                return judge(mutant, directory)
            finally:
                copies.put(directory)

        with ThreadPoolExecutor(cores) as judges:
            for outcome in judges.map(judged, asked):
                outcomes.append(outcome)
                status.update(f"{len(outcomes)} of {len(asked)} judged")
                if not console.is_terminal:
                    print(f"{outcome.mutant.name}: {outcome.what}", flush=True)
    console.print(table_of(outcomes))
    return 0 if all(outcome.killed for outcome in outcomes) else 1


def table_of(outcomes: list[Outcome]) -> Table:
    table = Table("taken away", "shown by", "outcome", box=SIMPLE_HEAD)
    table.add_column("s", justify="right")
    for outcome in outcomes:
        style = "green" if outcome.killed else "bold red"
        test = outcome.mutant.test.removeprefix("tests/").replace("::", " ")
        table.add_row(outcome.mutant.defence, test, f"[{style}]{outcome.what}", f"{outcome.seconds:.1f}")
    return table


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
