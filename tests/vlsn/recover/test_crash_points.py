"""The disk stops at every call of every operation; what comes back is what was acknowledged, and goes on.

For each operation (``crash_operations``) the calls are counted from the disk's own log.  Then it is played again for
each of them, up to that call.  On the fake disk it ends by a kill (nothing is lost), a power cut (any subset of what
was not synced is) or a torn one: each call gets one of the three in turn, all of them where ``SEEDS`` or the profile
asks for more.  On the real file system it ends by a kill.  After the reopen: every acknowledged entry is there with
its value at its VLSN, VLSNs follow on, the index finds all of them, and the log takes appends.  ``verify``, before
the reopen and after it, has no findings: torn tails and half-done steps are normal.
"""

from __future__ import annotations

import os
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest

from tests.vlsn.logs import DIRECTORY, Machine, Opened
from tests.vlsn.recover.crash_operations import OPERATIONS, Model, Operation, RealMachine
from vlsn.ids import Vlsn
from vlsn.verify.inspection import Rule
from vlsn.verify.report import VerifyReport
from vlsn.verify.verify import verify
from vlsnlog.testing.fakes.disk import StopHere

ENDS = ("kill", "power_cut", "torn")
LONG = os.environ.get("HYPOTHESIS_PROFILE") == "long" or "SEEDS" in os.environ
REAL_POINTS = 12
"""Points of each operation on the real file system; all of them when asked for more."""


class NothingKept(Random):
    """The chance of a power cut that loses all that was not synced."""

    def choice(self, given: Any) -> Any:
        return given[0]

    def random(self) -> float:
        return 0.999


def check(machine: Machine, model: Model, note: str) -> Opened:
    opened = Opened(machine)
    model.check(opened.entries(), note)
    span = opened.log.view.range
    assert span.last == span.last_sync, note
    for vlsn in range(span.first, span.last + 1):
        mapping = opened.log.view.index.at_or_before(Vlsn(vlsn))
        assert mapping is not None, f"{note}: VLSN {vlsn} has no mapping"
        assert mapping[0] <= vlsn, note
    more = opened.append(b"after")
    assert more.synced, note
    assert more.first == span.last + 1, note
    assert opened.entries()[more.first] == b"after", note
    return opened


def verified(machine: Machine, note: str) -> VerifyReport:
    """Verifies what is left; a person's truncation gives up what was durable, and says so."""
    report = verify(machine.disk, machine.stores, DIRECTORY)
    wrong = [each for each in report.findings if "truncation" not in note or each.rule != Rule.OVERMARKED_DURABLE]
    # A lost node file is named until the next open makes another.
    assert not wrong or not (machine.disk.exists(f"{DIRECTORY}/node.id") or "the reopen" in note), note
    return report


def on_disk(directory: str, seed: int = 0) -> Machine:
    return cast("Machine", RealMachine(directory, seed))


def stopped(operation: Operation, machine: Machine, number: int) -> Model:
    model = Model()
    machine.stop_at(number)
    with pytest.raises(StopHere):
        operation.story(machine, model)
    return model


@pytest.mark.parametrize("name", OPERATIONS)
def test_number_of_disk_calls(name: str) -> None:
    operation = OPERATIONS[name]
    numbers = operation.calls(machine := Machine())
    report = verified(machine, name)
    assert not report.torn_tail and report.entries == report.last - report.first + 1
    print(f"{name}: {len(numbers)} disk calls that change something, at least {operation.calls_min}")
    assert len(numbers) >= operation.calls_min


@pytest.mark.parametrize("name", OPERATIONS)
def test_nothing_acknowledged_is_lost_wherever_the_disk_stops(name: str) -> None:
    operation = OPERATIONS[name]
    for turn, number in enumerate(operation.calls(Machine())):
        for end in ENDS if LONG else (ENDS[turn % 3],):
            machine = Machine(seed=number)
            model = stopped(operation, machine, number)
            machine.end(end)
            note = f"{name}, {end} at disk call {number}"
            if looked := turn % 3 != 0 and machine.disk.exists(DIRECTORY):
                report = verified(machine, note)
                assert report.last >= min(map(max, filter(None, model.possible())), default=0), note
            check(machine, model, note)
            if looked:
                machine.kill()
                verified(machine, f"{note}, after the reopen")


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.long
def test_a_power_cut_after_the_process_behind_a_killed_one_loses_nothing(name: str) -> None:
    """The second process rests on what the first one had not synced yet: names above all."""
    operation = OPERATIONS[name]
    for number in operation.calls(Machine()):
        machine = Machine(seed=number)
        model = stopped(operation, machine, number)
        machine.kill()
        note = f"{name}, killed at disk call {number}, opened, cut off"
        held = check(machine, model, note).entries()
        machine.rng = NothingKept()
        machine.power_cut()
        assert held.items() <= Opened(machine).entries().items(), note


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.long
def test_nothing_acknowledged_is_lost_wherever_a_process_ends_on_a_real_file_system(name: str, tmp_path: Path) -> None:
    operation = OPERATIONS[name]
    directories = (str(tmp_path / str(each)) for each in count())
    numbers = operation.calls(on_disk(next(directories)))
    assert len(numbers) >= operation.calls_min
    for number in numbers if LONG else numbers[:: max(1, len(numbers) // REAL_POINTS)]:
        machine = on_disk(next(directories), number)
        model = stopped(operation, machine, number)
        machine.kill()
        check(machine, model, f"{name}, killed at disk call {number}")
        machine.kill()
