"""Bytes that were written for clients which do not take them, all connections of a listener together.

    a socket full ─► what is left in memory counts ─► it takes some: no longer
                                                   └► ``UNTAKEN_BYTES_MAX`` passed: the longest stalled is given up

A reader that is slow harms nobody: it is sent no more until it has taken what it got.  Many of them could fill the
memory, a page each, and a limit on their number would refuse those who do take what they get.  Who takes its bytes is
never the longest stalled, also where a large page fills its socket for a moment.  Who is given up finds its connection
reset, and goes on from the last VLSN that it has.  Streams count their bytes before they are made, and
WebSockets theirs by the message: neither counts here.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from repl.http.limits import UNTAKEN_BYTES_MAX


class Stalled(Protocol):
    """One connection; hashed by identity."""


class Untaken:
    """The count of one listener."""

    def __init__(self, bytes_max: int = UNTAKEN_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._stalled: dict[Stalled, tuple[int, asyncio.WriteTransport]] = {}
        """Who is stalled, the longest first: how much it had left then."""
        self._called = False
        self.bytes = 0
        self.given_up = 0
        """Connections given up so far."""

    def stalls(self, connection: Stalled, transport: asyncio.WriteTransport) -> None:
        """Counts what ``connection`` has left, until it ``goes_on``."""
        self.goes_on(connection)
        size = transport.get_write_buffer_size()
        self._stalled[connection] = size, transport
        self.bytes += size
        if self.bytes > self._bytes_max and not self._called:
            self._called = True  # not from within the write that fills it
            asyncio.get_running_loop().call_soon(self._give_up)

    def goes_on(self, connection: Stalled) -> None:
        """Counts nothing of ``connection`` any more."""
        self.bytes -= self._stalled.pop(connection, (0, None))[0]

    def _give_up(self) -> None:
        self._called = False
        while self.bytes > self._bytes_max:
            connection, (_, transport) = next(iter(self._stalled.items()))
            self.goes_on(connection)
            self.given_up += 1
            transport.abort()
