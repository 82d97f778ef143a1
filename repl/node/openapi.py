"""``GET /v1/openapi.json``: the gateway's calls as an OpenAPI 3.1 document.

Each door describes its own calls (``repl/web/calls.py``). This module joins the descriptions with the gateway's table,
which knows each call's role and whether it goes to the master, and with the errors that every call may have. The
document is made at the first request and kept as bytes.

    x-vlsnlog-role       the role that a caller needs (``repl/auth/roles.py``)
    x-vlsnlog-to-master  a node that is not the master answers 307
    x-vlsnlog-members    only members of the group make the call
    x-vlsnlog-line       the schema of one line of NDJSON, or of an event's data
    x-websocket          the grammar of a WebSocket's messages
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Any, Final, get_args

import msgspec

from repl.auth.roles import Role, Route
from repl.cdc import cdc_http
from repl.destinations import destinations_http
from repl.lead import append_http, feed_ws, produce_ws, transactions_http
from repl.names import positions_http, sinks_http, tokens_http
from repl.node import admin_http, browser_sessions, overview, peers, status_http
from repl.node.status import version
from repl.read import read_http, segments_http, spans_http, tail_http
from repl.repair import restore_http
from repl.web import problem, query
from repl.web.calls import EVERY, JSON, OBJECT, TEXT, Answer, Call, Parameter, Schema, ok
from repl.web.limits import PIECE_BYTES
from repl.web.slices import Slices
from repl.web.types import QUERY_FIELDS_MAX, Request, Response

PATH: Final = "/v1/openapi.json"
OWN: Final = Call(
    "health and status",
    "GET",
    PATH,
    "Read this document",
    (),
    (ok(OBJECT, "The calls of this node, as OpenAPI 3.1."),),
    example="$URL/v1/openapi.json",
)
CALLS: Final = (
    *append_http.CALLS,
    *produce_ws.CALLS,
    *read_http.CALLS,
    *tail_http.CALLS,
    *spans_http.CALLS,
    *segments_http.CALLS,
    *transactions_http.CALLS,
    *positions_http.CALLS,
    *sinks_http.CALLS,
    *destinations_http.CALLS,
    *cdc_http.CALLS,
    *admin_http.CALLS,
    *tokens_http.CALLS,
    *status_http.CALLS,
    *overview.CALLS,
    OWN,
    *browser_sessions.CALLS,
    *peers.CALLS,
    *restore_http.CALLS,
    *feed_ws.CALLS,
)
"""Every call of the gateway, in the order of the reference."""
EXAMPLES: Final[Mapping[str, str]] = {
    "slug": "no-master",
    "transaction": "t-0000000000000001-1-1",
    "vlsn": "5",
    "producer": "00000000000000ab",
    "number": "1",
    "name": "orders",
    "id": "abcdefgh",
}
"""A value for each parameter of a path."""
ABOUT: Final = (
    "A durable, replicated, ordered log over HTTP. Every refusal is a problem document (RFC 9457) whose `type` is a "
    "stable slug. A node that is not the master answers 307 with an absolute `Location`, where only the master takes "
    "the call. 429 and 503 carry `Retry-After`. Every GET also answers HEAD. An unknown parameter of the query, and an "
    "unknown field of a JSON body, is refused, except by `/`, `/healthz`, `/readyz`, `/metrics` and by the calls of "
    f"members. A query has at most {QUERY_FIELDS_MAX} fields. Every POST and PUT "
    f"that appends nothing needs the content type `{JSON}`, also without a body. A call with the header "
    "`Vlsnlog-Founding` is refused by a node that has another log."
)
_RETRY: Final = (429, 503)
_REF: Final = "#/components/schemas/{name}"
_PROBLEM: Final = {
    "type": "object",
    "description": "A refusal (RFC 9457). Some errors add facts of their own.",
    "properties": {
        "type": {**TEXT, "description": "The stable slug of the error."},
        "title": TEXT,
        "help": {"type": "string", "description": "The path of the error's entry, on any node."},
        "status": {"type": "integer"},
        "detail": {**TEXT, "description": "What happened this time."},
        "first": {"type": "integer", "description": "`trimmed`: the first VLSN that is still in the log."},
        **{name: {"type": "integer"} for name in ("vlsn", "term", "found", "offset")},
        "file": TEXT,
        "session": {**TEXT, "description": "`stale-session`: the session to sign with."},
    },
    "required": ["type", "title", "status", "detail"],
}


class OpenApiRoutes:
    """Answers ``GET /v1/openapi.json``. ``route_of`` finds the route of a method and a path."""

    def __init__(self, route_of: Callable[[str, str], Route], durable: Iterable[str], pieces: Slices) -> None:
        self._route_of = route_of
        self._durable = tuple(durable)
        self._pieces = pieces
        self._document: bytes | None = None

    async def openapi(self, request: Request) -> Response:
        query.only(request.query, frozenset())
        if self._document is None:
            self._document = await self._pieces.run(_encoded(self._route_of, self._durable))
        return Response(200, {"Content-Type": JSON, "Cache-Control": "no-cache"}, self._document)


def _encoded(route_of: Callable[[str, str], Route], durable: tuple[str, ...]) -> Generator[int, None, bytes]:
    return msgspec.json.encode((yield from document(route_of, durable)))


def document(route_of: Callable[[str, str], Route], durable: tuple[str, ...]) -> Generator[int, None, dict[str, Any]]:
    """Makes the document, in steps that tell what each costs (``repl.web.slices``). ``durable`` are the prefixes of
    paths whose answers carry ``Vlsnlog-Durable``."""
    yield PIECE_BYTES
    schemas, components = _schemas()
    paths: dict[str, dict[str, Any]] = {}
    responses: dict[str, Any] = {}
    for call in CALLS:
        yield PIECE_BYTES
        route = route_of(call.method, example_path(call.path))
        operation = _operation(call, route, schemas, call.path.startswith(durable))
        _share(operation, responses)
        paths.setdefault(call.path, {})[call.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": "vlsnlog", "version": version(), "description": ABOUT, "license": {"name": "Apache-2.0"}},
        "servers": [{"url": "/"}],
        "tags": [{"name": name} for name in dict.fromkeys(call.group for call in CALLS)],
        "paths": paths,
        "components": {
            "schemas": {**components, "Problem": _PROBLEM},
            "responses": responses,
            "securitySchemes": _SECURITY,
        },
    }


def _share(operation: dict[str, Any], responses: dict[str, Any]) -> None:
    """Moves the refusals of an operation to the responses that all operations share."""
    found = operation["responses"]
    for status, response in found.items():
        if int(status) >= 300:
            slugs = response["content"][problem.CONTENT_TYPE]["schema"]["allOf"][1]["properties"]["type"]["enum"]
            name = ".".join((status, *slugs))
            responses[name] = response
            found[status] = {"$ref": f"#/components/responses/{name}"}


def example_path(path: str) -> str:
    """Returns a path with an example in the place of each of its parameters."""
    return path.format_map(EXAMPLES)


_SECURITY: Final = {
    "token": {"type": "http", "scheme": "bearer", "description": "A token, `vlt_ID_SECRET`."},
    "session": {"type": "apiKey", "in": "cookie", "name": browser_sessions.COOKIE},
    "signature": {"type": "apiKey", "in": "header", "name": "Vlsnlog-Auth", "description": "The group's key."},
}
_SIGNED: Final[list[dict[str, list[str]]]] = [{"signature": []}]
_WITHOUT: Final[list[dict[str, list[str]]]] = [{}]
"""Calls without a token have the roles of the node's setting ``anonymous``."""


def _security(role: Role) -> list[dict[str, list[str]]]:
    if role is Role.OPEN:
        return []
    if role is Role.KEY:
        return [*_SIGNED, *_WITHOUT]
    session: list[dict[str, list[str]]] = [{"session": []}] if role is Role.METRICS else []
    return [{"token": []}, *session, *_SIGNED, *_WITHOUT]


def _operation(call: Call, route: Route, schemas: Callable[[Schema], Any], durable: bool) -> dict[str, Any]:
    marks: dict[str, Any] = {"x-vlsnlog-role": route.role.value}
    if route.peeking is not None:
        marks["x-vlsnlog-role-peek"] = route.peeking.value
    if route.to_master:
        marks["x-vlsnlog-to-master"] = True
    if route.role is Role.KEY:
        marks["x-vlsnlog-members"] = True
    if call.messages:
        marks["x-websocket"] = {"grammar": call.messages}
    body = {kind: {"schema": schemas(schema)} for kind, schema in call.body.items()}
    found = {
        "operationId": re.sub("[^a-z]+", "-", f"{call.title} {call.method}".lower()),
        "tags": [call.group],
        "summary": call.title,
        "description": call.text,
        "security": _security(route.role),
        "parameters": [_parameter(each) for each in call.parameters],
        "responses": _responses(call, route, schemas, durable),
        **({"requestBody": {"content": body, "required": call.body_required}} if body else {}),
        **marks,
    }
    if call.example:
        found["x-vlsnlog-curl"] = f"curl {call.example}"
    return found


def _parameter(each: Parameter) -> dict[str, Any]:
    return {
        "name": each.name,
        "in": each.place,
        "required": each.required,
        "description": each.text,
        "schema": each.schema,
    }


def _responses(call: Call, route: Route, schemas: Callable[[Schema], Any], durable: bool) -> dict[str, Any]:
    answers = (*call.answers, *([Answer(101, "The WebSocket is open.")] if call.messages else []))
    found: dict[str, Any] = {}
    for answer in answers:
        content = {kind: {"schema": schemas(schema)} for kind, schema in answer.content.items()}
        headers = {**answer.headers, **({"Vlsnlog-Durable": "The durable end on this node."} if durable else {})}
        found[str(answer.status)] = _response(answer.text, content, headers)
    if route.to_master:
        found["307"] = _response("The master is at `Location`.", _problem(["no-master"]), {"Location": "A URL."})
    refusals: dict[int, set[str]] = {}
    for kind in EVERY | call.errors:
        refusals.setdefault(problem.status_of_class(kind), set()).add(kind.slug)
    for status, slugs in sorted(refusals.items()):
        headers = {"Retry-After": "Seconds to wait."} if status in _RETRY else {}
        text = "; ".join(f"`{slug}`: {problem.title_of(slug)}" for slug in sorted(slugs))
        found[str(status)] = _response(text + ".", _problem(sorted(slugs)), headers)
    return found


def _response(text: str, content: Mapping[str, Any], headers: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {"description": text}
    if content:
        found["content"] = content
    if headers:
        found["headers"] = {name: {"description": said, "schema": TEXT} for name, said in headers.items()}
    return found


def _problem(slugs: list[str]) -> dict[str, Any]:
    only = {"properties": {"type": {"enum": slugs}}}
    return {problem.CONTENT_TYPE: {"schema": {"allOf": [{"$ref": _REF.format(name="Problem")}, only]}}}


def _schemas() -> tuple[Callable[[Schema], Any], dict[str, Any]]:
    """Returns how to write a schema, and the components that structures refer to."""
    kinds = [
        schema
        for call in CALLS
        for content in (call.body, *(answer.content for answer in call.answers))
        for schema in content.values()
        if not isinstance(schema, Mapping)
    ]
    found, components = msgspec.json.schema_components(kinds, ref_template=_REF)
    written = {_key(kind): _written(schema) for kind, schema in zip(kinds, found, strict=True)}
    components = {_plain(name): _written(schema) for name, schema in components.items()}
    return lambda schema: schema if isinstance(schema, Mapping) else written[_key(schema)], components


def _written(value: Any) -> Any:
    """Writes a structure's schema with plain names, and with patterns as in ECMA 262."""
    if isinstance(value, list):
        return [_written(each) for each in value]
    if not isinstance(value, dict):
        return value
    found = {name: _written(each) for name, each in value.items()}
    if "$ref" in found:
        found["$ref"] = _REF.format(name=_plain(found["$ref"].rpartition("/")[2]))
    if "pattern" in found:
        found["pattern"] = re.sub(r"\\Z$", "$", found["pattern"])
    return found


def _plain(name: str) -> str:
    """Returns the public name of a structure; one of several modules begins with its module's name."""
    *_, module, own = ("", *name.split("."))
    words = module.removesuffix("_http").split("_")
    return "".join(word.capitalize() for word in words) + own.lstrip("_")


def _key(kind: Any) -> Any:
    return get_args(kind) or kind
