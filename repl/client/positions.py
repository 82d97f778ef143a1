"""The positions of a group's consumers, as a client uses them. Any node answers reads; the master makes changes.

Each change has a name (``ConsumerChange.by``). So the client can send the same change again, through changes of
master, until an answer comes or the client's timeout is over.
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
    """The consumers' positions that one group stores."""

    def __init__(self, reader: Reader, stages: Stages) -> None:
        self._reader = reader
        self._stages = stages
        self._calls = stages.calls

    @property
    def group(self) -> object:
        return self

    async def get(self, name: str) -> ConsumerAt | None:
        """Returns the position of ``name``, or None if there is no position. The answer includes every change that was
        acknowledged before the call. Raises ``BadArgument``, and the errors of ``Client.producer_at``."""
        key_of(name)
        return await self._reader.told(f"{PATH}/{name}", ConsumerAt, _WHAT)

    async def list(self) -> list[ConsumerAt]:
        """Returns all positions, sorted by name. Raises the same errors as ``get``."""
        listed = await self._reader.told(PATH, _Listed, _WHAT)
        return listed.consumers if listed is not None else []

    async def set(self, name: str, change: ConsumerChange) -> ConsumerAt:
        """Sets a position; durable on return. Raises ``StaleTerm`` if the position that the change starts from was
        replaced. Raises ``Trimmed``, ``BadArgument`` or ``TooLarge``. None of these errors leaves the change in the
        log. After the client's timeout, raises the reason that kept the call waiting, or ``OutcomeUnknown``."""
        key_of(name)
        answer = await self._calls.put(f"{PATH}/{name}", encoded(change), again=bool(change.by))
        return decoded(answer, ConsumerAt, _WHAT)

    async def commit(self, name: str, parts: Sequence[tuple[bytes, int]], change: ConsumerChange) -> Appended:
        """Logs the batches ``parts``, each with its number of entries, together with the position after their input, in
        one block. The block is durable on a majority on return.

        Raises ``StaleTerm`` if the position that the change starts from was replaced. Raises ``TransactionGone``,
        ``TooLarge``, ``BadArgument`` or ``WrongVersion``. With each of these errors nothing is logged. After the
        client's timeout, raises ``OutcomeUnknown``, or the reason that kept the call waiting.
        """
        key_of(name)
        return await self._stages.commit(parts, {"positions": {name: change}})

    async def delete(self, name: str) -> None:
        """Deletes a position, durable on return. Raises ``NotFound``, and the errors of ``set``."""
        key_of(name)
        await self._calls.delete(f"{PATH}/{name}", again=False)
