"""Where a consumer's position is kept: in a file of this node, or in the group.

Both give what was stored last, and store a later one, durable when the call returns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from repl.api import ConsumerAt, ConsumerChange
from repl.cdc.position_file import PositionFile, StoredPosition
from vlsn.errors import NotFound
from vlsn.seams import Disk

T = TypeVar("T")
Offload = Callable[[Callable[[], T]], "asyncio.Future[T]"]
STORE_TIMEOUT_S = 10.0
REPLICATED_PREFIX = "cdc."


@dataclass(frozen=True, slots=True)
class At:
    """``next`` is the VLSN of the first event to be given, ``term`` that of the entry before it (0: not known)."""

    next: int
    term: int


class Positions(Protocol):
    """The kept position of one consumer."""

    async def load(self) -> At | None:
        """Returns it; None where there is none yet. Raises ``Damaged``, ``VlsnLogError``."""
        ...

    async def store(self, at: At) -> None:
        """Stores it, durable on return. Raises ``StaleTerm`` where another one has come since, ``VlsnLogError``."""
        ...

    async def close(self) -> None: ...


class LocalPositions:
    """A position in a file of this node's directory."""

    def __init__(self, disk: Disk, directory: str, *, group: str, name: str, offload: Offload[object]) -> None:
        self._disk = disk
        self._directory = directory
        self._group = group
        self._name = name
        self._offload = offload
        self._file: PositionFile | None = None

    async def load(self) -> At | None:
        await self.close()

        def opened() -> PositionFile | None:
            return PositionFile.open(self._disk, self._directory, self._name)

        file = await self._offload(opened)
        assert file is None or isinstance(file, PositionFile)
        self._file = file
        return At(file.position.next, file.position.term) if file is not None else None

    async def store(self, at: At) -> None:
        file = self._file

        def stored() -> PositionFile:
            if file is not None:
                file.store(at.next, at.term)
                return file
            position = StoredPosition(group=self._group, name=self._name, next=at.next, term=at.term)
            return PositionFile.create(self._disk, self._directory, position)

        made = await self._offload(stored)
        assert isinstance(made, PositionFile)
        self._file = made

    async def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            await self._offload(file.close)


class ConsumersOfGroup(Protocol):
    """The named positions of the group, as the node's gateway offers them."""

    async def consumer(self, name: str) -> ConsumerAt: ...

    async def set_consumer(self, name: str, change: ConsumerChange, timeout_s: float) -> ConsumerAt: ...


class ReplicatedPositions:
    """A named position of the group, ``cdc.NAME``: it goes where the master goes, and holds the log on every node.

    What the master of an older term stores never becomes durable, and of two that start from one position the second
    is refused: whoever was replaced is told so.
    """

    def __init__(self, consumers: ConsumersOfGroup, name: str) -> None:
        self._consumers = consumers
        self._name = REPLICATED_PREFIX + name
        self._set_by = 0

    async def load(self) -> At | None:
        try:
            found = await self._consumers.consumer(self._name)
        except NotFound:
            self._set_by = 0
            return None
        self._set_by = found.at
        return At(found.next, found.term)

    async def store(self, at: At) -> None:
        change = ConsumerChange(next=at.next, at=self._set_by)
        self._set_by = (await self._consumers.set_consumer(self._name, change, STORE_TIMEOUT_S)).at

    async def close(self) -> None:
        pass
