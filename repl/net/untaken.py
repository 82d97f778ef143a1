"""Bounds the bytes that were written for clients and that the clients have not taken, for all connections of a listener
together.

    a socket full ─► what it was sent is held in memory ─► it takes it: no longer
                                                        └► ``UNTAKEN_BYTES_MAX`` passed: the longest stalled is given up

A slow reader does no harm, because it is sent no more until it has taken what it was sent. But many slow readers could
fill the memory, with a page each. A limit on the number of readers would refuse readers that do take their bytes. Many
connections may hold the same bytes (``types.Piece``), which count once. So a large page that 1,000 readers are taking
ends none of them. A reader that takes its bytes is never the longest stalled. If the limit is passed, the connection of
the longest stalled reader is reset, and the reader continues from its last VLSN.

Streams count their bytes before they are made, and WebSockets count theirs by the message, so neither counts here.
"""

from __future__ import annotations

import asyncio

from repl.web.limits import UNTAKEN_BYTES_MAX
from vlsn.seams import Buffer


class _Held:
    """Some bytes, and the number of connections that have not taken them."""

    __slots__ = ("data", "holders")

    def __init__(self, data: Buffer) -> None:
        self.data = data
        self.holders = 0


class Untaken:
    """Counts the bytes of one listener."""

    def __init__(self, bytes_max: int = UNTAKEN_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._stalled: dict[object, tuple[_Held, asyncio.WriteTransport]] = {}
        """The connections that are stalled, the longest first."""
        self._held: dict[int, _Held] = {}
        """The bytes that stalled connections hold, by object identity, which is unique while the bytes are held."""
        self._called = False
        self.bytes = 0
        self.given_up = 0
        """The number of connections that were reset."""

    def stalls(self, connection: object, transport: asyncio.WriteTransport, data: Buffer) -> None:
        """Counts ``data``, which was written for ``connection``, until ``goes_on`` is called."""
        self.goes_on(connection)
        held = self._held.get(id(data))
        if held is None:
            held = self._held[id(data)] = _Held(data)
            self.bytes += len(data)
        held.holders += 1
        self._stalled[connection] = held, transport
        if self.bytes > self._bytes_max and not self._called:
            self._called = True  # not from within the write that causes it
            asyncio.get_running_loop().call_soon(self._give_up)

    def goes_on(self, connection: object) -> None:
        """Stops counting bytes for ``connection``."""
        found = self._stalled.pop(connection, None)
        if found is not None:
            held = found[0]
            held.holders -= 1
            if not held.holders:
                del self._held[id(held.data)]
                self.bytes -= len(held.data)

    def _give_up(self) -> None:
        self._called = False
        while self.bytes > self._bytes_max:
            connection, (_, transport) = next(iter(self._stalled.items()))
            self.goes_on(connection)
            self.given_up += 1
            transport.abort()
