"""Positions of a group's consumers, as a client asks for them: told by any node, set by the master.

What is set has a name (``ConsumerChange.by``), so it is sent again, through changes of the master, until its answer
comes or the client's time is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec
from tenacity import AsyncRetrying, retry_if_exception, stop_after_delay

from repl.api import ConsumerAt, ConsumerChange
from repl.client.backoff import Backoff
from repl.client.endpoints import Endpoints
from repl.client.tail import Reader
from repl.http import problem
from repl.http.types import Network, Response
from vlsn.errors import BadBody, NotFound, NotMaster, OutcomeUnknown, Unreachable, VlsnLogError
from vlsn.format.records import JSON_FAULTS
from vlsn.state.consumers import key_of

T = TypeVar("T")
PATH = "/v1/consumers"
ANSWER_S = 2.0
"""Seconds that a node is given beyond the time in which it is to have set a position."""
TRY_S = 5.0
"""Seconds in which one master is to have set a position, before it is looked for anew."""
_JSON = {"Content-Type": "application/json"}


class _Listed(msgspec.Struct):
    consumers: list[ConsumerAt]


class Positions:
    """The positions in one group."""

    def __init__(self, endpoints: Endpoints, network: Network, reader: Reader, *, timeout_s: float) -> None:
        self._endpoints = endpoints
        self._network = network
        self._reader = reader
        self._timeout_s = timeout_s
        self._master = ""
        """The node that set a position last; empty where it has to be looked for."""

    @property
    def group(self) -> object:
        return self

    async def get(self, name: str) -> ConsumerAt | None:
        """Returns where ``name`` is, as anybody was told before the call; None where it has no position. Raises
        ``BadArgument``, and as ``Client.producer_at``."""
        key_of(name)
        body = await self._reader.told(f"{PATH}/{name}")
        return _decoded(body, ConsumerAt) if body is not None else None

    async def list(self) -> list[ConsumerAt]:
        """Returns all of them, by name. Raises as ``get``."""
        body = await self._reader.told(PATH)
        return _decoded(body, _Listed).consumers if body is not None else []

    async def set(self, name: str, change: ConsumerChange) -> ConsumerAt:
        """Sets a position, durable on return. Raises ``StaleTerm`` where another one has replaced the one that it
        starts from, ``Trimmed``, ``BadArgument``, ``TooLarge``, nothing logged; past the client's time what kept it
        waiting, or ``OutcomeUnknown``."""
        key_of(name)
        body = msgspec.json.encode(change)

        async def put(url: str) -> ConsumerAt:
            answer = await self._ask("PUT", f"{url}{PATH}/{name}?timeout={self._try_s:g}", body)
            return _decoded(bytes(answer.body), ConsumerAt)

        return await self._at_master(put, again=bool(change.by))

    async def delete(self, name: str) -> None:
        """Deletes a position, durable on return. Raises ``NotFound``, and as ``set``."""
        key_of(name)

        asked = False

        async def delete(url: str) -> None:
            nonlocal asked
            again, asked = asked, True
            try:
                await self._ask("DELETE", f"{url}{PATH}/{name}?timeout={self._try_s:g}", b"")
            except NotFound:
                if not again:
                    raise

        await self._at_master(delete, again=False)

    @property
    def _try_s(self) -> float:
        return min(TRY_S, self._timeout_s)

    async def _at_master(self, ask: Callable[[str], Awaitable[T]], *, again: bool) -> T:
        """Asks the master, whoever that is, until it answers. ``again``: also where it may have been done."""

        async def once() -> T:
            if not self._master:
                async with self._endpoints.turns:
                    self._master = await self._endpoints.master()
            try:
                return await ask(self._master)
            except (NotMaster, Unreachable, OutcomeUnknown):
                self._master = ""
                raise

        def may_pass(error: BaseException) -> bool:
            unsure = isinstance(error, Unreachable | OutcomeUnknown)
            return isinstance(error, VlsnLogError) and (error.transient or (again and unsure))

        retrying = AsyncRetrying(
            wait=Backoff(),
            stop=stop_after_delay(self._timeout_s),
            retry=retry_if_exception(may_pass),
            sleep=asyncio.sleep,
            reraise=True,
        )
        return await retrying(once)

    async def _ask(self, method: str, target: str, body: bytes) -> Response:
        timeout_s = self._try_s + ANSWER_S
        answer = await self._network.request(method, target, headers=_JSON, body=body, timeout_s=timeout_s)
        if answer.status == 307:
            raise NotMaster("another node leads by now")
        if answer.status != 200:
            raise problem.error_of(bytes(answer.body))
        return answer


def _decoded(body: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except JSON_FAULTS:
        raise BadBody("the answer is no position; is it a vlsnlog node?") from None
