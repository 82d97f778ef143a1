"""Writes ``docs/http.md`` from the OpenAPI document: ``python -m tests.reference.http``."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from repl.node.gateway import Gateway
from repl.web import problem
from tests.reference.declared import document_of
from tests.repl.web.one_node import started

PAGE = Path(__file__).parents[2] / "docs" / "http.md"
TITLES = {
    "append": "Append",
    "read": "Read",
    "transactions": "Transactions",
    "consumers": "Consumers and sinks",
    "destinations": "Destinations",
    "CDC": "CDC consumers",
    "group and operators": "Group and operators",
    "admin": "Tokens",
    "health and status": "Health and status",
    "sessions": "Sessions of browsers",
    "members": "Calls of members",
}
ABOUT = {
    "append": "[Durability](protocol.md#durability) and [exactly-once appends](protocol.md#exactly-once) explain the "
    "guarantees.",
    "read": "[Linearizable reads](protocol.md#linearizable-reads) and "
    "[the begin of a read](protocol.md#where-a-reader-begins-and-what-it-wants) explain the parameters.",
    "transactions": "[Transactions](protocol.md#transactions) explains what a repeated call does.",
    "consumers": "[Consumers](protocol.md#consumers) and [sinks](protocol.md#sinks) explain the fields.",
    "destinations": "[Destinations](destinations.md) explains deliveries, policies and limits.",
    "CDC": "Each call concerns the node that answers. [CDC](cdc.md) explains the consumers.",
    "group and operators": "[Operating](operating.md) explains when to use these calls.",
    "admin": "[Roles](protocol.md#roles) explains what a token allows.",
    "members": "Only members of the group make these calls, signed with [the group's key](protocol.md#signatures). "
    "In them a node ignores parameters and fields that it does not know.",
}
COMMON_MIN = 0.9
"""An error that at least this part of the calls may have is listed once for all of them."""


def page(document: dict[str, Any]) -> str:
    """Returns the text of the page."""
    operations = [
        (method.upper(), path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    common = _common(document, operations)
    lines = [
        "# HTTP reference",
        "",
        "This page is made from the document that every node serves at `GET /v1/openapi.json`, OpenAPI 3.1.",
        "The [protocol](protocol.md) explains the guarantees behind the calls; this page lists the calls.",
        "A change of the calls is followed by `python -m tests.reference.http`, which writes this page.",
        "",
        *document["info"]["description"].replace(". ", ".\n").split("\n"),
        "",
        "In the examples `$URL` is the URL of a node.",
        "",
        "| task | calls |",
        "|---|---|",
        *_contents(document, operations),
        "",
        "## Errors of every call",
        "",
        "| status | type | meaning |",
        "|---|---|---|",
        *(f"| {status} | `{slug}` | {problem.title_of(slug)} |" for status, slug in sorted(common)),
        "",
    ]
    for tag in (each["name"] for each in document["tags"]):
        lines += [f"## {TITLES[tag]}", ""]
        if tag in ABOUT:
            lines += [ABOUT[tag], ""]
        for method, path, operation in operations:
            if operation["tags"] == [tag]:
                lines += _call(document, method, path, operation, common)
    lines += ["## Structures", "", "These structures are fields, bodies and answers of several calls.", ""]
    for name, schema in sorted(document["components"]["schemas"].items()):
        lines += [f"### {name}", "", *_fields(schema), ""]
    return "\n".join(lines).rstrip() + "\n"


def _contents(document: dict[str, Any], operations: list[tuple[str, str, Any]]) -> Iterator[str]:
    for tag in (each["name"] for each in document["tags"]):
        calls = [f"[{o['summary']}](#{_anchor(o['summary'])})" for _, _, o in operations if o["tags"] == [tag]]
        yield f"| [{TITLES[tag]}](#{_anchor(TITLES[tag])}) | {', '.join(calls)} |"


def _anchor(title: str) -> str:
    kept = "".join(letter for letter in title.lower() if letter.isalnum() or letter in " -")
    return kept.replace(" ", "-")


def _refusals(document: dict[str, Any], operation: dict[str, Any]) -> set[tuple[str, str]]:
    found = set()
    for status, response in operation["responses"].items():
        if "$ref" in response:
            name = response["$ref"].rpartition("/")[2]
            whole = document["components"]["responses"][name]
            schema = whole["content"][problem.CONTENT_TYPE]["schema"]
            found |= (
                set()
                if status == "307"
                else {(status, slug) for slug in schema["allOf"][1]["properties"]["type"]["enum"]}
            )
    return found


def _common(document: dict[str, Any], operations: list[tuple[str, str, Any]]) -> set[tuple[str, str]]:
    return set.intersection(*(_refusals(document, operation) for _, _, operation in operations))


def _call(
    document: dict[str, Any], method: str, path: str, operation: dict[str, Any], common: set[tuple[str, str]]
) -> Iterator[str]:
    web_socket = operation.get("x-websocket")
    yield from (f"### {operation['summary']}", "", f"`{'WS' if web_socket else method} {path}`", "")
    yield _role(operation)
    yield from operation["description"].replace(". ", ".\n").split("\n") if operation["description"] else ()
    yield ""
    if operation["parameters"]:
        yield from ("| parameter | values | meaning |", "|---|---|---|")
        yield from (_parameter(each) for each in operation["parameters"])
        yield ""
    body = operation.get("requestBody")
    if body:
        yield from ("| body | content |", "|---|---|")
        need = "" if body["required"] else "optional; "
        yield from (f"| `{kind}` | {need}{_kind(each['schema'])} |" for kind, each in body["content"].items())
        yield ""
    yield from ("| answer | content | meaning |", "|---|---|---|")
    for status, response in operation["responses"].items():
        if "$ref" not in response:
            content = ", ".join(
                f"`{kind}`: {_kind(each['schema'])}" for kind, each in response.get("content", {}).items()
            )
            heads = "".join(f" `{name}`: {each['description']}" for name, each in response.get("headers", {}).items())
            yield f"| {status} | {content or 'none'} | {response['description']}{heads} |"
    for status, slug in sorted(_refusals(document, operation) - common):
        yield f"| {status} | `{slug}` | {problem.title_of(slug)} |"
    if operation.get("x-vlsnlog-to-master"):
        yield "| 307 | `no-master` | The master is at `Location`. |"
    yield ""
    if web_socket:
        yield from ("```abnf", *web_socket["grammar"].rstrip().split("\n"), "```", "")
    if "x-vlsnlog-curl" in operation:
        yield from ("```", operation["x-vlsnlog-curl"], "```", "")


def _role(operation: dict[str, Any]) -> str:
    role = operation["x-vlsnlog-role"]
    said = {"open": "Anybody may call it.", "key": "Only members call it."}.get(role, f"It needs the role `{role}`.")
    if "x-vlsnlog-role-peek" in operation:
        said = f"It needs the role `{role}`; with `peek=true`, `{operation['x-vlsnlog-role-peek']}`."
    return said + (" A node that is not the master answers 307." if operation.get("x-vlsnlog-to-master") else "")


def _parameter(each: dict[str, Any]) -> str:
    place = "" if each["in"] == "query" else f" ({each['in']})"
    return f"| `{each['name']}`{place} | {_kind(each['schema'])} | {each['description']} |"


def _kind(schema: dict[str, Any]) -> str:
    """Says a schema in a cell of a table."""
    if "x-vlsnlog-line" in schema:
        return f"lines of {_kind(schema['x-vlsnlog-line'])}"
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{_anchor(name)})"
    for several in ("anyOf", "oneOf"):
        if several in schema:
            return " or ".join(_kind(each) for each in schema[several])
    default = f", default `{schema['default']}`" if "default" in schema else ""
    if "enum" in schema:
        return ", ".join(f"`{each}`" for each in schema["enum"]) + default
    match schema.get("type"):
        case "null":
            return "null"
        case "array":
            most = f", at most {schema['maxItems']:,}" if "maxItems" in schema else ""
            return f"list of {_kind(schema.get('items') or {})}{most}"
        case "object":
            if schema.get("maxProperties") == 0:
                return "`{}`"
            required = schema.get("required", [])
            names = [f"`{name}`" + ("" if name in required else "?") for name in schema.get("properties", {})]
            return "{" + ", ".join(names) + "}" if names else "object"
        case None:
            return "bytes"
    return _simple(schema) + default


def _simple(schema: dict[str, Any]) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    words = {"integer": "integer", "number": "number", "string": "text", "boolean": "`true` or `false`"}[schema["type"]]
    if low is not None:
        words += f" {low:,}–{high:,}" if high is not None else f" from {low:,} on"
    if "pattern" in schema:
        words += f" like `{schema['pattern']}`".replace("|", "\\|")
    return words


def _fields(schema: dict[str, Any]) -> Iterator[str]:
    if schema.get("type") == "array":
        yield from (
            "A list with these places, in this order.",
            "",
            ", ".join(_kind(each) for each in schema.get("prefixItems", ())) + ".",
        )
        return
    if "enum" in schema:
        yield f"One of {', '.join(f'`{each}`' for each in schema['enum'])}."
        return
    yield from ("| field | values |", "|---|---|")
    required = schema.get("required", [])
    for name, each in schema.get("properties", {}).items():
        said = each.get("description", "")
        yield f"| `{name}`{'' if name in required else ' (optional)'} | {_kind(each)}{'. ' + said if said else ''} |"


async def _document() -> dict[str, Any]:
    return document_of(Gateway((await started()).services))


if __name__ == "__main__":
    PAGE.write_text(page(asyncio.run(_document())))
