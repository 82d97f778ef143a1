"""Types for the delivery of a destination's messages: source, messages, dead messages and counters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from repl.destinations.limits import PACE_S
from repl.destinations.message_columns import MessageColumns
from vlsn.format.block import Entry
from vlsn.ids import Vlsn


class Blocks(Protocol):
    """Whole blocks of the log, and the VLSN after the last block."""

    @property
    def data(self) -> list[bytes]: ...

    @property
    def next_vlsn(self) -> int: ...

    @property
    def durable(self) -> int: ...


class Source(Protocol):
    """The durable part of the log, as a delivery reads it."""

    @property
    def durable(self) -> Vlsn: ...

    async def blocks(self, from_vlsn: int | None, *, bytes_max: int) -> Blocks: ...


class Delivered(NamedTuple):
    """The messages of one answer, in VLSN order. For a message that was delivered before, ``attempts`` has the
    number of this attempt."""

    columns: MessageColumns
    attempts: dict[int, int]
    uuid: str

    @property
    def entries(self) -> list[Entry]:
        return self.columns.entries()


class Dead(NamedTuple):
    """A message that no worker could process, with the reason."""

    vlsn: int
    attempts: int
    reason: str


@dataclass(slots=True)
class DeliveryCounts:
    """Counters of deliveries since this node became master."""

    delivered: int = 0
    delivered_again: int = 0
    acked: int = 0
    nacked: int = 0
    expired: int = 0
    dead: int = 0
    dropped: int = 0
    lost: int = 0

    def note_lost(self, name: str, event: Callable[..., None], first: int, last: int) -> None:
        """Counts a loss of messages of destination ``name``, and reports the loss by an event."""
        self.lost += 1
        event("destination.lost", destination=name, first=first, last=last)


@dataclass(slots=True)
class Pace:
    """The rate of messages per second, over the last complete period of ``PACE_S`` seconds."""

    delivered: float = 0.0
    acked: float = 0.0
    _since: float = 0.0
    _counted: tuple[int, int] = (0, 0)

    def tick(self, now: float, counts: DeliveryCounts) -> None:
        if now - self._since < PACE_S:
            return
        delivered, acked = self._counted
        span = now - self._since if self._since else PACE_S
        self.delivered, self.acked = (counts.delivered - delivered) / span, (counts.acked - acked) / span
        self._since, self._counted = now, (counts.delivered, counts.acked)
