"""Calls to a group's master, which are repeated through changes of master.

A master that has answered is called again, without asking the other nodes, until a call fails. When its timeout is
over, a call raises the reason that kept it waiting. If the timeout cut the last try short, the reason is that of the
try before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeVar

from tenacity import RetryCallState

from repl.client.answers import right
from repl.client.backoff import retrying
from repl.client.endpoints import Endpoints
from repl.web.types import Network, Response
from vlsn.errors import NotFound, NotMaster, OutcomeUnknown, Unreachable, VlsnLogError
from vlsn.seams import Channel

T = TypeVar("T")
ANSWER_S: Final = 2.0
"""The seconds that a node has for its answer, in addition to the time for making the change."""
TRY_S: Final = 5.0
"""The seconds that one master has for a change, before the client looks for the master again."""
LEFT_S_MIN: Final = 0.001
_JSON: Final = {"Content-Type": "application/json"}


class MasterCalls:
    """Changes a group's state by calls to the master. Each call is tried for ``timeout_s`` seconds."""

    def __init__(self, endpoints: Endpoints, network: Network, *, timeout_s: float) -> None:
        self._endpoints = endpoints
        self._network = network
        self._timeout_s = timeout_s
        self._master = ""
        """The URL of the master that answered last; "" if the client must look for the master."""
        self._looking = asyncio.Lock()

    async def put(self, path: str, body: bytes, *, again: bool) -> Response:
        """Sends PUT with ``body`` to ``path``. With ``again``, the call is repeated even if the change may have been
        made already. Raises the master's refusal. After the timeout, raises the reason that kept the call waiting,
        or ``OutcomeUnknown``."""
        try_s = min(TRY_S, self._timeout_s)
        return await self.call("PUT", f"{path}?timeout={try_s:g}", body, again=again, answer_s=try_s)

    async def delete(self, path: str, *, again: bool) -> None:
        """Sends DELETE to ``path``; durable on return. Raises ``NotFound``, and the errors of ``put``."""
        asked, try_s = False, min(TRY_S, self._timeout_s)

        async def delete(url: str, _: float) -> None:
            nonlocal asked
            asked_before, asked = asked, True
            try:
                await self._asked("DELETE", f"{url}{path}?timeout={try_s:g}", b"", _JSON, try_s)
            except NotFound:
                if not asked_before:  # NotFound in a repeat: an earlier call, whose answer was lost, has deleted it
                    raise

        await self.at_master(delete, again=again)

    async def call(
        self, method: str, path: str, body: bytes = b"", *, again: bool, answer_s: float = TRY_S, accept: str = ""
    ) -> Response:
        """Calls ``path``; each try must be answered within ``answer_s`` seconds. Raises the same errors as
        ``put``."""
        headers = {**_JSON, "Accept": accept} if accept else _JSON
        return await self.at_master(
            lambda url, _: self._asked(method, f"{url}{path}", body, headers, answer_s), again=again
        )

    async def channel(self, path: str, *, message_bytes_max: int) -> Channel:
        """Opens a channel to ``path`` at the master. Raises the same errors as ``call``."""
        connect = self._network.connect
        return await self.at_master(
            lambda url, _: connect(f"{url}{path}", message_bytes_max=message_bytes_max, timeout_s=TRY_S), again=True
        )

    def left(self) -> None:
        """Notes that another node may have become the master. The client looks for the master before the next call."""
        self._master = ""

    async def at_master(self, ask: Callable[[str, float], Awaitable[T]], *, again: bool, try_s: float = 0.0) -> T:
        """Calls whichever node is the master, until one answers or the timeout is over. ``ask`` is called with the
        master's URL and the seconds of this try: ``try_s``, or the rest of the timeout. With ``again``, the call is
        repeated even if it may have been carried out already. Raises the same errors as ``put``."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout_s
        told: VlsnLogError | None = None

        async def once() -> T:
            nonlocal told
            url = self._master or await self._look()
            left_s = max(LEFT_S_MIN, min(try_s or TRY_S, deadline - loop.time()))
            try:
                return await ask(url, left_s)
            except VlsnLogError as error:
                if isinstance(error, NotMaster | Unreachable | OutcomeUnknown) and self._master == url:
                    self._master = ""
                if isinstance(error, Unreachable) and left_s < try_s and told is not None:
                    raise told from error  # no try was silent for long: the timeout cut the last try short
                told = error
                raise

        def may_pass(error: BaseException) -> bool:
            unsure = isinstance(error, Unreachable | OutcomeUnknown)
            return isinstance(error, VlsnLogError) and (error.transient or (again and unsure))

        def is_over(state: RetryCallState) -> bool:
            return loop.time() + state.upcoming_sleep >= deadline

        return await retrying(may_pass, stop=is_over)(once)

    async def _look(self) -> str:
        """Finds the master. If several callers need the master at once, only one of them looks for it."""
        async with self._looking:
            if not self._master:
                async with self._endpoints.turns:
                    self._master = await self._endpoints.master()
            return self._master

    async def _asked(
        self, method: str, target: str, body: bytes, headers: Mapping[str, str], answer_s: float
    ) -> Response:
        timeout_s = answer_s + ANSWER_S
        return right(await self._endpoints.request(method, target, headers=headers, body=body, timeout_s=timeout_s))
