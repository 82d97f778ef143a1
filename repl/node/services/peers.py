"""The other members' questions: who is there, who leads, how far readers must see."""

from __future__ import annotations

from typing import Any

from repl.elect.electing import Electing
from repl.elect.vote_answers import answer_stand, answer_vote
from repl.group.hello_answers import answer_hello
from repl.node.services.begun import NodeBegun
from repl.node.services.service import NodeService


class NodePeers(NodeService):
    """``repl.node.peers_http.Peers``."""

    async def hello(self, body: dict[str, Any]) -> dict[str, Any]:
        return await answer_hello(self._parts.member, self._parts.confirming, body)

    async def vote(self, body: dict[str, Any]) -> dict[str, Any]:
        return await answer_vote(self._parts.member, self._electing, self._parts.confirming, body)

    async def stand(self, body: dict[str, Any]) -> dict[str, Any]:
        return await answer_stand(self._parts.member, self._electing, body)

    async def read_index(self, body: dict[str, Any]) -> dict[str, Any]:
        return await self._parts.opened().read_index.answer(body)

    async def begun(self, body: dict[str, Any]) -> dict[str, Any]:
        return await NodeBegun(self._parts).answer(body)

    def _electing(self) -> Electing:
        return self._parts.opened().electing
