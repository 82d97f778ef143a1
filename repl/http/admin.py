"""What operators and other members ask: checkpoint, roll, cleaning, a change of master; founding and votes."""

from __future__ import annotations

from typing import Any

import msgspec

from repl.api import NodeApi
from repl.http import query
from repl.http.append import redirect
from repl.http.limits import PEER_BODY_BYTES_MAX
from repl.http.types import Request, Response
from vlsn.errors import BadBody
from vlsn.format.records import JSON_FAULTS

_NONE: frozenset[str] = frozenset()
_CLEAN = frozenset({"dry_run"})
_TRANSFER = frozenset({"to"})
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
        return _json(await self._node.peer_hello(await _object(request)))

    async def peer_read_index(self, request: Request) -> Response:
        return _json(await self._node.peer_read_index(await _object(request)))

    async def peer_stand(self, request: Request) -> Response:
        return _json(await self._node.peer_stand(await _object(request)))

    async def group(self, request: Request) -> Response:
        """``GET /v1/group``."""
        query.only(request.query, _NONE)
        return _json(self._node.group_document())

    async def change_group(self, request: Request) -> Response:
        if not self._node.is_master():
            return redirect(self._node, request)
        return _json(await self._node.change_group(await _object(request)))

    async def transfer(self, request: Request) -> Response:
        query.only(request.query, _TRANSFER)
        if not self._node.is_master():
            return redirect(self._node, request)
        return _json(await self._node.transfer(request.query.get("to")))

    async def peer_vote(self, request: Request) -> Response:
        return _json(await self._node.peer_vote(await _object(request)))


async def _object(request: Request) -> dict[str, Any]:
    """The JSON object in the body.  Raises ``BadBody``, ``TooLarge``."""
    query.only(request.query, _NONE)
    body = await request.body(PEER_BODY_BYTES_MAX)
    try:
        return _decoder.decode(body)
    except JSON_FAULTS as error:
        raise BadBody(f"the question is no JSON object: {error}") from None


def _json(answer: dict[str, Any]) -> Response:
    return Response(200, {"Content-Type": "application/json"}, msgspec.json.encode(answer))
