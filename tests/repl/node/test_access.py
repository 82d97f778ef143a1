"""The rights that a token gives, by the gateway's own table, and its end: against a real node on fakes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from repl.auth import group_key
from repl.auth.roles import TOKEN_ROLES, Role
from repl.auth.sessions import CLI
from repl.auth.signatures import HEADER, NO_SESSION, Signer, digest, sign_call
from repl.auth.tokens import Secret, TokenRecord, new_secret
from repl.destinations.consume_messages import CREDIT, head
from repl.net.network import AiohttpNetwork
from repl.node.access import UNAUTHORIZED, Access
from repl.node.gateway import Gateway
from repl.tls_files import TlsFiles
from repl.web.types import Headers, Piece, Request, Response, Upgrade
from tests.fakes.random import SeededRandom
from tests.repl.auth.test_roles import table
from tests.repl.lead.test_produce_ws import message
from tests.repl.net.tls.certificates import authority, files_of, trust_of
from tests.repl.web.calls import JSON, OCTETS, UnreadableBody, call, json, refused, request
from tests.repl.web.channels import MemoryChannel, pair
from tests.repl.web.one_node import OneNode, follower, started
from vlsn.errors import ChannelClosed
from vlsn.format import batch

SECRETS = [new_secret(SeededRandom(number)) for number in range(4)]
UPGRADE = {"Upgrade": "websocket"}


def bearing(secret: Secret, headers: dict[str, str] = JSON) -> dict[str, str]:
    return {**headers, "Authorization": f"Bearer {secret.text}"}


async def made(node: OneNode, secret: Secret, *roles: str, **rights: Any) -> Secret:
    """Makes a token behind the gateway, which would ask for one."""
    await node.services.tokens.create(secret.id, TokenRecord(roles, secret.sha256, **rights), 10.0)
    node.asked.clear()
    return secret


async def revoked(node: OneNode, secret: Secret) -> None:
    await node.services.tokens.revoke(secret.id, "test", 10.0)
    node.asked.clear()


async def until_gone(channel: MemoryChannel, within_s: float = 1.0) -> int:
    """Reads until the other side has closed; returns its code."""
    async with asyncio.timeout(within_s):
        while True:
            try:
                await channel.receive()
            except ChannelClosed:
                return channel.peer.close_code


async def connected(gateway: Gateway, path: str, secret: Secret, stack: AsyncExitStack) -> MemoryChannel:
    upgrade = await gateway.handle(request("GET", path, bearing(secret, UPGRADE)))
    assert isinstance(upgrade, Upgrade), upgrade
    ours, theirs = pair()

    async def serve() -> None:
        await upgrade.run(theirs)
        await theirs.close()

    serving = asyncio.ensure_future(serve())
    stack.push_async_callback(asyncio.wait_for, serving, 10)
    stack.push_async_callback(ours.close)
    return ours


@pytest.mark.parametrize("role", [*TOKEN_ROLES, None])
async def test_each_role_against_each_route(role: Role | None) -> None:
    """Prints the table. A call that is let through is answered by its handler, which may refuse it for its own reasons;
    one that is not is refused by type, before its handler, and however the name in its path is written."""
    node = await started(keyed=True, anonymous="none")
    gateway = Gateway(node.services)
    headers = bearing(await made(node, SECRETS[0], role)) if role else dict(JSON)
    for each, route in sorted(table(gateway).items()):
        method, path = each.split(" ")
        for target in (path, path.replace("billing", "%62illing").replace("orders", "%6Frders")):
            asked = request(method, target, headers)
            found = (gateway._paths.get(asked.path) or gateway._item(asked.path))[method]
            fits = route.role in (Role.OPEN, Role.KEY, role)
            try:
                node.services.access.check(asked, found)
                outcome = "taken"
            except Exception as error:
                outcome = getattr(error, "slug", repr(error))
            expected = "taken" if fits else "forbidden" if role else "unauthorized"
            print(f"{role or 'nobody':8} {outcome:12} {route.role:8} {method} {target}")
            assert outcome == expected
            if not fits:
                status = 403 if role else 401
                answer = await call(gateway, method, target, headers)
                refused(answer, status, expected)
                assert role or answer.headers["WWW-Authenticate"] == "Bearer"
    assert not node.asked


async def test_calls_without_a_token_have_the_roles_of_anonymous() -> None:
    node = await started(keyed=True, anonymous="append")
    assert (await call(node, "POST", "/v1/entries", OCTETS, b"v")).status == 200
    assert (await call(node, "GET", "/v1/entries")).status == 200
    refused(await call(node, "POST", "/v1/admin/rotate", JSON), 401, "unauthorized")
    node = await started(keyed=True, anonymous="none")
    refused(await call(node, "POST", "/v1/entries", OCTETS, b"v"), 401, "unauthorized")
    assert (await call(node, "GET", "/healthz")).status == 200
    node = await started(keyed=True)
    assert (await call(node, "POST", "/v1/admin/rotate", JSON)).status == 200, "all is the default"


@pytest.mark.parametrize(
    "text", ["", "Bearer", "Bearer ", "Basic dTpw", f"Bearer {SECRETS[0].text}x", f"Bearer {SECRETS[1].text}"]
)
async def test_what_is_no_known_token_is_refused(text: str) -> None:
    node = await started(keyed=True, anonymous="append")
    await made(node, SECRETS[0], "append")
    refused(await call(node, "POST", "/v1/entries", {**OCTETS, "Authorization": text}, b"v"), 401, "unauthorized")
    other = Secret(SECRETS[0].id, SECRETS[1].secret)
    refused(await call(node, "POST", "/v1/entries", bearing(other, OCTETS), b"v"), 401, "unauthorized")
    assert not node.asked


async def test_a_token_has_its_own_roles_alone_where_anonymous_has_more() -> None:
    node = await started(keyed=True)
    await made(node, SECRETS[0], "read")
    refused(await call(node, "POST", "/v1/entries", bearing(SECRETS[0], OCTETS), b"v"), 403, "forbidden")
    assert (await call(node, "GET", "/v1/entries", bearing(SECRETS[0]))).status == 200
    assert (await call(node, "GET", "/v1/entries", {"Authorization": "Bearer of.another.kind"})).status == 200


async def test_an_expired_token_is_refused() -> None:
    node = await started(keyed=True, anonymous="none")
    now = node.member.seams.clock.wall_us()
    await made(node, SECRETS[0], "append", expires_us=now + 3_600_000_000)
    await made(node, SECRETS[1], "append", expires_us=now)
    assert (await call(node, "POST", "/v1/entries", bearing(SECRETS[0], OCTETS), b"v")).status == 200
    document = refused(await call(node, "POST", "/v1/entries", bearing(SECRETS[1], OCTETS), b"v"), 401, "unauthorized")
    assert "expired" in document["detail"]


async def test_keys_outside_the_prefix_are_refused_by_every_way_of_appending() -> None:
    node = await started(keyed=True, anonymous="none")
    gateway = Gateway(node.services)
    await made(node, SECRETS[0], "append", keys="order-")
    octets, binary = bearing(SECRETS[0], OCTETS), bearing(SECRETS[0], {"Content-Type": "application/x-vlsnlog-batch"})
    lines = bearing(SECRETS[0], {"Content-Type": "application/x-ndjson"})
    bad = batch.encode([b"a", b"b"], [b"order-1", b"other"])
    for target, headers, body in (
        ("/v1/entries", octets, b"v"),
        ("/v1/entries?key=other", octets, b"v"),
        ("/v1/entries", binary, bad),
        ("/v1/entries", binary, batch.encode([b"a"])),
        ("/v1/entries", lines, b'{"value":"a"}\n'),
        ("/v1/entries", lines, b'{"value":"a","key":"other"}\n'),
    ):
        refused(await call(gateway, "POST", target, headers, body), 403, "forbidden")
        start = gateway.quick(request("POST", target, {**headers, "Content-Length": str(len(body))}, body))
        if start is not None:
            answers: list[Response] = []
            start(body, answers.append)
            assert answers[0].status == 403
    handle = json(await call(gateway, "POST", "/v1/transactions", bearing(SECRETS[0])))["transaction"]
    refused(await call(gateway, "POST", f"/v1/transactions/{handle}/entries", binary, bad), 403, "forbidden")
    assert not node.asked
    good = batch.encode([b"a", b"b"], [b"order-1", b"order-2"])
    assert (await call(gateway, "POST", "/v1/entries", binary, good)).status == 200
    async with AsyncExitStack() as stack:
        channel = await connected(gateway, "/v1/produce", SECRETS[0], stack)
        await channel.send(message(1, b"without a key"))
        assert b"forbidden" in await channel.receive()
    assert len(node.asked) == 1


async def test_names_outside_the_prefix_are_refused() -> None:
    node = await started(keyed=True, anonymous="none")
    await made(node, SECRETS[0], "append", "consume", "define", "read", names="team-", keys="team-")
    headers = bearing(SECRETS[0])
    for method, path, body in (
        ("PUT", "/v1/consumers/billing", b'{"next":1}'),
        ("DELETE", "/v1/consumers/%62illing", b""),
        ("PUT", "/v1/destinations/orders", b"{}"),
        ("PUT", "/v1/destinations/team-orders", b"{}"),
        ("PUT", "/v1/destinations/team-orders", b'{"prefix":"team-"}'),
        ("POST", "/v1/destinations/orders/ack", b"{}"),
        ("DELETE", "/v1/sinks/orders", b""),
    ):
        refused(await call(node, method, path, headers, body), 403, "forbidden")
    assert (await call(node, "PUT", "/v1/consumers/team-billing", headers, b'{"next":1}')).status == 200
    both = b'{"prefix":"team-a","dead_letter":"team-dead"}'
    assert (await call(node, "PUT", "/v1/destinations/team-orders", headers, both)).status == 201
    handle = json(await call(node, "POST", "/v1/transactions", headers))["transaction"]
    sets = b'{"positions":{"billing":{"next":1}}}'
    refused(await call(node, "POST", f"/v1/transactions/{handle}/commit", headers, sets), 403, "forbidden")
    await made(node, SECRETS[1], "append")
    refused(await call(node, "POST", f"/v1/transactions/{handle}/commit", bearing(SECRETS[1]), sets), 403, "forbidden")


async def test_a_remembered_head_asks_for_its_token_with_every_request() -> None:
    node = await started(keyed=True, anonymous="none")
    gateway = Gateway(node.services)
    await made(node, SECRETS[0], "append", "read")
    sent = bearing(SECRETS[0], {**OCTETS, "Content-Length": "1"})
    start = gateway.quick(request("POST", "/v1/entries", sent, b"v"))
    poll = gateway.quick(request("GET", "/v1/entries?from=100&wait=60", bearing(SECRETS[0])))
    assert start is not None and poll is not None
    assert gateway.quick(request("POST", "/v1/entries", {**OCTETS, "Content-Length": "1"}, b"v")) is None
    taken: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
    start(b"v", taken.set_result)
    assert (await taken).status == 200
    await revoked(node, SECRETS[0])
    for each in (start, poll):
        answers: list[Response] = []
        each(b"v", answers.append)
        refused(answers[0], 401, "unauthorized")


async def test_a_follower_redirects_before_it_judges() -> None:
    node = await follower(keyed=True)
    for method, path in (("POST", "/v1/entries"), ("DELETE", "/v1/consumers/billing"), ("POST", "/v1/transactions")):
        answer = await call(node, method, path, {**OCTETS, "Authorization": f"Bearer {SECRETS[0].text}"}, b"v")
        assert answer.status == 307 and answer.headers["Location"].startswith("http://n1:7701/")
    refused(await call(node, "GET", "/v1/entries", bearing(SECRETS[0])), 401, "unauthorized")


class Watched:
    """Takes the pieces of a tail."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.ended = asyncio.Event()

    def write(self, piece: Piece) -> bool:
        self.pieces.append(piece.data)
        return True

    def end(self) -> None:
        self.ended.set()


async def test_a_token_revoked_under_producers_a_worker_a_tail_and_an_open_transaction() -> None:
    node = await started(keyed=True, anonymous="none")
    gateway = Gateway(node.services)
    secret = await made(node, SECRETS[0], *TOKEN_ROLES)
    headers = bearing(secret)
    assert (await call(gateway, "PUT", "/v1/destinations/orders", headers, b"{}")).status == 201
    handle = json(await call(gateway, "POST", "/v1/transactions", headers))["transaction"]
    stage = f"/v1/transactions/{handle}"
    assert (await call(gateway, "POST", f"{stage}/entries", bearing(secret, OCTETS), b"staged")).status == 200
    tail = await gateway.handle(request("GET", "/v1/tail?from=1", headers))
    assert isinstance(tail, Response) and tail.push is not None
    watched = Watched()
    tail.push.begin(watched)
    async with AsyncExitStack() as stack:
        producers = [await connected(gateway, "/v1/produce", secret, stack) for _ in range(64)]
        worker = await connected(gateway, "/v1/destinations/orders/consume", secret, stack)
        await worker.send(head(CREDIT))
        for channel in producers:
            await channel.send(message(1, b"before"))
            assert b"unauthorized" not in await channel.receive()
        await revoked(node, secret)
        told = asyncio.get_running_loop().time()
        for channel in producers:
            await channel.send(message(2, b"after"))
        codes = await asyncio.gather(*map(until_gone, [*producers, worker]))
        assert asyncio.get_running_loop().time() - told < 1.0
        assert set(codes) == {UNAUTHORIZED}
        async with asyncio.timeout(1.0):
            await watched.ended.wait()
        assert not node.asked
    refused(await call(gateway, "POST", f"{stage}/commit", headers), 401, "unauthorized")
    await made(node, SECRETS[1], "append")
    refused(await call(gateway, "POST", f"{stage}/commit", bearing(SECRETS[1])), 409, "transaction-gone")
    access: Access = node.services.access
    assert not access._watched and access._timer is None


async def test_what_was_read_while_a_token_ended_is_not_sent() -> None:
    node = await started(keyed=True, anonymous="none")
    gateway = Gateway(node.services)
    await made(node, SECRETS[0], "read")
    reading = asyncio.ensure_future(call(gateway, "GET", "/v1/entries?from=20&wait=20", bearing(SECRETS[0])))
    await asyncio.sleep(0.05)
    await revoked(node, SECRETS[0])
    for _ in range(30):
        await node.append(b"v")
    refused(await reading, 401, "unauthorized")


async def test_a_rotated_token_lives_on_open_connections_until_its_end() -> None:
    node = await started(keyed=True, anonymous="none")
    gateway = Gateway(node.services)
    old, new = await made(node, SECRETS[0], "append"), SECRETS[1]
    async with AsyncExitStack() as stack:
        channel = await connected(gateway, "/v1/produce", old, stack)
        await node.services.tokens.rotate(old.id, new.id, new.sha256, 3600.0, "test", 10.0)
        await channel.send(message(1, b"v"))
        assert b"unauthorized" not in await channel.receive()
        for secret in (old, new):
            assert (await call(gateway, "POST", "/v1/entries", bearing(secret, OCTETS), b"v")).status == 200
        await revoked(node, old)
        assert await until_gone(channel) == UNAUTHORIZED


class LateBody:
    """A body of which the last piece comes once ``before`` has returned."""

    def __init__(self, body: bytes, before: Callable[[], Awaitable[None]]) -> None:
        self.length: int | None = len(body)
        self._pieces, self._before = [body[:1], body[1:], b""], before

    async def read(self) -> bytes:
        if len(self._pieces) == 2:
            await self._before()
        return self._pieces.pop(0)


@pytest.mark.parametrize(
    ("method", "path", "headers", "body"),
    [
        ("POST", "/v1/entries", OCTETS, b"late"),
        ("PUT", "/v1/consumers/billing", JSON, b'{"next":2}'),
        ("PUT", "/v1/destinations/orders", JSON, b"{}"),
        ("POST", "/v1/transactions/{}/entries", OCTETS, b"late"),
        ("POST", "/v1/transactions/{}/commit", JSON, b"{}"),
    ],
)
async def test_a_call_whose_body_comes_after_the_end_of_its_token_changes_nothing(
    method: str, path: str, headers: dict[str, str], body: bytes
) -> None:
    node = await started(keyed=True, anonymous="none")
    gateway = Gateway(node.services)
    secret = await made(node, SECRETS[0], *TOKEN_ROLES)
    handle = json(await call(gateway, "POST", "/v1/transactions", bearing(secret)))["transaction"]
    late = LateBody(body, partial(revoked, node, secret))
    asked = Request(method, path.format(handle), Headers(bearing(secret, headers)), late)
    answer = await gateway.handle(asked)
    assert isinstance(answer, Response)
    refused(answer, 401, "unauthorized")
    assert not node.asked


async def test_what_a_dropped_key_has_signed_ends() -> None:
    """A key may do everything, on any route, until the node's file no longer has it."""
    node = await started(keyed=True, anonymous="none")
    gateway, keys = Gateway(node.services), node.member.keyring.keys
    assert keys is not None

    def signed(target: str, session: str, n: int) -> str:
        by = Signer(sender=CLI, to="n1:7701", process="00000000000000ff", session=session, n=n)
        return sign_call(keys.signing, by, group="sim", method="GET", target=target, body=digest(b"")).header()

    session = json(await call(gateway, "GET", "/v1/status", {HEADER: signed("/v1/status", NO_SESSION, 1)}))["session"]
    assert (await call(gateway, "GET", "/v1/status", {HEADER: signed("/v1/status", session, 1)})).status == 200
    sent = request("GET", "/v1/entries", {HEADER: signed("/v1/entries", session, 2)})
    assert gateway.quick(sent) is None, "a head that is signed counts once"
    upgrade = await gateway.handle(request("GET", "/v1/produce", UPGRADE | {HEADER: signed("/v1/produce", session, 3)}))
    assert isinstance(upgrade, Upgrade)
    ours, theirs = pair()
    serving = asyncio.ensure_future(upgrade.run(theirs))
    await asyncio.sleep(0.01)
    node.member.keyring.keys = (
        keys.with_key(other := group_key.new_key(SeededRandom(9), "new"))
        .signing_with(other.id)
        .without(keys.signing.id)
    )
    assert await until_gone(ours) == UNAUTHORIZED
    await asyncio.wait_for(serving, 10)
    await ours.close()
    refused(await call(gateway, "GET", "/v1/status", {HEADER: signed("/v1/status", session, 4)}), 401, "unauthorized")
    await node.stop()


async def test_the_kept_places_are_for_members_operators_and_health_checks() -> None:
    node = await started(keyed=True, anonymous="none")
    gateway, keys = Gateway(node.services), node.member.keyring.keys
    assert keys is not None

    def hello(key: group_key.Key, body: bytes = b"{}") -> Request:
        by = Signer(sender="n2", to="n1", process="00000000000000ff", session=NO_SESSION, n=1)
        path = "/v1/peer/hello"
        head = sign_call(key, by, group="sim", method="POST", target=path, body=digest(b"{}")).header()
        return request("POST", path, {**JSON, HEADER: head}, body)

    assert gateway.keeps(hello(keys.signing))
    assert not gateway.keeps(hello(group_key.new_key(SeededRandom(9), keys.signing.id)))
    refused(await call(gateway, "POST", "/v1/peer/vote", JSON, UnreadableBody(1_000)), 401, "unauthorized")
    other_body = await gateway.handle(hello(keys.signing, b'{"sender":"n3"}'))
    assert isinstance(other_body, Response)
    assert "another body" in refused(other_body, 401, "unauthorized")["detail"]
    for path in ("/healthz", "/readyz", "/metrics"):
        assert gateway.keeps(request("GET", path))
    for method, path in (
        *(("POST", "/v1/peer/vote"), ("GET", "/v1/feed"), ("POST", "/v1/admin/rotate"), ("PUT", "/v1/admin/rotate")),
        *(("POST", "/v1/admin/none"), ("POST", "/v1/entries"), ("GET", "/v1/status")),
    ):
        assert not gateway.keeps(request(method, path, JSON)), path
    await made(node, SECRETS[0], "admin")
    await made(node, SECRETS[1], "read")
    assert gateway.keeps(request("POST", "/v1/admin/rotate", bearing(SECRETS[0])))
    assert not gateway.keeps(request("POST", "/v1/admin/rotate", bearing(SECRETS[1])))
    assert not gateway.keeps(request("POST", "/v1/entries", bearing(SECRETS[0])))
    assert not gateway.keeps(request("GET", "/v1/entries", bearing(SECRETS[1]))), "a right is no order"


async def test_members_of_a_group_without_a_key_have_the_kept_places() -> None:
    gateway = Gateway((await started(keyed=False)).services)
    assert gateway.keeps(request("POST", "/v1/peer/hello", JSON)) and gateway.keeps(request("GET", "/v1/feed"))
    assert gateway.keeps(request("POST", "/v1/admin/rotate", JSON)), "anybody may give orders there"


async def test_a_certificate_with_the_uri_of_a_token_is_that_token(tmp_path: Path) -> None:
    """By TLS, with heads that the listener remembers: another certificate and none get nothing by them."""
    node = await started(keyed=True, anonymous="none")
    tokens = node.services.tokens
    uri = "vlsnlog:demo/client/app"
    await tokens.create("appappap", TokenRecord(("read",), uri=uri), 10.0)
    ca = authority(tmp_path / "ca")
    network = AiohttpNetwork(tls=trust_of("n1", tmp_path / "n1", ca))
    gateway = Gateway(node.services)
    listener = await network.serve("127.0.0.1", 0, gateway.handle, quick=gateway.quick)

    async def status(files: TlsFiles, method: str = "GET", headers: dict[str, str] | None = None) -> list[int]:
        calling = AiohttpNetwork(tls=files)
        url = f"https://127.0.0.1:{urlsplit(listener.url).port}/v1/entries"
        sent = {**OCTETS, **(headers or {})}
        found = [(await calling.request(method, url, headers=sent, timeout_s=10.0)).status for _ in range(3)]
        await calling.close()
        return found

    app = files_of("app", tmp_path / "app", ca, kind="client")
    others = [files_of("app2", tmp_path / "app2", ca, kind="client"), files_of("n2", tmp_path / "n2", ca)]
    others += [files_of("app", tmp_path / "other", ca, kind="client", group="other"), TlsFiles(ca=str(ca / "ca.pem"))]
    for _ in range(2):
        assert await status(app) == [200] * 3
        assert await status(app, "POST") == [403] * 3, "it has this role alone"
        for other in others:
            assert await status(other) == [401] * 3
    wrong = {"Authorization": f"Bearer {SECRETS[0].text}"}
    assert await status(app, headers=wrong) == [401] * 3, "a token that is shown counts alone"
    await tokens.revoke("appappap", "test", 10.0)
    assert await status(app) == [401] * 3
    await tokens.create("appother", TokenRecord(("append",), uri=uri, expires_us=1), 10.0)
    await tokens.create("appagain", TokenRecord(("read",), uri=uri), 10.0)
    assert await status(app) == [200] * 3, "one of the two has ended"
    await listener.close()
    await network.close()
    await node.stop()
