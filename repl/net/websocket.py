"""The channel of a listener, and of a node that calls another. It takes a message in the turn in which it arrives.

``Upgrade.ahead_bytes`` limits the bytes that wait in a server's socket.

This file and ``network.py`` use private parts of aiohttp: the reader's queue, and the writer's close flag. The lock
file fixes aiohttp's version, and ``tests/repl/net/test_frame.py`` checks that these parts behave as expected.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from aiohttp import ClientWebSocketResponse, WSMsgType
from aiohttp.web import WebSocketResponse

from repl.net.channel import SocketChannel
from repl.net.tap import Tap

CLOSE_TIMEOUT_S = 1.0
"""The seconds that a server waits for the other side when it closes a channel. A client does not wait."""


class WebSocketChannel(SocketChannel):
    """``vlsn.seams.Channel`` for a WebSocket. It allows one reader and one writer at a time."""

    __slots__ = ("_incoming",)

    def __init__(self, socket: WebSocketResponse | ClientWebSocketResponse, transport: Any, tap: Tap) -> None:
        super().__init__(socket, transport, tap)
        self._incoming: Any = socket._reader

    async def deliver(self, take: Callable[[bytes], bool]) -> None:
        tap, loop = self._tap, asyncio.get_running_loop()
        wanted = True
        fault: BaseException | None = None
        waiter: asyncio.Future[None] | None = None

        def taken(message: bytes) -> None:
            nonlocal wanted, fault
            try:
                wanted = take(message)
            except BaseException as error:  # an error in the loop's callback goes to our caller
                wanted, fault = False, error
            if not wanted:
                stop()

        def came() -> None:
            """Takes all messages that are whole and wanted, in the turn in which they were read."""
            while wanted and self._message_waits():
                taken(self._waiting_message())
            if self._incoming._buffer or self._incoming.is_eof():
                stop()

        def stop() -> None:
            tap.came = tap.take = None
            if waiter is not None and not waiter.done():
                waiter.set_result(None)

        try:
            while True:
                came()
                if fault is not None:
                    raise fault
                if not wanted:
                    return
                if self._incoming._buffer or self._incoming.is_eof():  # a ping, or the end of the stream
                    wanted = take(await self.receive())
                    continue
                waiter = loop.create_future()
                tap.came, tap.take = came, taken
                await waiter
        finally:
            tap.came = tap.take = None
            fault = None  # the error's traceback refers to ``taken``

    def _has_said_goodbye(self) -> bool:
        closing: bool = self._socket._writer._closing
        return closing

    def _ping_waits(self) -> bool:
        """Says whether a ping waits. Only the last of several pings must be answered (RFC 6455 §5.5.3), and each answer
        costs a system call."""
        buffer = self._incoming._buffer
        return bool(buffer) and buffer[0][0].type is WSMsgType.PING

    def _message_waits(self) -> bool:
        buffer = self._incoming._buffer
        return bool(buffer) and buffer[0][0].type is WSMsgType.BINARY

    def _waiting_message(self) -> bytes:
        reading = self._incoming.read()
        try:
            reading.send(None)
        except StopIteration as read:
            data: bytes = read.value.data
        self._tap.received()
        return data
