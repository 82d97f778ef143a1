"""Readers that do not take what they are sent: bounded by bytes, and at no cost to those who do."""

from __future__ import annotations

import asyncio
import re
import socket

from hypothesis import given
from hypothesis import strategies as st

from repl.http.routes import Gateway
from repl.net import AiohttpNetwork
from repl.net.untaken import Untaken
from tests.repl.client.group import until
from tests.repl.http.memory_node import MemoryNode
from tests.repl.net.test_net import Wire
from vlsn.limits import KIB, MIB

SLOW = 14
ENTRIES = 24
LIMIT = 3 * MIB
_ID = re.compile(rb"^id: (\d+)$", re.MULTILINE)


class Socket:
    """A connection with some bytes left to write."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.aborted = False

    def get_write_buffer_size(self) -> int:
        return self.size

    def abort(self) -> None:
        self.aborted = True


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 60)), max_size=60))
def test_the_longest_stalled_are_given_up_and_nobody_while_all_have_room(steps: list[tuple[int, int]]) -> None:
    async def run() -> None:
        untaken, model = Untaken(bytes_max=100), dict[int, Socket]()
        for who, size in steps:
            model.pop(who, None)
            if size:
                model[who] = Socket(size)
                untaken.stalls(who, model[who])  # type: ignore[arg-type]
            else:
                untaken.goes_on(who)
            await asyncio.sleep(0)
            while sum(one.size for one in model.values()) > 100:
                longest = next(iter(model))
                assert model.pop(longest).aborted
            assert not any(one.aborted for one in model.values())
            assert untaken.bytes == sum(one.size for one in model.values())

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


async def test_tails_that_take_nothing_are_given_up_by_their_bytes_and_those_that_do_miss_nothing() -> None:
    node = MemoryNode()
    gateway = Gateway(node.services)
    listener = await AiohttpNetwork().serve("127.0.0.1", 0, gateway.handle, quick=gateway.quick)
    untaken = listener._server.untaken = Untaken(bytes_max=LIMIT)
    slow = [await stalled(listener.url, 2) for _ in range(SLOW)]
    await until(lambda: gateway.readers.used == SLOW)
    reading = asyncio.create_task(tailed(listener.url, 1, ENTRIES + 1))
    await until(lambda: gateway.readers.used == SLOW + 1)
    most = 0
    for number in range(ENTRIES):
        node.append(b"%02d" % number + b"x" * MIB)
        for _ in range(20):
            await asyncio.sleep(0)
            most = max(most, untaken.bytes)
    assert await reading == list(range(2, ENTRIES + 2))
    await until(lambda: untaken.given_up > 0)
    assert untaken.bytes <= LIMIT
    assert most <= LIMIT + SLOW * 2 * MIB, "what a turn may add"
    kept = SLOW - untaken.given_up
    await until(lambda: gateway.readers.used == kept)
    for one in slow:
        seen = [int(id) for id in _ID.findall(await asyncio.wait_for(read_all(one), 10))] if one is slow[0] else []
        if seen:
            assert seen == list(range(2, seen[-1] + 1))
            again = await tailed(listener.url, seen[-2] if len(seen) > 1 else 1, ENTRIES + 1)
            assert again[-1] == ENTRIES + 1
        one.close()
    await listener.close()
