"""Verify and dump beside a running node: whatever it does at whichever of their disk calls, they find nothing wrong."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from tests.vlsn.logs import DIRECTORY, Machine, Undurable, put
from tests.vlsn.write.test_rollback import rolled_back
from vlsn.format.segment import segment_name, sidecar_name
from vlsn.verify.dump import DumpFilter, dump_rows
from vlsn.verify.verify import verify
from vlsnlog.testing.fakes.disk import Call

Event = Callable[[Undurable], None]


def roll_back(opened: Undurable) -> None:
    rolled_back(opened, 4)


def roll_back_and_go_on(opened: Undurable) -> None:
    rolled_back(opened, 4)
    opened.take_term()
    put(opened, {}, 40, size=2500)
    opened.log.care.checkpointer.run()
    put(opened, {}, 2)


def append_and_roll(opened: Undurable) -> None:
    put(opened, {}, 60, size=2500)


def clean_away(opened: Undurable) -> None:
    """Removes files as a cleaning does: the oldest first, each with its sidecar."""
    for number in (1, 2):
        for name in (sidecar_name(number), segment_name(number)):
            path = f"{DIRECTORY}/{name}"
            if opened.machine.disk.exists(path):
                opened.machine.disk.remove(path)


EVENTS: tuple[Event, ...] = (roll_back, roll_back_and_go_on, append_and_roll, clean_away)


def started(seed: int) -> Undurable:
    opened = Undurable(Machine(seed))
    put(opened, {}, 3)
    opened.log.care.checkpointer.run()
    put(opened, {}, 70, size=2500)
    opened.log.view.dtvlsn = type(opened.log.view.dtvlsn)(4)
    opened.log.care._state_idle_end()
    put(opened, {}, 2)
    return opened


def at_call(opened: Undurable, number: int, event: Event, look: Callable[[], None]) -> bool:
    """Runs ``look``, with ``event`` before its disk call ``number``; whether it came to that."""
    disk = opened.machine.disk
    left = number

    def hook(call: Call) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            disk.hook = None
            event(opened)

    disk.hook = hook
    look()
    disk.hook = None
    return left <= 0


def verified(machine: Machine) -> None:
    report = verify(machine.disk, machine.stores, DIRECTORY, live=True)
    assert not report.findings and report.last >= 4


def dumped(machine: Machine, *, reverse: bool = False) -> None:
    rows = list(dump_rows(machine.disk, machine.stores, DIRECTORY, DumpFilter(all=True), reverse=reverse))
    assert rows and not [row for row in rows if row.damaged or row.kind == "TORN_TAIL"]


@pytest.mark.parametrize("look", [verified, dumped, partial(dumped, reverse=True)], ids=["verify", "dump", "reverse"])
@pytest.mark.parametrize("event", EVENTS)
def test_nothing_is_wrong_whatever_happens_at_any_disk_call(event: Event, look: Callable[[Machine], None]) -> None:
    number = 1
    while at_call(opened := started(number), number, event, partial(look, opened.machine)):
        number += 1
    assert number > 20
