"""The links between nodes: every connection from a node to another passes through this module.

Each node listens on a port that no other node knows; the members' URLs are listeners of this module.  The kernel
says which node calls (``callers``). So all nodes can have the same member URLs, as a group must, and each of the
n·(n-1) directed pairs can be cut by itself:

    n1 ──► links, n2's public port ──► n2         bytes n1→n2 pass (n1, n2), bytes n2→n1 of the same connection (n2, n1)

A blocked directed pair either *holds* or *cuts*. Held bytes, and ends of connections, continue when the pair is healed,
like TCP after lost packets. A cut resets the pair's connections, and new ones too. A *narrow* pair has a limit of bytes
a second for all of its connections together. A *long* pair delays its bytes.

    read ─► the pair's rate ─► the line, ``delay_s`` long ─► not blocked ─► written

Nodes that are threads of one process call from an address each (``hosts``), which says the same. The connections of
the process that has the links always pass. This needs no root.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from vlsnlog.testing.callers import owner_of
from vlsnlog.testing.partitions import UNSHAPED, How, Pair, Shape

READ_BYTES = 1 << 16
PIECE_S = 0.1
"""Seconds of a narrow pair's rate in one piece; its connections send pieces alternately."""
PIECE_BYTES_MIN = 1_500
LINE_PIECES_MAX = 64
"""The most pieces of one connection that are on a long line at once."""
_RESET = struct.pack("ii", 1, 0)


_Line = asyncio.Queue[tuple[float, bytes]]
"""Pieces with the times at which they arrive; an empty piece is the end."""


def piece_bytes(bytes_per_s: float) -> int:
    """Returns the bytes of one connection that pass a pair at once."""
    return min(READ_BYTES, max(PIECE_BYTES_MIN, int(bytes_per_s * PIECE_S))) if bytes_per_s else READ_BYTES


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
            with suppress(OSError, ValueError):  # the other end may already be closed
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            writer.transport.abort()


class Links:
    """All links of one group, on one event loop.  ``pids`` returns the running nodes' process ids by name. With
    ``hosts``, the nodes' names by address, a node is known by the address from which it calls."""

    def __init__(
        self,
        pids: Callable[[], dict[str, int]],
        *,
        own_pid: int,
        shape: Shape = UNSHAPED,
        hosts: Mapping[str, str] | None = None,
    ) -> None:
        self.pids = pids
        self._hosts = hosts
        self._shape = shape
        self._own_pid = own_pid
        self._servers: list[asyncio.Server] = []
        self._links: set[_Link] = set()
        self._blocked: dict[Pair, How] = {}
        self._healed = asyncio.Event()
        self._met: dict[Pair, int] = {}
        self._bytes_per_s: dict[Pair, float] = {}
        self._free_s: dict[Pair, float] = {}

    def narrow(self, pair: Pair, bytes_per_s: float) -> None:
        """Limits ``pair`` to this rate from now on; 0 means no limit."""
        self._bytes_per_s[pair] = bytes_per_s

    async def open(self, name: str, public_port: int, port: int, *, host: str = "127.0.0.1") -> None:
        """Listens for calls to ``name``, which itself listens on ``host`` and ``port``.  Raises ``OSError``."""

        async def called(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            source = self._source(writer.get_extra_info("peername"), public_port)
            try:
                await self._called(source, name, (host, port), reader, writer)
            except OSError:
                writer.transport.abort()

        listening = socket.socket()
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._hold_little(listening)  # before it listens, since an offered window cannot be reduced
            listening.bind(("127.0.0.1", public_port))
            self._servers.append(await asyncio.start_server(called, sock=listening, limit=self._held_bytes))
        except OSError:
            listening.close()
            raise

    @property
    def _held_bytes(self) -> int:
        return self._shape.queue_bytes if self._shape.bytes_per_s else READ_BYTES

    def _hold_little(self, end: socket.socket) -> None:
        """Limits the bytes that a sender may have under way on narrow pairs, to what a queue before a real link would
        hold."""
        if self._shape.bytes_per_s:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._held_bytes)

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
        self,
        source: str | None,
        target: str,
        address: tuple[str, int],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        link = _Link(source or "", target, [writer])
        if source is None or self._cut(link):
            link.reset()
            return
        self._links.add(link)
        try:
            await self._pass((source, target))
            far_reader, far_writer = await asyncio.open_connection(*address, limit=self._held_bytes)
            self._hold_little(far_writer.get_extra_info("socket"))
            link.writers.append(far_writer)
            async with asyncio.TaskGroup() as tasks:
                for pair, from_, to in (
                    ((source, target), reader, far_writer),
                    ((target, source), far_reader, writer),
                ):
                    line: _Line = asyncio.Queue(LINE_PIECES_MAX if self._shaped(source) else 1)
                    tasks.create_task(self._send(pair, from_, line))
                    tasks.create_task(self._arrive(pair, line, to))
        except* OSError:
            link.reset()
        finally:
            self._links.discard(link)
            for each in link.writers:
                each.close()

    def _source(self, peer: tuple[str, int], own_port: int) -> str | None:
        """Returns the calling node; "" for the process that has the links; None for an unknown caller, such as a node
        that was just killed."""
        peer_host, peer_port = peer
        if self._hosts is not None:
            return self._hosts.get(peer_host, "")
        names = {pid: name for name, pid in self.pids().items()}
        names.setdefault(self._own_pid, "")
        owner = owner_of(peer_port, own_port, names)
        return None if owner is None else names[owner]

    def _shaped(self, source: str) -> bool:
        """Says whether the limits apply to a connection; those of the process that has the links are exempt."""
        return bool(source and self._shape)

    async def _send(self, pair: Pair, reader: asyncio.StreamReader, line: _Line) -> None:
        shaped = self._shaped(pair[0]) and self._shaped(pair[1])
        delay = self._shape.delay_s if shaped else 0.0
        while True:
            rate = self._bytes_per_s.get(pair, self._shape.bytes_per_s if shaped else 0.0)
            data = await reader.read(piece_bytes(rate))
            if rate and data:
                await self._carry(pair, len(data) / rate)
            await line.put((self._now() + delay, data))
            if not data:
                return

    async def _arrive(self, pair: Pair, line: _Line, writer: asyncio.StreamWriter) -> None:
        while True:
            due, data = await line.get()
            if (left := due - self._now()) > 0:
                await asyncio.sleep(left)
            await self._pass(pair)
            if writer.is_closing():
                if not data:
                    return
                raise ConnectionResetError("the other half was reset")
            if not data:
                writer.write_eof()
                return
            writer.write(data)
            await writer.drain()

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    async def _carry(self, pair: Pair, seconds: float) -> None:
        """Returns once this share of the pair's time has passed; all connections of the pair share it."""
        now = self._now()
        self._free_s[pair] = done = max(now, self._free_s.get(pair, 0.0)) + seconds
        await asyncio.sleep(done - now)

    async def _pass(self, pair: Pair) -> None:
        """Returns once ``pair`` is not blocked."""
        while pair in self._blocked:
            self._met[pair] += 1
            await self._healed.wait()
