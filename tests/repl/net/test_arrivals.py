"""Arrivals are counted by the frame, and bounded together; a message that has begun can end."""

from __future__ import annotations

import asyncio
import os
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repl.api import Acks
from repl.net import arrivals
from repl.net.arrivals import FREE_BYTES, Arrival, Arrivals
from repl.net.frames import Frames
from repl.net.listener import HttpListener
from repl.net.network import AiohttpNetwork
from repl.produce_messages import REQUEST_MESSAGE_BYTES_MAX, decode_answers, request_header
from tests.repl.client.group import until
from tests.repl.net.test_net import Wire
from vlsn.format import batch
from vlsn.limits import MIB

BINARY, CONTINUATION, PING = 2, 0, 9
UPGRADE = (
    b"GET /v1/produce HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


def frame(opcode: int, payload: bytes, *, fin: bool = True, masked: bool = True) -> bytes:
    """Packs a frame as a client sends it; a mask of zeros leaves the payload as it is."""
    size = len(payload)
    short, extended = (size, b"") if size < 126 else (126, size.to_bytes(8, "big")[6:])
    if size > 0xFFFF:
        short, extended = 127, size.to_bytes(8, "big")
    head = bytes([fin << 7 | opcode, masked << 7 | short]) + extended
    return head + bytes(4 * masked) + payload


PIECES = st.lists(st.sampled_from([0, 1, 125, 126, 500, 65_535, 65_536]), min_size=1, max_size=4)


@given(
    st.lists(st.tuples(PIECES, st.booleans(), st.booleans()), max_size=5),
    st.lists(st.integers(0, 1 << 20), max_size=10),
)
def test_frames_are_followed_however_they_are_cut(
    messages: list[tuple[list[int], bool, bool]], cuts: list[int]
) -> None:
    stream, expected = b"", []
    for sizes, masked, pinged in messages:
        for index, size in enumerate(sizes):
            opcode = CONTINUATION if index else BINARY
            stream += frame(opcode, bytes(size), fin=index == len(sizes) - 1, masked=masked)
            stream += frame(PING, b"ping") if pinged else b""
        expected.append(sum(sizes))
    frames = Frames()
    ends = sorted({0, len(stream), *(cut % (len(stream) + 1) for cut in cuts)})
    found = [size for start, end in pairwise(ends) for size in frames.feed(stream[start:end])]
    assert found == expected
    assert (frames.announced, frames.fragmented) == (0, False)


def test_a_message_is_announced_by_its_header_alone() -> None:
    frames = Frames()
    assert frames.feed(frame(BINARY, bytes(70_000))[:14]) == []
    assert (frames.announced, frames.fragmented) == (70_000, False)
    frames = Frames()
    assert frames.feed(frame(BINARY, bytes(10), fin=False)) == []
    assert (frames.announced, frames.fragmented) == (10, True)


class Peer:
    """A connection to the places, and whether it is read from."""

    def __init__(self, all_arrivals: Arrivals) -> None:
        self.reads = True
        self.arrival = Arrival(
            all_arrivals, MIB, pause=self._pause, resume=self._resume, abort=lambda: pytest.fail("aborted")
        )

    def _pause(self) -> None:
        self.reads = False

    def _resume(self) -> None:
        self.reads = True


async def test_who_finds_no_room_waits_in_line_and_who_waits_keeps_nothing_that_was_received() -> None:
    places = Arrivals(2 * MIB)
    one, two, three = Peer(places), Peer(places), Peer(places)
    large, head = frame(BINARY, bytes(MIB)), 14
    one.arrival.arrived(large[:head])
    two.arrival.arrived(large)
    assert (places.used, one.reads, two.reads) == (2 * MIB, True, True)
    three.arrival.arrived(large[:head])
    two.arrival.arrived(large[:head])
    assert (one.reads, two.reads, three.reads) == (True, False, False)
    two.arrival.received()  # its first message: the place is for three, who came before two's second
    assert (places.used, two.reads, three.reads) == (2 * MIB, False, True)
    one.arrival.arrived(large[head:])
    one.arrival.received()
    assert (places.used, two.reads) == (2 * MIB, True)
    for peer in (one, two, three):
        peer.arrival.close()
    assert places.used == 0


async def test_small_messages_take_no_place_and_fragments_take_the_largest() -> None:
    places = Arrivals(2 * MIB)
    peer = Peer(places)
    peer.arrival.arrived(frame(BINARY, bytes(FREE_BYTES)))
    assert places.used == 0
    peer.arrival.received()
    peer.arrival.arrived(frame(BINARY, bytes(10), fin=False))
    assert places.used == MIB
    peer.arrival.arrived(frame(CONTINUATION, bytes(10)))
    assert places.used == 0
    peer.arrival.close()


# Over real sockets.


@pytest.fixture
async def listener(listener: HttpListener) -> HttpListener:
    listener._arrivals = Arrivals(8 * MIB)
    return listener


async def test_many_large_messages_at_once_are_all_taken_within_the_bound(listener: HttpListener) -> None:
    network = AiohttpNetwork()
    highest = 0

    async def watch() -> None:
        nonlocal highest
        while True:
            highest = max(highest, listener._arrivals.used)
            await asyncio.sleep(0)

    async def produce() -> None:
        channel = await network.connect(listener.url + "/v1/produce", message_bytes_max=MIB, timeout_s=60)
        for id in (1, 2):
            data = batch.encode([os.urandom(1000) * 1000] * 5)
            await channel.send(request_header(id, Acks.MAJORITY, 30_000) + data)
        assert [answer.done for answer in decode_answers(await channel.receive())]
        await channel.close()

    watching = asyncio.create_task(watch())
    await asyncio.gather(*(produce() for _ in range(6)))
    watching.cancel()
    await network.close()
    assert 5_000_000 < highest <= 8 * MIB
    await until(lambda: not listener._arrivals.used)


async def test_a_message_that_does_not_go_on_ends_its_connection(
    listener: HttpListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrivals, "WHOLE_S", 0.2)
    async with await Wire.open(listener.url) as wire:
        await wire.send(UPGRADE + frame(BINARY, bytes(REQUEST_MESSAGE_BYTES_MAX))[:1000])
        assert (await wire.head())[0] == 101
        await wire.ended()
    await until(lambda: not listener._arrivals.used)
