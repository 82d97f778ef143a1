"""``/v1/destinations`` against a node in memory: requests that its routes take, refuse and pass on."""

from __future__ import annotations

import asyncio

import pytest

from repl.api import DestinationChange
from repl.destinations.handed import Holder
from repl.destinations.message_batch import MessageColumns
from repl.node.gateway import Gateway
from repl.web.limits import LOOKS_AT_ONCE_MAX, PIECES_A_TURN_BYTES
from repl.web.ndjson import decode_messages
from tests.repl.web.calls import JSON, OCTETS, call, json, refused, turning
from tests.repl.web.memory_node import CLOCK_US, MemoryDestinations, MemoryMessages, MemoryNode
from vlsn.format.block import Entry, EntryKind
from vlsn.ids import Term, Vlsn

PATH = "/v1/destinations"


async def test_destinations_are_made_told_and_ordered() -> None:
    node = MemoryNode()
    body = b'{"prefix":"order-","from":"start","max_messages":10,"full_policy":"drop"}'
    assert (await call(node, "PUT", f"{PATH}/new", JSON, body)).status == 201
    assert (await call(node, "PUT", f"{PATH}/orders", JSON, b"")).status == 200
    assert json(await call(node, "GET", PATH)) == {"destinations": [{"name": "orders"}]}
    assert json(await call(node, "GET", f"{PATH}/orders")) == {"name": "orders"}
    for order in ("pause", "resume", "retry-dead"):
        await call(node, "POST", f"{PATH}/orders/{order}", JSON, b"{}")
    await call(node, "POST", f"{PATH}/orders/move", JSON, b'{"to":7}')
    for order in ("retry-dead", "delete-dead"):
        await call(node, "POST", f"{PATH}/orders/{order}", JSON, b'{"vlsns":[7,9]}')
    assert json(await call(node, "DELETE", f"{PATH}/orders")) == {"name": "orders", "dropped": True}
    assert node.destinations.orders == [
        ("set", "new", DestinationChange("order-", "start", max_messages=10, full_policy="drop")),
        ("set", "orders", DestinationChange()),
        ("pause", "orders", None),
        ("resume", "orders", None),
        ("retry-dead", "orders", None),
        ("move", "orders", 7),
        ("retry-dead", "orders", (7, 9)),
        ("delete-dead", "orders", (7, 9)),
        ("drop", "orders"),
    ]


async def test_messages_are_lines_with_their_attempts() -> None:
    node = MemoryNode()
    answer = await call(node, "GET", f"{PATH}/orders/messages?max=2&wait=1.5")
    assert answer.headers["Content-Type"] == "application/x-ndjson"
    assert answer.headers["Vlsnlog-Destination"] == "00000000000000aa"
    assert bytes(answer.body).splitlines()[0] == b'{"vlsn":7,"attempt":1,"time":%d,"key":"k","value":"a"}' % CLOCK_US
    assert decode_messages(bytes(answer.body)) == [(7, 1, CLOCK_US, b"k", b"a"), (9, 3, CLOCK_US, None, b"\xff")]
    await call(node, "GET", f"{PATH}/orders/messages?peek=true")
    body = b'{"vlsns":[7,9]}'
    assert json(await call(node, "POST", f"{PATH}/orders/ack", JSON, body)) == {"acked": 2, "durable": True}
    assert json(await call(node, "POST", f"{PATH}/orders/ack?wait=0", JSON, body)) == {"acked": 2, "durable": False}
    given_back = b'{"vlsns":[7],"reason":"no stock","uuid":"00000000000000aa"}'
    assert json(await call(node, "POST", f"{PATH}/orders/nack", JSON, given_back)) == {"nacked": 1}
    later = b'{"vlsns":[7],"delay_s":2.5}'
    assert json(await call(node, "POST", f"{PATH}/orders/nack", JSON, later)) == {"nacked": 1}
    assert node.destinations.orders == [
        ("messages", "orders", 2, 1.5),
        ("peek", "orders", 100),
        ("ack", "orders", (7, 9), "", 10.0),
        ("ack", "orders", (7, 9), "", 0.0),
        ("nack", "orders", (7,), "00000000000000aa", "no stock", None),
        ("nack", "orders", (7,), "", "given back", 2.5),
    ]


async def test_messages_that_take_long_to_encode_leave_turns_to_others() -> None:
    entry = Entry(Vlsn(7), Term(1), CLOCK_US, EntryKind.DATA, 0, b"k", b"\x01" * 400)

    class Full(MemoryDestinations):
        async def messages(self, name: str, most: int, wait_s: float, room: Holder) -> MemoryMessages:
            return MemoryMessages(MessageColumns.of([entry] * most), {})

    node = MemoryNode(destinations=Full())
    async with turning() as turns:
        answer = await call(node, "GET", f"{PATH}/orders/messages?max=10000")
    assert turns[0] > 10_000 * 400 // PIECES_A_TURN_BYTES
    assert decode_messages(bytes(answer.body)) == [(7, 1, CLOCK_US, b"k", entry.value)] * 10_000


async def test_few_looks_at_messages_are_made_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    node = MemoryNode()
    gateway, under_way, most = Gateway(node.services), 0, 0

    async def peek(name: str, count: int) -> MemoryMessages:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        for _ in range(10):
            await asyncio.sleep(0)
        under_way -= 1
        return MemoryMessages(MessageColumns(), {})

    monkeypatch.setattr(node.destinations, "peek", peek)
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
    node = MemoryNode()
    refused(await call(node, method, f"{PATH}{path}", JSON, body), status, slug)
    assert node.destinations.orders == []


async def test_calls_that_change_something_are_json_alone() -> None:
    node = MemoryNode()
    refused(await call(node, "POST", f"{PATH}/orders/ack", OCTETS, b'{"vlsns":[1]}'), 415, "unsupported-type")


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", ""), ("PUT", "/a"), ("GET", "/a"), ("DELETE", "/a"), ("GET", "/a/messages?max=1"), ("POST", "/a/ack")],
)
async def test_off_the_master_every_call_is_sent_to_it(method: str, path: str) -> None:
    node = MemoryNode()
    node.destinations.leads = False
    answer = await call(node, method, f"{PATH}{path}", JSON if method in ("POST", "PUT") else None)
    assert answer.status == 307 and answer.headers["Location"] == f"http://n2.example:7701{PATH}{path}"
