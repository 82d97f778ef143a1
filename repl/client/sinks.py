"""The sinks of a group, for writers of numbered batches. A sink's state says which part of which batch was logged last;
each part is logged together with the new state.

    placed = await sinks.get("orders")                       None, or the part that was logged last
    await sinks.commit("orders", [batch, batch], change)     a part and its state in one block, or neither

A commit is sent again under its transaction's handle until an answer is certain, or the client's timeout is over.
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
        """Returns the last logged state of a sink, or None if the sink has no state. The answer includes every part
        that was acknowledged before the call. Raises ``BadArgument``, and the errors of ``Client.producer_at``."""
        key_of(name)
        return await self._reader.told(f"{PATH}/{name}", SinkAt, _WHAT)

    async def list(self) -> list[SinkAt]:
        """Returns all sinks, sorted by name. Raises the same errors as ``get``."""
        listed = await self._reader.told(PATH, _Listed, _WHAT)
        return listed.sinks if listed is not None else []

    async def delete(self, name: str) -> None:
        """Forgets a sink's state; durable on return. Raises ``NotFound``. After the client's timeout, raises the
        reason that kept the call waiting, or ``OutcomeUnknown``."""
        key_of(name)
        await self._calls.delete(f"{PATH}/{name}", again=True)

    async def commit(self, name: str, parts: Sequence[tuple[bytes, int]], change: SinkChange | None) -> Appended:
        """Logs the batches ``parts``, each with its number of entries, together with the sink's new state, in one
        block. The block is durable on a majority on return. Without a ``change`` the batches are logged as a plain
        transaction, and a repeat logs them again.

        Raises ``StaleTerm`` if the state that the change starts from was replaced. Raises ``TransactionGone``,
        ``TooLarge``, ``BadArgument`` or ``WrongVersion``. With each of these errors nothing is logged. After the
        client's timeout, raises ``OutcomeUnknown``, or the reason that kept the call waiting.
        """
        if change is None:
            return await self._stages.commit(parts, {})
        key_of(name)
        return await self._stages.commit(parts, {"sinks": {name: change}})
