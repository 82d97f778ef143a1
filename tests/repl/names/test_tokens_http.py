"""``/v1/admin/tokens`` against a real node on fakes."""

from __future__ import annotations

import msgspec
import pytest

from repl.auth.tokens import new_secret
from tests.fakes.random import SeededRandom
from tests.repl.web.calls import JSON, call, json, refused, whole_body
from tests.repl.web.one_node import FIRST, OneNode, follower, started

ONE, OTHER = new_secret(SeededRandom(1)), new_secret(SeededRandom(2))
PATH = f"/v1/admin/tokens/{ONE.id}"
READS = msgspec.json.encode({"sha256": ONE.sha256, "roles": ["read"]})


async def listed(node: OneNode) -> dict[str, dict[str, object]]:
    return {each["id"]: each for each in json(await call(node, "GET", "/v1/admin/tokens"))["tokens"]}


async def test_a_token_is_made_listed_and_revoked() -> None:
    node = await started(keyed=True)
    body = {"sha256": ONE.sha256, "roles": ["append"], "keys": "order-", "title": "orders", "expires_us": 1 << 61}
    made = json(await call(node, "PUT", PATH, JSON, msgspec.json.encode(body)))
    assert (made["keys"], made["by"], made["roles"]) == ("order-", "anonymous", ["append"])
    assert await listed(node) == {ONE.id: made} and "sha256" not in made
    last = node.opened().log.view.range.last
    assert json(await call(node, "PUT", PATH, JSON, msgspec.json.encode(body))) == made, "the same call again"
    assert node.opened().log.view.range.last == last
    refused(await call(node, "PUT", PATH, JSON, READS), 400, "bad-argument")
    assert json(await call(node, "DELETE", PATH, JSON)) == {"id": ONE.id, "revoked": True}
    assert await listed(node) == {}
    refused(await call(node, "DELETE", PATH, JSON), 404, "not-found")


async def test_a_rotated_token_has_a_successor_and_an_end() -> None:
    node = await started(keyed=True)
    await call(node, "PUT", PATH, JSON, READS)
    body = msgspec.json.encode({"id": OTHER.id, "sha256": OTHER.sha256, "overlap_s": 3600})
    now = node.member.seams.clock.wall_us()
    assert (await call(node, "POST", f"{PATH}/rotate", JSON, body)).status == 200
    tokens = await listed(node)
    assert tokens[OTHER.id]["roles"] == ["read"] and tokens[OTHER.id]["expires_us"] == 0
    assert tokens[ONE.id]["expires_us"] == pytest.approx(now + 3600 * 1_000_000, abs=1e6)
    last = node.opened().log.view.range.last
    assert (await call(node, "POST", f"{PATH}/rotate", JSON, body)).status == 200, "the same call again"
    assert node.opened().log.view.range.last == last
    other = msgspec.json.encode({"id": OTHER.id, "sha256": ONE.sha256})
    refused(await call(node, "POST", f"{PATH}/rotate", JSON, other), 400, "bad-argument")
    refused(await call(node, "POST", "/v1/admin/tokens/zzzzzzzz/rotate", JSON, other), 404, "not-found")


async def test_an_expired_token_makes_place_for_another_a_day_later() -> None:
    node = await started(keyed=True)
    await call(node, "PUT", PATH, JSON, msgspec.json.encode({"sha256": ONE.sha256, "roles": ["read"], "expires_us": 1}))
    assert ONE.id in await listed(node)
    other = msgspec.json.encode({"sha256": OTHER.sha256, "roles": ["read"]})
    await call(node, "PUT", f"/v1/admin/tokens/{OTHER.id}", JSON, other)
    assert set(await listed(node)) == {OTHER.id}


@pytest.mark.parametrize(
    ("path", "body", "type"),
    [
        (PATH, b"", "bad-body"),
        (PATH, b'{"roles":["read"]}', "bad-argument"),
        (PATH, b'{"sha256":"' + b"a" * 64 + b'","roles":["key"]}', "bad-argument"),
        (PATH, b'{"sha256":"' + b"a" * 64 + b'","roles":["read"],"secret":"x"}', "bad-body"),
        ("/v1/admin/tokens/ABC", READS, "bad-argument"),
        ("/v1/admin/tokens/abcdefgh%2Fx", READS, "bad-argument"),
    ],
)
async def test_a_bad_order_is_refused_and_nothing_logged(path: str, body: bytes, type: str) -> None:
    node = await started(keyed=True)
    refused(await call(node, "PUT", path, JSON, body), 400, type)
    assert await listed(node) == {} and node.opened().log.view.range.last < FIRST


async def test_a_follower_sends_orders_to_the_master() -> None:
    node = await follower(keyed=True)
    for method in ("PUT", "DELETE"):
        assert (await call(node, method, PATH, JSON, READS)).status in (307, 503)


async def test_a_group_below_the_level_takes_no_token() -> None:
    node = await started(keyed=False)
    refused(await call(node, "PUT", PATH, JSON, READS), 400, "wrong-version")
    assert await listed(node) == {}


async def test_the_log_holds_no_secret() -> None:
    node = await started(keyed=True)
    await call(node, "PUT", PATH, JSON, READS)
    stored = await whole_body(await call(node, "GET", "/v1/segments/1"))
    assert ONE.sha256.encode() in stored and ONE.secret.encode() not in stored
