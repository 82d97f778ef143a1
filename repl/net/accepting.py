"""A bound address, and the connections that arrive at it. At most ``ACCEPTS_A_TURN`` are accepted in a turn of the
event loop.

The loop's own server accepts until no connection is waiting. In a flood new connections would arrive as fast as that.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable

from repl.net.entrance import ENTRANCE_MAX, Entrance
from repl.net.tls import HANDSHAKE_S, Trust

BACKLOG = 1_024
ACCEPTS_A_TURN = 32
"""Takes about 3 ms."""
NO_FILES_S = 0.1
"""The seconds without an accept after the process has run out of file descriptors."""
_NO_FILES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Accepting:
    """Accepts the connections of one listener; ``made`` gives each connection its protocol."""

    def __init__(
        self,
        made: Callable[[], asyncio.Protocol],
        *,
        trust: Trust | None = None,
        plain: bool = True,
        head_s: float = HANDSHAKE_S,
        waiting_max: int = ENTRANCE_MAX,
    ) -> None:
        """Makes it. With ``trust`` the port speaks TLS, and plain HTTP too if ``plain``; ``waiting_max`` connections
        may be at its entrance."""
        self._loop = asyncio.get_running_loop()
        self.entrance: Entrance | None = None
        if trust is not None:
            self.entrance = Entrance(self._connect, trust, plain=plain, head_s=head_s, most=waiting_max)
        self._made = made
        self._sockets: list[socket.socket] = []
        self._tasks: set[asyncio.Task[object]] = set()
        self._timers: set[asyncio.TimerHandle] = set()

    async def bind(self, host: str, port: int) -> int:
        """Begins to accept. Returns the port, which the system chose if ``port`` is 0. Raises ``OSError``."""
        found = await self._loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        try:
            for family, kind, protocol, _, address in dict.fromkeys(found):
                bound = socket.socket(family, kind, protocol)
                self._sockets.append(bound)
                bound.setblocking(False)
                bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                bound.bind((address[0], port, *address[2:]) if port else address)
                port = port or bound.getsockname()[1]
                bound.listen(BACKLOG)
        except OSError:
            self._end()
            raise
        for each in self._sockets:
            self._loop.add_reader(each.fileno(), self._accept, each)
        return port

    async def close(self) -> None:
        """Stops accepting. When it returns, a turn or two of the event loop later, every accepted connection has a
        protocol. Accepted connections are kept, because a request may have arrived on them, and uvloop would close them
        without telling the protocol."""
        self._end()
        if self.entrance is not None:
            await self.entrance.close()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _end(self) -> None:
        for each in self._sockets:
            self._loop.remove_reader(each.fileno())
            each.close()
        self._sockets.clear()
        for timer in self._timers:
            timer.cancel()

    def _accept(self, bound: socket.socket) -> None:
        for _ in range(ACCEPTS_A_TURN):
            try:
                accepted, _ = bound.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _NO_FILES:
                    raise
                self._loop.remove_reader(bound.fileno())
                self._timers.add(self._loop.call_later(NO_FILES_S, self._go_on, bound))
                return
            accepted.setblocking(False)
            if self.entrance is not None:
                self.entrance.arrive(accepted)
                continue
            task = asyncio.create_task(self._connect(accepted), name="accepted")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _connect(self, accepted: socket.socket, context: ssl.SSLContext | None = None) -> None:
        try:
            if context is None:
                await self._loop.connect_accepted_socket(self._made, accepted)
            else:
                await self._loop.connect_accepted_socket(
                    self._made,
                    accepted,
                    ssl=context,
                    ssl_handshake_timeout=HANDSHAKE_S,
                    ssl_shutdown_timeout=HANDSHAKE_S,
                )
        except OSError:  # the descriptor is closed already
            accepted.close()
            if context is not None:
                raise

    def _go_on(self, bound: socket.socket) -> None:
        self._timers.clear()
        if bound in self._sockets:
            self._loop.add_reader(bound.fileno(), self._accept, bound)
