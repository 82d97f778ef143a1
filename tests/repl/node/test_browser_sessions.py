"""Browser sessions against a real node on fakes: a cookie that only reads the node's state."""

from __future__ import annotations

import msgspec
import pytest

from repl.auth.tokens import Secret, TokenRecord, new_secret
from repl.node.browser_sessions import COOKIE, SESSION_S, SESSIONS_MAX, BrowserSessions
from repl.node.gateway import Gateway
from repl.web.grants import Grant
from repl.web.types import Response
from tests.fakes.clock import FakeClock
from tests.fakes.random import SeededRandom
from tests.repl.web.calls import JSON, OCTETS, call, refused, request
from tests.repl.web.one_node import OneNode, started

PATH = "/v1/session"
ONE = new_secret(SeededRandom(1))


async def made(node: OneNode, *roles: str) -> Secret:
    await node.services.tokens.create(ONE.id, TokenRecord(roles, ONE.sha256), 10.0)
    return ONE


async def opened(node: OneNode, text: str = ONE.text) -> str:
    """Opens a session; returns the value of its cookie."""
    answer = await call(node, "POST", PATH, JSON, msgspec.json.encode({"token": text}))
    assert answer.status == 204
    name, _, value = answer.headers["Set-Cookie"].partition(";")[0].partition("=")
    assert name == COOKIE
    return value


def with_cookie(value: str, headers: dict[str, str] = JSON) -> dict[str, str]:
    return {**headers, "Cookie": f"theme=dark; {COOKIE}={value}"}


async def test_a_session_reads_what_metrics_reads_and_nothing_else() -> None:
    node = await started(keyed=True, anonymous="none")
    await made(node, "metrics", "read", "append", "admin")
    headers = with_cookie(await opened(node))
    for path in ("/v1/status", "/v1/events", "/v1/group", "/v1/cdc", "/metrics"):
        refused(await call(node, "GET", path), 401, "unauthorized")
        assert (await call(node, "GET", path, headers)).status == 200
        assert (await call(node, "HEAD", path, headers)).status == 200
    refused(await call(node, "GET", "/v1/entries", headers), 401, "unauthorized")
    refused(await call(node, "POST", "/v1/entries", {**headers, **OCTETS}, b"v"), 401, "unauthorized")
    refused(await call(node, "POST", "/v1/admin/rotate", headers), 401, "unauthorized")
    refused(await call(node, "POST", "/v1/cdc/lines/pause", headers), 401, "unauthorized")


async def test_a_cookie_is_for_this_site_alone_and_for_no_script() -> None:
    node = await started(keyed=True)
    await made(node, "metrics")
    body = msgspec.json.encode({"token": ONE.text})
    plain = (await call(node, "POST", PATH, JSON, body)).headers["Set-Cookie"]
    assert plain.endswith("; Max-Age=43200; Path=/; HttpOnly; SameSite=Strict")
    asked = request("POST", PATH, JSON, body)
    asked.members = frozenset()
    answer = await Gateway(node.services).handle(asked)
    assert isinstance(answer, Response)
    secure = answer.headers["Set-Cookie"]
    assert secure.endswith("; SameSite=Strict; Secure")


@pytest.mark.parametrize(
    ("body", "status", "slug"),
    [
        (b"", 400, "bad-body"),
        (b'{"token": 1}', 400, "bad-body"),
        (b'{"token": "vlt_x", "more": 1}', 400, "bad-body"),
        (b'{"token": "vlt_x"}', 401, "unauthorized"),
        (b'{"token": "' + b"x" * 2_000 + b'"}', 413, "too-large"),
        (msgspec.json.encode({"token": new_secret(SeededRandom(2)).text}), 401, "unauthorized"),
    ],
)
async def test_a_session_needs_a_known_token(body: bytes, status: int, slug: str) -> None:
    node = await started(keyed=True)
    refused(await call(node, "POST", PATH, JSON, body), status, slug)
    assert len(node.services.access.sessions) == 0


async def test_a_token_without_the_role_opens_no_session() -> None:
    node = await started(keyed=True)
    await made(node, "read")
    body = msgspec.json.encode({"token": ONE.text})
    document = refused(await call(node, "POST", PATH, JSON, body), 403, "forbidden")
    assert ONE.secret not in str(document)


async def test_a_page_of_another_site_opens_no_session() -> None:
    node = await started(keyed=True)
    await made(node, "metrics")
    body = msgspec.json.encode({"token": ONE.text})
    refused(await call(node, "POST", PATH, {**JSON, "Origin": "http://evil.example"}, body), 403, "forbidden")
    refused(await call(node, "POST", PATH, {"Content-Type": "text/plain"}, body), 415, "unsupported-type")


async def test_a_session_ends_with_its_token() -> None:
    node = await started(keyed=True, anonymous="none")
    await made(node, "metrics")
    headers = with_cookie(await opened(node))
    assert (await call(node, "GET", "/v1/status", headers)).status == 200
    await node.services.tokens.revoke(ONE.id, "test", 10.0)
    refused(await call(node, "GET", "/v1/status", headers), 401, "unauthorized")


async def test_a_session_reads_nothing_once_its_token_has_lost_the_role() -> None:
    node = await started(keyed=True, anonymous="none")
    await made(node, "metrics")
    headers = with_cookie(await opened(node))
    await node.services.tokens.revoke(ONE.id, "test", 10.0)
    await made(node, "read")
    refused(await call(node, "GET", "/v1/status", headers), 401, "unauthorized")


async def test_a_session_that_has_ended_leaves_the_rights_of_anybody() -> None:
    node = await started(keyed=True, anonymous="all")
    await made(node, "metrics")
    headers = with_cookie(await opened(node))
    await node.services.tokens.revoke(ONE.id, "test", 10.0)
    assert (await call(node, "GET", "/v1/status", headers)).status == 200


async def test_a_session_ends_after_its_time() -> None:
    clock = FakeClock()
    sessions = BrowserSessions(clock, SeededRandom(3))
    cookie = sessions.open(Grant(who=ONE.id, roles=frozenset({"metrics"})), secure=False).partition(";")[0]
    asked = request("GET", "/v1/status", {"Cookie": cookie})
    route = Gateway((await started()).services)._paths["/v1/status"]["GET"]
    clock.advance(SESSION_S - 1)
    assert sessions.find(asked, route) is not None
    clock.advance(1)
    assert sessions.find(asked, route) is None


async def test_a_session_is_closed() -> None:
    node = await started(keyed=True, anonymous="none")
    await made(node, "metrics")
    headers = with_cookie(await opened(node))
    answer = await call(node, "DELETE", PATH, headers)
    assert answer.status == 204 and f"{COOKIE}=; Max-Age=0" in answer.headers["Set-Cookie"]
    refused(await call(node, "GET", "/v1/status", headers), 401, "unauthorized")


async def test_a_further_session_replaces_the_oldest() -> None:
    node = await started(keyed=True, anonymous="none")
    await made(node, "metrics")
    first = with_cookie(await opened(node))
    second = with_cookie(await opened(node))
    for _ in range(SESSIONS_MAX - 1):
        await opened(node)
    assert len(node.services.access.sessions) == SESSIONS_MAX
    refused(await call(node, "GET", "/v1/status", first), 401, "unauthorized")
    assert (await call(node, "GET", "/v1/status", second)).status == 200


@pytest.mark.parametrize("cookie", ["", COOKIE, f"{COOKIE}=", f"{COOKIE}=ff", "=;,\x00", f"{COOKIE}=" + "é" * 50])
async def test_a_cookie_that_is_none_gives_nothing(cookie: str) -> None:
    node = await started(keyed=True, anonymous="none")
    refused(await call(node, "GET", "/v1/status", {"Cookie": cookie}), 401, "unauthorized")
