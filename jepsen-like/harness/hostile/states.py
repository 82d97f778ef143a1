"""Every state in which a client can leave a node, one function each: it brings a connection into the state, and stops.

The node has a destination ``orders``, whose messages do not fit a socket's buffer, and a destination ``none`` without
messages.
"""

from __future__ import annotations

import asyncio
import fcntl
import itertools
import socket
import struct
import termios
from collections.abc import Awaitable, Callable

import msgspec

from harness.hostile.sockets import BINARY, CLOSE, TEXT, UPGRADE, address, frame
from repl.api import Acks
from repl.destinations import consume_messages as consume
from repl.produce_messages import REQUEST_MESSAGE_BYTES_MAX, request_header
from vlsn.format import batch
from vlsn.format.vlsn_set import VlsnSet
from vlsn.limits import MIB

GET = "GET {} HTTP/1.1\r\nHost: localhost\r\n\r\n"
POST = "POST {} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {}\r\nContent-Length: {}\r\n\r\n"
CONSUME = "/v1/destinations/{}/consume?max=100"
FAR = 10**9
"""A VLSN past the log's end."""
STILL_S = 0.05
"""Seconds without another byte after which a socket's buffer is full, if its client reads nothing."""
_RESET = struct.pack("ii", 1, 0)
_names = itertools.count()


class Client:
    """A hand-made connection to the node at ``url``."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._loop = asyncio.get_running_loop()
        self._socket = socket.socket()
        self._socket.setblocking(False)

    async def open(self) -> None:
        await self._loop.sock_connect(self._socket, address(self.url))

    async def send(self, data: bytes) -> None:
        await self._loop.sock_sendall(self._socket, data)

    async def message(self, data: bytes) -> None:
        await self.send(frame(BINARY, data))

    async def receive(self) -> bytes:
        return await self._loop.sock_recv(self._socket, 65_536)

    async def head(self) -> bytes:
        """Returns the head of an answer, and the bytes after it. Raises ``ConnectionError``."""
        came = b""
        while b"\r\n\r\n" not in came:
            more = await self.receive()
            if not more:
                raise ConnectionResetError("cut off before its answer")
            came += more
        return came

    async def upgrade(self, path: str) -> None:
        """Upgrades to a WebSocket. Raises ``ConnectionError``, also if it is refused."""
        await self.send(UPGRADE.format(path=path, host="localhost").encode())
        head = await self.head()
        if not head.startswith(b"HTTP/1.1 101 "):
            raise ConnectionRefusedError(head.partition(b"\r\n")[0].decode("latin-1"))

    async def until_closed(self) -> None:
        while await self.receive():
            pass

    async def until_full(self) -> None:
        """Reads nothing, and waits until no more bytes arrive."""
        before = -1
        while (waiting := self._unread()) != before:
            before = waiting
            await asyncio.sleep(STILL_S)

    def _unread(self) -> int:
        return int(struct.unpack("i", fcntl.ioctl(self._socket, termios.FIONREAD, bytes(4)))[0])

    def close(self, *, reset: bool = False) -> None:
        if reset:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._socket.close()


State = Callable[[Client], Awaitable[None]]


def _asks(request: str) -> State:
    return lambda client: client.send(request.encode())


def _is_answered(request: str) -> State:
    async def act(client: Client) -> None:
        await client.send(request.encode())
        await client.head()

    return act


def _does_not_read(request: str) -> State:
    async def act(client: Client) -> None:
        await client.send(request.encode())
        await client.until_full()

    return act


async def _half_a_body(client: Client) -> None:
    await client.send(POST.format("/v1/entries", "application/octet-stream", 100_000).encode() + bytes(50_000))


async def _half_a_stage(client: Client) -> None:
    await client.send(POST.format("/v1/transactions", "application/json", 0).encode())
    head, _, body = (await client.head()).partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200 "):
        raise ConnectionRefusedError(head.partition(b"\r\n")[0].decode("latin-1"))
    path = f"/v1/transactions/{msgspec.json.decode(body)['transaction']}/entries"
    await client.send(POST.format(path, "application/octet-stream", 1_000).encode() + bytes(1_000))
    await client.head()
    await client.send(POST.format(path, "application/octet-stream", 100_000).encode() + bytes(50_000))


def _produces(*, sent: bytes = b"", waits: bool = False) -> State:
    async def act(client: Client) -> None:
        await client.upgrade("/v1/produce")
        await client.send(sent)
        if waits:
            await client.until_closed()

    return act


_LARGE = frame(BINARY, bytes(REQUEST_MESSAGE_BYTES_MAX))


async def _is_refused(client: Client) -> None:
    await client.upgrade("/v1/produce")
    for id in (1, 2):
        await client.message(request_header(id, Acks.MAJORITY, 10_000) + b"no batch" * 10_000)
        await client.receive()


async def _waits_for_no_answer(client: Client) -> None:
    await client.upgrade("/v1/produce")
    for id in range(50):
        await client.message(request_header(id, Acks.MAJORITY, 10_000) + batch.encode([bytes(100)]))


def _works(name: str, *messages: bytes) -> State:
    async def act(client: Client) -> None:
        await client.upgrade(CONSUME.format(name))
        for message in messages:
            await client.message(message)
        await client.receive()

    return act


async def takes_nothing(client: Client) -> None:
    await client.upgrade(CONSUME.format("orders"))
    await client.message(consume.head(consume.CREDIT, 100))
    await client.until_full()


async def takes_nothing_and_acknowledges(client: Client) -> None:
    await takes_nothing(client)
    for number in range(2_000):
        await client.message(consume.head(consume.ACK, number) + VlsnSet.of([FAR]).pack())


async def _is_no_worker(client: Client) -> None:
    await client.upgrade(CONSUME.format("orders"))
    await client.message(consume.head(b"?"))
    await client.until_closed()


async def _loses_its_destination(client: Client) -> None:
    path, one = f"/v1/destinations/lost-{next(_names)}", Client(client.url)
    await one.open()
    try:
        change = b'{"prefix":"nobody-"}'
        await one.send(POST.replace("POST", "PUT").format(path, "application/json", len(change)).encode() + change)
        await one.head()
        await client.upgrade(f"{path}/consume")
        await client.message(consume.head(consume.CREDIT, 100))
        await client.receive()
        await one.send(GET.replace("GET", "DELETE").format(path).encode())
        await one.head()
        await client.until_closed()
    finally:
        one.close()


def _acks(vlsn: int) -> list[bytes]:
    return [consume.head(consume.ACK, number) + VlsnSet.of([vlsn]).pack() for number in range(20)]


_CREDIT = consume.head(consume.CREDIT, 100)
STATES: dict[str, State] = {
    "a status": _is_answered(GET.format("/v1/status")),
    "half a head": _asks(GET.format("/v1/status")[:30]),
    "no HTTP": _is_answered("G\0T /v1/status HTTP/1.1\r\n\r\n"),
    "no HTTP, unanswered": _asks("G\0T /v1/status HTTP/1.1\r\n\r\n"),
    "half a body": _half_a_body,
    "half a stage": _half_a_stage,
    "long-polls": _asks(GET.format("/v1/entries?from=1000000000&wait=30") * 2),
    "a tail": _is_answered(GET.format("/v1/tail?from=1")),
    "a slow tail": _does_not_read(GET.format("/v1/tail?from=1")),
    "a slow reader": _does_not_read(GET.format("/v1/entries?from=1&limit=10000")),
    "a slow reader of a segment": _does_not_read(GET.format("/v1/segments/1")),
    "half an upgrade": _asks(UPGRADE.format(path="/v1/produce", host="localhost")[:60]),
    "an upgrade": _asks(UPGRADE.format(path="/v1/produce", host="localhost")),
    "a worker's upgrade": _asks(UPGRADE.format(path=CONSUME.format("orders"), host="localhost")),
    "a feed that is refused": _is_answered(UPGRADE.format(path="/v1/feed", host="localhost")),
    "messages": _asks(GET.format("/v1/destinations/none/messages?wait=30")),
    "a slow reader of messages": _does_not_read(GET.format("/v1/destinations/orders/messages?max=10000")),
    "a slow look at messages": _does_not_read(GET.format("/v1/destinations/orders/messages?peek=true&max=10000")),
    "a producer": _produces(),
    "a producer, half a message": _produces(sent=_LARGE[: len(_LARGE) // 2]),
    "a producer, half a message in pieces": _produces(sent=frame(BINARY, bytes(MIB), fin=False)),
    "a producer, over the limit": _produces(sent=frame(BINARY, bytes(REQUEST_MESSAGE_BYTES_MAX + 1))[:64], waits=True),
    "a producer, text": _produces(sent=frame(TEXT, b"text"), waits=True),
    "a producer, closed": _produces(sent=frame(CLOSE, b"\x03\xe8"), waits=True),
    "a producer, no request": _produces(sent=frame(BINARY, b"none"), waits=True),
    "a producer, refused": _is_refused,
    "a producer, unanswered": _waits_for_no_answer,
    "a worker": _works("none", _CREDIT),
    "a worker that acknowledges": _works("orders", *_acks(1)),
    "a worker that acknowledges what is not": _works("orders", *_acks(FAR)),
    "a worker that takes nothing": takes_nothing,
    "a worker that takes no answer": takes_nothing_and_acknowledges,
    "no worker": _is_no_worker,
    "a worker whose destination goes": _loses_its_destination,
}
