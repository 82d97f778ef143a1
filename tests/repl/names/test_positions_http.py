"""``/v1/consumers`` against a real node on fakes: what its routes take, refuse and pass on."""

from __future__ import annotations

import pytest

from tests.repl.web.calls import JSON, OCTETS, call, json, refused
from tests.repl.web.one_node import FIRST, TERM, follower, masterless, started
from vlsn.errors import NotMaster


async def test_a_position_is_set_told_and_deleted() -> None:
    node = await started()
    assert json(await call(node, "GET", "/v1/consumers")) == {"consumers": []}
    response = await call(node, "PUT", "/v1/consumers/billing", JSON, b'{"next":2}')
    assert (response.status, json(response)) == (
        200,
        {"name": "billing", "next": 2, "term": TERM, "at": FIRST, "lag_vlsns": 0, "lag_s": 0.0, "by": ""},
    )
    later = b'{"next":3,"at":%d,"by":"00000000000000aa"}' % FIRST
    assert json(await call(node, "PUT", "/v1/consumers/billing?timeout=2", JSON, later))["at"] == FIRST + 1
    await call(node, "PUT", "/v1/consumers/orders/billing", JSON, b'{"next":3,"term":2}')
    told = json(await call(node, "GET", "/v1/consumers?consistency=linearizable"))["consumers"]
    assert [(each["name"], each["next"]) for each in told] == [("billing", 3), ("orders/billing", 3)]
    assert json(await call(node, "GET", "/v1/consumers/orders/billing"))["term"] == 2
    assert json(await call(node, "DELETE", "/v1/consumers/billing", JSON)) == {"name": "billing", "deleted": True}
    refused(await call(node, "GET", "/v1/consumers/billing"), 404, "not-found")


async def test_a_commit_from_a_position_that_was_replaced_is_409() -> None:
    node = await started()
    await call(node, "PUT", "/v1/consumers/billing", JSON, b'{"next":2}')
    answer = await call(node, "PUT", "/v1/consumers/billing", JSON, b'{"next":3,"at":0}')
    problem = refused(answer, 409, "stale-term")
    assert "position" in problem["title"]


@pytest.mark.parametrize(
    ("target", "headers", "body", "status", "slug"),
    [
        ("/v1/consumers/a", JSON, b"", 400, "bad-body"),
        ("/v1/consumers/a", JSON, b'{"next":"7"}', 400, "bad-body"),
        ("/v1/consumers/a", JSON, b'{"next":7,"more":1}', 400, "bad-body"),
        ("/v1/consumers/a", JSON, b"[" * 5000, 400, "bad-body"),
        ("/v1/consumers/a", JSON, b'{"next":7}' + b" " * 65_536, 413, "too-large"),
        ("/v1/consumers/a", OCTETS, b'{"next":7}', 415, "unsupported-type"),
        ("/v1/consumers/a?timeout=0", JSON, b'{"next":7}', 400, "bad-argument"),
        ("/v1/consumers/a?acks=none", JSON, b'{"next":7}', 400, "bad-argument"),
    ],
)
async def test_what_is_no_position_is_refused(
    target: str, headers: dict[str, str], body: bytes, status: int, slug: str
) -> None:
    node = await started()
    refused(await call(node, "PUT", target, headers, body), status, slug)
    assert not node.asked


async def test_changes_go_to_the_master_and_reads_are_answered_here() -> None:
    node = await follower()
    for method in ("PUT", "DELETE"):
        response = await call(node, method, "/v1/consumers/billing", JSON, b'{"next":7}' if method == "PUT" else b"")
        assert (response.status, response.headers["Location"]) == (307, "http://n1:7701/v1/consumers/billing")
    assert (await call(node, "GET", "/v1/consumers")).status == 200
    nobody = await masterless()
    refused(await call(nobody, "PUT", "/v1/consumers/billing", JSON, b'{"next":7}'), 503, NotMaster.slug)


async def test_other_methods_are_405() -> None:
    response = await call(await started(), "POST", "/v1/consumers/billing", JSON, b"{}")
    assert (response.status, response.headers["Allow"]) == (405, "DELETE, GET, HEAD, PUT")
