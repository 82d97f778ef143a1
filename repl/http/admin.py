"""What operators and other members ask: checkpoint, roll of the log, and the founding question."""

from __future__ import annotations

from typing import Any

import msgspec

from repl.api import NodeApi
from repl.http import query
from repl.http.limits import PEER_BODY_BYTES_MAX
from repl.http.types import Request, Response
from vlsn.errors import BadBody
from vlsn.records import JSON_FAULTS

_NONE: frozenset[str] = frozenset()
_CLEAN = frozenset({"dry_run"})
_decoder = msgspec.json.Decoder(dict[str, Any])


class Admin:
    def __init__(self, node: NodeApi) -> None:
        self._node = node

    async def checkpoint(self, request: Request) -> Response:
        query.only(request.query, _NONE)
        return _json(await self._node.checkpoint())

    async def rotate(self, request: Request) -> Response:
        query.only(request.query, _NONE)
        return _json(await self._node.rotate())

    async def clean(self, request: Request) -> Response:
        query.only(request.query, _CLEAN)
        dry_run = query.choice(request.query, "dry_run", False, {"true": True, "false": False})
        return _json(await self._node.clean(dry_run=dry_run))

    async def restore(self, request: Request) -> Response:
        query.only(request.query, _NONE)
        return _json(await self._node.restore())

    async def peer_hello(self, request: Request) -> Response:
        query.only(request.query, _NONE)
        body = await request.body(PEER_BODY_BYTES_MAX)
        try:
            question = _decoder.decode(body)
        except JSON_FAULTS as error:
            raise BadBody(f"the question is no JSON object: {error}") from None
        return _json(await self._node.peer_hello(question))


def _json(answer: dict[str, Any]) -> Response:
    return Response(200, {"Content-Type": "application/json"}, msgspec.json.encode(answer))
