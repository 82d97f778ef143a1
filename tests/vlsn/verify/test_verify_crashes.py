"""Any crash's leavings verify: torn tails and half-done steps are normal, before and after the reopen."""

from __future__ import annotations

import pytest

from tests.fakes.disk import StopHere
from tests.vlsn.logs import DIRECTORY, Machine, Opened
from tests.vlsn.recover.crash_operations import OPERATIONS, Model
from vlsn.verify.inspection import Rule
from vlsn.verify.report import VerifyReport
from vlsn.verify.verify import verify


def verified(machine: Machine, name: str) -> VerifyReport:
    """Verifies; a person's truncation gives up what was durable, and may say so from then on."""
    report = verify(machine.disk, machine.stores, DIRECTORY)
    if name == "truncation":
        report.findings = [each for each in report.findings if each.rule != Rule.OVERMARKED_DURABLE]
    return report


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_whole_story_verifies_without_a_torn_tail(name: str) -> None:
    machine = Machine()
    OPERATIONS[name].story(machine, Model())
    machine.kill()
    report = verified(machine, name)
    assert (report.findings, report.torn_tail) == ([], False)
    assert report.entries == report.last - report.first + 1


@pytest.mark.parametrize("name", OPERATIONS)
def test_what_a_crash_leaves_verifies(name: str) -> None:
    operation = OPERATIONS[name]
    numbers = operation.calls(Machine())
    for turn, number in enumerate(numbers[:: 1 + len(numbers) // 50]):
        machine = Machine(seed=number)
        model = Model()
        machine.stop_at(number)
        with pytest.raises(StopHere):
            operation.story(machine, model)
        if turn % 2:
            machine.kill()
        else:
            machine.power_cut(tear=True)
        if not machine.disk.exists(DIRECTORY):
            continue
        note = f"{name}, {'kill' if turn % 2 else 'torn'} at disk call {number}"
        report = verified(machine, name)
        assert not report.findings or node_file_is_lost(machine), note
        assert report.last >= max(min(map(max, filter(None, model.possible())), default=0), 0), note
        Opened(machine).append(b"after")
        machine.kill()
        report = verified(machine, name)
        assert not report.findings, f"{note}, after the reopen"


def node_file_is_lost(machine: Machine) -> bool:
    """Says whether the node file is lost: verify names that, until the next open makes another."""
    return not machine.disk.exists(f"{DIRECTORY}/node.id")
