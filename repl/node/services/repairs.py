"""What a member that restores or mends its log gets of this one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from repl.repair import integrity, providing

if TYPE_CHECKING:
    from repl.node.node import Node


class NodeRepairs:
    """``repl.http.services.Repairs``."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def offer(self, body: dict[str, Any]) -> bytes:
        return await providing.answer_ask(self._node, body)

    async def range(self, session: str, number: int, start: int, end: int, have: int) -> tuple[bytes, int]:
        return await providing.read_range(self._node, session, number, start, end, have)

    async def block(self, asked: Mapping[str, str], term: int, first: int) -> bytes:
        return await providing.block_of(self._node, asked, term, first)

    async def copy(self, asked: Mapping[str, str], vlsn: int) -> dict[str, Any]:
        return await integrity.answer_copy(self._node, asked, vlsn)
