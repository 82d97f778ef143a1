"""Channels and calls over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace

import pytest

from repl import produce_messages
from repl.api import Acks, FeedHello
from repl.group.feed_hello import encode_hello
from repl.group.member import Member
from repl.lead.feed_ws import NodeFeeds
from repl.net import client_network as real
from repl.net.client_network import ClientNetwork
from repl.net.listener import HttpListener
from repl.net.network import AiohttpNetwork
from repl.node.gateway import Gateway
from repl.web.types import Handler, Keeps, Listener, Quick, Response
from tests.repl.lead.test_feed_ws import HELLO
from tests.repl.net.test_net import Wire
from tests.repl.web.one_node import FIRST, OneNode, follower
from vlsn.errors import ChannelClosed, DuplicateFeed, NotMaster, Unreachable, VlsnLogError, WrongGroup, WrongVersion
from vlsn.format import batch
from vlsn.limits import MIB
from vlsn.seams import Channel


class EchoingFeeds(NodeFeeds):
    """Feeds that send each message back, and keep it; ``refuse`` is raised instead of them."""

    def __init__(self, member: Member) -> None:
        super().__init__(member)
        self.refuse: VlsnLogError | None = None
        self.messages: list[bytes] = []

    async def check_feed(self, hello: FeedHello) -> None:
        if self.refuse is not None:
            raise self.refuse

    async def serve_feed(self, hello: FeedHello, channel: Channel) -> None:
        with suppress(ChannelClosed):
            while True:
                self.messages.append(await channel.receive())
                await channel.send(self.messages[-1])


class CallingAsClients(ClientNetwork):
    """A client's network, beside which a node's network serves."""

    async def serve(
        self, host: str, port: int, handler: Handler, *, quick: Quick | None = None, keeps: Keeps | None = None
    ) -> Listener:
        return await AiohttpNetwork().serve(host, port, handler, quick=quick, keeps=keeps)


@pytest.fixture(params=[AiohttpNetwork, CallingAsClients])
async def network(request: pytest.FixtureRequest) -> AsyncIterator[ClientNetwork]:
    opened: ClientNetwork = request.param()
    yield opened
    await opened.close()


@pytest.fixture
async def feeds(node: OneNode) -> EchoingFeeds:
    return EchoingFeeds(node.member)


@pytest.fixture
async def gateway(node: OneNode, feeds: EchoingFeeds) -> Gateway:
    return Gateway(replace(node.services, feeds=feeds))


ASK = b"GET /v1/feed HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"


async def test_channel_carries_messages_of_any_size_both_ways(network: ClientNetwork, listener: HttpListener) -> None:
    url = listener.url + "/v1/feed"
    channel = await network.connect(url, headers=encode_hello(HELLO), message_bytes_max=2 * MIB, timeout_s=60)
    sizes = [0, 1, 125, 126, 65_535, 65_536, MIB]
    for size in sizes:
        message = bytes([size % 251]) * size
        await channel.send(memoryview(message))
        received = await channel.receive()
        assert (type(received), received) == (bytes, message)
    await channel.close()
    with pytest.raises(ChannelClosed):
        await channel.receive()
    with pytest.raises(ChannelClosed):
        await channel.send(b"x")


async def test_channel_message_over_the_limit_ends_it(
    network: ClientNetwork, listener: HttpListener, feeds: EchoingFeeds
) -> None:
    url = listener.url + "/v1/feed"
    channel = await network.connect(url, headers=encode_hello(HELLO), message_bytes_max=2 * MIB, timeout_s=60)
    await channel.send(bytes(MIB + 1))
    with pytest.raises(ChannelClosed):
        await asyncio.wait_for(channel.receive(), 60)
    await channel.close()
    assert feeds.messages == []


async def test_channel_ends_when_either_side_leaves(network: ClientNetwork, listener: HttpListener) -> None:
    url = listener.url + "/v1/feed"
    channel = await network.connect(url, headers=encode_hello(HELLO), message_bytes_max=MIB, timeout_s=60)
    await channel.send(b"a")
    await channel.receive()
    receiving = asyncio.ensure_future(channel.receive())
    await asyncio.sleep(0)
    await asyncio.wait_for(listener.close(), 5)
    with pytest.raises(ChannelClosed):
        await asyncio.wait_for(receiving, 60)
    await channel.close()


@pytest.mark.parametrize("error", [WrongGroup("g"), WrongVersion("2"), DuplicateFeed("n2"), NotMaster("no")])
async def test_connect_refused_raises_the_class_of_the_problem(
    network: ClientNetwork,
    listener: HttpListener,
    feeds: EchoingFeeds,
    error: WrongGroup | WrongVersion | DuplicateFeed | NotMaster,
) -> None:
    feeds.refuse = error
    with pytest.raises(type(error), match=str(error)):
        await network.connect(
            listener.url + "/v1/feed", headers=encode_hello(HELLO), message_bytes_max=MIB, timeout_s=60
        )


@pytest.mark.parametrize("more", [0, 1])
@pytest.mark.parametrize("upgrade", [False, True], ids=["request", "refused upgrade"])
async def test_an_answer_over_the_limit_is_given_up_while_it_comes(
    network: ClientNetwork, monkeypatch: pytest.MonkeyPatch, upgrade: bool, more: int
) -> None:
    """A peer's endless answer takes no more memory than the limit; one of the limit's size is taken."""
    monkeypatch.setattr(real, "ANSWER_BYTES_MAX", MIB)
    problem = b'{"type":"no-master","detail":"%s"}'
    body = problem % (b"x" * (MIB - len(problem) + 2))
    assert len(body) == MIB
    ended = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 503 Service Unavailable\r\nTransfer-Encoding: chunked\r\n\r\n")
        writer.write(b"%x\r\n%s\r\n" % (len(body), body))
        with suppress(OSError):
            for _ in range(more * 8_000):  # 32 MiB
                writer.write(b"1000\r\n%s\r\n" % bytes(4096))
                await writer.drain()
            writer.write(b"0\r\n\r\n")
            await writer.drain()
            ended.set()
        writer.close()

    peer = await asyncio.start_server(answer, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{peer.sockets[0].getsockname()[1]}/v1/feed"
    asked = (
        network.connect(url, headers={}, message_bytes_max=MIB, timeout_s=60)
        if upgrade
        else network.request("GET", url, timeout_s=60)
    )
    if more:
        with pytest.raises(Unreachable, match=f"an answer of more than {MIB} bytes"):
            await asked
        assert not ended.is_set()
    elif upgrade:
        with pytest.raises(NotMaster):
            await asked
    else:
        response = await asked
        assert isinstance(response, Response) and bytes(response.body) == body
    await network.close()
    peer.close()
    await peer.wait_closed()


async def test_connect_to_nobody_is_unreachable(network: ClientNetwork, gateway: Gateway) -> None:
    listening = await network.serve("127.0.0.1", 0, gateway.handle)
    await listening.close()
    with pytest.raises(Unreachable):
        await network.connect(listening.url + "/v1/feed", headers={}, message_bytes_max=MIB, timeout_s=60)
    with pytest.raises(Unreachable):
        await network.request("GET", listening.url + "/v1/status", timeout_s=60)


async def test_connect_to_one_that_says_nothing_is_unreachable_in_time(network: ClientNetwork) -> None:
    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    silent = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{silent.sockets[0].getsockname()[1]}/v1/feed"
    with pytest.raises(Unreachable):
        await network.connect(url, headers={}, message_bytes_max=MIB, timeout_s=0.05)
    with pytest.raises(Unreachable):
        await network.request("GET", url, timeout_s=0.05)
    await network.close()
    silent.close()
    await silent.wait_closed()


@pytest.mark.parametrize(
    "handshake",
    [b"", b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: short\r\n", b"Sec-WebSocket-Version: 1\r\n"],
)
async def test_upgrade_with_a_bad_handshake_is_a_problem_document(listener: HttpListener, handshake: bytes) -> None:
    hello = "".join(f"{name}: {value}\r\n" for name, value in encode_hello(HELLO).items()).encode()
    async with await Wire.open(listener.url) as wire:
        await wire.send(ASK + handshake + hello + b"\r\n")
        status, fields, _ = await wire.answer()
        assert (status, fields["Content-Type"]) == (400, "application/problem+json")


async def test_feed_of_garbage_frames_ends_and_harms_nothing(
    network: ClientNetwork, listener: HttpListener, node: OneNode
) -> None:
    hello = "".join(f"{name}: {value}\r\n" for name, value in encode_hello(HELLO).items()).encode()
    key = b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
    text = b"\x81\x85\0\0\0\0hello"
    for garbage in (b"\xff" * 100, b"\x8b\x80\0\0\0\0", text, b"\x82\xff" + b"\xff" * 8 + bytes(4)):
        async with await Wire.open(listener.url) as wire:
            await wire.send(ASK + key + hello + b"\r\n")
            assert (await wire.head())[0] == 101
            await wire.send(garbage)
            await wire.ended()
    assert (await network.request("GET", listener.url + "/healthz", timeout_s=60)).status == 200


async def test_request_gives_status_headers_and_body(
    network: ClientNetwork, listener: HttpListener, node: OneNode
) -> None:
    headers = {"Content-Type": "application/octet-stream"}
    url = listener.url + "/v1/entries"
    response = await network.request("POST", url, headers=headers, body=b"v", timeout_s=60)
    assert response.status == 200
    assert response.headers["content-type"] == "application/json"
    assert node.submitted == [(None, b"v")]
    replica = await network.serve("127.0.0.1", 0, Gateway((await follower()).services).handle)
    response = await network.request("POST", replica.url + "/v1/entries", headers=headers, body=b"", timeout_s=60)
    assert (response.status, response.headers["location"]) == (307, "http://n1:7701/v1/entries")
    await replica.close()


@pytest.mark.parametrize("segment_bytes", [32 * MIB])
async def test_request_large_answers_come_whole(network: ClientNetwork, listener: HttpListener, node: OneNode) -> None:
    for n in range(20):
        await node.append(bytes([65 + n]) * (MIB - 200))
    response = await network.request("GET", listener.url + "/v1/segments/1", timeout_s=60)
    files = node.services.files
    end = files.segment_end(1)
    assert end > 19 * MIB and response.body == await files.read_segment(1, 0, end)
    response = await network.request("GET", listener.url + "/v1/entries", timeout_s=60)
    assert response.status == 200 and len(response.body) > MIB


@pytest.mark.parametrize("segment_bytes", [32 * MIB])
async def test_produce_over_a_socket_with_the_largest_batch(
    network: ClientNetwork, listener: HttpListener, node: OneNode
) -> None:
    channel = await network.connect(
        listener.url + "/v1/produce", message_bytes_max=produce_messages.ANSWERS_MESSAGE_BYTES_MAX, timeout_s=60
    )
    many = [bytes(MIB - 100)] * 16
    for id, values in enumerate([[b"a"], many, [b"b"]]):
        await channel.send(produce_messages.request_header(id, Acks.MAJORITY, 10_000) + batch.encode(values))
    answers: list[produce_messages.Answer] = []
    while len(answers) < 3:
        answers += produce_messages.decode_answers(await channel.receive())
    assert [(one.id, one.first, one.last) for one in answers] == [
        (0, FIRST, FIRST),
        (1, FIRST + 1, FIRST + 16),
        (2, FIRST + 17, FIRST + 17),
    ]
    await channel.close()


async def test_an_upgrade_is_not_redirected(
    network: ClientNetwork, listener: HttpListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = await follower()
    monkeypatch.setattr(elsewhere.member, "master_url", lambda: listener.url)
    replica = await network.serve("127.0.0.1", 0, Gateway(elsewhere.services).handle)
    with pytest.raises(NotMaster, match=listener.url):
        await network.connect(replica.url + "/v1/produce", message_bytes_max=MIB, timeout_s=60)
    await replica.close()
