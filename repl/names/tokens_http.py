"""``/v1/admin/tokens``: tokens of clients.

GET /v1/admin/tokens               {"tokens": [{"id", "roles", "keys", "names", "expires_us", "title", "by"}, …]}
PUT /v1/admin/tokens/{id}          {"sha256" or "uri", "roles", …} makes it, durable when answered; the secret is
                                   made by the caller, and never sent
POST /v1/admin/tokens/{id}/rotate  {"id", "sha256", "overlap_s"}: a successor; both work for ``overlap_s``
DELETE /v1/admin/tokens/{id}       revokes it, durable when answered
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from repl.auth.roles import TOKEN_ROLES, Role, Route
from repl.auth.tokens import TOKEN_ID, TokenRecord
from repl.names.tokens import OVERLAP_S_MAX, NodeTokens
from repl.web import query
from repl.web.calls import (
    EMPTY,
    FLAG,
    JSON,
    JSON_BODY,
    NAMED,
    NUMBER,
    OPEN,
    TEXT,
    TIMEOUT,
    WHOLE,
    Call,
    in_path,
    known,
    ok,
    record,
)
from repl.web.json_objects import answered, nothing_asked
from repl.web.limits import PEER_BODY_BYTES_MAX, TIMEOUT_S, TIMEOUT_S_MAX
from repl.web.mastership import redirect
from repl.web.types import Handler, Request, Response
from vlsn.errors import BadBody, NotFound, ProducersMissing
from vlsn.format.records import JSON_FAULTS

PATH = "/v1/admin/tokens"
_NONE: frozenset[str] = frozenset()
_TIMEOUT = known(TIMEOUT)


class _Rotation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: str
    sha256: str
    overlap_s: Annotated[float, Meta(ge=0, le=OVERLAP_S_MAX)] = 0.0


_SHOWN = record(
    {
        **dict.fromkeys(("id", "uri", "keys", "names", "title", "by"), TEXT),
        "roles": {"type": "array", "items": {"enum": [role.value for role in TOKEN_ROLES]}},
        **dict.fromkeys(("bytes_per_s", "appends_per_s", "expires_us"), WHOLE),
    }
)
_ID = in_path("id", "The token's id.", {"type": "string", "pattern": TOKEN_ID})
CALLS = (
    Call(
        "admin",
        "GET",
        PATH,
        "List the tokens",
        (),
        (ok(record({"tokens": {"type": "array", "items": _SHOWN}}), "The tokens, without their hashes."),),
        OPEN | {ProducersMissing},
    ),
    Call(
        "admin",
        "PUT",
        PATH + "/{id}",
        "Make a token",
        (_ID, TIMEOUT),
        (ok(_SHOWN, "The token is durable."),),
        NAMED,
        {JSON: TokenRecord},
        text="The caller makes the secret, and sends its SHA-256 as `sha256`, or a certificate's `uri` in place of it. "
        f"{JSON_BODY}",
    ),
    Call(
        "admin",
        "POST",
        PATH + "/{id}/rotate",
        "Replace a token",
        (_ID, TIMEOUT),
        (ok(record({"id": TEXT, "before": TEXT, "overlap_s": NUMBER}), "Both tokens work for `overlap_s`."),),
        NAMED,
        {JSON: _Rotation},
        text=JSON_BODY,
    ),
    Call(
        "admin",
        "DELETE",
        PATH + "/{id}",
        "Revoke a token",
        (_ID, TIMEOUT),
        (ok(record({"id": TEXT, "revoked": FLAG}), "It is durable that the token is revoked."),),
        NAMED,
        EMPTY,
        False,
    ),
)
T = TypeVar("T")
_records = msgspec.json.Decoder(TokenRecord)
_rotations = msgspec.json.Decoder(_Rotation)


class TokenRoutes:
    def __init__(self, tokens: NodeTokens) -> None:
        self._tokens = tokens

    def methods(self, path: str) -> Mapping[str, Route]:
        """Returns the methods of one token's path. Raises ``NotFound``."""
        id, *call = path.removeprefix(PATH + "/").split("/")
        id = query.named(id)
        if not call:
            return {"PUT": self._route(self._put, id), "DELETE": self._route(self._delete, id)}
        if call == ["rotate"]:
            return {"POST": self._route(self._rotate, id)}
        raise NotFound(f"there is no {path[:100]}")

    def _route(self, call: Any, id: str) -> Route:
        handler: Handler = partial(self._at_master, partial(call, id))
        return Route(handler, Role.ADMIN, to_master=True)

    async def _at_master(self, handler: Handler, request: Request) -> Any:
        if not self._tokens.member.is_master():
            return redirect(self._tokens.member, request)
        return await handler(request)

    async def list(self, request: Request) -> Response:
        query.only(request.query, _NONE)
        return answered({"tokens": [_shown(id, record) for id, record in self._tokens.tokens().items()]})

    async def _put(self, id: str, request: Request) -> Response:
        timeout_s = _timeout(request)
        record = replace(await _body(request, _records, "token"), by=request.grant.who)
        await self._tokens.create(id, record, timeout_s)
        return answered(_shown(id, record))

    async def _rotate(self, id: str, request: Request) -> Response:
        timeout_s = _timeout(request)
        asked = await _body(request, _rotations, "rotation")
        await self._tokens.rotate(id, asked.id, asked.sha256, asked.overlap_s, request.grant.who, timeout_s)
        return answered({"id": asked.id, "before": id, "overlap_s": asked.overlap_s})

    async def _delete(self, id: str, request: Request) -> Response:
        timeout_s = _timeout(request)
        await nothing_asked(request)
        await self._tokens.revoke(id, request.grant.who, timeout_s)
        return answered({"id": id, "revoked": True})


async def _body(request: Request, decoder: msgspec.json.Decoder[T], what: str) -> T:
    body = await request.body(PEER_BODY_BYTES_MAX)
    try:
        return decoder.decode(body)
    except JSON_FAULTS as error:
        raise BadBody(f"no {what}: {error}") from None


def _shown(id: str, record: TokenRecord) -> dict[str, Any]:
    return {
        "id": id,
        "roles": list(record.roles),
        "uri": record.uri,
        "keys": record.keys,
        "names": record.names,
        "bytes_per_s": record.bytes_per_s,
        "appends_per_s": record.appends_per_s,
        "expires_us": record.expires_us,
        "title": record.title,
        "by": record.by,
    }


def _timeout(request: Request) -> float:
    query.only(request.query, _TIMEOUT)
    return query.seconds(request.query, "timeout", TIMEOUT_S, 0.001, TIMEOUT_S_MAX)
