"""Sinks of a group, for writers of numbered batches: the state of each, and parts logged together with their state.

    placed = await sinks.get("orders")                       None, or the part that was logged last
    await sinks.commit("orders", [batch, batch], change)     a part and its state in one block, or neither

A commit is asked again by its transaction's handle until an answer is certain, or the client's time is over.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from repl.api import Appended, SinkAt, SinkChange
from repl.client.reader import Reader
from repl.client.staging import Stages
from vlsn.state.sinks import key_of

PATH: Final = "/v1/sinks"
_WHAT: Final = "state of a sink"


class _Listed(msgspec.Struct):
    sinks: list[SinkAt]


class Sinks:
    """The sinks of one group."""

    def __init__(self, reader: Reader, stages: Stages) -> None:
        self._reader = reader
        self._stages = stages
        self._calls = stages.calls

    async def get(self, name: str) -> SinkAt | None:
        """Returns the last state logged, with every part acknowledged before the call; None where nothing is known.
        Raises ``BadArgument``, and as ``Client.producer_at``."""
        key_of(name)
        return await self._reader.told(f"{PATH}/{name}", SinkAt, _WHAT)

    async def list(self) -> list[SinkAt]:
        """Returns all of them, by name. Raises as ``get``."""
        listed = await self._reader.told(PATH, _Listed, _WHAT)
        return listed.sinks if listed is not None else []

    async def delete(self, name: str) -> None:
        """Forgets one, durable on return. Raises ``NotFound``; past the client's time the reason that kept it waiting,
        or ``OutcomeUnknown``."""
        key_of(name)
        await self._calls.delete(f"{PATH}/{name}", again=True)

    async def commit(self, name: str, parts: Sequence[tuple[bytes, int]], change: SinkChange | None) -> Appended:
        """Logs these batches, each with its number of entries, and the state that they make, in one block. Durable on a
        majority on return. Without a ``change`` they are a transaction and no more, which nobody knows again.

        Raises, nothing logged, ``StaleTerm`` where another state has replaced the one that it starts from,
        ``TransactionGone``, ``TooLarge``, ``BadArgument``, ``WrongVersion``; past the client's time
        ``OutcomeUnknown``, or what kept it waiting."""
        if change is None:
            return await self._stages.commit(parts, {})
        key_of(name)
        return await self._stages.commit(parts, {"sinks": {name: change}})
