"""The calls of destinations that the gateway makes on its node."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Any, Protocol

from repl.api import DestinationChange
from repl.destinations.message_batch import MessageColumns
from repl.web.mastership import Mastership
from vlsn.format.vlsn_set import Vlsns, VlsnSet


class Messages(Protocol):
    """The messages of one answer: their columns, and by VLSN how often those were delivered that are not for the first
    time."""

    @property
    def columns(self) -> MessageColumns: ...

    @property
    def attempts(self) -> Mapping[int, int]: ...

    @property
    def uuid(self) -> str:
        """The destination that they are of."""
        ...


class Room(Protocol):
    """Room in memory for messages that are handed out."""

    async def wait(self, until: float) -> bool:
        """Waits for some, to ``until`` of the loop's time at most, and says whether there is."""
        ...

    def take(self, answer: int, size: int) -> None:
        """Takes room for an answer of so many bytes. The caller that asked for the messages returns the room."""
        ...


class DestinationWorker(Protocol):
    """One worker of a destination that stays connected."""

    @property
    def uuid(self) -> str: ...

    async def take(self, most: int, wait_s: float, room: Room) -> tuple[Messages, int]:
        """Hands messages out, and returns the answer's number, 0 for none; waits so long for the first. They may be
        sent after ``confirm``. Raises as ``Destinations.messages``."""
        ...

    async def confirm(self) -> None:
        """Returns once a majority has confirmed the lead. Raises ``NotMaster``, ``NotFound``."""
        ...

    def recall(self, answers: Collection[int]) -> None:
        """Takes answers back that were not sent, as if they had not been out."""
        ...

    def unread(self, vlsns: Vlsns) -> None:
        """Takes messages back that nobody has looked at."""
        ...

    def ack(self, vlsns: VlsnSet) -> asyncio.Future[None]:
        """Acknowledges; done once that is durable. Raises as ``Destinations.ack``."""
        ...


class Destinations(Mastership, Protocol):
    """Destinations, at the master.  Every call raises ``NotMaster``, ``WrongVersion`` below the level that has them,
    ``ProducersMissing`` while this node has lost what it knew of them, and for a name ``BadArgument``, ``NotFound``."""

    async def destinations(self) -> list[dict[str, Any]]: ...

    async def destination(self, name: str) -> dict[str, Any]: ...

    async def set_destination(
        self, name: str, change: DestinationChange, timeout_s: float
    ) -> tuple[dict[str, Any], bool]:
        """Makes a destination, or changes one; durable on return. Says whether it was made. Raises ``StaleTerm``,
        ``TooLarge``, ``Trimmed``, and what an append meets."""
        ...

    async def drop_destination(self, name: str, timeout_s: float) -> None: ...

    async def order(
        self, name: str, order: str, to: int | str | None, vlsns: Vlsns | None, timeout_s: float
    ) -> dict[str, Any]:
        """Obeys ``pause``, ``resume``, ``move``, ``retry-dead`` or ``delete-dead``; durable on return. The last two are
        for the dead that ``vlsns`` names; None: for all. Raises ``NotFound`` where one of them is not dead."""
        ...

    async def worker(self, name: str) -> DestinationWorker: ...

    async def messages(self, name: str, most: int, wait_s: float, room: Room) -> Messages:
        """Takes messages, each for one caller. Raises ``QueueFull``, ``Damaged``."""
        ...

    async def peek(self, name: str, most: int) -> Messages:
        """Shows the next messages that are not acknowledged, and takes none."""
        ...

    async def ack(self, name: str, vlsns: Vlsns, uuid: str, wait_s: float) -> None:
        """Acknowledges, durable on return; with a ``wait_s`` of 0 before that. ``uuid``: the one destination of that
        name that is meant, "" for any. Raises ``OutcomeUnknown``, ``QueueFull``, ``BadArgument``."""
        ...

    async def nack(self, name: str, vlsns: Vlsns, uuid: str, reason: str, delay_s: float | None) -> None:
        """Gives messages back; ``delay_s``: seconds until they go out again, None for the settings' delay."""
        ...
