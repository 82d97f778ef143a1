"""Random healthy histories for the audit: the disks of simulated clusters, at any moment and in the end.

    python -m tests.repl.audit.histories [SEEDS] [FIRST_SEED]      audits them all, and prints what was found: nothing

The nodes are the real ones, killed, cut off, partitioned, restored, readmitted; they elect, roll back, clean,
run transactions and exactly-once producers (``tests/sim``).  A history is one moment: all disks as they are then, as
if every process had been killed at once.  Seeds whose disks rot are left out: there is something to be found.
"""

from __future__ import annotations

import asyncio
import gc
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from repl.audit.job import Jobs, audit
from repl.audit.report import AuditReport
from repl.audit.source import Unreadable
from repl.audit.sources import source_of
from tests.fakes.loop import run
from tests.fakes.machine import Image
from tests.repl.audit.jobs import LocalJobs
from tests.sim import library, library_transactions, transactions
from tests.sim.verdict import Violation
from tests.sim.world import Simulation
from vlsn.errors import BadArgument, BadBody
from vlsn.format.segment import HEADER_PAGE, SegmentHeader, SegmentState
from vlsn.real.disk import PosixDisk
from vlsn.real.lmdb_store import LmdbStores
from vlsn.verify.inspection import Rule
from vlsn.verify.verify import verify

FAULTS_S = 20.0
MOMENTS = 3
"""Moments of each seed under faults; its end is one more."""
MAP_BYTES = 64 << 20
Disks = dict[str, Image]


@dataclass(slots=True)
class Told:
    """The outcome: how many histories were audited, and what they held."""

    audited: int = 0
    compared: int = 0
    bytes: int = 0
    entries: int = 0
    held: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)
    violated: list[int] = field(default_factory=list)
    """Seeds whose groups went wrong by themselves: left out."""


def exported(image: Image, name: str, path: Path) -> Path:
    """Writes a simulated disk's directory to a real one: files, and its stores as LMDB environments."""
    path.mkdir(parents=True)
    for each in image.disk.files(f"/{name}"):
        (path / Path(each).name).write_bytes(image.disk.content(each))
    for each, contents in image.stores.items():
        if each.startswith(f"/{name}/") and contents.values:
            store = LmdbStores().open(str(path / Path(each).name), map_bytes=MAP_BYTES)
            store.write([(key, value) for key, (value, _) in contents.values.items()])
            store.close()
    return path


async def lived(seed: int, faults_s: float = FAULTS_S, moments: int = MOMENTS) -> tuple[list[Disks], Any] | None:
    """Returns the moments of one seed, and its report; None where its disks rot."""
    with library.few_producers(seed) as few, library_transactions.staged_soon():
        simulation = Simulation(seed, faults_s=faults_s, few_producers=few)
        if simulation.nemesis.rot != "none":
            return None
        rng, taken = Random(f"moments/{seed}"), list[Disks]()

        def take() -> None:
            machines = simulation.group.machines
            taken.append({name: machine.image() for name, machine in machines.items()})

        loop = asyncio.get_running_loop()
        timers = [loop.call_later(rng.uniform(2.0, faults_s), take) for _ in range(moments)]
        report = await simulation.run()
        for timer in timers:
            timer.cancel()
        take()
        return taken, report


def held_by(report: AuditReport) -> Counter[str]:
    """Counts what a history was about, so that nothing passes for want of it."""
    ends = {source.last for source in report.sources}
    return Counter(
        {
            "copies that lag": len(ends) > 1,
            "cleaned": any(source.first > 1 for source in report.sources),
            "begin apart": len({source.first for source in report.sources}) > 1,
        }
    )


def audit_all(disks: Disks, directory: Path, told: Told, what: str, jobs: Callable[[], Jobs] = LocalJobs) -> None:
    """Audits one history, which is removed again."""
    paths = [str(exported(image, name, directory / name)) for name, image in disks.items()]
    try:
        usable = [path for path in paths if _is_log(Path(path))]
        if len(usable) < 2:
            return
        try:
            report = audit([source_of(path) for path in usable], jobs())
        except (Unreadable, BadArgument) as error:
            told.findings.append(f"{what}: {error}")
            return
        told.audited += 1
        for path in usable:
            alone = verify(PosixDisk(), LmdbStores(), path)
            findings = [finding for finding in alone.findings if finding.rule != Rule.PAGE]  # pages are not exported
            told.findings += [f"{what}: verify {path}: {finding}" for finding in findings]
        told.compared += report.compared_to > 0
        told.bytes += report.bytes
        told.entries += sum(source.entries for source in report.sources)
        told.held += held_by(report)
        told.findings += [f"{what}: {finding.as_dict()}" for finding in report.findings]
    finally:
        shutil.rmtree(directory)


def audited_histories(
    seeds: range,
    *,
    faults_s: float = FAULTS_S,
    moments: int = MOMENTS,
    say: Callable[[str], None] = lambda _: None,
    jobs: Callable[[], Jobs] = LocalJobs,
) -> Told:
    told = Told()
    for seed in seeds:
        try:
            found = run(lived(seed, faults_s, moments))
        except (
            Violation,
            AssertionError,
        ) as error:  # the simulation's matter, not the audit's
            told.violated.append(seed)
            say(f"seed {seed} with {faults_s:.0f} s of faults: {str(error)[:300]}")
            continue
        if found is None:
            continue
        moments_taken, report = found
        told.held["rolled back"] += report.rolled_back > 0
        told.held["restored"] += report.restored > 0
        told.held["transactions"] += transactions.are_there(seed)
        with TemporaryDirectory(prefix="vlsnlog-histories-", dir=_fast()) as directory:
            for number, disks in enumerate(moments_taken):
                audit_all(disks, Path(directory, str(number)), told, f"seed {seed}, moment {number}", jobs)
        if told.findings:
            say("\n".join(told.findings[-3:]))
        del found, moments_taken
        gc.collect()
    return told


def _is_log(path: Path) -> bool:
    """Says whether a log is there: one that is being restored, or that has only its standby yet, is none."""
    return any(map(_is_taken, path.glob("*.vlog"))) and not (path / "restore.marker").exists()


def _is_taken(segment: Path) -> bool:
    try:
        return SegmentHeader.decode(segment.read_bytes()[:HEADER_PAGE]).state is SegmentState.ACTIVE
    except BadBody:
        return False  # a standby whose header was being written


def _fast() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def main(seeds: int, first: int) -> int:
    told = audited_histories(range(first, first + seeds), say=print)
    print(f"{told.audited} histories of {seeds} seeds from {first} on: {told.entries:,} entries, {told.bytes:,} bytes")
    print(f"{told.compared} compared something; {dict(told.held)}")
    print(f"{len(told.findings)} findings; left out, for their groups went wrong: {told.violated}")
    return 1 if told.findings else 0


if __name__ == "__main__":
    sys.exit(main(*(int(each) for each in [*sys.argv[1:], "20", "1"][:2])))
