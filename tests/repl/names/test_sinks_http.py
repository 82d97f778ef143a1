"""``/v1/sinks`` against a real node on fakes: what its routes take, refuse and pass on."""

from __future__ import annotations

import msgspec
import pytest

from tests.repl.web.calls import JSON, OCTETS, call, json, refused
from tests.repl.web.one_node import FIRST, OneNode, follower, masterless, started
from vlsn.errors import NotMaster

STATE = {"query": "q", "batch": 3, "part": 1, "parts": 2, "rows": 1, "total": 2, "digest": "0" * 32}


async def begun(node: OneNode) -> str:
    return str(json(await call(node, "POST", "/v1/transactions", JSON))["transaction"])


async def test_a_state_is_set_by_a_commit_told_and_deleted() -> None:
    node = await started()
    assert json(await call(node, "GET", "/v1/sinks")) == {"sinks": []}
    handle = await begun(node)
    await call(node, "POST", f"/v1/transactions/{handle}/entries", OCTETS, b"row")
    body = msgspec.json.encode({"sinks": {"orders": {"state": STATE, "at": 0}}})
    assert (await call(node, "POST", f"/v1/transactions/{handle}/commit", JSON, body)).status == 200
    told = json(await call(node, "GET", "/v1/sinks/orders?consistency=linearizable"))
    assert told == {"name": "orders", "at": FIRST + 1, "state": STATE}
    assert json(await call(node, "GET", "/v1/sinks"))["sinks"] == [told]
    refused(await call(node, "DELETE", f"/v1/sinks/orders?at={FIRST}", JSON), 409, "stale-term")
    assert json(await call(node, "DELETE", f"/v1/sinks/orders?at={FIRST + 1}", JSON)) == {
        "name": "orders",
        "deleted": True,
    }
    refused(await call(node, "GET", "/v1/sinks/orders"), 404, "not-found")


@pytest.mark.parametrize(
    "body",
    [
        b'{"sinks":{"orders":{"state":{}}}}',
        b'{"sinks":{"orders":{"at":1}}}',
        b'{"sinks":{"orders":{"state":{"query":"q"},"at":1}}}',
        b'{"sinks":[]}',
        msgspec.json.encode({"sinks": {"orders": {"state": {**STATE, "more": 1}, "at": 0}}}),
    ],
)
async def test_what_is_no_state_is_refused_before_anything_is_logged(body: bytes) -> None:
    node = await started()
    handle = await begun(node)
    refused(await call(node, "POST", f"/v1/transactions/{handle}/commit", JSON, body), 400, "bad-body")
    assert not node.asked


@pytest.mark.parametrize("target", ["/v1/sinks/a?at=-1", "/v1/sinks/a?acks=none", "/v1/sinks/a?timeout=0"])
async def test_what_a_delete_does_not_take_is_refused(target: str) -> None:
    refused(await call(await started(), "DELETE", target, JSON), 400, "bad-argument")


async def test_changes_go_to_the_master_and_reads_are_answered_here() -> None:
    node = await follower()
    response = await call(node, "DELETE", "/v1/sinks/orders?at=3", JSON)
    assert (response.status, response.headers["Location"]) == (307, "http://n1:7701/v1/sinks/orders?at=3")
    assert json(await call(node, "GET", "/v1/sinks")) == {"sinks": []}
    refused(await call(await masterless(), "DELETE", "/v1/sinks/orders", JSON), 503, NotMaster.slug)
    refused(await call(await started(), "PUT", "/v1/sinks/orders", JSON, b"{}"), 405, "not-allowed")
