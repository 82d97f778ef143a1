"""Positions of a group's consumers, as a client uses them: any node reports them, the master sets them.

A change has a name (``ConsumerChange.by``). So it is sent again, through changes of the master, until its answer comes
or the client's time is over.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from repl.api import Appended, ConsumerAt, ConsumerChange
from repl.client.answers import decoded, encoded
from repl.client.reader import Reader
from repl.client.staging import Stages
from vlsn.state.consumers import key_of

PATH = "/v1/consumers"
_WHAT = "position"


class _Listed(msgspec.Struct):
    consumers: list[ConsumerAt]


class Positions:
    """The positions in one group."""

    def __init__(self, reader: Reader, stages: Stages) -> None:
        self._reader = reader
        self._stages = stages
        self._calls = stages.calls

    @property
    def group(self) -> object:
        return self

    async def get(self, name: str) -> ConsumerAt | None:
        """Returns the position of ``name``, with every change acknowledged before the call; None if it has none. Raises
        ``BadArgument``, and as ``Client.producer_at``."""
        key_of(name)
        return await self._reader.told(f"{PATH}/{name}", ConsumerAt, _WHAT)

    async def list(self) -> list[ConsumerAt]:
        """Returns all of them, by name. Raises as ``get``."""
        listed = await self._reader.told(PATH, _Listed, _WHAT)
        return listed.consumers if listed is not None else []

    async def set(self, name: str, change: ConsumerChange) -> ConsumerAt:
        """Sets a position, durable on return. Raises ``StaleTerm`` where another one has replaced the one that it
        starts from, ``Trimmed``, ``BadArgument``, ``TooLarge``, nothing logged; past the client's time the reason that
        kept it waiting, or ``OutcomeUnknown``."""
        key_of(name)
        answer = await self._calls.put(f"{PATH}/{name}", encoded(change), again=bool(change.by))
        return decoded(answer, ConsumerAt, _WHAT)

    async def commit(self, name: str, parts: Sequence[tuple[bytes, int]], change: ConsumerChange) -> Appended:
        """Logs these batches, each with its number of entries, and the position behind their input, in one block.
        Durable on a majority on return.

        Raises, nothing logged, ``StaleTerm`` where another position has replaced the one that it starts from,
        ``TransactionGone``, ``TooLarge``, ``BadArgument``, ``WrongVersion``; past the client's time
        ``OutcomeUnknown``, or what kept it waiting."""
        key_of(name)
        return await self._stages.commit(parts, {"positions": {name: change}})

    async def delete(self, name: str) -> None:
        """Deletes a position, durable on return. Raises ``NotFound``, and as ``set``."""
        key_of(name)
        await self._calls.delete(f"{PATH}/{name}", again=False)
