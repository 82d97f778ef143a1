"""Clients with tokens, against real nodes on real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from repl import connect, connect_sync
from repl.auth.tokens import Secret, new_secret
from repl.client.bearing import Bearing
from repl.client.destination import Message
from repl.credentials.bearer import Bearer
from repl.net.network import AiohttpNetwork
from repl.web.types import Request, Response, Upgrade
from tests.fakes.random import SeededRandom
from tests.repl.client.group import ServedNode, at_socket, served, serving, until
from tests.repl.credentials.test_bearer import written
from tests.repl.node.test_access import made, revoked
from tests.repl.web.one_node import FIRST as BEGIN
from tests.repl.web.one_node import OneNode, follower, started
from vlsn.errors import BadArgument, Forbidden, NotMaster, OutcomeUnknown, Unauthorized, Unreachable
from vlsn.format.block import Entry
from vlsn.limits import MIB

FIRST = BEGIN + 1
"""The first VLSN of data after one token."""
ALL = ("metrics", "read", "append", "consume", "define")
ONE, OTHER, NEW = (new_secret(SeededRandom(number)) for number in range(1, 4))


def strict() -> Any:
    """Yields a node that answers nobody without a token."""
    return serving(keyed=True, anonymous="none")


@dataclass
class Host:
    """A host that answers every call with ``answer``, and notes what it was sent."""

    answer: Response
    url: str = ""
    calls: list[Request] = field(default_factory=list)

    async def handle(self, request: Request) -> Response | Upgrade:
        self.calls.append(request)
        return self.answer

    @asynccontextmanager
    async def __call__(self) -> AsyncIterator[Host]:
        async with served(self.handle) as listener:
            self.url = listener.url
            yield self

    @property
    def tokens(self) -> list[str | None]:
        return [call.headers.get("Authorization") for call in self.calls]


async def test_every_kind_of_call_carries_the_token() -> None:
    async with strict() as node:
        await made(node, ONE, *ALL)
        async with connect(node.url, token=ONE.text) as log:
            assert await log.append(b"a", key=b"k") == FIRST
            assert (await log.append_batch([b"b"])).first == FIRST + 1
            async with log.transaction() as txn:
                await txn.append(b"c")
            assert [entry.value async for entry in log.read()] == [b"a", b"b", b"c"]
            tail = log.tail(from_vlsn=FIRST)
            assert (await anext(tail)).value == b"a"
            consumer = log.consumer("billing", from_vlsn="start")
            async for entry in consumer:
                assert entry.value == b"a"
                await consumer.commit()
                break
            assert [each.name for each in await log.positions.list()] == ["billing"]
            await log.destinations.put("orders", prefix="k", from_="start")
            async for message in log.destination("orders"):
                assert message.value == b"a"
                await message.ack()
                break
            assert await log.group_name() and (await log.spans()).spans


@pytest.mark.parametrize("token", [OTHER.text, ""])
async def test_a_refused_token_is_told_at_once(token: str) -> None:
    """The deadline of ten seconds is not waited for, and a tail does not ask for ever."""
    async with strict() as node, asyncio.timeout(5.0), connect(node.url, token=token, timeout_s=60.0) as log:
        for call in (
            log.append(b"a"),
            log.append_many([b"a"]),
            anext(log.read()),
            anext(log.tail(from_vlsn=1)),
            anext(aiter(log.consumer("billing", from_vlsn="start"))),
            anext(aiter(log.destination("orders"))),
            log.positions.list(),
            log.group_name(),
        ):
            with pytest.raises(Unauthorized) as error:
                await call
            assert OTHER.secret not in repr(error.value)
        with pytest.raises(Unauthorized):
            async with log.transaction() as txn:
                await txn.append(b"a")
        assert not node.asked


async def test_a_missing_role_is_told_at_once() -> None:
    async with strict() as node, asyncio.timeout(5.0):
        await made(node, ONE, "metrics", "read")
        async with connect(node.url, token=ONE.text, timeout_s=60.0) as log:
            for call in (log.append(b"a"), log.destinations.put("orders", prefix="k"), log.positions.delete("x")):
                with pytest.raises(Forbidden, match="lacks the role"):
                    await call


async def test_one_append_outside_its_prefix_spoils_no_other() -> None:
    async with strict() as node:
        await made(node, ONE, "metrics", "append", keys="order-")
        for named in (False, True):
            async with connect(node.url, token=ONE.text, exactly_once=named) as log:
                keys = [b"order-1", b"other", b"order-2", None]
                told = await asyncio.gather(*(log.append(b"v", key=key) for key in keys), return_exceptions=True)
                assert [type(each) for each in told] == [int, Forbidden, int, Forbidden], told
        assert [entry.key for entry in node.entries] == [b"order-1", b"order-2"] * 2


async def test_a_token_of_appends_alone_finds_the_master_by_redirects(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its caller may not ask for the status, which names the master."""
    async with strict() as master, AsyncExitStack() as stack:
        await made(master, ONE, "append")
        other = await follower(keyed=True)
        await stack.enter_async_context(at_socket(other))
        monkeypatch.setattr(other.member, "master_url", lambda: master.url)
        monkeypatch.setattr(other.services.access, "_record", master.services.access._record)
        monkeypatch.setattr(other.services.access, "_anybody", master.services.access._anybody)
        async with connect(f"{other.url},{master.url}", token=ONE.text) as log:
            assert await log.append(b"a") == FIRST
            async with log.transaction() as txn:
                await txn.append(b"b")
        async with connect(other.url, token=ONE.text, timeout_s=0.5) as log:
            with pytest.raises(NotMaster, match=f"{master.url}.*the URLs of all members"):
                await log.append(b"c")
        assert master.values == [b"a", b"b"]


async def test_a_redirect_to_a_foreign_host_gets_no_token() -> None:
    headers = {"Content-Type": "application/problem+json"}
    async with Host(Response(200, {}, b"{}"))() as foreign:
        moved = Response(307, {**headers, "Location": f"{foreign.url}/v1/produce"}, b'{"type":"no-master"}')
        async with Host(moved)() as node:
            bearer = Bearer.of(ONE.text)
            assert bearer is not None
            network = Bearing(AiohttpNetwork(), bearer)
            with pytest.raises(NotMaster):
                await network.connect(f"{node.url}/v1/produce", message_bytes_max=MIB, timeout_s=5.0)
            assert (await network.request("GET", f"{node.url}/v1/status", timeout_s=5.0)).status == 307
            await network.close()
            async with connect(node.url, token=ONE.text, timeout_s=0.3) as log:
                with pytest.raises((NotMaster, Unreachable)):
                    await log.append(b"a")
            assert set(node.tokens) == {f"Bearer {ONE.text}"} and len(node.calls) > 2
    assert foreign.calls == []


async def test_a_token_is_not_sent_in_the_clear_beyond_loopback() -> None:
    for url in ("http://10.0.0.7:7701", "https://10.0.0.7:7701,http://example.com:7701"):
        for opened in (connect, connect_sync):
            with pytest.raises(BadArgument, match="https") as error:
                opened(url, token=ONE.text)
            assert ONE.secret not in str(error.value)
    async with Host(Response(200, {}, b"{}"))() as host:
        bearer = Bearer.of(ONE.text)
        assert bearer is not None
        port = host.url.rpartition(":")[2]
        for learns, kind in ((True, Unreachable), (False, BadArgument)):
            network = Bearing(AiohttpNetwork(), bearer, learns=learns)
            with pytest.raises(kind, match="https"):
                await network.request("GET", f"http://0.0.0.0:{port}/", timeout_s=5.0)
            with pytest.raises(kind, match="https"):
                await network.connect(f"http://0.0.0.0:{port}/", message_bytes_max=MIB, timeout_s=5.0)
            await network.close()
    assert host.calls == []


async def value_of(tail: AsyncIterator[Entry]) -> bytes:
    return bytes((await anext(tail)).value)


async def taken(messages: AsyncIterator[Message]) -> bytes:
    message = await anext(messages)
    await message.ack()
    return bytes(message.value)


async def rotated(node: OneNode, path: Path, old: Secret, new: Secret) -> None:
    """Replaces the token of a client, which has not asked since."""
    await made(node, new, *ALL)
    written(path, new.text)
    await revoked(node, old)


async def test_a_new_token_in_the_file_is_taken_on_every_connection(tmp_path: Path) -> None:
    path = tmp_path / "token"
    async with strict() as node, asyncio.timeout(30.0):
        await made(node, ONE, *ALL)
        async with connect(node.url, token_file=written(path, ONE.text), exactly_once=True) as log:
            await log.append(b"a", key=b"k")
            await log.destinations.put("orders", prefix="k", from_="start")
            tail, messages = log.tail(from_vlsn=FIRST), aiter(log.destination("orders", prefetch=1))
            assert (await anext(tail)).value == await taken(messages) == b"a"
            waiting = [asyncio.ensure_future(value_of(tail)), asyncio.ensure_future(taken(messages))]
            await asyncio.sleep(0)
            await rotated(node, path, ONE, OTHER)
            await until(lambda: not node.services.access._watched)
            await log.append(b"b", key=b"k")
            assert await asyncio.gather(*waiting) == [b"b", b"b"]
            await rotated(node, path, OTHER, NEW)
            async with log.transaction() as txn:
                await txn.append(b"c", key=b"k")
            assert (await anext(tail)).value == await taken(messages) == b"c"


async def test_an_append_that_is_refused_on_its_connection_is_sent_again_with_the_new_token(tmp_path: Path) -> None:
    path = tmp_path / "token"
    async with strict() as node, asyncio.timeout(30.0):
        await made(node, ONE, *ALL)
        async with connect(node.url, token_file=written(path, ONE.text)) as log:
            await log.append(b"a")
            await rotated(node, path, ONE, OTHER)
            node.services.access.close()  # else it may close the connection, and the append that crosses is unknown
            assert await asyncio.gather(*(log.append(b"%d" % number) for number in range(100)))
            path.unlink()
            await revoked(node, OTHER)
            node.services.access.close()
            with pytest.raises(Unauthorized, match="token_file"):
                await log.append(b"z")
        assert node.values == [b"a", *(b"%d" % number for number in range(100))]


async def test_a_revoked_token_ends_every_connection(tmp_path: Path) -> None:
    async with strict() as node, asyncio.timeout(30.0):
        await made(node, ONE, *ALL)
        async with connect(node.url, token_file=written(tmp_path / "token", ONE.text), timeout_s=60.0) as log:
            await log.append(b"a", key=b"k")
            await log.destinations.put("orders", prefix="k", from_="start")
            tail, messages = log.tail(from_vlsn=FIRST), aiter(log.destination("orders", prefetch=1))
            assert (await anext(tail)).value == await taken(messages) == b"a"
            waiting = [asyncio.ensure_future(value_of(tail)), asyncio.ensure_future(taken(messages))]
            await asyncio.sleep(0)
            await revoked(node, ONE)
            for each in (*waiting, log.append(b"b")):
                with pytest.raises(Unauthorized, match=r"revoked|no token"):
                    await each


async def test_an_append_under_way_when_its_token_ends_is_unknown_or_logged_once() -> None:
    async with strict() as node, asyncio.timeout(30.0):
        for named, kind in ((False, OutcomeUnknown), (True, OutcomeUnknown)):
            await made(node, ONE, *ALL)
            async with connect(node.url, token=ONE.text, exactly_once=named) as log:
                await log.append(b"before")
                access, ended = node.services.access, Unauthorized("revoked")
                node.hold = True
                waiting = asyncio.ensure_future(log.append(b"late"))
                await node.until_unanswered(1)
                with pytest.MonkeyPatch.context() as patched:
                    patched.setattr(access, "refusal", lambda grant, ended=ended: ended)
                    with pytest.raises(kind):
                        await waiting
                node.release()
        assert node.values == [b"before", b"late"] * 2


async def test_the_environment_names_the_token(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async with strict() as node:
        await made(node, ONE, *ALL)
        monkeypatch.setenv("VLSNLOG_TOKEN", ONE.text)
        async with connect(node.url) as log:
            await log.append(b"a")
        monkeypatch.delenv("VLSNLOG_TOKEN")
        monkeypatch.setenv("VLSNLOG_TOKEN_FILE", written(tmp_path / "token", ONE.text))
        async with connect(node.url) as log:
            await log.append(b"b")
        assert node.values == [b"a", b"b"]


def test_the_blocking_client_carries_the_token(tmp_path: Path) -> None:
    path = written(tmp_path / "token", ONE.text)

    async def node() -> OneNode:
        made_node = await started(segment_bytes=2 * MIB, keyed=True, anonymous="none")
        await made(made_node, ONE, *ALL)
        return made_node

    with ServedNode(node) as served_node:
        for named in ({"token": ONE.text}, {"token_file": path}):
            with connect_sync(served_node.url, **named) as log:  # type: ignore[call-overload]
                log.append(b"a")
                assert next(log.tail(from_vlsn=FIRST)).value == b"a"
        with connect_sync(served_node.url, token=OTHER.text, timeout_s=60.0) as log, pytest.raises(Unauthorized):
            log.append(b"b")


async def test_no_text_of_a_client_shows_the_secret(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    async with strict() as node, connect(node.url, token=ONE.text, timeout_s=0.5) as log:
        texts: list[Callable[[Any], str]] = [repr, str]
        shown = [text(each) for text in texts for each in (log, log._network, log._endpoints, log._bearer)]
        for call in (log.append(b"a"), log.group_name()):
            with pytest.raises(Unauthorized) as error:
                await call
            shown += [repr(error.value), str(error.value), repr(error.value.__context__)]
    assert ONE.secret not in "\n".join(shown) + caplog.text
