"""``make freeze DIR=…`` and ``make frozen DIR=…``: the tree's behaviour, written down, and compared with that later.

    python -m tests.frozen freeze DIR       writes text files: a digest of each is printed, as sha256sum would
    python -m tests.frozen compare DIR      makes all of it again and names each file that differs; exit status 1

* histories: a simulated seed each: its transcript, its sums, what is durable, and a digest of each file and store;
* findings: ``verify --json`` on a directory that is damaged by a seed;
* audits: the report on three copies of a log, one of them damaged in one of the audit's twelve ways, without Spark;
* signatures: the public calls of both clients and of what they return.

The sentences of the first three stand in folders of their own, such as ``findings-words``, so that a change of words
alone shows as one.  ``DIR`` belongs outside the tree: any change of behaviour that is meant makes other files.
"""

from __future__ import annotations

import logging
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from hashlib import sha256
from itertools import zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from tests.frozen import findings, histories, signatures
from tests.frozen.files import Frozen
from tests.repl.audit.damages import DAMAGES

KINDS = ("histories", "findings", "audits", "signatures")
FAST = "/dev/shm" if Path("/dev/shm").is_dir() else None
SHOWN_CHARACTERS = 160


def made(kind: str, numbers: Sequence[int], scratch: Path, workers: int) -> Iterable[Frozen]:
    """Makes all of one kind, in the order of their numbers."""
    if kind == "signatures":
        yield from signatures.frozen()
        return
    makers: dict[str, Callable[[int], Frozen]] = {
        "histories": histories.frozen,
        "findings": partial(findings.frozen, scratch=scratch),
        "audits": partial(findings.audited_damage, scratch=scratch),
    }
    with ProcessPoolExecutor(workers, initializer=logging.disable) as pool:
        yield from pool.map(makers[kind], numbers, chunksize=max(1, len(numbers) // (8 * workers)))


def freeze(directory: Path, wanted: Mapping[str, Sequence[int]], workers: int) -> None:
    """Writes the files of each kind, by their numbers, below ``directory``."""
    with TemporaryDirectory(prefix="vlsnlog-frozen-", dir=FAST) as scratch:
        for kind, numbers in wanted.items():
            for each in made(kind, numbers, Path(scratch), workers):
                each.write(directory, kind)


def frozen_there(directory: Path) -> dict[str, list[int]]:
    """Returns the kinds that lie in ``directory``, and the numbers of each."""
    there = {kind: sorted((directory / kind).glob("*.txt")) for kind in KINDS}
    return {kind: [int(path.stem) for path in paths if path.stem.isdigit()] for kind, paths in there.items() if paths}


def differences(before: Path, after: Path) -> Iterator[tuple[str, str]]:
    """Yields each file that differs or is in one directory alone, and the first line in which it does."""
    for name in sorted(compared(before, after)):
        one, other = (_lines(place / name) for place in (before, after))
        for number, (had, has) in enumerate(zip_longest(one, other), 1):
            if had != has:
                yield name, f"line {number}\n    - {_shown(had)}\n    + {_shown(has)}"
                break


def compared(before: Path, after: Path) -> set[str]:
    """Returns the files of both in the folders that ``before`` has: words that were removed there do not matter."""
    return {name for name in files(before) | files(after) if (before / name).parent.is_dir()}


def files(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*.txt")}


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def _shown(line: str | None) -> str:
    return "(no line)" if line is None else line[:SHOWN_CHARACTERS]


@click.group()
def main() -> None:
    """Writes down what the tree does, and compares with that later."""


_workers = click.option("--workers", default=os.cpu_count() or 1, show_default=True, help="Processes.")
_directory = click.argument("directory", type=click.Path(path_type=Path, file_okay=False))


@main.command("freeze")
@_directory
@click.option("--kind", "kinds", type=click.Choice(KINDS), multiple=True, help="These alone; all of them without.")
@click.option("--seeds", default=100, show_default=True, help="Simulated seeds, from 1 on.")
@click.option("--directories", default=1000, show_default=True, help="Damaged directories.")
@_workers
def freeze_command(directory: Path, kinds: tuple[str, ...], seeds: int, directories: int, workers: int) -> None:
    """Writes what the tree does into DIRECTORY, and prints a digest of each file."""
    if directory.exists() and any(directory.iterdir()):
        raise click.UsageError(f"{directory} is not empty: what was frozen there would be mixed with this")
    numbers = {
        "histories": range(1, seeds + 1),
        "findings": range(directories),
        "audits": range(len(DAMAGES)),
        "signatures": range(0),
    }
    freeze(directory, {kind: numbers[kind] for kind in kinds or KINDS}, workers)
    for name in sorted(files(directory)):
        print(f"{sha256((directory / name).read_bytes()).hexdigest()}  {name}")


@main.command("compare")
@_directory
@_workers
def compare_command(directory: Path, workers: int) -> None:
    """Makes again what lies in DIRECTORY, and names each file that differs, with its first line that does."""
    wanted = frozen_there(directory)
    if not wanted:
        raise click.UsageError(f"nothing is frozen in {directory}: freeze the earlier tree into it first")
    with TemporaryDirectory(prefix="vlsnlog-frozen-", dir=FAST) as place:
        after = Path(place)
        freeze(after, wanted, workers)
        differing = dict(differences(directory, after))
        every = Counter(name.partition("/")[0] for name in compared(directory, after))
    for name, where in differing.items():
        print(f"{name}: {where}")
    wrong = Counter(name.partition("/")[0] for name in differing)
    for kind, count in sorted(every.items()):
        print(f"{kind}: {count - wrong[kind]} of {count} equal")
    sys.exit(1 if differing else 0)


if __name__ == "__main__":
    main()
