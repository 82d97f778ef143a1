"""The operations of a log that a crash may stop at any disk call, and what must hold afterwards.

An operation is a story told to a machine: first what lies before it, then ``machine.begin()``, then the operation
itself, whose disk calls are the ones to stop at.  Whoever adds an operation to the product adds one here:

    @operation
    def cleaning(machine: Machine, model: Model) -> None: ...

``calls_min`` is how many calls that change something it makes, at least: were it fewer, something would not be
synced any more.  The ``Model`` says what must be there; it shares no code with the product.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random

import pytest

from tests.fakes.clock import FakeClock
from tests.fakes.random import SeededRandom
from tests.fakes.stopping import StoppingDisk, StoppingStores
from tests.fakes.threads import InlineThreads
from tests.vlsn.logs import SMALL, Machine, Opened, Undurable, Waiting
from tests.vlsn.logs import put as put_values
from vlsn.errors import NotMaster, VlsnLogError
from vlsn.ids import Vlsn
from vlsn.offline.truncate import Truncation
from vlsn.real.disk import PosixDisk
from vlsn.real.lmdb_store import LmdbStores
from vlsn.seams import Seams
from vlsn.state.node_file import NodeRecord
from vlsn.state.options import Durability
from vlsnlog.testing.fakes.disk import StopHere


@dataclass(slots=True)
class Model:
    """The acknowledged entries, by VLSN; ``undoing`` is where a rollback under way goes back to."""

    held: dict[int, bytes] = field(default_factory=dict)
    undoing: int | None = None
    trimmed_to: int = 0
    """A cleaning may have taken everything up to here."""

    def possible(self) -> list[dict[int, bytes]]:
        """Lists what a reader may find of it: all, or (a rollback) all up to its matchpoint."""
        if self.undoing is None:
            return [self.held]
        return [self.held, {vlsn: value for vlsn, value in self.held.items() if vlsn <= self.undoing}]

    def check(self, found: dict[int, bytes], note: str) -> None:
        """``found`` are the DATA entries by VLSN."""
        first = min(found, default=self.trimmed_to + 1)
        for held in self.possible():
            wanted = {vlsn: value for vlsn, value in held.items() if vlsn > self.trimmed_to or vlsn >= first}
            gone = self.held.keys() - held.keys()
            if all(found.get(vlsn) == value for vlsn, value in wanted.items()) and not any(
                found.get(vlsn) == self.held[vlsn] for vlsn in gone
            ):
                return
        missing = [vlsn for vlsn, value in self.held.items() if found.get(vlsn) != value]
        raise AssertionError(f"{note}: {len(missing)} acknowledged entries are gone or changed, first {missing[:1]}")


class RealMachine:
    """A machine on a directory of a real file system, with LMDB. It can be killed; its power stays on."""

    def __init__(self, directory: str, seed: int = 0) -> None:
        self.directory = directory
        self.rng = Random(seed)
        self.disk = StoppingDisk(PosixDisk())
        self.stores = StoppingStores(LmdbStores(), self.disk)
        self.clock = FakeClock()
        self.begun = 0
        self.lives: list[Opened] = []
        self._stop_at = 0

    def stop_at(self, number: int) -> None:
        self._stop_at = number
        self.disk.stop_at(number)

    def seams(self) -> Seams:
        return Seams(self.disk, self.clock, SeededRandom(self.rng), InlineThreads(), self.stores)

    def begin(self) -> None:
        self.begun = len(self.disk.calls)

    def kill(self) -> None:
        self.disk.process_kill()
        if self._stop_at > len(self.disk.calls):
            self.disk.stop_at(self._stop_at)


Story = Callable[[Machine, Model], None]
"""A story, told to a ``Machine``, or to a ``RealMachine``, which has all of it but the power cut."""


@dataclass(frozen=True, slots=True)
class Operation:
    name: str
    story: Story
    calls_min: int

    def calls(self, machine: Machine) -> list[int]:
        """Numbers of the calls to stop at, from the disk's own log of a whole run."""
        self.story(machine, Model())
        numbers = [call.number for call in machine.disk.calls[machine.begun :] if call.changes]
        machine.kill()
        return numbers


CALLS_MIN = {
    "first_open": 35,
    "append": 20,
    "roll": 68,
    "roll_of_a_short_segment": 38,
    "replacement": 35,
    "written_and_synced_later": 42,
    "checkpoint": 30,
    "clean_stop_and_reopen": 36,
    "idle_end": 3,
    "rollback": 86,
    "rollbacks_nested": 60,
    "rollbacks_disjoint": 53,
    "rollback_that_rolls": 91,
    "truncation": 61,
    "cleaning": 28,
    "recovery_of_a_torn_tail": 43,
    "recovery_of_a_rollback": 64,
    "recovery_without_its_stores": 35,
    "recovery_without_its_node_file": 35,
}
"""The calls that change something which each operation makes, at least. Were there fewer, something would not be
written, synced or committed any more."""
OPERATIONS: dict[str, Operation] = {}


def operation(story: Story) -> Story:
    name = story.__name__
    OPERATIONS[name] = Operation(name, story, CALLS_MIN[name])
    return story


def put(opened: Opened, model: Model, count: int, size: int = 700) -> None:
    put_values(opened, model.held, count, size)


def roll_back(opened: Opened, model: Model, matchpoint: int) -> None:
    model.undoing = matchpoint
    opened.log.stop_sealing(NotMaster("a rollback follows"))
    done: list[VlsnLogError | None] = []
    for _ in range(2):  # one that is refused, for it could not read, is asked for again
        done.clear()
        opened.log.rollback(Vlsn(matchpoint), lambda: done.append(None), done.append)
        if done == [None] or opened.failure is not None:
            break
    assert done == [None]
    model.held = {vlsn: value for vlsn, value in model.held.items() if vlsn <= matchpoint}
    model.undoing = None
    opened.take_term()


def room(opened: Opened) -> int:
    """Returns bytes that are left in the current segment."""
    tail = opened.log.placement.tail
    assert tail is not None
    return tail.size - tail.offset


def tear(machine: Machine, opened: Opened, value: bytes) -> None:
    """The process ends in the middle of writing ``value``."""
    machine.disk.stop_at(lambda call: call.name == "write" and call.size > len(value), moment="during")
    with pytest.raises(StopHere):
        opened.append(value)
    machine.kill()


# Writing.


@operation
def first_open(machine: Machine, model: Model) -> None:
    machine.begin()
    put(Opened(machine), model, 3)


@operation
def append(machine: Machine, model: Model) -> None:
    opened = Opened(machine)
    put(opened, model, 2)
    machine.begin()
    put(opened, model, 10)


@operation
def roll(machine: Machine, model: Model) -> None:
    opened = Opened(machine)
    machine.begin()
    put(opened, model, 22, size=6000)


@operation
def roll_of_a_short_segment(machine: Machine, model: Model) -> None:
    """Rolls a short segment: what lies behind the old end is punched, and dead frames are rolled over."""
    opened = Opened(machine)
    put(opened, model, 3)
    machine.begin()
    opened.log.cycle.rotate("request")
    put(opened, model, 3)
    machine.disk.fail_at(lambda call: call.name == "sync" and call.path.endswith(".vlog"))
    put(opened, model, 3)


@operation
def replacement(machine: Machine, model: Model) -> None:
    opened = Opened(machine)
    put(opened, model, 5)
    opened.log.care.checkpointer.run()  # whose index names places that the replacements leave
    machine.begin()
    for kind in ("write", "sync"):
        machine.disk.fail_at(lambda call, kind=kind: call.name == kind and call.path.endswith(".vlog"))  # type: ignore[misc]
        put(opened, model, 3)


@operation
def written_and_synced_later(machine: Machine, model: Model) -> None:
    """Groups that are written and not synced, over a roll: only what a later sync covers is acknowledged."""
    opened = Opened(machine)
    put(opened, model, 2)
    machine.begin()
    sent: list[Waiting] = []
    for number in range(24):
        late = Durability.SYNC if number % 6 == 5 else Durability.WRITE_NO_SYNC
        sent.append(opened.append(f"late {number}".encode().ljust(3500, b"."), durability=late))
        model.held |= {pending.first: pending.values[0] for pending in sent if pending.synced}


# Checkpoints, stops.


@operation
def checkpoint(machine: Machine, model: Model) -> None:
    opened = Opened(machine)
    put(opened, model, 4)
    machine.begin()
    for _ in range(3):
        opened.log.care.checkpointer.run()
        put(opened, model, 2)


@operation
def clean_stop_and_reopen(machine: Machine, model: Model) -> None:
    opened = Opened(machine)
    put(opened, model, 4)
    machine.begin()
    opened.close()
    put(Opened(machine), model, 3)


@operation
def idle_end(machine: Machine, model: Model) -> None:
    opened = Opened(machine)
    put(opened, model, 3)
    machine.begin()
    for _ in range(3):
        machine.clock.advance(2.0)
        opened.log.tick()
    put(opened, model, 1)


# Rollbacks.


@operation
def rollback(machine: Machine, model: Model) -> None:
    opened = Undurable(machine)
    put(opened, model, 3)
    opened.log.care.checkpointer.run()
    put(opened, model, 30, size=5000)
    machine.begin()
    roll_back(opened, model, 4)
    put(opened, model, 16, size=5000)  # the segment that held the last of them is closed


@operation
def rollbacks_nested(machine: Machine, model: Model) -> None:
    """Each goes back further than the one before, over what that has left and what has come since."""
    opened = Undurable(machine)
    put(opened, model, 12)
    machine.begin()
    for matchpoint in (10, 7, 4):
        roll_back(opened, model, matchpoint)
        put(opened, model, 2)


@operation
def rollbacks_disjoint(machine: Machine, model: Model) -> None:
    """Each goes back less far than the one before, over what has come since only; a checkpoint between them."""
    opened = Undurable(machine)
    put(opened, model, 8)
    machine.begin()
    roll_back(opened, model, 4)
    put(opened, model, 6)
    opened.log.care.checkpointer.run()
    roll_back(opened, model, 8)
    put(opened, model, 2)


@operation
def rollback_that_rolls(machine: Machine, model: Model) -> None:
    """ROLLBACK_START does not fit the segment any more that holds what it abandons."""
    opened = Undurable(machine)
    put(opened, model, 3)
    while room(opened) > 2000:
        put(opened, model, 1)
    put(opened, model, 1, size=room(opened) - 150)
    assert room(opened) < 72
    machine.begin()
    roll_back(opened, model, 4)


@operation
def truncation(machine: Machine, model: Model) -> None:
    opened = Opened(machine)
    put(opened, model, 30, size=5000)
    opened.close()
    machine.begin()
    model.undoing = 10
    ended: list[NodeRecord | BaseException] = []
    cut = Truncation(machine.seams(), machine.directory, 10, done=ended.append, failed=ended.append)
    cut.close()
    assert isinstance(ended[0], NodeRecord)


# Cleaning.


@operation
def cleaning(machine: Machine, model: Model) -> None:
    opened = Opened(machine, replace(SMALL, retention_bytes=3 * SMALL.segment_bytes))
    put(opened, model, 60, size=6000)
    opened.log.care.checkpointer.run()
    machine.begin()
    model.trimmed_to = opened.log.view.range.last
    for _ in range(2):  # a pass that cannot read a segment gives up, and the next one goes
        opened.log.care.cleaner.run()
    assert opened.log.view.range.first > 30
    put(opened, model, 1)


# Recovery itself.


@operation
def recovery_of_a_torn_tail(machine: Machine, model: Model) -> None:
    opened = Opened(machine)
    put(opened, model, 5)
    opened.log.care.checkpointer.run()
    put(opened, model, 5)
    tear(machine, opened, b"torn" * 400)
    machine.begin()
    put(Opened(machine), model, 1)


@operation
def recovery_of_a_rollback(machine: Machine, model: Model) -> None:
    opened = Undurable(machine)
    put(opened, model, 3)
    opened.log.care.checkpointer.run()
    put(opened, model, 24, size=5000)
    machine.disk.stop_at(lambda call: call.name == "write" and call.size == 1)  # the first flag
    with pytest.raises(StopHere):
        roll_back(opened, model, 4)
    machine.kill()
    model.held, model.undoing = model.possible()[-1], None  # its record is synced: it has happened
    machine.begin()
    put(Undurable(machine), model, 1)


@operation
def recovery_without_its_stores(machine: Machine, model: Model) -> None:
    opened = Opened(machine)
    put(opened, model, 20, size=5000)
    opened.log.care.checkpointer.run()
    put(opened, model, 3)
    machine.kill()
    for store in ("index", "state"):
        machine.stores.set_aside(f"{machine.directory}/{store}")
    machine.begin()
    put(Opened(machine), model, 1)


@operation
def recovery_without_its_node_file(machine: Machine, model: Model) -> None:
    opened = Opened(machine)
    put(opened, model, 5)
    machine.kill()
    machine.disk.remove(f"{machine.directory}/node.id")
    machine.disk.sync_directory(machine.directory)
    machine.begin()
    put(Opened(machine), model, 1)
