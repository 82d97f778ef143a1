"""The help for a member that restores or mends its log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from repl.node.services.service import NodeService
from repl.repair import integrity, providing


class NodeRepairs(NodeService):
    """``repl.repair.restore_http.Repairs``."""

    async def offer(self, body: dict[str, Any]) -> bytes:
        ask = providing.asked_of(self._parts.member, body)
        return await self._parts.opened().providing.answer(ask)

    async def range(self, session: str, number: int, start: int, end: int, have: int) -> tuple[bytes, int]:
        return await self._parts.opened().providing.read(session, number, start, end, have)

    async def block(self, asked: Mapping[str, str], term: int, first: int) -> bytes:
        return await providing.block_of(self._parts.member, asked, term, first)

    async def messages(self, asked: Mapping[str, str], uuid: str, since: int, first: int, last: int) -> bytes:
        member = self._parts.member
        providing.check_names(member, asked.get("group", ""), asked.get("sender", ""), asked.get("to", ""))
        return await self._parts.opened().giving.give(uuid, since, first, last)

    async def copy(self, asked: Mapping[str, str], vlsn: int) -> dict[str, Any]:
        return await integrity.answer_copy(self._parts.member, asked, vlsn)
