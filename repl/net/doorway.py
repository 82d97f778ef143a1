"""A connection before its first bytes. It has no parser and no task, so thousands of them cost little.

accepted ─► Doorway ─► its first bytes, in their turn ─► Connection, which has them from here on
"""

from __future__ import annotations

import asyncio
from typing import cast

from repl.net.connection import Connection, Server


class Doorway(asyncio.Protocol):
    """See ``places.Guest``."""

    __slots__ = ("_held", "_server", "_transport", "head_since", "kept")

    silent = True

    def __init__(self, server: Server) -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._held = b""
        """The bytes that arrived while other connections were made and parsed."""
        self.kept = False
        self.head_since = 0.0

    @property
    def idle_since(self) -> float:
        return self.head_since

    def swept(self, now: float) -> None:
        pass

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.head_since = asyncio.get_running_loop().time()
        self._server.places.enter(self)

    def data_received(self, data: bytes) -> None:
        if self._held:
            self._held += data  # these bytes were on their way when reading was paused
        elif self._server.reading.share():
            self._pass_on(data)
        elif self._transport is not None:
            self._held = data
            self._transport.pause_reading()
            self._server.reading.wait(self._go_on)

    def _go_on(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()
            self._pass_on(self._held)

    def _pass_on(self, data: bytes) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        connection = Connection(self._server, loop=asyncio.get_running_loop())
        self._server.places.replace(self, connection)
        transport.set_protocol(connection)
        connection.connection_made(transport)
        connection.data_received(data)

    @property
    def context(self) -> object:
        """See ``places.Guest``."""
        return None if self._transport is None else self._transport.get_extra_info("sslcontext")

    def end(self) -> None:
        """See ``places.Guest``."""
        self.give_way()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._transport = None
        self._server.places.leave(self)

    def give_way(self) -> None:
        if self._transport is not None:
            self._transport.close()
