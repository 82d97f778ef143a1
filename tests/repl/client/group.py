"""Nodes in memory behind real sockets, and a node that follows a script, for tests of the client."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import msgspec

from repl.api import Acks, CommitSets, Done
from repl.net.network import AiohttpNetwork
from repl.node.gateway import Gateway
from repl.produce_messages import REQUEST_MESSAGE_BYTES_MAX
from repl.web.types import Handler, Listener, Request, Response, Upgrade
from tests.repl.web.memory_node import TERM, MemoryNode, MemoryPending
from vlsn.durability import GroupDurability
from vlsn.errors import VlsnLogError
from vlsn.format.batch import Batch, decode_entries
from vlsn.format.submission import Submission
from vlsn.seams import Channel


@dataclass(eq=False)
class GroupNode(MemoryNode):
    """A node in memory with a group: names and URLs."""

    members: dict[str, str] | None = None
    leader: str = ""
    refusals: Callable[[list[bytes]], VlsnLogError | None] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.leads and not self.leader:
            self.leader = self.name

    def status(self, long: Mapping[str, Any] | None = None) -> dict[str, Any]:
        members = [{"name": name, "url": url} for name, url in (self.members or {}).items()]
        return {
            **super().status(long),
            "state": "MASTER" if self.leads else "REPLICA",
            "master": self.leader or None,
            "term": int(TERM),
            "members": members,
        }

    def submit(
        self,
        submission: Submission,
        acks: Acks,
        done: Done,
        born: int | None = None,
        durability: GroupDurability | None = None,
        sets: CommitSets | None = None,
    ) -> MemoryPending:
        if self.refusals is not None:
            assert isinstance(submission, Batch)
            refusal = self.refusals([value for _, value in decode_entries(submission)])
            if refusal is not None:
                raise refusal
        return super().submit(submission, acks, done, born, durability, sets)

    @property
    def values(self) -> list[bytes]:
        return [entry.value for entry in self.entries[1:]]


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
async def serving(node: GroupNode, *, port: int = 0) -> AsyncIterator[str]:
    """Yields the node's URL; the node is its own master unless its status says otherwise."""
    async with served(Gateway(node.services).handle, port=port) as listener:
        if node.leads:
            node.master = listener.url
        yield listener.url


class ServedNode:
    """A node served from a thread of its own, for tests without a loop."""

    def __init__(self, node: GroupNode | None = None) -> None:
        self.node = node or GroupNode()
        self.url = ""
        self._up = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))

    async def _serve(self) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        async with serving(self.node) as self.url:
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
