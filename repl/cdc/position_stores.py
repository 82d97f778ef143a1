"""The stores of a consumer's position: a file of this node, or an entry of the group's log.

Both return the position stored last, and store a later one, durable when the call returns.

Before a consumer receives its first event on a node, the group learns the number of its position file (``Begun``):

    no file here       a file with a new number, where it begins ─► the group knows none     it takes the number: begin
                                                                 ─► the group knows another  that one is lost: parked
    a file here        the group knows it already                                            go on, nobody is asked
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, TypeVar

from repl.api import ConsumerChange
from repl.cdc.position_file import DIRECTORY, PositionFile, StoredPosition
from repl.names.positions import REPLICATED_PREFIX, NodePositions
from repl.read.read_index import ReadIndex
from vlsn.errors import BadArgument, LogFailed, NotFound, NotYet, WrongVersion
from vlsn.seams import Disk

T = TypeVar("T")
Offload = Callable[[Callable[[], T]], "asyncio.Future[T]"]
STORE_TIMEOUT_S = 10.0
BEGINS = "0" * 16
"""The name of the commit that sets a first position; a person's is the time of the order, any other has none."""


@contextmanager
def _levels_that_rise() -> Iterator[None]:
    """Says ``NotYet`` of a group whose level is about to rise, or has to be raised by a person: no version is wrong."""
    try:
        yield
    except WrongVersion as error:
        raise NotYet(str(error)) from None


@dataclass(frozen=True, slots=True)
class At:
    """``next`` is the VLSN of the first event to be given, ``term`` that of the entry before it (0: not known)."""

    next: int
    term: int
    begins: bool = False
    """Nothing was committed before it. Known of positions of the group."""
    moved_us: int = 0
    """The time of a person's order, µs since the epoch, that has put it there; 0: none."""


class PositionLost(Exception):
    """The consumer has begun on this node before, and its position is not here any more."""


class Begun(Protocol):
    """The group's knowledge of which consumers have begun on this node."""

    async def begin(self, consumer: str, file: int, *, replace: bool) -> int:
        """Tells the group that ``consumer`` has begun here with the position file of that number, unless it knows
        another one already, or in its place. Returns the number that the group knows then, durable. Raises
        ``VlsnLogError``."""
        ...


class LocalPositions:
    """A position in a file of this node's directory."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        *,
        group: str,
        name: str,
        offload: Offload[object],
        begun: Begun,
        number: Callable[[], int],
    ) -> None:
        """``number`` draws one for a new file."""
        self._begun = begun
        self._number = number
        self._disk = disk
        self._directory = directory
        self._group = group
        self._name = name
        self._offload = offload
        self._file: PositionFile | None = None
        self._paused_us = 0

    async def load(self) -> At | None:
        """Returns it; None where there is none yet. Raises ``Damaged``, ``VlsnLogError``."""
        await self.close()

        def opened() -> PositionFile | None:
            return PositionFile.open(self._disk, self._directory, self._name)

        file = await self._offload(opened)
        assert file is None or isinstance(file, PositionFile)
        self._file = file
        if file is None:
            return None
        found = file.position
        self._paused_us = found.paused_us
        return At(found.next, found.term, moved_us=found.moved_us)

    async def begin(self, at: At) -> None:
        """Stores the first one, durable on return. Raises ``VlsnLogError``."""
        position = StoredPosition(
            group=self._group,
            name=self._name,
            next=at.next,
            term=at.term,
            number=max(1, self._number()),
            paused_us=self._paused_us,  # also where the file that had it cannot be read any more
        )
        made = await self._offload(lambda: PositionFile.create(self._disk, self._directory, position))
        assert isinstance(made, PositionFile)
        self._file = made

    async def confirm(self) -> None:
        """Returns once it is known that no other position was lost. Raises ``PositionLost``, ``VlsnLogError``."""
        file = self._opened()
        if not file.position.known:
            number = await self._numbered(file)
            with _levels_that_rise():
                known = await self._begun.begin(self._name, number, replace=file.position.placed)
            if known != number:
                raise PositionLost(
                    f"its position is gone: it has begun on this node before, and {self._directory}/{DIRECTORY} has no "
                    "file of that (another disk?); say to this node where it goes on: `vlsnlog cdc reset "
                    f"{self._name} --to start` (or end, or a VLSN)"
                )
            await self._offload(file.set_known)

    async def place(self, at: At) -> None:
        """Stores a position that a person has chosen, also where the old one was lost; durable on return, and to be
        confirmed. Raises ``VlsnLogError``."""
        if self._file is None:
            await self.begin(at)
        file = self._opened()
        await self._offload(lambda: file.place(at.next, at.term, at.moved_us))

    async def store(self, at: At) -> None:
        """Stores a later position, durable on return. Raises ``VlsnLogError``."""
        file = self._opened()
        await self._offload(lambda: file.store(at.next, at.term))

    def paused_us(self) -> int:
        """Returns since when a person has it paused, µs since the epoch, 0 for not at all: as ``load`` has met it, or
        as it was stored since. Raises ``VlsnLogError``."""
        return self._paused_us

    async def pause(self, since_us: int) -> None:
        """Stores since when a person has it paused, 0 for not at all; durable on return. Raises ``VlsnLogError``."""
        file = self._file
        if file is None:
            raise BadArgument(f"{self._name} does not run: the position beside which its pause is kept cannot be read")
        await self._offload(lambda: file.pause(since_us))
        self._paused_us = since_us

    async def _numbered(self, file: PositionFile) -> int:
        """Returns the file's number, drawn now where an earlier version left the file without."""
        number = file.position.number
        if not number:
            number = max(1, self._number())
            await self._offload(lambda: file.set_number(number))
        return number

    def _opened(self) -> PositionFile:
        if self._file is None:
            raise LogFailed(f"the position of {self._name} is not open")
        return self._file

    async def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            await self._offload(file.close)


class ReplicatedPositions:
    """A named position of the group, ``cdc.NAME``: it goes where the master goes, and holds the log on every node.

    A position that the master of an older term stores never becomes durable. If two workers start from one position,
    the second is refused: so the one that was replaced learns of it.
    """

    def __init__(self, consumers: NodePositions, name: str) -> None:
        self._consumers = consumers
        self._consumer = name
        self._name = REPLICATED_PREFIX + name
        self._set_by = 0

    async def load(self) -> At | None:
        """Returns the position stored last by any master; a new master may at first know only an older one as
        durable."""
        await self._consumers.member.opened().part(ReadIndex).confirm(STORE_TIMEOUT_S)
        try:
            found = await self._consumers.consumer(self._name)
        except NotFound:
            self._set_by = 0
            return None
        self._set_by = found.at
        return At(
            found.next,
            found.term,
            begins=found.by == BEGINS,
            moved_us=int(found.by or BEGINS, 16),
        )

    async def begin(self, at: At) -> None:
        await self._set(at, BEGINS)

    async def confirm(self) -> None:
        """Returns at once: a position in the log is not lost."""

    async def place(self, at: At) -> None:
        await self._set(at, f"{at.moved_us:016x}")

    async def store(self, at: At) -> None:
        """Stores a later position, durable on return. Raises ``StaleTerm`` where another one has come since,
        ``VlsnLogError``."""
        await self._set(at, "")

    def paused_us(self) -> int:
        return self._consumers.capture_paused_us(self._consumer)

    async def pause(self, since_us: int) -> None:
        with _levels_that_rise():
            await self._consumers.pause_capture(self._consumer, since_us, STORE_TIMEOUT_S)

    async def _set(self, at: At, by: str) -> None:
        change = ConsumerChange(next=at.next, at=self._set_by, by=by)
        with _levels_that_rise():
            self._set_by = (await self._consumers.set_consumer(self._name, change, STORE_TIMEOUT_S)).at

    async def close(self) -> None:
        pass


Positions = LocalPositions | ReplicatedPositions
"""The kept position of one consumer."""
