"""Bytes that were written for clients which do not take them, all connections of a listener together.

    a socket full ─► what it was sent is held in memory ─► it takes it: no longer
                                                        └► ``UNTAKEN_BYTES_MAX`` passed: the longest stalled is given up

A reader that is slow harms nobody: it is sent no more until it has taken what it got. Many of them could fill the
memory, a page each, and a limit on their number would refuse those who do take what they get. Bytes that many have not
taken are the same bytes (``types.Piece``), and count once: a large page that 1,000 readers are taking ends nobody. A
reader that takes its bytes is never the longest stalled. A reader that is given up finds its connection reset, and goes
on from its last VLSN. Streams count their bytes before they are made, and WebSockets theirs by the message: neither
counts here.
"""

from __future__ import annotations

import asyncio

from repl.web.limits import UNTAKEN_BYTES_MAX
from vlsn.seams import Buffer


class _Held:
    """Bytes, and how many connections have not taken them."""

    __slots__ = ("data", "holders")

    def __init__(self, data: Buffer) -> None:
        self.data = data
        self.holders = 0


class Untaken:
    """The count of one listener."""

    def __init__(self, bytes_max: int = UNTAKEN_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._stalled: dict[object, tuple[_Held, asyncio.WriteTransport]] = {}
        """Connections that are stalled, the longest first."""
        self._held: dict[int, _Held] = {}
        """Bytes that they hold, by their identity, which is theirs for as long as they are held."""
        self._called = False
        self.bytes = 0
        self.given_up = 0
        """Connections given up so far."""

    def stalls(self, connection: object, transport: asyncio.WriteTransport, data: Buffer) -> None:
        """Counts ``data``, which ``connection`` is sent, until it ``goes_on``."""
        self.goes_on(connection)
        held = self._held.get(id(data))
        if held is None:
            held = self._held[id(data)] = _Held(data)
            self.bytes += len(data)
        held.holders += 1
        self._stalled[connection] = held, transport
        if self.bytes > self._bytes_max and not self._called:
            self._called = True  # not from within the write that fills it
            asyncio.get_running_loop().call_soon(self._give_up)

    def goes_on(self, connection: object) -> None:
        """Counts nothing of ``connection`` any more."""
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
