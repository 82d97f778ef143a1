"""The gateway's own table: every route has the role that the design names, however its path is written."""

from __future__ import annotations

import pytest

from repl.auth.roles import TOKEN_ROLES, Role, Route
from repl.destinations.destinations_http import ORDERS
from repl.node.gateway import Gateway
from repl.web import problem
from repl.web.types import Response
from tests.repl.web.calls import JSON, call, request
from tests.repl.web.one_node import started
from vlsn.errors import NotFound

HANDLE = "t-0000000000000001-1-1"
_ITEMS = (
    *(f"/v1/transactions/{HANDLE}{call}" for call in ("", "/entries", "/commit")),
    *("/v1/consumers/billing", "/v1/sinks/billing", "/v1/entries/5", "/v1/producers/00000000000000ab"),
    *("/v1/segments/1", "/v1/cdc/lines", "/v1/admin/tokens/abcdefgh", "/v1/admin/tokens/abcdefgh/rotate"),
    *(f"/v1/cdc/lines/{order}" for order in ("pause", "resume", "reset", "skip", "resend")),
    *(f"/v1/destinations/orders{call}" for call in ("", "/messages", "/consume", "/ack", "/nack")),
    *(f"/v1/destinations/orders/{order}" for order in ORDERS),
    "/errors/no-master",
)
"""A path of each kind that contains a name or a number."""
_DESIGN = {
    Role.OPEN: "GET / · GET /errors/no-master · GET /healthz · GET /readyz · GET /v1/key · POST /v1/session · "
    "DELETE /v1/session",
    Role.METRICS: "GET /metrics · GET /v1/openapi.json · GET /v1/status · GET /v1/events · GET /v1/group · "
    "GET /v1/overview · GET /v1/cdc · GET /v1/cdc/lines",
    Role.READ: "GET /v1/entries · GET /v1/entries/5 · GET /v1/tail · GET /v1/spans · GET /v1/segments · "
    "GET /v1/segments/1 · GET /v1/producers/00000000000000ab · GET /v1/consumers · GET /v1/consumers/billing · "
    "GET /v1/sinks · GET /v1/sinks/billing · GET /v1/destinations · GET /v1/destinations/orders",
    Role.APPEND: "POST /v1/entries · GET /v1/produce · POST /v1/transactions · "
    f"POST /v1/transactions/{HANDLE}/entries · POST /v1/transactions/{HANDLE}/commit · "
    f"DELETE /v1/transactions/{HANDLE}",
    Role.CONSUME: "PUT /v1/consumers/billing · GET /v1/destinations/orders/messages · "
    "GET /v1/destinations/orders/consume · POST /v1/destinations/orders/ack · POST /v1/destinations/orders/nack",
    Role.DEFINE: "PUT /v1/destinations/orders · DELETE /v1/destinations/orders · DELETE /v1/consumers/billing · "
    "DELETE /v1/sinks/billing · " + " · ".join(f"POST /v1/destinations/orders/{order}" for order in ORDERS),
    Role.ADMIN: "POST /v1/admin/group · POST /v1/admin/group/settings · POST /v1/admin/transfer · "
    "GET /v1/admin/tokens · PUT /v1/admin/tokens/abcdefgh · DELETE /v1/admin/tokens/abcdefgh · "
    "POST /v1/admin/tokens/abcdefgh/rotate · "
    "POST /v1/admin/checkpoint · POST /v1/admin/rotate · POST /v1/admin/clean · POST /v1/admin/restore · "
    + " · ".join(f"POST /v1/cdc/lines/{order}" for order in ("pause", "resume", "reset", "skip", "resend")),
    Role.KEY: "GET /v1/feed · POST /v1/peer/hello · POST /v1/peer/restore · GET /v1/peer/restore · "
    "GET /v1/peer/status · GET /v1/peer/block · GET /v1/peer/messages · GET /v1/peer/copy · POST /v1/peer/vote · "
    "POST /v1/peer/read_index · POST /v1/peer/stand · POST /v1/peer/cdc",
}


def table(gateway: Gateway) -> dict[str, Route]:
    """Returns the routes of a gateway by ``METHOD PATH``, those with a name or a number by an example."""
    found = {**gateway._paths, **{path: gateway._item(path) for path in _ITEMS}}
    return {f"{method} {path}": route for path, methods in found.items() for method, route in methods.items()}


async def test_every_route_has_the_role_that_the_design_names() -> None:
    routes = table(Gateway((await started()).services))
    for each, route in sorted(routes.items(), key=lambda each: (each[1].role, each[0])):
        print(f"{route.role:8} {each}{'   names' if route.name else ''}{'   (master)' if route.to_master else ''}")
    assert all(isinstance(route, Route) and isinstance(route.role, Role) for route in routes.values())
    design = {call: role for role, calls in _DESIGN.items() for call in calls.split(" · ")}
    assert {call: route.role for call, route in routes.items()} == design


async def test_a_route_that_acts_on_a_name_says_the_name() -> None:
    routes = table(Gateway((await started()).services))
    named = {call for call, route in routes.items() if route.name}
    acts = (Role.CONSUME, Role.DEFINE)
    assert named == {call for call, route in routes.items() if route.role in acts}
    assert {routes[call].name for call in named} == {"billing", "orders"}


async def test_a_percent_written_name_is_the_name_that_the_route_says() -> None:
    gateway = Gateway((await started()).services)
    assert gateway._item("/v1/consumers/%62illing")["PUT"].name == "billing"
    assert gateway._item("/v1/consumers/a%2Fb")["DELETE"].name == "a/b"
    assert gateway._item("/v1/destinations/%6frders/ack")["POST"].name == "orders"


async def test_a_look_at_messages_that_takes_none_needs_the_role_of_readers() -> None:
    route = Gateway((await started()).services)._item("/v1/destinations/orders/messages")["GET"]
    assert route.role_of(request("GET", "/v1/destinations/orders/messages?max=5")) is Role.CONSUME
    assert route.role_of(request("GET", "/v1/destinations/orders/messages?peek=false")) is Role.CONSUME
    assert route.role_of(request("GET", "/v1/destinations/orders/messages?peek=true")) is Role.READ


async def test_a_fixed_path_that_is_percent_written_reaches_no_route() -> None:
    gateway = Gateway((await started()).services)
    for path in (path for path in gateway._paths if path != "/"):
        written = path[:-1] + f"%{ord(path[-1]):02X}"
        assert written not in gateway._paths
        with pytest.raises(NotFound):
            gateway._item(written)
        for method in gateway._paths[path]:
            answer = await call(gateway, method, written, JSON)
            assert isinstance(answer, Response) and problem.error_of(bytes(answer.body)).slug == "not-found"


def test_no_token_can_have_the_role_of_members() -> None:
    assert Role.KEY not in TOKEN_ROLES and Role.OPEN not in TOKEN_ROLES
