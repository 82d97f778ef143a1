"""The limits of one token, against a real node on fakes: rates, stages, streams, names."""

from __future__ import annotations

from contextlib import AsyncExitStack

import msgspec
import pytest

from repl.auth.roles import TOKEN_ROLES
from repl.node.gateway import Gateway
from repl.web import usage
from tests.repl.lead.test_produce_ws import message
from tests.repl.node.test_access import SECRETS, bearing, connected, made
from tests.repl.web.calls import JSON, OCTETS, call, json, refused
from tests.repl.web.one_node import started


@pytest.mark.parametrize("rates", [{"appends_per_s": 2}, {"bytes_per_s": 200}])
async def test_appends_beyond_a_tokens_rate_are_refused_and_not_logged(rates: dict[str, int]) -> None:
    node = await started(keyed=True, anonymous="none")
    gateway = Gateway(node.services)
    secret = await made(node, SECRETS[0], "append", **rates)
    headers = bearing(secret, OCTETS)
    answers = [await call(gateway, "POST", "/v1/entries", headers, b"v" * 80) for _ in range(6)]
    statuses = [each.status for each in answers]
    assert statuses[:2] == [200, 200] and statuses[-1] == 429
    refused(answers[-1], 429, "queue-full")
    assert "Retry-After" in answers[-1].headers
    assert len(node.asked) == statuses.count(200)
    other = bearing(await made(node, SECRETS[1], "append"), OCTETS)
    for _ in range(6):
        assert (await call(gateway, "POST", "/v1/entries", other, b"v" * 80)).status == 200, "each token has its own"


async def test_a_producers_messages_count_too() -> None:
    node = await started(keyed=True, anonymous="none")
    gateway = Gateway(node.services)
    secret = await made(node, SECRETS[0], "append", appends_per_s=1)
    async with AsyncExitStack() as stack:
        channel = await connected(gateway, "/v1/produce", secret, stack)
        await channel.send(message(1, b"v"))
        assert b"queue-full" not in await channel.receive()
        await channel.send(message(2, b"v"))
        assert b"queue-full" in await channel.receive()


async def test_one_token_does_not_take_all_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("repl.lead.transactions.STAGES_A_TOKEN", 3)
    node = await started(keyed=True, anonymous="none")
    gateway = Gateway(node.services)
    headers = bearing(await made(node, SECRETS[0], "append"))
    handles = [json(await call(gateway, "POST", "/v1/transactions", headers))["transaction"] for _ in range(3)]
    refused(await call(gateway, "POST", "/v1/transactions", headers), 429, "queue-full")
    other = bearing(await made(node, SECRETS[1], "append"))
    assert (await call(gateway, "POST", "/v1/transactions", other)).status == 200
    assert (await call(gateway, "DELETE", f"/v1/transactions/{handles[0]}", headers)).status == 204
    assert (await call(gateway, "POST", "/v1/transactions", headers)).status == 200


async def test_one_token_does_not_take_all_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "STREAMS_A_TOKEN", 2)
    node = await started(keyed=True, anonymous="none")
    gateway = Gateway(node.services)
    secret = await made(node, SECRETS[0], "append", "read")
    upgrade = bearing(secret, {"Upgrade": "websocket"})
    async with AsyncExitStack() as stack:
        for _ in range(2):
            channel = await connected(gateway, "/v1/produce", secret, stack)
            await channel.send(message(1, b"v"))
            await channel.receive()
        refused(await call(gateway, "GET", "/v1/produce", upgrade), 429, "queue-full")
        refused(await call(gateway, "GET", "/v1/tail?from=1", bearing(secret)), 429, "queue-full")
    assert (await call(gateway, "GET", "/v1/tail?from=1", bearing(secret))).status == 200


async def test_a_token_with_a_prefix_has_a_limit_of_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("repl.node.access.NAMES_A_TOKEN", 2)
    node = await started(keyed=True, anonymous="none")
    gateway = Gateway(node.services)
    headers = bearing(await made(node, SECRETS[0], *TOKEN_ROLES, names="team-"))
    body = msgspec.json.encode({"next": 2})
    assert (await call(gateway, "PUT", "/v1/consumers/team-a", headers, body)).status == 200
    assert (await call(gateway, "PUT", "/v1/destinations/team-b", headers, b"{}")).status == 201
    refused(await call(gateway, "PUT", "/v1/consumers/team-c", headers, body), 413, "too-large")
    commit = msgspec.json.encode({"positions": {"team-d": {"next": 2}}})
    handle = json(await call(gateway, "POST", "/v1/transactions", headers))["transaction"]
    refused(await call(gateway, "POST", f"/v1/transactions/{handle}/commit", headers, commit), 413, "too-large")
    at = json(await call(gateway, "GET", "/v1/consumers/team-a", headers))["at"]
    again = msgspec.json.encode({"next": 3, "at": at})
    assert (await call(gateway, "PUT", "/v1/consumers/team-a", headers, again)).status == 200, "a name that is there"
    assert (await call(gateway, "DELETE", "/v1/consumers/team-a", headers, b"")).status == 200
    assert (await call(gateway, "PUT", "/v1/consumers/team-c", headers, body)).status == 200


@pytest.mark.parametrize("field", ["bytes_per_s", "appends_per_s"])
async def test_a_rate_that_is_none_is_refused(field: str) -> None:
    node = await started(keyed=True)
    for value in (-1, 1 << 41, 1.5, "9"):
        body = msgspec.json.encode({"sha256": SECRETS[0].sha256, "roles": ["append"], field: value})
        refused(await call(node, "PUT", f"/v1/admin/tokens/{SECRETS[0].id}", JSON, body), 400, "bad-body")
