"""``/v1/cdc`` against a real node on fakes: requests that its routes take and refuse."""

from __future__ import annotations

import asyncio

import pytest

from repl.cdc_settings import CdcSettings
from tests.fakes.loop import virtual
from tests.repl.web.calls import JSON, OCTETS, call, json, refused
from tests.repl.web.one_node import OneNode, started


async def capturing() -> OneNode:
    """Returns a node with one consumer, ``orders``, whose class cannot be imported, and entries to capture."""
    node = await started(cdc=(CdcSettings(name="orders", consumer="shop:Orders"),))
    await node.append(*[b"v"] * 10)
    await asyncio.sleep(1)
    return node


@virtual
async def test_consumers_are_told_and_take_orders() -> None:
    node = await capturing()
    told = json(await call(node, "GET", "/v1/cdc"))
    assert (told["node"], [each["name"] for each in told["consumers"]]) == ("n1", ["orders"])
    for path, body, answer in (
        ("pause", b"", {"state": "paused", "next": 1}),
        ("reset", b'{"to":7}', {"before": 1, "next": 7}),
        ("skip", b'{"to":9}', {"skipped": {"first": 7, "last": 8}, "next": 9}),
        ("resend", b'{"from":4,"to":5}', {"resending": {"first": 4, "last": 5}, "next": 9}),
        ("reset", b'{"to":"start"}', {"before": 9, "next": 1}),
        ("resume", b"", {"state": "starting"}),
    ):
        told = json(await call(node, "POST", f"/v1/cdc/orders/{path}", JSON, body))
        assert (told["node"], told["name"]) == ("n1", "orders")
        assert {name: told[name] for name in answer} == answer
    assert json(await call(node, "GET", "/v1/cdc/orders"))["paused_us"] is None


@virtual
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
async def test_what_is_no_order_is_refused_before_it_reaches_the_consumer(
    path: str, body: bytes, status: int, slug: str
) -> None:
    node = await capturing()
    before = node.cdc.told_of("orders")
    refused(await call(node, "POST", f"/v1/cdc/orders/{path}", JSON, body), status, slug)
    assert node.cdc.told_of("orders") == before


@virtual
async def test_orders_are_json_posts_to_a_consumer_that_is_there() -> None:
    node = await capturing()
    refused(await call(node, "POST", "/v1/cdc/orders/pause", OCTETS), 415, "unsupported-type")
    refused(await call(node, "GET", "/v1/cdc/orders/pause"), 405, "not-allowed")
    refused(await call(node, "POST", "/v1/cdc/orders", JSON), 405, "not-allowed")
    refused(await call(node, "GET", "/v1/cdc/none"), 404, "not-found")
    refused(await call(node, "POST", "/v1/cdc/none/pause", JSON), 404, "not-found")
    refused(await call(node, "GET", "/v1/cdc?all=1"), 400, "bad-argument")
