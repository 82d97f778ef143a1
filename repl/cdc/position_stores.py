"""Where a consumer's position is stored: in a file of this node, or as an entry of the group's log.

Both kinds of store load the last position and store later positions. A position is durable when the call that stores it
returns.

Before a consumer receives its first event on a node, the group records the number of its position file (``Begun``). So
the loss of a position file is noticed:

    no file here       the node creates a file with a new number ─► the group has none: it records the number, begin
                                                                 ─► the group has another: that file is lost, parked
    a file here        the group has recorded its number         ─► continue, without a request to the group
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
"""The name of the commit that sets a first position. A commit for a person's order is named by the order's time;
other commits have no name."""


@contextmanager
def _levels_that_rise() -> Iterator[None]:
    """Turns ``WrongVersion`` into ``NotYet``, which is tried again: the group's level will rise soon, or a person
    must raise it."""
    try:
        yield
    except WrongVersion as error:
        raise NotYet(str(error)) from None


@dataclass(frozen=True, slots=True)
class At:
    """``next`` is the VLSN of the first event to deliver. ``term`` is the term of the entry before that event (0:
    not known)."""

    next: int
    term: int
    begins: bool = False
    """True if nothing was committed before. Only positions in the group's log set this."""
    moved_us: int = 0
    """The time of the person's order that set this position, in µs since the epoch; 0 for none."""


class PositionLost(Exception):
    """The consumer has begun on this node before, but its position is missing."""


class Begun(Protocol):
    """The group's record of which consumers have begun on this node."""

    async def begin(self, consumer: str, file: int, *, replace: bool) -> int:
        """Records in the group that ``consumer`` has begun here with the position file of number ``file``. If the
        group has recorded another number, that number stays, unless ``replace`` is true. Returns the number that the
        group then has; it is durable. Raises ``VlsnLogError``."""
        ...


class LocalPositions:
    """A consumer's position in a file of this node's directory."""

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
        """``number`` draws a number for a new file."""
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
        """Returns the stored position, or None if there is none yet. Raises ``Damaged``, ``VlsnLogError``."""
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
        """Stores the first position, durable on return. Raises ``VlsnLogError``."""
        position = StoredPosition(
            group=self._group,
            name=self._name,
            next=at.next,
            term=at.term,
            number=max(1, self._number()),
            paused_us=self._paused_us,  # the pause is kept even if the earlier file can no longer be read
        )
        made = await self._offload(lambda: PositionFile.create(self._disk, self._directory, position))
        assert isinstance(made, PositionFile)
        self._file = made

    async def confirm(self) -> None:
        """Returns once it is certain that no other position file of the consumer was lost. Raises ``PositionLost``,
        ``VlsnLogError``."""
        file = self._opened()
        if not file.position.known:
            number = await self._numbered(file)
            with _levels_that_rise():
                known = await self._begun.begin(self._name, number, replace=file.position.placed)
            if known != number:
                raise PositionLost(
                    f"its position is gone: it has begun on this node before, and {self._directory}/{DIRECTORY} has no "
                    "file with it (another disk?); set the position: `vlsnlog cdc move "
                    f"{self._name} --to start` (or end, or a VLSN)"
                )
            await self._offload(file.set_known)

    async def place(self, at: At) -> None:
        """Stores a position that a person has chosen, even if the old position was lost. Durable on return. Call
        ``confirm`` afterwards. Raises ``VlsnLogError``."""
        if self._file is None:
            await self.begin(at)
        file = self._opened()
        await self._offload(lambda: file.place(at.next, at.term, at.moved_us))

    async def store(self, at: At) -> None:
        """Stores a later position, durable on return. Raises ``VlsnLogError``."""
        file = self._opened()
        await self._offload(lambda: file.store(at.next, at.term))

    def paused_us(self) -> int:
        """Returns the time when a person paused the consumer, in µs since the epoch; 0 if it is not paused. ``load``
        and ``pause`` set this time. Raises ``VlsnLogError``."""
        return self._paused_us

    async def pause(self, since_us: int) -> None:
        """Stores the time when a person paused the consumer, 0 if it is not paused; durable on return. Raises
        ``VlsnLogError``."""
        file = self._file
        if file is None:
            raise BadArgument(f"{self._name} does not run: its position, which stores the pause, too, cannot be read")
        await self._offload(lambda: file.pause(since_us))
        self._paused_us = since_us

    async def _numbered(self, file: PositionFile) -> int:
        """Returns the number of the position file. A file of an earlier version has no number, and gets one now."""
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
    """A position that is stored in the group's log under the name ``cdc.NAME``. Every node has the position, and on
    every node it keeps the log from cleaning.

    A position stored by the master of an older term never becomes durable. If two workers start from the same position,
    the second commit is refused. So a worker notices that another worker has replaced it.
    """

    def __init__(self, consumers: NodePositions, name: str) -> None:
        self._consumers = consumers
        self._consumer = name
        self._name = REPLICATED_PREFIX + name
        self._set_by = 0

    async def load(self) -> At | None:
        """Returns the position stored last by any master. A new master may at first know only an older position as
        durable. So a majority first confirms that this node is the master."""
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
        """Returns at once: a position in the log cannot be lost."""

    async def place(self, at: At) -> None:
        await self._set(at, f"{at.moved_us:016x}")

    async def store(self, at: At) -> None:
        """Stores a later position, durable on return. Raises ``StaleTerm`` if another worker has stored a position
        meanwhile, and ``VlsnLogError``."""
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
"""The store of one consumer's position."""
