"""The OpenAPI document: it has every route of the gateway and no other, and says what each call takes."""

from __future__ import annotations

import ast
import re
from functools import cache, partial
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import schemathesis

from repl.auth.roles import Role
from repl.node.gateway import Gateway
from repl.node.openapi import CALLS, example_path
from repl.web.calls import JSON as JSON_KIND
from repl.web.calls import Call
from repl.web.limits import READ_LIMIT_MAX
from tests.reference.declared import document_of
from tests.reference.http import PAGE, page
from tests.repl.auth.test_roles import table
from tests.repl.web.calls import JSON, OCTETS, call, json
from tests.repl.web.one_node import started
from vlsn.errors import VlsnLogError

ROOT = Path(__file__).parents[3]
LAX = ("/", "/healthz", "/readyz", "/metrics")
"""The paths that ignore an unknown parameter, as members' calls do."""
CHECKED = [each for each in CALLS if each.path not in LAX and each.group != "members"]
NAMES = re.compile(r"/(billing|lines|orders)\b")


def named(each: Call) -> str:
    return f"{each.method} {each.path}"


def kinds(each: Call) -> dict[str, str]:
    return OCTETS if OCTETS["Content-Type"] in each.body else JSON


def only_names(routes: Any) -> set[str]:
    """Returns routes with one example of a name, whichever kind of name it is."""
    return {NAMES.sub("/orders", route).replace("/v1/cdc/orders", "/v1/cdc/orders") for route in routes}


async def test_the_document_has_every_route_and_no_other() -> None:
    routes = table(Gateway((await started()).services))
    assert only_names(routes) == {f"{each.method} {example_path(each.path)}" for each in CALLS}
    assert len({named(each) for each in CALLS}) == len(CALLS)


@cache
def _routed() -> set[str]:
    """Returns the names of the handlers that the code makes a ``Route`` of."""
    found = set()
    for file in (ROOT / "repl").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if not (isinstance(node, ast.Call) and ast.unparse(node.func) in ("Route", "self._route")) or not node.args:
                continue
            inner = [part for part in ast.walk(node.args[0]) if isinstance(part, ast.Attribute)]
            found |= {part.attr for part in inner}
    return found - {"_at_master", "_route", "member"}


def _reached(handler: Any) -> set[str]:
    """Returns the names of the functions that a handler calls."""
    if isinstance(handler, partial):
        return set().union(*(_reached(part) for part in (handler.func, *handler.args) if callable(part)))
    wrapped = [cell.cell_contents for cell in getattr(handler, "__closure__", None) or ()]
    return {handler.__name__}.union(*(_reached(part) for part in wrapped if callable(part)))


async def test_every_handler_that_the_code_routes_is_reached_by_a_documented_call() -> None:
    gateway = Gateway((await started()).services)
    reached = set().union(*(_reached(gateway._route(each.method, example_path(each.path)).handler) for each in CALLS))
    assert len(_routed()) > 50
    assert {each.lstrip("_") for each in _routed()} - {each.lstrip("_") for each in reached} == set()


@pytest.mark.parametrize("each", CHECKED, ids=named)
async def test_an_unknown_parameter_is_refused_with_the_documented_ones(each: Call) -> None:
    node = await started()
    path = example_path(each.path)
    answer = await call(node, each.method, f"{path}?no_such=1", kinds(each), b"{}" if each.body else b"")
    names = sorted(parameter.name for parameter in each.parameters if parameter.place == "query")
    assert answer.status == 400, answer.body
    detail = json(answer)["detail"]
    if each.path != "/v1/admin/group":
        assert detail == f"unknown parameter 'no_such'; this call takes: {', '.join(names) or 'none'}"


def _outside(schema: Any) -> list[str]:
    """Returns texts that a parameter's schema does not allow."""
    if "oneOf" in schema:
        return ["middle"]
    if "enum" in schema or "contentEncoding" in schema or "pattern" in schema:
        return ["no such!"]
    if schema["type"] == "string":
        return []
    return ["x", "-1", str(int(schema["maximum"] + 1)), *(["0"] if schema["minimum"] > 0 else [])]


def _inside(schema: Any) -> list[str]:
    if schema.get("type") not in ("integer", "number") or "pattern" in schema:
        return [*schema.get("enum", [])]
    return [
        f"{schema['minimum']:.10g}" if schema["type"] == "number" else str(schema["minimum"]),
        str(schema["maximum"]),
    ]


PARAMETERS = [(each, parameter) for each in CHECKED for parameter in each.parameters if parameter.place == "query"]


@pytest.mark.parametrize(
    ("each", "parameter"), PARAMETERS, ids=lambda part: named(part) if isinstance(part, Call) else part.name
)
async def test_a_parameter_has_the_documented_range(each: Call, parameter: Any) -> None:
    node = await started()
    path = example_path(each.path)
    beside = {"producer": "&sequence=1", "sequence": "&producer=00000000000000ab"}.get(parameter.name, "")
    for text in _outside(parameter.schema):
        answer = await call(node, each.method, f"{path}?{parameter.name}={text}{beside}", kinds(each), b"{}")
        assert (answer.status, json(answer)["type"]) == (400, "bad-argument"), (text, answer.body)
    if (
        "{" in each.path
        or each.path in ("/v1/tail", "/v1/produce", "/v1/admin/transfer")
        or parameter.name in ("after_term", "at_least", "born")
    ):
        return  # the parameter is taken, but the object that the path names is absent, or the call waits
    for text in (inside for inside in _inside(parameter.schema) if parameter.name != "wait" or inside == "0"):
        answer = await call(node, each.method, f"{path}?{parameter.name}={text}{beside}", kinds(each), b"")
        assert answer.status in (200, 101) or json(answer)["type"] != "bad-argument", (text, answer.body)


async def test_the_document_is_valid_openapi_and_is_made_once() -> None:
    node = await started()
    gateway = Gateway(node.services)
    first = await call(gateway, "GET", "/v1/openapi.json")
    assert first.headers["Content-Type"] == JSON_KIND
    found = json(first)
    assert found["openapi"] == "3.1.0"
    assert len(schemathesis.openapi.from_dict(found)) == len(CALLS)
    assert (await call(gateway, "GET", "/v1/openapi.json")).body is first.body
    for methods in found["paths"].values():
        for operation in methods.values():
            for parameter in operation["parameters"]:
                jsonschema_rs.validator_for(parameter["schema"])
    limit = next(each for each in found["paths"]["/v1/entries"]["get"]["parameters"] if each["name"] == "limit")
    assert limit["schema"]["maximum"] == READ_LIMIT_MAX


async def test_the_document_says_each_routes_role_and_where_it_goes() -> None:
    gateway = Gateway((await started()).services)
    found = document_of(gateway)["paths"]
    for each in CALLS:
        route = gateway._route(each.method, example_path(each.path))
        said = found[each.path][each.method.lower()]
        assert said["x-vlsnlog-role"] == route.role.value
        assert said.get("x-vlsnlog-to-master", False) == route.to_master == ("307" in said["responses"])
        assert said.get("x-vlsnlog-members", False) == (route.role is Role.KEY)
        assert (said["security"] == []) == (route.role is Role.OPEN)
        assert ("x-websocket" in said) == ("101" in said["responses"]) == bool(each.messages)


async def test_the_document_needs_the_role_that_a_status_needs() -> None:
    gateway = Gateway((await started()).services)
    assert gateway._route("GET", "/v1/openapi.json").role is gateway._route("GET", "/v1/status").role


async def test_every_operation_has_a_name_of_its_own() -> None:
    found = document_of(Gateway((await started()).services))["paths"]
    ids = [operation["operationId"] for methods in found.values() for operation in methods.values()]
    assert len(set(ids)) == len(ids)


def test_every_error_of_the_document_is_an_error_of_the_project() -> None:
    assert all(issubclass(kind, VlsnLogError) for each in CALLS for kind in each.errors)


async def test_the_page_is_as_the_document_says() -> None:
    document = document_of(Gateway((await started()).services))
    assert PAGE.read_text() == page(document), "docs/http.md is old: run python -m tests.reference.http"
