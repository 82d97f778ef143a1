"""``/v1/destinations`` against a real node on fakes: requests that its routes take and refuse."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from repl.destinations.delivered import Delivered
from repl.destinations.handed import Holder
from repl.destinations.message_columns import MessageColumns
from repl.node.gateway import Gateway
from repl.web.limits import LOOKS_AT_ONCE_MAX, PIECES_A_TURN_BYTES
from repl.web.ndjson import decode_messages
from tests.repl.web.calls import BATCH, JSON, OCTETS, call, json, refused, turning
from tests.repl.web.one_node import FIRST, OneNode, follower, started
from vlsn.format.batch import encode
from vlsn.format.block import Entry, EntryKind
from vlsn.ids import Term, Vlsn

PATH = "/v1/destinations"
UUID = "00000000000000aa"
CLOCK_US = 1_700_000_000_000_000


async def with_messages(prefix: str = "k") -> OneNode:
    """Returns a node with a destination, ``orders``, and two messages for it."""
    node = await started()
    assert (await call(node, "PUT", f"{PATH}/orders", JSON, b'{"prefix":"%s"}' % prefix.encode())).status == 201
    assert (await call(node, "POST", "/v1/entries", BATCH, encode([b"a", b"\xff"], [b"k", b"k2"]))).status == 200
    return node


async def test_destinations_are_made_told_and_ordered() -> None:
    node = await with_messages()
    body = b'{"prefix":"order-","from":"start","max_messages":10,"full_policy":"drop"}'
    made = await call(node, "PUT", f"{PATH}/new", JSON, body)
    assert made.status == 201 and (json(made)["prefix"], json(made)["full_policy"]) == ("order-", "drop")
    assert (await call(node, "PUT", f"{PATH}/orders", JSON, b"")).status == 200
    assert [each["name"] for each in json(await call(node, "GET", PATH))["destinations"]] == ["new", "orders"]
    assert json(await call(node, "GET", f"{PATH}/orders"))["name"] == "orders"
    for order, body, status in (
        ("pause", b"{}", 200),
        ("resume", b"{}", 200),
        ("retry-dead", b"{}", 200),
        ("move", b'{"to":%d}' % FIRST, 200),
        ("retry-dead", b'{"vlsns":[7,9]}', 404),  # none of them is dead
        ("delete-dead", b'{"vlsns":[7,9]}', 404),
    ):
        assert (await call(node, "POST", f"{PATH}/orders/{order}", JSON, body)).status == status, order
    assert json(await call(node, "DELETE", f"{PATH}/orders")) == {"name": "orders", "dropped": True}


async def test_messages_are_lines_with_their_attempts() -> None:
    node = await with_messages()
    first = FIRST + 1  # behind the COMMIT that has made the destination
    answer = await call(node, "GET", f"{PATH}/orders/messages?max=2&wait=1.5")
    assert answer.headers["Content-Type"] == "application/x-ndjson"
    uuid = answer.headers["Vlsnlog-Destination"]
    found = decode_messages(bytes(answer.body))
    time_us = found[0][2]
    assert found == [(first, 1, time_us, b"k", b"a"), (first + 1, 1, time_us, b"k2", b"\xff")]
    expected = b'{"vlsn":%d,"attempt":1,"time":%d,"key":"k","value":"a"}' % (first, time_us)
    assert bytes(answer.body).splitlines()[0] == expected
    back = msgspec.json.encode({"vlsns": [first], "reason": "no stock", "uuid": uuid})
    assert json(await call(node, "POST", f"{PATH}/orders/nack", JSON, back)) == {"nacked": 1}
    later = msgspec.json.encode({"vlsns": [first + 1], "delay_s": 0.01})
    assert json(await call(node, "POST", f"{PATH}/orders/nack", JSON, later)) == {"nacked": 1}
    shown = await call(node, "GET", f"{PATH}/orders/messages?peek=true")
    assert len(decode_messages(bytes(shown.body))) == 2
    body = msgspec.json.encode({"vlsns": [first, first + 1]})
    assert json(await call(node, "POST", f"{PATH}/orders/ack?wait=0", JSON, body)) == {"acked": 2, "durable": False}
    assert json(await call(node, "POST", f"{PATH}/orders/ack", JSON, body)) == {"acked": 2, "durable": True}


async def test_messages_that_take_long_to_encode_leave_turns_to_others() -> None:
    entry = Entry(Vlsn(7), Term(1), CLOCK_US, EntryKind.DATA, 0, b"k", b"\x01" * 400)

    async def messages(name: str, most: int, wait_s: float, room: Holder) -> Delivered:
        return Delivered(MessageColumns.of([entry] * most), {}, UUID)

    node = await started()
    node.services.destinations.messages = messages  # type: ignore[method-assign]
    async with turning() as turns:
        answer = await call(node, "GET", f"{PATH}/orders/messages?max=10000")
    assert turns[0] > 10_000 * 400 // PIECES_A_TURN_BYTES
    assert decode_messages(bytes(answer.body)) == [(7, 1, CLOCK_US, b"k", entry.value)] * 10_000


async def test_few_looks_at_messages_are_made_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    node = await started()
    gateway, under_way, most = Gateway(node.services), 0, 0

    async def peek(name: str, count: int) -> Delivered:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        for _ in range(10):
            await asyncio.sleep(0)
        under_way -= 1
        return Delivered(MessageColumns(), {}, UUID)

    monkeypatch.setattr(node.services.destinations, "peek", peek)
    path = f"{PATH}/orders/messages?peek=true"
    answers = await asyncio.gather(*(call(gateway, "GET", path) for _ in range(8)))
    assert [answer.status for answer in answers] == [200] * 8
    assert most == LOOKS_AT_ONCE_MAX


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "slug"),
    [
        ("PUT", "/orders", b"[]", 400, "bad-body"),
        ("PUT", "/orders", b'{"size":1}', 400, "bad-body"),
        ("PUT", "/orders", b'{"max_bytes":"many"}', 400, "bad-body"),
        ("PUT", "/orders?now=1", b"{}", 400, "bad-argument"),
        ("GET", "/orders/messages?max=0", b"", 400, "bad-argument"),
        ("GET", "/orders/messages?max=10001", b"", 400, "bad-argument"),
        ("GET", "/orders/messages?wait=61", b"", 400, "bad-argument"),
        ("POST", "/orders/ack", b"", 400, "bad-body"),
        ("POST", "/orders/ack", b'{"vlsns":[1.5]}', 400, "bad-body"),
        ("POST", "/orders/ack", b'{"vlsns":[0]}', 400, "bad-argument"),
        ("POST", "/orders/ack", b'{"vlsns":[99999999999999999999]}', 400, "bad-argument"),
        ("POST", "/orders/ack", b'{"vlsns":[%s1]}' % (b"1," * 10_000), 413, "too-large"),
        ("POST", "/orders/ack", b"[" * 300_000, 413, "too-large"),
        ("POST", "/orders/move", b"{}", 400, "bad-argument"),
        ("POST", "/orders/pause", b'{"to":7}', 400, "bad-argument"),
        ("POST", "/orders/pause", b'{"vlsns":[7]}', 400, "bad-argument"),
        ("POST", "/orders/delete-dead", b"{}", 400, "bad-argument"),
        ("POST", "/orders/delete-dead", b'{"vlsns":[]}', 400, "bad-argument"),
        ("POST", "/orders/retry-dead", b'{"vlsns":[0]}', 400, "bad-argument"),
        ("POST", "/orders/retry-dead", b'{"vlsns":[%s1]}' % (b"1," * 10_000), 413, "too-large"),
        ("POST", "/orders/nack", b'{"vlsns":[7],"delay_s":"1"}', 400, "bad-body"),
        ("POST", "/orders/leap", b"{}", 404, "not-found"),
        ("GET", "/none", b"", 404, "not-found"),
    ],
)
async def test_what_is_no_call_is_refused_before_it_reaches_the_node(
    method: str, path: str, body: bytes, status: int, slug: str
) -> None:
    node = await started()
    refused(await call(node, method, f"{PATH}{path}", JSON, body), status, slug)
    assert node.opened().log.view.range.last < FIRST


async def test_calls_that_change_something_are_json_alone() -> None:
    node = await started()
    refused(await call(node, "POST", f"{PATH}/orders/ack", OCTETS, b'{"vlsns":[1]}'), 415, "unsupported-type")


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", ""), ("PUT", "/a"), ("GET", "/a"), ("DELETE", "/a"), ("GET", "/a/messages?max=1"), ("POST", "/a/ack")],
)
async def test_off_the_master_every_call_is_sent_to_it(method: str, path: str) -> None:
    node = await follower()
    answer = await call(node, method, f"{PATH}{path}", JSON if method in ("POST", "PUT") else None)
    assert answer.status == 307 and answer.headers["Location"] == f"http://n1:7701{PATH}{path}"
