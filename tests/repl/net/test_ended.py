"""A client that leaves, in whatever state, leaves nothing: all is freed at once, with no collector of cycles.

A cycle is freed by a collection, and the oldest objects of a busy node meet one in hours.  Until then it holds what a
client had sent of a message, or was about to be sent.  A real node, and clients by hand over real sockets.
"""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import msgspec
import pytest
import uvloop
from harness.hostile.states import CONSUME, STATES, Client, State

from repl.cluster import free_base_port
from repl.config import NodeConfig
from repl.destinations import consume_messages as consume
from repl.net.children import ProcessChildren
from repl.net.connection import Connection
from repl.net.network import AiohttpNetwork
from repl.node.node import Node
from tests.repl.client.group import until
from vlsn.format import batch
from vlsn.ids import NodeName
from vlsn.limits import MIB
from vlsn.real.clock import SystemClock, SystemRandom
from vlsn.real.disk import PosixDisk
from vlsn.real.lmdb_store import LmdbStores
from vlsn.real.threads import LoopThreads
from vlsn.seams import Seams

OURS = ("repl", "vlsn", "feeder", "replica", "aiohttp")
CLIENTS = 3
STALLED_S = 20.0
"""Seconds on a busy machine in which a node closes a connection that takes nothing; TCP would take half a minute."""
LEFT_S = 10.0
"""Seconds on a busy machine until a client that has left is gone; a cycle never goes."""


async def takes_nothing(client: Client) -> None:
    await client.upgrade(CONSUME.format("orders"))
    await client.message(consume.head(consume.CREDIT, 100))
    await until(lambda: any(isinstance(each, Connection) and each.writing_paused for each in gc.get_objects()))


async def takes_nothing_and_is_let_go(client: Client) -> None:
    await takes_nothing(client)
    await client.message(consume.head(b"?"))
    await until(lambda: not living()["Connection"], seconds=STALLED_S)


KINDS = STATES | {
    "a worker that takes nothing": takes_nothing,
    "a worker that takes nothing, and says what is nothing": takes_nothing_and_is_let_go,
}


@asynccontextmanager
async def serving(directory: Path) -> AsyncIterator[str]:
    """Yields the URL of a node that leads a group of its own, with two destinations and some messages."""
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
        yield url
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
        async with serving(tmp_path) as url:
            with no_collections():
                for kind, act in KINDS.items():
                    await asyncio.gather(*(_comes_and_leaves(url, act) for _ in range(CLIENTS)))
                    left[kind] = await _left()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
    assert {kind: found for kind, found in left.items() if found} == {}


async def _comes_and_leaves(url: str, act: State) -> None:
    client = Client(url)
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
