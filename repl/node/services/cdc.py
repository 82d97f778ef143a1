"""The CDC consumers of this node, and a person's orders to them."""

from __future__ import annotations

from typing import Any

from repl.node.services.service import NodeService


class NodeCdc(NodeService):
    """``repl.cdc.cdc_http.Cdc``."""

    def consumers(self) -> list[dict[str, Any]]:
        return self._parts.cdc.told()

    def consumer(self, name: str) -> dict[str, Any]:
        return self._named(self._parts.cdc.told_of(name))

    async def pause(self, name: str) -> dict[str, Any]:
        return self._named(await self._parts.cdc.pause(name))

    async def resume(self, name: str) -> dict[str, Any]:
        return self._named(await self._parts.cdc.resume(name))

    async def reset(self, name: str, to: int | str) -> dict[str, Any]:
        return self._named(await self._parts.cdc.reset(name, to))

    async def skip(self, name: str, to: int) -> dict[str, Any]:
        return self._named(await self._parts.cdc.skip(name, to))

    async def resend(self, name: str, first: int, last: int) -> dict[str, Any]:
        return self._named(await self._parts.cdc.resend(name, first, last))

    def _named(self, told: dict[str, Any]) -> dict[str, Any]:
        return {"node": self.name, **told}
