"""The links between nodes: every connection that a node makes to another goes through here.

Each node listens on a port that only the harness knows; the URL that the members know of it is a listener of this
module.  Who calls is asked of the kernel (``callers``), so that all nodes have the same member URLs, as a group must,
and yet each of the n·(n-1) directed pairs can be cut by itself:

    n1 ──► links, n2's public port ──► n2         bytes n1→n2 pass (n1, n2), bytes n2→n1 of the same connection (n2, n1)

A directed pair that is blocked either *holds*: what is sent on it, ends of connections too, goes on when it is
healed, as TCP does after lost packets; or *cuts*: connections of the pair are reset, and new ones too.
A directed pair may be *narrow*: all of its connections together get so many bytes a second.
The harness's own connections always pass.  Needs no root; ``namespaces`` does the same to packets.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from harness.group.callers import owner_of
from harness.group.partitions import How, Pair

READ_BYTES = 1 << 16
_RESET = struct.pack("ii", 1, 0)


@dataclass(eq=False, slots=True)
class _Link:
    """One connection between two nodes, both halves."""

    source: str
    target: str
    writers: list[asyncio.StreamWriter] = field(default_factory=list)

    def reset(self) -> None:
        for writer in self.writers:
            if writer.transport.is_closing():
                continue
            with suppress(OSError, ValueError):  # its other end may be gone already
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            writer.transport.abort()


class Links:
    """All of one group, on one event loop.  ``pids`` gives the running nodes' process ids by name."""

    def __init__(self, pids: Callable[[], dict[str, int]], *, harness_pid: int) -> None:
        self._pids = pids
        self._harness_pid = harness_pid
        self._servers: list[asyncio.Server] = []
        self._links: set[_Link] = set()
        self._blocked: dict[Pair, How] = {}
        self._healed = asyncio.Event()
        self._met: dict[Pair, int] = {}
        self._bytes_per_s: dict[Pair, float] = {}
        self._free_s: dict[Pair, float] = {}

    def narrow(self, pair: Pair, bytes_per_s: float) -> None:
        """From now on ``pair`` carries so much; 0: whatever comes."""
        self._bytes_per_s[pair] = bytes_per_s

    async def open(self, name: str, public_port: int, port: int) -> None:
        """Listens for calls to ``name``, which itself listens on ``port``.  Raises ``OSError``."""

        async def called(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await self._called(name, public_port, port, reader, writer)
            except OSError:
                writer.transport.abort()

        self._servers.append(await asyncio.start_server(called, "127.0.0.1", public_port))

    async def close(self) -> None:
        for server in self._servers:
            server.close()
        for link in list(self._links):
            link.reset()
        for server in self._servers:
            await server.wait_closed()

    async def block(self, pairs: Iterable[Pair], how: How) -> None:
        for pair in pairs:
            self._blocked[pair] = how
            self._met[pair] = 0
        if how == "cut":
            for link in list(self._links):
                self._cut(link)

    async def met(self, pairs: Iterable[Pair]) -> int:
        return sum(self._met.get(pair, 0) for pair in pairs)

    async def heal(self, pairs: Iterable[Pair] | None = None, *, cut: bool = False) -> None:
        pairs = set(self._blocked) if pairs is None else set(pairs)
        for pair in pairs:
            self._blocked.pop(pair, None)
        if cut:
            for link in list(self._links):
                if (link.source, link.target) in pairs or (link.target, link.source) in pairs:
                    link.reset()
        self._healed.set()
        self._healed = asyncio.Event()

    def _cut(self, link: _Link) -> bool:
        for pair in ((link.source, link.target), (link.target, link.source)):
            if self._blocked.get(pair) == "cut":
                self._met[pair] += 1
                link.reset()
                return True
        return False

    async def _called(
        self, target: str, public_port: int, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        source = self._source(writer.get_extra_info("peername")[1], public_port)
        link = _Link(source or "", target, [writer])
        if source is None or self._cut(link):
            link.reset()
            return
        self._links.add(link)
        try:
            await self._pass((source, target))
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
            link.writers.append(far_writer)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._pump((source, target), reader, far_writer))
                tasks.create_task(self._pump((target, source), far_reader, writer))
        except* OSError:
            link.reset()
        finally:
            self._links.discard(link)
            for each in link.writers:
                each.close()

    def _source(self, peer_port: int, own_port: int) -> str | None:
        """The calling node; "" for the harness itself; None for nobody we know, such as one that was just killed."""
        names = {pid: name for name, pid in self._pids().items()}
        names.setdefault(self._harness_pid, "")
        owner = owner_of(peer_port, own_port, names)
        return None if owner is None else names[owner]

    async def _pump(self, pair: Pair, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(READ_BYTES):
            await self._pass(pair)
            if rate := self._bytes_per_s.get(pair):
                await self._carry(pair, len(data) / rate)
            if writer.is_closing():
                raise ConnectionResetError("the other half was reset")
            writer.write(data)
            await writer.drain()
        await self._pass(pair)
        if not writer.is_closing():
            writer.write_eof()

    async def _carry(self, pair: Pair, seconds: float) -> None:
        now = asyncio.get_running_loop().time()
        self._free_s[pair] = done = max(now, self._free_s.get(pair, 0.0)) + seconds
        await asyncio.sleep(done - now)

    async def _pass(self, pair: Pair) -> None:
        """Returns once ``pair`` is not blocked."""
        while pair in self._blocked:
            self._met[pair] += 1
            await self._healed.wait()
