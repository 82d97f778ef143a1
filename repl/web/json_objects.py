"""JSON objects, as operators and other members send and receive them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from repl.web import query
from repl.web.limits import PEER_BODY_BYTES_MAX
from repl.web.types import Handler, Request, Response
from vlsn.errors import BadBody
from vlsn.format.records import JSON_FAULTS

HEADERS = {"Content-Type": "application/json"}
_NONE: frozenset[str] = frozenset()
_decoder = msgspec.json.Decoder(dict[str, Any])


async def asked_object(request: Request) -> dict[str, Any]:
    """Decodes the JSON object in the body of a call that has no query parameters. Raises ``BadArgument``, ``BadBody``,
    ``TooLarge``."""
    query.only(request.query, _NONE)
    body = await request.body(PEER_BODY_BYTES_MAX)
    try:
        return _decoder.decode(body)
    except JSON_FAULTS as error:
        raise BadBody(f"the question is no JSON object: {error}") from None


async def nothing_asked(request: Request) -> None:
    """Reads the body of a call that has no parameters there. Raises ``BadBody`` if the body is not empty: otherwise a
    parameter put in the wrong place, such as ``dry_run``, would be ignored and the call carried out."""
    body = await request.body(PEER_BODY_BYTES_MAX)
    if not body.strip():
        return
    try:
        asked = _decoder.decode(body)
    except JSON_FAULTS as error:
        raise BadBody(f"this call takes no body, or an empty JSON object: {error}") from None
    if asked:
        raise BadBody("this call takes nothing from its body; what it may be told are parameters of its URL")


def answered(answer: dict[str, Any]) -> Response:
    return Response(200, HEADERS, msgspec.json.encode(answer))


def answering_members(answer: Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]) -> Handler:
    """Makes the handler of a member's call, which takes one JSON object and answers with another. A certificate of the
    connection must name the ``sender``."""

    async def handler(request: Request) -> Response:
        asked = await asked_object(request)
        request.check_member(str(asked.get("sender")))
        return answered(await answer(asked))

    return handler
