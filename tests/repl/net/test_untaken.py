"""Readers that do not take what they are sent: bounded by bytes, and at no cost to those who do."""

from __future__ import annotations

import asyncio
import re
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repl.net.listener import HttpListener
from repl.net.untaken import Untaken
from repl.node.gateway import Gateway
from tests.repl.client.group import until
from tests.repl.net.test_net import Wire
from tests.repl.web.one_node import FIRST, OneNode
from vlsn.limits import KIB, MIB

SLOW = 14
ENTRIES = 24
END = FIRST + ENTRIES - 1
LIMIT = 3 * MIB
_ID = re.compile(rb"^id: (\d+)$", re.MULTILINE)


class Socket:
    aborted = False

    def abort(self) -> None:
        self.aborted = True


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 12)), max_size=60))
def test_the_longest_stalled_are_given_up_and_nobody_while_all_have_room(steps: list[tuple[int, int]]) -> None:
    """Twelve pages of 10 to 65 bytes: those that many hold count once."""
    pages = [bytes(5 * number + 5) for number in range(13)]

    async def run() -> None:
        untaken, model = Untaken(bytes_max=100), dict[int, tuple[int, Socket]]()
        for who, page in steps:
            model.pop(who, None)
            if page:
                model[who] = page, Socket()
                untaken.stalls(who, model[who][1], pages[page])  # type: ignore[arg-type]
            else:
                untaken.goes_on(who)
            await asyncio.sleep(0)
            while sum(len(pages[page]) for page in {page for page, _ in model.values()}) > 100:
                longest = next(iter(model))
                assert model.pop(longest)[1].aborted
            assert not any(one.aborted for _, one in model.values())
            assert untaken.bytes == sum(len(pages[page]) for page in {page for page, _ in model.values()})

    asyncio.run(run())


async def stalled(url: str, from_vlsn: int) -> socket.socket:
    """Opens a tail that reads nothing."""
    host, _, port = url.removeprefix("http://").rpartition(":")
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * KIB)
    one.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(one, (host, int(port)))
    await loop.sock_sendall(one, b"GET /v1/tail?from=%d HTTP/1.1\r\nHost: localhost\r\n\r\n" % from_vlsn)
    return one


async def read_all(one: socket.socket) -> bytes:
    found = b""
    try:
        while piece := await asyncio.get_running_loop().sock_recv(one, MIB):
            found += piece
    except ConnectionError:
        pass
    return found


async def tailed(url: str, after: int, until_vlsn: int) -> list[int]:
    """Reads a tail behind ``after``; the ids of its events."""
    seen: list[int] = []
    async with await Wire.open(url) as wire:
        await wire.send(b"GET /v1/tail HTTP/1.1\r\nHost: localhost\r\nLast-Event-ID: %d\r\n\r\n" % after)
        assert (await wire.head())[0] == 200
        while not seen or seen[-1] < until_vlsn:
            seen += [int(id) for id in _ID.findall(await wire.reader.readuntil(b"\n"))]
    return seen


@pytest.fixture
async def listener(listener: HttpListener) -> HttpListener:
    listener._server.untaken = Untaken(bytes_max=LIMIT)
    return listener


async def test_tails_that_take_nothing_are_given_up_by_their_bytes_and_those_that_do_miss_nothing(
    node: OneNode, gateway: Gateway, listener: HttpListener
) -> None:
    untaken = listener._server.untaken
    for number in range(ENTRIES):
        await node.append(b"%02d" % number + b"x" * (MIB - 2))
    slow = [await stalled(listener.url, FIRST + number) for number in range(SLOW)]
    assert await tailed(listener.url, FIRST - 1, END) == list(range(FIRST, END + 1))
    await until(lambda: untaken.given_up > 0)
    await until(lambda: gateway.readers.used == SLOW - untaken.given_up)
    assert await tailed(listener.url, FIRST - 1, END) == list(range(FIRST, END + 1))
    assert 0 < listener.untaken_bytes == untaken.bytes <= LIMIT
    assert listener.given_up == untaken.given_up
    seen = [int(id) for id in _ID.findall(await asyncio.wait_for(read_all(slow[0]), 60))]
    assert seen == list(range(FIRST, FIRST + len(seen))), "the first to stall, and so the first to go"
    after = seen[-2] if len(seen) > 1 else FIRST - 1  # the last event may be half a one
    assert await tailed(listener.url, after, END) == list(range(after + 1, END + 1))
    for one in slow:
        one.close()
    await until(lambda: gateway.readers.used == 0)
    assert untaken.bytes == 0


async def test_a_page_that_many_are_taking_counts_once(node: OneNode, gateway: Gateway, listener: HttpListener) -> None:
    untaken = listener._server.untaken
    slow = [await stalled(listener.url, FIRST) for _ in range(SLOW)]
    await until(lambda: gateway.readers.used == SLOW)
    for number in range(ENTRIES):
        await node.append(b"%02d" % number + b"x" * (MIB - 2))
        for _ in range(30):
            await asyncio.sleep(0)
    await until(lambda: len(untaken._stalled) == SLOW)
    assert 0 < untaken.bytes <= LIMIT
    assert untaken.given_up == 0
    for one in slow:
        one.close()
    await until(lambda: gateway.readers.used == 0)
    assert untaken.bytes == 0
