"""A simulated seed as text that is the same in every process: its events, its durable entries, its disks.

Prose is kept apart (``docs/testing.md``): a field of an event whose value is several words goes into the words alone.
"""

from __future__ import annotations

import gc
import re
import traceback
from collections.abc import Iterator
from dataclasses import asdict

from tests.fakes.loop import run
from tests.frozen.files import Frozen, digest
from tests.sim.report import Report
from tests.sim.world import FAULTS_S, Simulation, simulated

_PROSE = re.compile(r"( \w+=)([^ {]\S*(?: (?!\w+=)\S+)+)")
"""A field's value of several words."""


def frozen(seed: int, faults_s: float = FAULTS_S) -> Frozen:
    """Runs the seed, as ``make sim`` does without the collector of cycles. One that violates something is text as well:
    its transcript up to there."""
    disks: list[str] = []
    gc.disable()
    try:
        report = run(simulated(seed, faults_s=faults_s, ended=lambda simulation: disks.extend(_disks(simulation))))
        lines, sums = report.transcript, _sums(report)
    except Exception as error:
        lines = [line for note in getattr(error, "__notes__", ()) for line in note.splitlines()]
        sums = traceback.format_exception_only(error)
    finally:
        gc.enable()
        gc.collect()
    return Frozen(
        name=f"{seed:05}",
        facts="\n".join([*(_PROSE.sub(r"\1…", line) for line in lines), *sums, *disks]) + "\n",
        words="\n".join(found[0] + found[1] for line in lines for found in _PROSE.findall(line)) + "\n",
    )


def _sums(report: Report) -> list[str]:
    return [f"{name}: {value}" for name, value in asdict(report).items() if name != "transcript"]


def _disks(simulation: Simulation) -> Iterator[str]:
    """Yields a line for each durable entry, for each file and each store of every machine that is a member."""
    for vlsn, value in sorted(simulation.watch.values.items()):
        yield f"VLSN {vlsn}: {len(value)} bytes, {digest(value)}"
    for name, machine in sorted(simulation.group.machines.items()):
        for path in sorted(machine.disk.files(f"/{name}")):
            content = machine.disk.content(path)
            yield f"{name} {path}: {len(content)} bytes, {digest(content)}"
        for path, contents in sorted(machine.stores.contents.items()):
            pairs = sorted((key, value) for key, (value, _) in contents.values.items())
            yield f"{name} {path}: {len(pairs)} pairs, {digest(repr(pairs).encode())}"
