"""A client that leaves, in whatever state, leaves nothing: all is freed at once, with no collector of cycles.

A cycle is freed by a collection, and the oldest objects of a busy node meet one in hours.  Until then it holds what a
client had sent of a message, or was about to be sent.  A real node, and clients by hand over real sockets.
"""

from __future__ import annotations

import asyncio
import gc
import socket
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import msgspec
import pytest
import uvloop

from repl.api import Acks
from repl.cluster import free_base_port
from repl.config import NodeConfig
from repl.http import consume_messages as consume
from repl.net.children import ProcessChildren
from repl.net.connection import Connection
from repl.net.network import AiohttpNetwork
from repl.node.node import Node
from repl.produce_messages import request_header
from tests.repl.client.group import until
from tests.repl.net.test_arrivals import BINARY, frame
from vlsn.format import batch
from vlsn.format.vlsn_set import VlsnSet
from vlsn.ids import NodeName
from vlsn.limits import MIB
from vlsn.real.clock import SystemClock, SystemRandom
from vlsn.real.disk import PosixDisk
from vlsn.real.lmdb_store import LmdbStores
from vlsn.real.threads import LoopThreads
from vlsn.seams import Seams

OURS = ("repl", "vlsn", "feeder", "replica", "aiohttp")
TEXT, CLOSE = 1, 8
CLIENTS = 3
STALLED_S = 20.0
"""Seconds on a busy machine in which a node closes a connection that takes nothing; TCP would take half a minute."""
LEFT_S = 10.0
"""Seconds on a busy machine until a client that has left is gone; what is in a cycle never goes."""
GET = "GET {} HTTP/1.1\r\nHost: localhost\r\n\r\n"
UPGRADE = (
    "GET {} HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
POST = "POST {} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {}\r\nContent-Length: {}\r\n\r\n"
CONSUME = "/v1/destinations/{}/consume?max=100"


class Client:
    """A connection by hand."""

    def __init__(self, port: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._socket = socket.socket()
        self._socket.setblocking(False)
        self._port = port

    async def open(self) -> None:
        await self._loop.sock_connect(self._socket, ("127.0.0.1", self._port))

    async def send(self, data: bytes) -> None:
        await self._loop.sock_sendall(self._socket, data)

    async def message(self, data: bytes) -> None:
        await self.send(frame(BINARY, data))

    async def receive(self) -> bytes:
        return await self._loop.sock_recv(self._socket, 65_536)

    async def head(self) -> bytes:
        """Returns the head of an answer, and what came behind it."""
        came = b""
        while b"\r\n\r\n" not in came:
            more = await self.receive()
            assert more, came
            came += more
        return came

    async def upgrade(self, path: str) -> None:
        await self.send(UPGRADE.format(path).encode())
        assert b" 101 " in await self.head()

    async def until_closed(self) -> None:
        while await self.receive():
            pass

    def close(self) -> None:
        self._socket.close()


async def asks(client: Client, request: str) -> None:
    await client.send(request.encode())


async def is_answered(client: Client, request: str) -> None:
    await client.send(request.encode())
    await client.head()


async def half_a_body(client: Client) -> None:
    await client.send(POST.format("/v1/entries", "application/octet-stream", 100_000).encode() + bytes(50_000))


async def stages_half(client: Client) -> None:
    await client.send(POST.format("/v1/transactions", "application/json", 0).encode())
    handle = msgspec.json.decode((await client.head()).partition(b"\r\n\r\n")[2])["transaction"]
    head = POST.format(f"/v1/transactions/{handle}/entries", "application/octet-stream", 100_000)
    await client.send(head.encode() + bytes(50_000))


async def produces_nothing(client: Client) -> None:
    await client.upgrade("/v1/produce")


async def half_a_message(client: Client) -> None:
    await client.upgrade("/v1/produce")
    await client.send(frame(BINARY, bytes(MIB))[: MIB // 2])


async def half_a_message_in_pieces(client: Client) -> None:
    await client.upgrade("/v1/produce")
    await client.send(frame(BINARY, bytes(MIB), fin=False))


async def over_the_limit(client: Client) -> None:
    await client.upgrade("/v1/produce")
    await client.send(frame(BINARY, bytes(17 * MIB))[:1_000])
    await client.until_closed()


async def says_text(client: Client) -> None:
    await client.upgrade("/v1/produce")
    await client.send(frame(TEXT, b"text"))
    await client.until_closed()


async def closes(client: Client) -> None:
    await client.upgrade("/v1/produce")
    await client.send(frame(CLOSE, b"\x03\xe8"))
    await client.until_closed()


async def no_request(client: Client) -> None:
    await client.upgrade("/v1/produce")
    await client.message(b"none")
    await client.until_closed()


async def is_refused(client: Client) -> None:
    await client.upgrade("/v1/produce")
    for id in (1, 2):
        await client.message(request_header(id, Acks.MAJORITY, 10_000) + b"no batch" * 10_000)
        await client.receive()


async def waits_for_no_answer(client: Client) -> None:
    await client.upgrade("/v1/produce")
    for id in range(200):
        await client.message(request_header(id, Acks.MAJORITY, 10_000) + batch.encode([bytes(2_000)]))


async def takes_no_message(client: Client) -> None:
    await client.upgrade(CONSUME.format("orders"))
    await client.message(consume.head(consume.CREDIT, 100))
    await until(lambda: any(isinstance(each, Connection) and each.writing_paused for each in gc.get_objects()))


async def takes_nothing_and_is_let_go(client: Client) -> None:
    await takes_no_message(client)
    await client.message(consume.head(b"?"))
    await until(lambda: not living()["Connection"], seconds=STALLED_S)


async def waits_for_messages(client: Client) -> None:
    await client.upgrade(CONSUME.format("none"))
    await client.message(consume.head(consume.CREDIT, 100))
    await client.receive()


async def acknowledges(client: Client) -> None:
    await client.upgrade(CONSUME.format("orders"))
    for number in range(20):
        await client.message(consume.head(consume.ACK, number) + VlsnSet.of([5 + number]).pack())
    await client.receive()


async def acknowledges_what_is_not(client: Client) -> None:
    await client.upgrade(CONSUME.format("orders"))
    for number in range(20):
        await client.message(consume.head(consume.ACK, number) + VlsnSet.of([10**9]).pack())
    await client.receive()


async def is_no_worker(client: Client) -> None:
    await client.upgrade(CONSUME.format("orders"))
    await client.message(consume.head(b"?"))
    await client.until_closed()


async def loses_its_destination(client: Client) -> None:
    one, name = Client(client._port), f"lost-{id(client)}"
    await one.open()
    change = b'{"prefix":"nobody-"}'
    put = POST.replace("POST", "PUT").format(f"/v1/destinations/{name}", "application/json", len(change))
    await one.send(put.encode() + change)
    await one.head()
    await client.upgrade(CONSUME.format(name))
    await client.message(consume.head(consume.CREDIT, 100))
    await client.receive()
    await is_answered(one, GET.replace("GET", "DELETE").format(f"/v1/destinations/{name}"))
    one.close()
    await client.until_closed()


KINDS: dict[str, Callable[[Client], Awaitable[None]]] = {
    "a status": lambda client: is_answered(client, GET.format("/v1/status")),
    "half a head": lambda client: asks(client, GET.format("/v1/status")[:30]),
    "no HTTP": lambda client: is_answered(client, "G\0T /v1/status HTTP/1.1\r\n\r\n"),
    "no HTTP, and it leaves": lambda client: asks(client, "G\0T /v1/status HTTP/1.1\r\n\r\n"),
    "half a body": half_a_body,
    "half a stage": stages_half,
    "a long-poll": lambda client: asks(client, GET.format("/v1/entries?from=1000000&wait=30") * 2),
    "a tail": lambda client: is_answered(client, GET.format("/v1/tail?from=1")),
    "a slow tail": lambda client: asks(client, GET.format("/v1/tail?from=1")),
    "a slow reader": lambda client: asks(client, GET.format("/v1/entries?from=1&limit=10000")),
    "a slow reader of a segment": lambda client: asks(client, GET.format("/v1/segments/1")),
    "an upgrade": lambda client: asks(client, UPGRADE.format("/v1/produce")),
    "an upgrade of a worker": lambda client: asks(client, UPGRADE.format(CONSUME.format("orders"))),
    "a feed that is refused": lambda client: is_answered(client, UPGRADE.format("/v1/feed")),
    "messages": lambda client: asks(client, GET.format("/v1/destinations/none/messages?wait=30")),
    "a slow reader of messages": lambda client: asks(client, GET.format("/v1/destinations/orders/messages?max=10000")),
    "a look at messages": lambda client: asks(client, GET.format("/v1/destinations/orders/messages?peek=true&max=99")),
    "a producer": produces_nothing,
    "a producer, half a message": half_a_message,
    "a producer, half a message in pieces": half_a_message_in_pieces,
    "a producer, a message over the limit": over_the_limit,
    "a producer, text": says_text,
    "a producer, closed": closes,
    "a producer, no request": no_request,
    "a producer, refused": is_refused,
    "a producer, no answer": waits_for_no_answer,
    "a worker that takes nothing": takes_no_message,
    "a worker that takes nothing, and says what is nothing": takes_nothing_and_is_let_go,
    "a worker that waits": waits_for_messages,
    "a worker that acknowledges": acknowledges,
    "a worker that acknowledges what is not": acknowledges_what_is_not,
    "no worker": is_no_worker,
    "a worker whose destination goes": loses_its_destination,
}


@asynccontextmanager
async def serving(directory: Path) -> AsyncIterator[int]:
    """Yields the port of a node that leads a group of its own, with two destinations and some messages."""
    port, loop, network = free_base_port(1), asyncio.get_running_loop(), AiohttpNetwork()
    name, url = NodeName("n1"), f"http://127.0.0.1:{port}"
    seams = Seams(PosixDisk(), SystemClock(), SystemRandom(), LoopThreads(loop), LmdbStores())
    config = NodeConfig(name=name, dir=directory, listen=f"127.0.0.1:{port}", members={name: url})
    node = Node(
        config, seams, network, ProcessChildren(lambda *_: None), on_fatal=lambda error: pytest.fail(str(error))
    )
    await node.start()
    try:
        await until(node.member.is_master)
        for destination, prefix in (("orders", ""), ("none", "nobody-")):
            body = msgspec.json.encode({"prefix": prefix, "from": "start", "ack_timeout_s": 1, "attempts_max": 1000})
            path, head = f"{url}/v1/destinations/{destination}", {"Content-Type": "application/json"}
            answer = await network.request("PUT", path, headers=head, body=body, timeout_s=60.0)
            assert answer.status == 201, bytes(answer.body)
        for _ in range(20):  # more than sockets hold
            body, head = batch.encode([bytes(MIB - 1_000)]), {"Content-Type": "application/x-vlsnlog-batch"}
            answer = await network.request("POST", f"{url}/v1/entries", headers=head, body=body, timeout_s=60.0)
            assert answer.status == 200, bytes(answer.body)
        yield port
    finally:
        await node.stop()


@contextmanager
def no_collections() -> Iterator[None]:
    """Collects nothing, and looks at nothing that is there by now."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


def living() -> Counter[str]:
    """Counts the objects of clients' connections."""
    found = (type(each) for each in gc.get_objects())
    return Counter(each.__qualname__ for each in found if each.__qualname__ in NAMES and _is_ours(each))


NAMES = frozenset(
    {"Connection", "Doorway", "MeteredTap", "WebSocketChannel", "WebSocketResponse", "BaseRequest", "Reply"}
    | {"_Producer", "_Slot", "Consuming", "_Tail", "_Poll", "Audience"}
)


def _is_ours(kind: type) -> bool:
    return kind.__module__.partition(".")[0] in OURS


def test_a_client_that_leaves_leaves_nothing(tmp_path: Path) -> None:
    left: dict[str, Counter[str]] = {}

    async def main() -> None:
        async with serving(tmp_path) as port:
            with no_collections():
                for kind, act in KINDS.items():
                    await asyncio.gather(*(_comes_and_leaves(port, act) for _ in range(CLIENTS)))
                    left[kind] = await _left()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
    assert {kind: found for kind, found in left.items() if found} == {}


async def _comes_and_leaves(port: int, act: Callable[[Client], Awaitable[None]]) -> None:
    client = Client(port)
    await client.open()
    await act(client)
    client.close()


async def _left() -> Counter[str]:
    """Counts what is left of connections once nothing of them goes on: in cycles, or in use yet."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + LEFT_S
    while True:
        in_use, in_cycles = living(), _in_cycles()
        if in_cycles or not in_use or loop.time() > deadline:
            return in_cycles or in_use
        await asyncio.sleep(0.01)


def _in_cycles() -> Counter[str]:
    """Counts what only a collection frees, and frees it."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.collect()
    gc.set_debug(0)
    found = Counter(type(each).__qualname__ for each in gc.garbage if _is_ours(type(each)))
    gc.garbage.clear()
    gc.collect()
    return found
