"""What any crash leaves verifies: torn tails and half-done steps are normal, before and after the reopen."""

from __future__ import annotations

import pytest

from tests.fakes.disk import StopHere
from tests.vlsn.logs import DIRECTORY, Machine, Opened
from tests.vlsn.test_crash_points import STORIES, Story, calls_of, put
from tests.vlsn.test_overmark import Undurable, rolled_back
from vlsn.verify import verify
from vlsn.verify_report import VerifyReport


def roll_back_and_go_on(machine: Machine, held: dict[int, bytes]) -> None:
    opened = Undurable(machine)
    put(opened, held, 40, size=2500)
    opened.log.checkpointer.run()
    put(opened, held, 3)
    held.clear()
    rolled_back(opened, 4)
    opened.take_term()
    put(opened, {}, 40, size=2500)
    opened.close()


# A story that kills its machine itself lifts the stop, so it is only told whole.
ALL_STORIES: dict[str, Story] = {name: story for name, (story, _) in STORIES.items()} | {
    "rollback": roll_back_and_go_on
}


def verified(machine: Machine) -> VerifyReport:
    return verify(machine.disk, machine.stores, DIRECTORY)


@pytest.mark.parametrize("name", ALL_STORIES)
def test_a_whole_story_verifies_without_a_torn_tail(name: str) -> None:
    machine = Machine()
    ALL_STORIES[name](machine, {})
    machine.kill()
    report = verified(machine)
    assert (report.findings, report.torn_tail) == ([], False)
    assert report.entries == report.last


@pytest.mark.parametrize("end", ["kill", "torn"])
@pytest.mark.parametrize("name", [name for name in ALL_STORIES if name != "kill_and_reopen"])
def test_what_a_crash_leaves_verifies(name: str, end: str) -> None:
    story = ALL_STORIES[name]
    numbers = calls_of(story)
    for number in numbers[:: 1 if len(numbers) < 100 else 5]:
        machine = Machine(seed=number)
        held: dict[int, bytes] = {}
        machine.disk.stop_at(number)
        with pytest.raises(StopHere):
            story(machine, held)
        if end == "kill":
            machine.kill()
        else:
            machine.power_cut(tear=True)
        if not machine.disk.exists(DIRECTORY):
            continue
        note = f"{name}, {end} at disk call {number}"
        report = verified(machine)
        assert not report.findings, note
        assert report.last >= max(held, default=0), note
        Opened(machine).append(b"after")
        machine.kill()
        report = verified(machine)
        assert not report.findings, f"{note}, after the reopen"
