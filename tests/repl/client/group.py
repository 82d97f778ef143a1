"""Real nodes behind real sockets, and one that follows a script, for tests of the client."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import msgspec

from repl.net.network import AiohttpNetwork
from repl.node.gateway import Gateway
from repl.produce_messages import REQUEST_MESSAGE_BYTES_MAX
from repl.web.types import Handler, Listener, Request, Response, Upgrade
from tests.repl.web.one_node import OneNode, started
from vlsn.limits import MIB
from vlsn.seams import Channel


@asynccontextmanager
async def served(handler: Handler, *, port: int = 0) -> AsyncIterator[Listener]:
    network = AiohttpNetwork()
    listener = await network.serve("127.0.0.1", port, handler)
    try:
        yield listener
    finally:
        await listener.close()
        await network.close()


@asynccontextmanager
async def serving(**asked: Any) -> AsyncIterator[OneNode]:
    """Yields a master of a group of one (``started``), at its ``url``."""
    node = await started(**{"segment_bytes": 2 * MIB, **asked})
    async with at_socket(node):
        yield node


@asynccontextmanager
async def at_socket(node: OneNode, *, port: int = 0) -> AsyncIterator[str]:
    """Serves a node on a real socket, and yields the URL."""
    async with served(Gateway(node.services).handle, port=port) as listener:
        node.url = listener.url
        yield listener.url


class ServedNode:
    """A node served from a thread of its own, for tests without a loop."""

    def __init__(self, made: Callable[[], Awaitable[OneNode]] | None = None) -> None:
        self.node: OneNode
        self.url = ""
        self._made = made or partial(started, segment_bytes=2 * MIB)
        self._up = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))

    async def _serve(self) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        self.node = await self._made()
        async with at_socket(self.node) as self.url:
            self._up.set()
            await self._end.wait()

    def __enter__(self) -> ServedNode:
        self._thread.start()
        assert self._up.wait(60)
        return self

    def __exit__(self, *exception: object) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()


def scripted(produce: Callable[[Channel], Awaitable[None]]) -> Handler:
    """Returns a master whose ``/v1/produce`` runs the test's function."""

    async def handle(request: Request) -> Response | Upgrade:
        if request.path == "/v1/status":
            document = {"node": "n1", "master": "n1", "state": "MASTER", "term": 1, "members": []}
            return Response(200, {"Content-Type": "application/json"}, msgspec.json.encode(document))
        return Upgrade(produce, REQUEST_MESSAGE_BYTES_MAX)

    return handle


async def until(condition: Callable[[], bool], *, seconds: float = 60) -> None:
    """Lets the loop run until ``condition`` holds."""
    async with asyncio.timeout(seconds):
        while True:
            if condition():
                return
            await asyncio.sleep(0.002)
