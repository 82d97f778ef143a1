"""Small frames, written here and read by aiohttp, and the other way round."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import pytest
from aiohttp import WSMsgType, web
from hypothesis import given
from hypothesis import strategies as st

from repl.net.client_network import ClientNetwork
from repl.net.frames import SMALL_BYTES, Frames, is_small_frame, payload_of, small_frame
from repl.net.network import AiohttpNetwork
from repl.web.types import Request, Upgrade
from tests.repl.net.test_arrivals import frame
from vlsn.errors import ChannelClosed
from vlsn.limits import MIB

SIZES = st.one_of(st.integers(0, 300), st.integers(SMALL_BYTES - 20, SMALL_BYTES))


def whole(data: bytes) -> bool:
    """Says whether these bytes are exactly one message, by the follower of all frames."""
    frames = Frames()
    return len(frames.feed(data)) == 1 and frames.between


@given(st.data(), st.booleans())
def test_a_small_frame_is_the_one_that_the_standard_has(data: st.DataObject, masked: bool) -> None:
    size = data.draw(SIZES)
    message = data.draw(st.binary(min_size=size, max_size=size))
    made = small_frame(memoryview(message), masked=masked)
    head = 2 if size < 126 else 4
    assert (made[0], made[1] >> 7) == (0x82, masked)
    length = made[1] & 0x7F if size < 126 else int.from_bytes(made[2:4], "big")
    assert length == size and (made[1] & 0x7F == 126) == (size >= 126)
    mask = made[head : head + 4] if masked else bytes(4)
    body = made[head + 4 * masked :]
    assert bytes(byte ^ mask[at % 4] for at, byte in enumerate(body)) == message
    assert is_small_frame(made) == (4 <= len(made) <= SMALL_BYTES)
    assert payload_of(made) == message
    assert whole(made)


def test_masks_differ() -> None:
    assert len({small_frame(b"the same", masked=True) for _ in range(100)}) > 90


@given(st.binary(max_size=40), st.integers(0, 300), st.sampled_from([0, 1, 2, 8, 9, 10]), st.booleans(), st.booleans())
def test_only_one_whole_binary_message_passes_for_one(
    more: bytes, size: int, opcode: int, fin: bool, masked: bool
) -> None:
    good = frame(opcode, bytes(size), fin=fin, masked=masked)
    for data in (good, good + more, good[: len(good) // 2], good[:-1], more):
        if is_small_frame(data):
            assert data[0] == 0x82 and whole(data)
    assert is_small_frame(good) == (opcode == 2 and fin and len(good) >= 4)


class Peer:
    def __init__(self) -> None:
        self.url = ""
        self.answers: list[bytes] = []
        self.got: list[bytes] = []


@pytest.fixture
async def peer() -> AsyncIterator[Peer]:
    """Yields a server of aiohttp's own, that answers each message by the frames that the test has put there."""
    peer = Peer()

    async def serve(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(compress=False)
        await socket.prepare(request)
        async for message in socket:
            peer.got.append(message.data)
            assert request.transport is not None
            for answer in peer.answers:
                request.transport.write(answer)
                await asyncio.sleep(0.002)
        return socket

    application = web.Application()
    application.router.add_get("/", serve)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    peer.url = f"http://127.0.0.1:{runner.addresses[0][1]}/"
    yield peer
    await runner.cleanup()


def all_into(taken: list[bytes]) -> Callable[[bytes], bool]:
    def take(message: bytes) -> bool:
        taken.append(message)
        return True

    return take


@pytest.fixture(params=[AiohttpNetwork, ClientNetwork])
async def network(request: pytest.FixtureRequest) -> AsyncIterator[ClientNetwork]:
    made: ClientNetwork = request.param()
    yield made
    await made.close()


async def test_pings_fragments_and_halves_between_delivered_messages_harm_nothing(
    peer: Peer, network: ClientNetwork
) -> None:
    channel = await network.connect(peer.url, message_bytes_max=MIB, timeout_s=60)
    two = frame(2, b"four", masked=False) + frame(2, b"five", masked=False)
    peer.answers = [
        frame(2, b"one", masked=False),
        frame(9, b"are you there?", masked=False),
        frame(2, b"t", fin=False, masked=False),
        frame(10, b"", masked=False) + frame(0, b"wo", masked=False),
        frame(2, b"three", masked=False)[:3],
        frame(2, b"three", masked=False)[3:] + two[:5],
        two[5:],
        frame(1, b"text", masked=False),
    ]
    taken: list[bytes] = []
    await channel.send(b"go")
    with pytest.raises(ChannelClosed, match="text"):
        await asyncio.wait_for(channel.deliver(all_into(taken)), 60)
    assert taken == [b"one", b"two", b"three", b"four", b"five"]
    assert peer.got == [b"go"]
    await channel.close()


async def test_garbage_behind_a_message_ends_the_delivery(peer: Peer, network: ClientNetwork) -> None:
    channel = await network.connect(peer.url, message_bytes_max=MIB, timeout_s=60)
    peer.answers = [frame(2, b"one", masked=False), b"\xf7\xff"]
    taken: list[bytes] = []
    await channel.send(b"go")
    with pytest.raises(ChannelClosed):
        await asyncio.wait_for(channel.deliver(all_into(taken)), 60)
    assert taken == [b"one"]
    await channel.close()


async def test_a_client_of_aiohttps_own_reads_small_frames_until_a_close() -> None:
    network = AiohttpNetwork()
    sizes = [0, 1, 125, 126, SMALL_BYTES, SMALL_BYTES + 1]

    async def serve(channel: Any) -> None:
        for size in sizes:
            assert channel.send_now(bytes([size % 251]) * size)
        await channel.close()
        assert not channel.send_now(b"late")
        with pytest.raises(ChannelClosed):
            await channel.send(b"late")

    async def handler(request: Request) -> Upgrade:
        return Upgrade(serve, MIB)

    listener = await network.serve("127.0.0.1", 0, handler)
    async with aiohttp.ClientSession() as session, session.ws_connect(listener.url, compress=0) as socket:
        for size in sizes:
            message = await socket.receive(5)
            assert (message.type, message.data) == (WSMsgType.BINARY, bytes([size % 251]) * size)
        assert (await socket.receive(5)).type is WSMsgType.CLOSE
    await listener.close()
    await network.close()
