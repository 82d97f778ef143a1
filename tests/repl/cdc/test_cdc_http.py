"""``/v1/cdc`` against a node in memory: requests that its routes take, refuse and pass on."""

from __future__ import annotations

import pytest

from tests.repl.web.calls import JSON, OCTETS, call, json, refused
from tests.repl.web.memory_node import MemoryNode


async def test_consumers_are_told_and_orders_passed_on() -> None:
    node = MemoryNode()
    one = {"node": "n1", "name": "orders"}
    assert json(await call(node, "GET", "/v1/cdc")) == {"node": "n1", "consumers": [{"name": "orders"}]}
    assert json(await call(node, "GET", "/v1/cdc/orders")) == one
    for path, body in (
        ("pause", b""),
        ("resume", b""),
        ("reset", b'{"to":"start"}'),
        ("reset", b'{"to":7}'),
        ("skip", b'{"to":9}'),
        ("resend", b'{"from":3,"to":5}'),
    ):
        assert json(await call(node, "POST", f"/v1/cdc/orders/{path}", JSON, body)) == one
    assert node.cdc.orders == [
        ("pause", "orders"),
        ("resume", "orders"),
        ("reset", "orders", "start"),
        ("reset", "orders", 7),
        ("skip", "orders", 9),
        ("resend", "orders", 3, 5),
    ]


@pytest.mark.parametrize(
    ("path", "body", "status", "slug"),
    [
        ("reset", b"", 400, "bad-body"),
        ("reset", b"{}", 400, "bad-body"),
        ("reset", b'{"to":1.5}', 400, "bad-body"),
        ("reset", b'{"to":"middle"}', 400, "bad-argument"),
        ("reset", b'{"to":0}', 400, "bad-argument"),
        ("reset", b'{"to":9223372036854775808}', 400, "bad-argument"),
        ("reset", b'{"to":1,"by":2}', 400, "bad-body"),
        ("skip", b'{"to":"end"}', 400, "bad-body"),
        ("skip", b'{"to":0}', 400, "bad-body"),
        ("resend", b'{"from":3}', 400, "bad-body"),
        ("resend", b"[" * 100_000, 413, "too-large"),
        ("pause?now=1", b"", 400, "bad-argument"),
        ("leap", b"", 404, "not-found"),
    ],
)
async def test_what_is_no_order_is_refused_before_it_reaches_the_node(
    path: str, body: bytes, status: int, slug: str
) -> None:
    node = MemoryNode()
    refused(await call(node, "POST", f"/v1/cdc/orders/{path}", JSON, body), status, slug)
    assert node.cdc.orders == []


async def test_orders_are_json_posts_to_a_consumer_that_is_there() -> None:
    node = MemoryNode()
    refused(await call(node, "POST", "/v1/cdc/orders/pause", OCTETS), 415, "unsupported-type")
    refused(await call(node, "GET", "/v1/cdc/orders/pause"), 405, "not-allowed")
    refused(await call(node, "POST", "/v1/cdc/orders", JSON), 405, "not-allowed")
    refused(await call(node, "GET", "/v1/cdc/none"), 404, "not-found")
    refused(await call(node, "POST", "/v1/cdc/none/pause", JSON), 404, "not-found")
    refused(await call(node, "GET", "/v1/cdc?all=1"), 400, "bad-argument")
