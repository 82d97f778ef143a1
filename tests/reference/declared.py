"""Holds answers against the OpenAPI document: status, content type, fields, and the slug of a refusal.

``check`` is called for every answer that ``tests.repl.web.calls.call`` gets, so each test of a route is also a test of
the route's description.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import jsonschema_rs
import msgspec

from repl.auth.roles import Role, Route
from repl.node.gateway import Gateway
from repl.node.openapi import document
from repl.web import problem
from repl.web.calls import JSON
from repl.web.types import Request, Response

LINES = ("application/x-ndjson",)
PREFIXES = ("/v1/transactions", "/v1/consumers", "/v1/sinks", "/v1/destinations")
ANYWHERE = {404: "not-found", 405: "not-allowed"}
"""The refusals of paths and methods that reach no route."""


def document_of(gateway: Gateway) -> dict[str, Any]:
    """Returns the document of a gateway."""
    return made(gateway._route)


def made(route_of: Callable[[str, str], Route]) -> dict[str, Any]:
    steps = document(route_of, PREFIXES)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(end.value))
            return found


@cache
def _document() -> dict[str, Any]:
    async def nothing(request: Request) -> Response:
        raise AssertionError

    return made(lambda method, path: Route(nothing, Role.READ, to_master=True))


@cache
def _patterns() -> list[tuple[re.Pattern[str], Mapping[str, Any]]]:
    written = ((re.sub(r"\{[a-z]+\}", "[^/]+", path), methods) for path, methods in _document()["paths"].items())
    written = ((re.sub(r"(consumers|sinks)/", r"\1/(?:[^/]+/)?", pattern), methods) for pattern, methods in written)
    return [(re.compile(pattern + r"\Z"), methods) for pattern, methods in written]


def operation(method: str, path: str) -> Mapping[str, Any] | None:
    """Returns the operation that a method and a path reach, if there is one. HEAD is answered as GET."""
    name = "get" if method == "HEAD" else method.lower()
    for pattern, methods in _patterns():
        if pattern.match(path):
            found: Mapping[str, Any] | None = methods.get(name)
            return found
    return None


def response_of(found: Mapping[str, Any], status: int) -> Mapping[str, Any] | None:
    """Returns the answer that an operation declares for a status."""
    response: Mapping[str, Any] | None = found["responses"].get(str(status))
    if response is not None and "$ref" in response:
        name = response["$ref"].rpartition("/")[2]
        response = _document()["components"]["responses"][name]
    return response


@cache
def _validator(schema: bytes) -> jsonschema_rs.Draft202012Validator:
    components = {"components": _document()["components"]}
    return jsonschema_rs.Draft202012Validator({**msgspec.json.decode(schema), **components})


def faults(schema: Mapping[str, Any], value: Any) -> list[str]:
    """Says how a value does not match a schema of the document."""
    return [
        f"{error.message} at {error.instance_path}"
        for error in _validator(msgspec.json.encode(schema)).iter_errors(value)
    ]


def check(method: str, path: str, status: int, headers: Mapping[str, str], body: bytes) -> None:
    """Holds an answer against the document. An answer with a stream has an empty ``body`` here."""
    found = operation(method, path)
    kind = headers.get("Content-Type", "").partition(";")[0]
    if found is None:
        assert status >= 400, (method, path, status)
        return
    if status in ANYWHERE and kind == problem.CONTENT_TYPE and msgspec.json.decode(body)["type"] == ANYWHERE[status]:
        return
    declared = response_of(found, status)
    assert declared is not None, f"{method} {path}: {status} is not declared: {body[:300]!r}"
    content = declared.get("content", {})
    assert not kind or kind in content, f"{method} {path}: {kind} is not declared for {status}"
    if not body or method == "HEAD":
        return
    schema = content[kind]["schema"]
    if kind in (JSON, problem.CONTENT_TYPE):
        wrong = faults(schema, msgspec.json.decode(body))
    elif kind in LINES:
        line = schema["x-vlsnlog-line"]
        wrong = [each for text in body.splitlines() for each in faults(line, msgspec.json.decode(text))]
    else:
        wrong = []
    assert not wrong, f"{method} {path}: {status}: {wrong[:5]}"
