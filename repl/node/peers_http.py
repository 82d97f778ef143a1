"""``POST /v1/peer/…``: what other members ask, as one JSON object, of a node's group, votes, reads and consumers."""

from __future__ import annotations

from repl.node.peers import NodePeers
from repl.web.json_objects import answered, asked_object
from repl.web.types import Request, Response


class PeerRoutes:
    def __init__(self, peers: NodePeers) -> None:
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
