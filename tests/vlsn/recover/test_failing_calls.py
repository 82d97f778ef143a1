"""One disk call fails, any of them, in every operation; the table says what that does to the log.

For each operation (``crash_operations``) every call is failed, in a story of its own, with EIO or ENOSPC, what opens a
file with EMFILE too (in turn; all of them where ``SEEDS`` or the profile asks for more).  What it ends as is one of
three, and the table has no other:

    ON       the log goes on: appends are taken, all background work is done in the end, a close is clean
    ENDS     ``LogFailed``: what was being written is what the promise rests on
    TOLD     whoever opens the log, or runs the operation, is told; there is no log that could go on

Whichever it is: nobody waits for ever, and the next open, also after a power cut, has all that was acknowledged.
"""

from __future__ import annotations

import errno
import os
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, TypeVar

import pytest

from tests.fakes.threads import InlineThreads, InlineWorker
from tests.vlsn.logs import Machine
from tests.vlsn.recover.crash_operations import OPERATIONS, Model
from tests.vlsn.recover.test_crash_points import check
from vlsn.errors import LogFailed, VlsnLogError
from vlsn.limits import RETRY_S_MAX
from vlsn.seams import Seams
from vlsnlog.testing.fakes.disk import Call

T = TypeVar("T")
LONG = os.environ.get("HYPOTHESIS_PROFILE") == "long" or "SEEDS" in os.environ
ON, ENDS, TOLD = "on", "ends", "told"
HOME, WRITER, KEEPER = "home", "writer", "keeper"
NEVER_FAIL = frozenset({"close", "exists", "is_locked"})
"""Calls of the real disk (``PosixDisk``) that do not fail."""
ROLLBACKS = ("rollback", "rollbacks_nested", "rollbacks_disjoint", "rollback_that_rolls")
REPLACING = ("replacement", "roll_of_a_short_segment")
"""Operations whose story fails a write of its own: a second failure meanwhile ends the log."""


@dataclass(frozen=True)
class Row:
    """The first that fits says what may come of it."""

    about: str
    who: str
    calls: str
    path: str
    ends_as: frozenset[str]
    operations: tuple[str, ...] = tuple(OPERATIONS)
    codes: tuple[int, ...] = (errno.EIO, errno.ENOSPC, errno.EMFILE)
    size: int | None = None

    def fits(self, operation: str, who: str, call: Call, code: int) -> bool:
        return (
            operation in self.operations
            and code in self.codes
            and re.fullmatch(self.who, who) is not None
            and re.fullmatch(self.calls, call.name) is not None
            and re.search(self.path, call.path) is not None
            and self.size in (None, call.size)
        )


def row(about: str, who: str, calls: str, path: str, *ends_as: str, **more: object) -> Row:
    return Row(about, who, calls, path, frozenset(ends_as), **more)  # type: ignore[arg-type]


TABLE: Final = (
    row("an operator's command", ".*", ".*", "", ON, TOLD, operations=("truncation",)),
    row("the node file of an open log", HOME, "write|sync|create|rename", r"node\.id", TOLD),
    row("an open: what it may do without", HOME, "open|read", r"node\.id|\.vidx", ON, TOLD),
    row("an open: all else", HOME, ".*", "", TOLD),
    row("a group, while another one is replaced", WRITER, "write|sync", "vlog", ON, ENDS, operations=REPLACING),
    row("a group", WRITER, "write|sync", "vlog", ON),
    row("a transaction", KEEPER, "commit", "index|state", ENDS),
    row("a rollback's flags", KEEPER, "write", "vlog", ENDS, operations=ROLLBACKS, size=1),
    row("a rollback's flags", KEEPER, "open|sync", "vlog", ON, ENDS, operations=ROLLBACKS),
    row("a rollback's sidecars", KEEPER, "remove", "vidx", ENDS, operations=ROLLBACKS),
    row("a rollback's sidecars", KEEPER, "sync_directory", "", ON, ENDS, operations=ROLLBACKS),
    row(
        *("no room for a standby, while a write that failed waits for it", KEEPER),
        *("create|allocate|write|sync|sync_directory", "vlog|log$", ON, ENDS),
        operations=REPLACING,
        codes=(errno.ENOSPC,),
    ),
    row("a standby", KEEPER, "create|allocate|write|sync", "vlog", ON),
    row("a sidecar", KEEPER, "create|write|sync|rename", "vidx.new", ON),
    row("a sidecar's, a standby's or a removal's name", KEEPER, "sync_directory", "log$", ON),
    row("free space", KEEPER, "free_bytes", "log$", ON),
    row("a removal in a cleaning", KEEPER, "list|remove", r"log$|vidx|vlog", ON),
    row("a hole, or what is read for a cleaning or rollback", KEEPER, "open|size|allocated|punch|read", "vlog", ON),
)


class WatchedThreads(InlineThreads):
    """Knows whose job runs now."""

    who = HOME

    def worker(self, name: str) -> InlineWorker:
        return WatchedWorker(self, name)

    def run_as(self, name: str, job: Callable[[], T]) -> T:
        before, self.who = self.who, name.removeprefix("vlsnlog-")
        try:
            return job()
        finally:
            self.who = before


class WatchedWorker(InlineWorker):
    def submit(self, job: Callable[[], T], done: Callable[[T], None], failed: Callable[[BaseException], None]) -> None:
        threads, name = self._threads, self._name
        assert isinstance(threads, WatchedThreads)
        super().submit(lambda: threads.run_as(name, job), done, failed)


class WatchedMachine(Machine):
    """Knows which thread made each call of its disk."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        self.made_by: dict[int, str] = {}

    def seams(self) -> Seams:
        threads = WatchedThreads()

        def note(call: Call) -> None:
            self.made_by[call.number] = threads.who

        self.disk.hook = note
        return replace(super().seams(), threads=threads)


def calls_of(name: str) -> list[tuple[Call, str]]:
    machine = WatchedMachine()
    OPERATIONS[name].story(machine, Model())
    calls = machine.disk.calls[machine.begun :]
    return [(call, machine.made_by.get(call.number, HOME)) for call in calls if call.name not in NEVER_FAIL]


def codes_of(call: Call) -> list[int]:
    codes = [errno.EIO, errno.ENOSPC] + [errno.EMFILE] * (call.name in ("open", "create"))
    return codes if LONG else [codes[call.number % len(codes)]]


def row_of(operation: str, who: str, call: Call, code: int) -> Row:
    for each in TABLE:
        if each.fits(operation, who, call, code):
            return each
    raise AssertionError(f"the table does not speak of {call.name} of {call.path} by {who}")


def told(name: str, machine: Machine, model: Model) -> str:
    """Plays the story to whatever end it has."""
    try:
        OPERATIONS[name].story(machine, model)
    except (VlsnLogError, OSError, AssertionError) as error:
        last = machine.lives[-1] if machine.lives else None
        if last is not None and last.failure is not None:
            return ENDS
        if isinstance(error, AssertionError) and name != "truncation":
            raise
        return TOLD
    return ENDS if any(life.failure is not None for life in machine.lives) else ON


def goes_on(machine: Machine, model: Model, note: str) -> None:
    """The log that the story left open: what failed is done by now, what comes is taken, its close ends."""
    opened = machine.lives[-1]
    for _ in range(3):
        machine.clock.advance(RETRY_S_MAX)
        opened.log.tick()
    assert not opened.log.life.background.faults(), note
    pending = opened.append(b"more")
    assert pending.synced, note
    model.held[pending.first] = b"more"
    assert opened.entries()[pending.first] == b"more", note
    opened.close()
    assert opened.log.life.closed and opened.failure is None, note


def ended(machine: Machine, note: str) -> None:
    opened = next(life for life in machine.lives if life.failure is not None)
    with pytest.raises(LogFailed):
        opened.append(b"after the end")
    over: list[int] = []
    opened.log.close(lambda: over.append(1))
    assert over == [1], f"{note}: its close waits for ever"


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.long
def test_a_call_that_fails_does_what_the_table_says(name: str) -> None:
    seen: Counter[tuple[str, str]] = Counter()
    for call, who in calls_of(name):
        for code in codes_of(call):
            note = f"{name}: {errno.errorcode[code]} in call {call.number}, {call.name} of {call.path} by {who}"
            machine, model = WatchedMachine(call.number), Model()
            machine.fail_at(call.number, code)
            ends_as = told(name, machine, model)
            about = row_of(name, who, call, code)
            assert ends_as in about.ends_as, note
            seen[about.about, ends_as] += 1
            if ends_as == ON and name != "truncation":
                goes_on(machine, model, note)
            elif ends_as == ENDS:
                ended(machine, note)
            machine.disk.mend()
            machine._fail_at = (0, 0)
            if call.number % 3:
                machine.power_cut(tear=call.number % 3 == 2)
            else:
                machine.kill()
            check(machine, model, note)
    for (what, ends_as), times in sorted(seen.items()):
        print(f"{times:5} {ends_as:5} {what}")


def test_every_row_of_the_table_is_of_calls_that_are_made() -> None:
    met = {
        row_of(name, who, call, code) for name in OPERATIONS for call, who in calls_of(name) for code in codes_of(call)
    }
    assert [each.about for each in TABLE if each not in met] == []
