"""``POST /v1/peer/…``: what other members ask, as one JSON object, of a node's group, votes, reads and consumers."""

from __future__ import annotations

from typing import Any, Protocol

from repl.web.json_objects import answered, asked_object
from repl.web.types import Request, Response


class Peers(Protocol):
    """The questions of the other members, as JSON."""

    async def hello(self, body: dict[str, Any]) -> dict[str, Any]:
        """Answers ``POST /v1/peer/hello``: founding and discovery. Raises ``FeedRefused``, ``BadBody``."""
        ...

    async def vote(self, body: dict[str, Any]) -> dict[str, Any]:
        """Answers ``POST /v1/peer/vote``; what the reply says is synced. Raises ``FeedRefused``, ``BadBody``,
        ``NotMaster`` while the log is not open."""
        ...

    async def stand(self, body: dict[str, Any]) -> dict[str, Any]:
        """Answers ``POST /v1/peer/stand``: the master asks this node to take over. Raises as ``vote``,
        ``StaleTerm``."""
        ...

    async def read_index(self, body: dict[str, Any]) -> dict[str, Any]:
        """Answers ``POST /v1/peer/read_index``. Raises ``NotMaster``, ``FeedRefused``, ``BadBody``."""
        ...

    async def begun(self, body: dict[str, Any]) -> dict[str, Any]:
        """Answers ``POST /v1/peer/cdc``: a consumer begins on the asker. Raises ``NotMaster``, ``FeedRefused``,
        ``BadBody``, and as an append does."""
        ...


class PeerRoutes:
    def __init__(self, peers: Peers) -> None:
        self._peers = peers

    async def hello(self, request: Request) -> Response:
        return answered(await self._peers.hello(await asked_object(request)))

    async def vote(self, request: Request) -> Response:
        return answered(await self._peers.vote(await asked_object(request)))

    async def stand(self, request: Request) -> Response:
        return answered(await self._peers.stand(await asked_object(request)))

    async def read_index(self, request: Request) -> Response:
        return answered(await self._peers.read_index(await asked_object(request)))

    async def begun(self, request: Request) -> Response:
        return answered(await self._peers.begun(await asked_object(request)))
