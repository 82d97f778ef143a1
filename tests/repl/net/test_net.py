"""The gateway over real sockets, by a raw client: the wire, byte for byte where it matters."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import struct
import time
from collections.abc import AsyncIterator

import pytest

from repl.net import listener as listener_module
from repl.net.listener import HttpListener
from repl.net.network import AiohttpNetwork
from repl.node.gateway import Gateway
from repl.web.limits import AppendLimits
from repl.web.types import Request, Response
from tests.repl.client.group import until
from tests.repl.web.one_node import FIRST, OneNode, follower, started
from vlsn.limits import KEY_BYTES_MAX, MIB

WAIT_S = 60.0
"""Seconds on a busy machine; a hang never ends."""
BODIES = 8
POST = (
    b"POST /v1/entries HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/octet-stream\r\n"
    b"Content-Length: %d\r\n\r\n%b"
)


class Wire:
    """A raw client."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def open(cls, url: str) -> Wire:
        host, _, port = url.removeprefix("http://").rpartition(":")
        return cls(*await asyncio.open_connection(host, int(port), limit=8 * MIB))

    async def __aenter__(self) -> Wire:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()
        await asyncio.wait([asyncio.ensure_future(self.writer.wait_closed())])

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def head(self) -> tuple[int, dict[str, str]]:
        lines = (await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), WAIT_S)).decode().split("\r\n")
        fields = dict(line.split(": ", 1) for line in lines[1:] if line)
        return int(lines[0].split(" ")[1]), fields

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        status, fields = await self.head()
        return status, fields, await self.reader.readexactly(int(fields.get("Content-Length", "0")))

    async def ended(self) -> bytes:
        """Returns what still comes until the server closes."""
        return await asyncio.wait_for(self.reader.read(), WAIT_S)


def post(body: bytes) -> bytes:
    return POST % (len(body), body)


@pytest.fixture(params=["short way", "long way"])
async def listener(
    request: pytest.FixtureRequest, network: AiohttpNetwork, gateway: Gateway
) -> AsyncIterator[HttpListener]:
    """Yields a node's listener, with and without the short way for repeated heads."""
    quick = gateway.quick if request.param == "short way" else None
    listening = await network.serve("127.0.0.1", 0, gateway.handle, quick=quick)
    yield listening
    await listening.close()


def values(node: OneNode) -> list[bytes]:
    return [value for _, value in node.submitted]


async def test_net_one_connection_serves_many_requests(listener: HttpListener, node: OneNode) -> None:
    async with await Wire.open(listener.url) as wire:
        for n in range(20):
            await wire.send(post(b"%03d" % n))
            status, fields, body = await wire.answer()
            assert (status, json.loads(body)["first"]) == (200, n + FIRST)
            assert fields["Content-Type"] == "application/json"
            assert "Connection" not in fields
    assert values(node) == [b"%03d" % n for n in range(20)]


async def test_net_requests_cut_anywhere_are_the_same_requests(listener: HttpListener, node: OneNode) -> None:
    whole = post(b"abc")
    expected = []
    for cut in range(1, len(whole), 7):
        async with await Wire.open(listener.url) as wire:
            for piece in (whole, whole[:cut], whole[cut:], whole):
                await wire.send(piece)
                await asyncio.sleep(0.001)
            for _ in range(3):
                assert (await wire.answer())[0] == 200
        expected += [b"abc"] * 3
    assert values(node) == expected


async def test_net_pipelined_requests_are_answered_in_order(listener: HttpListener, node: OneNode) -> None:
    async with await Wire.open(listener.url) as wire:
        await wire.send(post(b"000"))
        await wire.answer()
        await wire.send(post(b"001"))
        for n in range(2, 40):
            await wire.send(
                post(b"%03d" % n) if n % 5 else post(b"%03d" % n) + b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
            )
        for n in range(1, 40):
            status, _, body = await wire.answer()
            assert (status, json.loads(body)["first"]) == (200, n + FIRST)
            if n > 1 and n % 5 == 0:
                assert json.loads((await wire.answer())[2]) == {"alive": True}
    assert values(node) == [b"%03d" % n for n in range(40)]


async def test_net_what_comes_while_an_answer_is_due_waits_for_it(listener: HttpListener, node: OneNode) -> None:
    async with await Wire.open(listener.url) as wire:
        await wire.send(post(b"a"))
        await wire.answer()
        node.hold = True
        await wire.send(post(b"b"))
        await node.until_unanswered(1)
        large = bytes(MIB // 2)
        sending = asyncio.ensure_future(wire.send(post(large) * 3))
        await asyncio.sleep(0.02)
        assert len(node.asked) == 2
        node.release()
        await sending
        for _ in range(4):
            assert (await wire.answer())[0] == 200
    assert values(node) == [b"a", b"b", large, large, large]


async def test_net_client_that_leaves_before_its_answer_loses_only_that(listener: HttpListener, node: OneNode) -> None:
    node.hold = True
    for n in range(3):
        async with await Wire.open(listener.url) as wire:
            await wire.send(post(b"v"))
            await node.until_unanswered(1)
        await until(lambda: node.unanswered == 0)
        assert len(node.asked) == n + 1
    node.release()
    async with await Wire.open(listener.url) as wire:
        await wire.send(post(b"w"))
        assert (await wire.answer())[0] == 200


async def test_net_body_announced_too_large_is_refused_at_once(listener: HttpListener, node: OneNode) -> None:
    async with await Wire.open(listener.url) as wire:
        await wire.send(POST % (10**12, b""))
        status, fields, body = await wire.answer()
        assert (status, fields["Content-Type"], fields["Connection"]) == (413, "application/problem+json", "close")
        assert json.loads(body)["type"] == "too-large"


async def test_net_chunked_body_is_cut_at_its_limit(listener: HttpListener, node: OneNode) -> None:
    head = POST.replace(b"Content-Length: %d\r\n\r\n%b", b"Transfer-Encoding: chunked\r\n\r\n")
    async with await Wire.open(listener.url) as wire:
        await wire.send(head + b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n")
        assert (await wire.answer())[0] == 200
        await wire.send(head)
        sending = asyncio.ensure_future(wire.send((b"10000\r\n" + bytes(65536) + b"\r\n") * 24))
        status, _, body = await wire.answer()
        assert (status, json.loads(body)["type"]) == (413, "too-large")
        sending.cancel()
    assert values(node) == [b"abcde"]


async def test_net_expect_continue_is_told_to_go_on_only_when_the_body_is_wanted(
    listener: HttpListener, node: OneNode
) -> None:
    ask = POST.replace(b"Host: localhost", b"Host: localhost\r\nExpect: 100-continue")
    async with await Wire.open(listener.url) as wire:
        for _ in range(2):
            await wire.send(ask % (3, b""))
            assert (await wire.head())[0] == 100
            await wire.send(b"abc")
            assert (await wire.answer())[0] == 200
        await wire.send(ask % (MIB + 1, b""))
        assert (await wire.answer())[0] == 413
    assert values(node) == [b"abc"] * 2


async def test_net_head_has_the_length_and_no_body(listener: HttpListener) -> None:
    async with await Wire.open(listener.url) as wire:
        await wire.send(b"HEAD /v1/status HTTP/1.1\r\nHost: localhost\r\n\r\n")
        status, fields = await wire.head()
        assert (status, int(fields["Content-Length"]) > 10) == (200, True)
        await wire.send(
            b"HEAD /v1/tail HTTP/1.1\r\nHost: localhost\r\n\r\nGET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
        )
        assert (await wire.head())[0] == 200
        assert json.loads((await wire.answer())[2]) == {"alive": True}


async def test_net_http_1_0_gets_its_keep_alive_or_a_close(listener: HttpListener) -> None:
    async with await Wire.open(listener.url) as wire:
        await wire.send(b"GET /healthz HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
        assert (await wire.answer())[1]["Connection"] == "keep-alive"
        await wire.send(b"GET /healthz HTTP/1.0\r\n\r\n")
        assert (await wire.answer())[1]["Connection"] == "close"
        assert await wire.ended() == b""


async def test_net_connection_close_is_answered_and_closed(listener: HttpListener, node: OneNode) -> None:
    closing = POST.replace(b"Host: localhost", b"Host: localhost\r\nConnection: close")
    async with await Wire.open(listener.url) as wire:
        await wire.send(post(b"a"))
        await wire.answer()
        await wire.send(closing % (1, b"b"))
        status, fields, _ = await wire.answer()
        assert (status, fields["Connection"]) == (200, "close")
        assert await wire.ended() == b""
    assert values(node) == [b"a", b"b"]


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /v1/entries HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        b"POST /v1/entries HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"POST /v1/entries HTTP/1.1\r\nHost: [::1]\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 200 + b"\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * 20_000 + b"\r\n\r\n",
        b"GET /" + b"y" * 300_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
)
async def test_net_what_is_no_http_gets_a_problem_document_and_the_end(
    listener: HttpListener, node: OneNode, garbage: bytes
) -> None:
    async with await Wire.open(listener.url) as wire:
        wire.writer.write(garbage)
        status, fields, body = await wire.answer()
        assert (status, fields["Content-Type"], json.loads(body)["type"]) == (
            400,
            "application/problem+json",
            "bad-argument",
        )
        await wire.ended()
    assert node.asked == []
    async with await Wire.open(listener.url) as wire:
        await wire.send(post(b"v"))
        assert (await wire.answer())[0] == 200


async def test_net_router_errors_are_problem_documents(listener: HttpListener) -> None:
    async with await Wire.open(listener.url) as wire:
        for line, status in ((b"GET /nothing", 404), (b"PUT /v1/entries", 405), (b"POST /v1/entries", 415)):
            await wire.send(line + b" HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\nx")
            got, fields, _ = await wire.answer()
            assert (got, fields["Content-Type"]) == (status, "application/problem+json")


async def test_net_longest_key_fits_its_request_line(listener: HttpListener, node: OneNode) -> None:
    target = b"/v1/entries?key=" + b"%00" * KEY_BYTES_MAX
    async with await Wire.open(listener.url) as wire:
        await wire.send(post(b"v").replace(b"/v1/entries", target, 1))
        assert (await wire.answer())[0] == 200
    assert node.submitted == [(bytes(KEY_BYTES_MAX), b"v")]


@pytest.mark.parametrize(
    ("changed", "to", "status", "slug"),
    [
        (b"Content-Length: 1", b"Transfer-Encoding: gzip, chunked", 415, "unsupported-type"),
        (b"Content-Length: 1", b"Content-Encoding: gzip\r\nContent-Length: 1", 415, "unsupported-type"),
        (
            b"Content-Length: 1",
            b"Content-Encoding: identity\r\nContent-Encoding: gzip\r\nContent-Length: 1",
            415,
            "unsupported-type",
        ),
        (b"/v1/entries", b"http://evil.example/v1/entries", 421, "misdirected"),
        (b"/v1/entries", b"http://localhost:80@evil.example/v1/entries", 421, "misdirected"),
        (b"/v1/entries", b"/v1/%65ntries", 404, "not-found"),
        (b"/v1/entries", b"http://localhost/v1/%65ntries", 404, "not-found"),
    ],
)
async def test_net_what_goes_round_a_check_is_refused_and_stores_nothing(
    listener: HttpListener, node: OneNode, changed: bytes, to: bytes, status: int, slug: str
) -> None:
    for _ in range(3):  # the second time its head has been seen
        async with await Wire.open(listener.url) as wire:
            sent = post(b"v").replace(changed, to, 1)
            await wire.send(sent.replace(b"\r\n\r\nv", b"\r\n\r\n1\r\nv\r\n0\r\n\r\n") if b"chunked" in to else sent)
            got, _, body = await wire.answer()
            assert (got, json.loads(body)["type"]) == (status, slug)
    assert values(node) == []


async def test_net_redirect_names_the_same_target(network: AiohttpNetwork) -> None:
    listening = await network.serve("127.0.0.1", 0, Gateway((await follower()).services).handle)
    async with await Wire.open(listening.url) as wire:
        for target in (b"/v1/entries?acks=all&key=%41%FF", b"http://localhost:80/v1/entries?acks=all&key=%41"):
            await wire.send(post(b"v").replace(b"/v1/entries", target, 1))
            status, fields, _ = await wire.answer()
            path = target.removeprefix(b"http://localhost:80").decode()
            assert (status, fields["Location"]) == (307, "http://n1:7701" + path)
    await listening.close()


async def test_net_tail_streams_and_ends_with_its_client(
    listener: HttpListener, gateway: Gateway, node: OneNode
) -> None:
    for _ in range(3):
        async with await Wire.open(listener.url) as wire:
            await wire.send(b"GET /v1/tail HTTP/1.1\r\nHost: localhost\r\n\r\n")
            status, fields = await wire.head()
            assert (status, fields["Transfer-Encoding"]) == (200, "chunked")
            await until(lambda: gateway.readers.used == 1)
            await node.append(b"hello")
            seen = await asyncio.wait_for(wire.reader.readuntil(b"hello"), WAIT_S)
            assert b"data: {" in seen
        await until(lambda: gateway.readers.used == 0)


@pytest.mark.parametrize("segment_bytes", [16 * MIB])
async def test_net_segment_that_fails_half_way_breaks_off(
    listener: HttpListener, node: OneNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    await node.append(*[bytes(MIB - 100)] * 8)

    async def fail_later(number: int, start: int, end: int) -> bytes:
        if start:
            raise OSError(5, "a read failed")
        return bytes(end - start)

    monkeypatch.setattr(node.services.files, "read_segment", fail_later)
    async with await Wire.open(listener.url) as wire:
        await wire.send(b"GET /v1/segments/1 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        status, fields = await wire.head()
        size = int(fields["Content-Length"])
        assert status == 200 and size > 7 * MIB
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await asyncio.wait_for(wire.reader.readexactly(size), WAIT_S)


@pytest.mark.parametrize("segment_bytes", [16 * MIB])
async def test_net_reader_that_takes_nothing_holds_a_bounded_number_of_bytes(
    network: AiohttpNetwork, node: OneNode
) -> None:
    """The node refuses requests past the budget of bodies in flight, also when many connections try."""
    limits = AppendLimits(bodies_in_flight_bytes_max=BODIES * MIB)
    listener = await network.serve("127.0.0.1", 0, Gateway(node.services, limits).handle)
    node.hold = True
    wires = [await Wire.open(listener.url) for _ in range(BODIES + 6)]
    sends = [asyncio.ensure_future(wire.send(post(bytes(MIB)))) for wire in wires]
    await node.until_unanswered(BODIES)
    statuses = [asyncio.ensure_future(wire.answer()) for wire in wires]
    done, _ = await asyncio.wait(statuses, return_when=asyncio.FIRST_COMPLETED, timeout=WAIT_S)
    assert {task.result()[0] for task in done} == {429}
    node.release()
    answered = await asyncio.gather(*statuses)
    assert sorted({status for status, _, _ in answered}) == [200, 429]
    assert [status for status, _, _ in answered].count(200) == BODIES
    await asyncio.gather(*sends)
    for wire in wires:
        wire.writer.close()
    await listener.close()


async def test_net_a_request_that_ends_as_the_close_gives_it_up_is_no_fault(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both timers are due in one turn of the loop: the answer's first, then the one that gives it up."""
    monkeypatch.setattr(listener_module, "CLOSE_S", 0.05)
    loop = asyncio.get_running_loop()
    asked, answer = loop.create_future(), loop.create_future()

    async def handle(request: Request) -> Response:
        asked.set_result(None)
        await answer
        return Response(200, {}, b"at last")

    listening = await AiohttpNetwork().serve("127.0.0.1", 0, handle)
    async with await Wire.open(listening.url) as wire:
        await wire.send(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await asked
        closing = asyncio.create_task(listening.close())
        loop.call_later(0.03, time.sleep, 0.1)
        loop.call_later(0.049, answer.set_result, None)
        await closing
        await wire.ended()
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_net_port_taken_is_an_os_error(listener: HttpListener, gateway: Gateway) -> None:
    port = int(listener.url.rpartition(":")[2])
    with pytest.raises(OSError, match="in use"):
        await AiohttpNetwork().serve("127.0.0.1", port, gateway.handle)


async def test_net_close_answers_what_is_under_way_and_ends_streams() -> None:
    for quick in (False, True):
        node = await started()
        gateway = Gateway(node.services)
        listening = await AiohttpNetwork().serve("127.0.0.1", 0, gateway.handle, quick=gateway.quick if quick else None)
        async with await Wire.open(listening.url) as wire, await Wire.open(listening.url) as tail:
            await wire.send(post(b"a"))
            await wire.answer()
            node.hold = True
            await wire.send(post(b"b"))
            await tail.send(b"GET /v1/tail HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await tail.head()
            await node.until_unanswered(1)
            await until(lambda gateway=gateway: gateway.readers.used == 1)  # type: ignore[misc]
            closing = asyncio.ensure_future(listening.close())
            await asyncio.sleep(0.01)
            node.release()
            assert (await wire.answer())[0] == 200
            await asyncio.wait_for(closing, WAIT_S)
            with pytest.raises(ConnectionRefusedError):
                await Wire.open(listening.url)


async def test_net_reset_in_the_middle_of_a_request_harms_nothing(listener: HttpListener, node: OneNode) -> None:
    host, _, port = listener.url.removeprefix("http://").rpartition(":")
    node.hold = True
    for data in (post(bytes(1000))[:-10], post(b"v"), b"GET /v1/tail HTTP/1.1\r\nHost: localhost\r\n\r\n", b"GET"):
        with socket.create_connection((host, int(port))) as end:
            end.sendall(data)
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            await asyncio.sleep(0.02)
    node.release()
    async with await Wire.open(listener.url) as wire:
        await wire.send(post(b"w"))
        assert (await wire.answer())[0] == 200


async def test_net_short_way_is_taken_for_heads_seen_before(node: OneNode) -> None:
    """The two ways give equal answers; this shows that there are two."""
    gateway = Gateway(node.services)
    handled = []

    async def handle(request: object) -> Response:
        handled.append(request)
        answer = await gateway.handle(request)  # type: ignore[arg-type]
        assert isinstance(answer, Response)
        return answer

    listening = await AiohttpNetwork().serve("127.0.0.1", 0, handle, quick=gateway.quick)
    for _ in range(2):
        async with await Wire.open(listening.url) as wire:
            for _ in range(10):
                await wire.send(post(b"v"))
                assert (await wire.answer())[0] == 200
            await wire.send(post(b"of another length"))
            assert (await wire.answer())[0] == 200
    await listening.close()
    assert len(handled) == 2
    assert len(values(node)) == 22
