"""The disk stops at every call of an operation; what comes back is what was acknowledged, and goes on.

For each story the calls are counted from the disk's own log.  Then it is played again for each of them, up
to that call, with a kill (nothing is lost), a power cut (any subset of what was not synced is), and a torn
one.  After the reopen: every acknowledged entry is there with its value at its VLSN, VLSNs follow on, the
index finds all of them, and the log takes appends.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.fakes.disk import StopHere
from tests.vlsn.logs import Machine, Opened
from vlsn.ids import Vlsn

Story = Callable[[Machine, dict[int, bytes]], None]


def put(opened: Opened, held: dict[int, bytes], count: int, size: int = 700) -> None:
    for number in range(count):
        value = f"{len(held)}/{number}:".encode().ljust(size, b".")
        pending = opened.append(value)
        if pending.synced:
            held[pending.first] = value


def first_open(machine: Machine, held: dict[int, bytes]) -> None:
    put(Opened(machine), held, 3)


def append_and_roll(machine: Machine, held: dict[int, bytes]) -> None:
    put(Opened(machine), held, 100)


def checkpoints(machine: Machine, held: dict[int, bytes]) -> None:
    opened = Opened(machine)
    for _ in range(3):
        put(opened, held, 4)
        opened.log.checkpointer.run()


def clean_stop_and_reopen(machine: Machine, held: dict[int, bytes]) -> None:
    for _ in range(2):
        opened = Opened(machine)
        put(opened, held, 4)
        opened.close()


def kill_and_reopen(machine: Machine, held: dict[int, bytes]) -> None:
    for _ in range(2):
        opened = Opened(machine)
        put(opened, held, 4)
        machine.kill()
    Opened(machine)


STORIES: dict[str, tuple[Story, int]] = {
    # The least number of disk calls that each makes: fewer would mean that something is not synced any more.
    "first_open": (first_open, 30),
    "append_and_roll": (append_and_roll, 230),
    "checkpoints": (checkpoints, 60),
    "clean_stop_and_reopen": (clean_stop_and_reopen, 70),
    "kill_and_reopen": (kill_and_reopen, 90),
}


def calls_of(story: Story) -> list[int]:
    machine = Machine()
    story(machine, {})
    return [call.number for call in machine.disk.calls if call.changes]


def check(machine: Machine, held: dict[int, bytes], note: str) -> None:
    opened = Opened(machine)
    found = opened.entries()
    missing = {vlsn: value for vlsn, value in held.items() if found.get(vlsn) != value}
    assert not missing, f"{note}: {len(missing)} acknowledged entries are gone or changed, first VLSN {min(missing)}"
    span = opened.log.range
    assert span.last == span.last_sync
    for vlsn in range(span.first, span.last + 1):
        mapping = opened.log.index.at_or_before(Vlsn(vlsn))
        assert mapping is not None, f"{note}: VLSN {vlsn} has no mapping"
        assert mapping[0] <= vlsn
    more = opened.append(b"after")
    assert more.synced, note
    assert more.first == span.last + 1
    assert opened.entries()[more.first] == b"after"


@pytest.mark.parametrize("name", STORIES)
def test_number_of_disk_calls(name: str) -> None:
    story, least = STORIES[name]
    numbers = calls_of(story)
    print(f"{name}: {len(numbers)} disk calls that change something")
    assert len(numbers) >= least


@pytest.mark.parametrize("end", ["kill", "power_cut", "torn"])
@pytest.mark.parametrize("name", STORIES)
def test_nothing_acknowledged_is_lost_wherever_the_disk_stops(name: str, end: str) -> None:
    story, _ = STORIES[name]
    numbers = calls_of(story)
    step = 1 if len(numbers) < 150 else 3
    for number in numbers[::step]:
        machine = Machine(seed=number)
        held: dict[int, bytes] = {}
        machine.stop_at(number)
        with pytest.raises(StopHere):
            story(machine, held)
        if end == "kill":
            machine.kill()
        else:
            machine.power_cut(tear=end == "torn")
        check(machine, held, f"{name}, {end} at disk call {number}")


def test_a_crash_in_recovery_itself_changes_nothing_that_was_acknowledged() -> None:
    def prepared() -> tuple[Machine, dict[int, bytes]]:
        machine = Machine(seed=5)
        held: dict[int, bytes] = {}
        opened = Opened(machine)
        put(opened, held, 10)
        opened.log.checkpointer.run()
        put(opened, held, 10)
        machine.disk.stop_at(lambda call: call.name == "sync" and call.path.endswith(".vlog"))
        with pytest.raises(StopHere):
            opened.append(b"torn" * 400)
        machine.power_cut(tear=True)
        return machine, held

    machine, held = prepared()
    begun = len(machine.disk.calls)
    Opened(machine)
    numbers = [call.number for call in machine.disk.calls[begun:] if call.changes]
    assert len(numbers) >= 15
    for number in numbers:
        machine, held = prepared()
        machine.disk.stop_at(number)
        with pytest.raises(StopHere):
            Opened(machine)
        machine.power_cut(tear=True)
        check(machine, held, f"recovery stopped at disk call {number}")
