"""Requests of a page in somebody's browser are refused before any route, on every way in."""

from __future__ import annotations

from typing import Any

import pytest

from repl.net.network import AiohttpNetwork
from repl.node.gateway import Gateway
from repl.web.types import Upgrade
from tests.repl.web.calls import JSON, call, refused, request
from tests.repl.web.one_node import FIRST, OneNode, started

OCTETS = {"Content-Type": "application/octet-stream"}
CALLS: list[tuple[str, str, dict[str, str], bytes]] = [
    ("GET", "/", {}, b""),
    ("GET", "/v1/status", {}, b""),
    ("GET", "/v1/entries", {}, b""),
    ("GET", "/no/such/path", {}, b""),
    ("POST", "/v1/entries", OCTETS, b"v"),
    ("POST", "/v1/admin/rotate", JSON, b""),
    ("POST", "/v1/peer/hello", JSON, b'{"group":"g"}'),
    ("GET", "/v1/tail", {}, b""),
]
ADDRESSES = ["0.0.0.0:7701", "http://n1.example:7701", "http://n2.example:7701", "log.example"]
SOCKETS = {"Upgrade": "websocket", "Connection": "Upgrade"}
OWN = "127.0.0.1:7701"


async def named() -> OneNode:
    """Returns a node with more names than one."""
    node = await started()
    node.services.monitoring.addresses = lambda: ADDRESSES  # type: ignore[method-assign]
    return node


@pytest.mark.parametrize(
    ("sent", "status", "slug"),
    [
        ({"Host": "evil.example"}, 421, "misdirected"),
        ({"Host": "evil.example:7701"}, 421, "misdirected"),
        ({"Host": "127.0.0.1.evil.example"}, 421, "misdirected"),
        ({"Host": "[::1"}, 421, "misdirected"),
        ({"Host": ""}, 421, "misdirected"),
        ({"Host": OWN, "Origin": "http://evil.example"}, 403, "forbidden"),
        ({"Host": OWN, "Origin": "https://evil.example:7701"}, 403, "forbidden"),
        ({"Host": OWN, "Origin": "null"}, 403, "forbidden"),
        ({"Host": OWN, "Origin": "http://127.0.0.1:3000"}, 403, "forbidden"),
        ({"Host": OWN, "Origin": "file://"}, 403, "forbidden"),
        ({"Host": OWN, "Sec-Fetch-Site": "cross-site"}, 403, "forbidden"),
        ({"Host": OWN, "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}, 403, "forbidden"),
    ],
)
async def test_a_foreign_page_is_refused_on_every_path(sent: dict[str, str], status: int, slug: str) -> None:
    node = await named()
    for method, path, headers, body in CALLS:
        refused(await call(node, method, path, {**headers, **sent}, body), status, slug)
    assert not node.asked


@pytest.mark.parametrize("path", ["/v1/produce", "/v1/feed", "/v1/tail"])
@pytest.mark.parametrize("sent", [{"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}])
async def test_a_foreign_page_gets_no_socket(path: str, sent: dict[str, str]) -> None:
    refused(await call(await named(), "GET", path, {"Host": OWN, **SOCKETS, **sent}), 403, "forbidden")


@pytest.mark.parametrize(
    "sent",
    [
        {},  # HTTP/1.0, and who else names none
        {"Host": "127.0.0.1"},
        {"Host": "127.9.9.9:80"},
        {"Host": "localhost:7701"},
        {"Host": "LOCALHOST:7701"},
        {"Host": "[::1]:7701"},
        {"Host": "n1.example:7701"},
        {"Host": "n2.example"},  # a member: behind a proxy it may be anybody's port
        {"Host": "log.example"},
        {"Host": "10.0.0.7:7701"},  # listens on every address
        {"Host": OWN, "Origin": f"http://{OWN}"},
        {"Host": OWN, "Origin": "http://localhost:7701"},
        {"Host": OWN, "Origin": "http://n2.example:7701"},
        {"Host": "log.example", "Origin": "https://log.example"},
        {"Host": OWN, "Origin": "https://log.example:8443"},  # a proxy that keeps the origin alone
        {"Host": OWN, "Sec-Fetch-Site": "same-origin"},
        {"Host": OWN, "Sec-Fetch-Site": "none"},
    ],
)
async def test_who_calls_this_node_by_one_of_its_names_is_served(sent: dict[str, str]) -> None:
    node = await named()
    assert (await call(node, "GET", "/v1/status", sent)).status == 200
    assert (await call(node, "POST", "/v1/entries", {**OCTETS, **sent}, b"v")).status == 200
    assert isinstance(await Gateway(node.services).handle(request("GET", "/v1/produce", {**SOCKETS, **sent})), Upgrade)


async def test_a_link_to_the_page_may_be_followed_and_to_nothing_else() -> None:
    followed = {"Host": OWN, "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    assert (await call(await named(), "GET", "/", followed)).status == 200
    refused(await call(await named(), "GET", "/v1/status", followed), 403, "forbidden")
    refused(await call(await named(), "POST", "/v1/admin/rotate", {**followed, **JSON}), 403, "forbidden")


@pytest.mark.parametrize("path", ["/v1/admin/rotate", "/v1/admin/group", "/v1/peer/hello", "/v1/peer/vote"])
@pytest.mark.parametrize(
    "kind",
    ["text/plain", "text/plain; application/json", "application/x-www-form-urlencoded", "multipart/form-data", ""],
)
async def test_what_changes_something_takes_json_alone(path: str, kind: str) -> None:
    node = await named()
    headers = {"Content-Type": kind} if kind else {}
    refused(await call(node, "POST", path, headers, b'{"group":"g"}'), 415, "unsupported-type")
    assert node.opened().log.view.range.last < FIRST
    if kind:
        refused(await call(node, "POST", path, headers, b""), 415, "unsupported-type")


async def test_json_may_name_its_charset_and_nothing_has_no_type() -> None:
    json = {"Content-Type": "Application/JSON; charset=utf-8"}
    assert (await call(await named(), "PUT", "/v1/consumers/c", json, b'{"next":2}')).status == 200
    assert (await call(await named(), "POST", "/v1/admin/rotate")).status == 200


@pytest.mark.parametrize(
    ("target", "host", "status"),
    [
        ("http://evil.example/v1/status", OWN, 421),
        ("http://evil.example:7701/v1/status", OWN, 421),
        ("https://evil.example/v1/status", OWN, 421),
        ("http://127.0.0.1:7701@evil.example/v1/status", OWN, 421),
        ("http:///v1/status", OWN, 421),
        ("HTTP://evil.example", OWN, 421),
        ("http://127.0.0.1:7701/v1/status", OWN, 200),
        ("http://localhost/v1/status", OWN, 200),
        ("http://localhost/v1/status", "evil.example", 200),  # the header does not count beside such a target
        ("http://log.example/v1/entries?from=1", OWN, 200),
        ("http://localhost", OWN, 200),
        ("*", OWN, 404),
        ("v1/status?x=http://evil.example", OWN, 400),
    ],
)
async def test_the_host_of_an_absolute_target_counts_and_the_header_beside_it_does_not(
    target: str, host: str, status: int
) -> None:
    assert (await call(await named(), "GET", target, {"Host": host})).status == status


async def test_the_short_way_is_for_no_foreign_head() -> None:
    gateway = Gateway((await named()).services)
    own: dict[str, Any] = {"Host": OWN, **OCTETS, "Content-Length": "1"}
    assert gateway.quick(request("POST", "/v1/entries", own)) is not None
    assert gateway.quick(request("POST", "http://evil.example/v1/entries", own)) is None
    assert gateway.quick(request("POST", "/v1/entries", {**own, "Content-Encoding": "gzip"})) is None
    for foreign in ({"Origin": "http://evil.example"}, {"Host": "evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
        assert gateway.quick(request("POST", "/v1/entries", {**own, **foreign})) is None


async def test_over_sockets_the_second_foreign_append_is_refused_as_the_first() -> None:
    """Heads that came before are served without the gateway: not this one."""
    node = await named()
    gateway, network = Gateway(node.services), AiohttpNetwork()
    listener = await network.serve("127.0.0.1", 0, gateway.handle, quick=gateway.quick)
    try:
        for _ in range(3):
            for headers, status in (
                ({}, 200),
                ({"Origin": "http://evil.example"}, 403),
                ({"Host": "evil.example"}, 421),
            ):
                response = await network.request(
                    "POST", f"{listener.url}/v1/entries", headers={**OCTETS, **headers}, body=b"v", timeout_s=60.0
                )
                assert response.status == status
        assert len(node.asked) == 3
    finally:
        await network.close()
        await listener.close()
