"""What the other members ask: who is there, who leads, how far readers must see."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from repl.group import peers

if TYPE_CHECKING:
    from repl.node.node import Node


class NodePeers:
    """``repl.http.services.Peers``."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def hello(self, body: dict[str, Any]) -> dict[str, Any]:
        return await peers.answer_hello(self._node, body)

    async def vote(self, body: dict[str, Any]) -> dict[str, Any]:
        return await peers.answer_vote(self._node, body)

    async def stand(self, body: dict[str, Any]) -> dict[str, Any]:
        return await peers.answer_stand(self._node, body)

    async def read_index(self, body: dict[str, Any]) -> dict[str, Any]:
        self._node.opened()
        return await self._node.read_index.answer(body)
