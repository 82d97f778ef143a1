"""A channel over one WebSocket, for either side. There is no compression, which would cost more than it saves, and
blocks must stay as they are. A text message, or a message over the limit, ends the channel.

``send`` returns while few bytes wait in the socket, so that the next message can be made while the last message is
sent. The limit is ``WRITE_BUFFER_BYTES`` for a client, and ``Upgrade.ahead_bytes`` for a server.

This file and ``network.py`` use private parts of aiohttp: the reader's queue, and the writer's close flag. The lock
file fixes aiohttp's version, and ``tests/repl/net/test_frame.py`` checks that these parts behave as expected.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from aiohttp import ClientWebSocketResponse, WSCloseCode, WSMsgType
from aiohttp.web import WebSocketResponse

from repl.net.frames import SMALL_BYTES, small_frame
from repl.net.tap import Tap
from vlsn.errors import ChannelClosed, bare
from vlsn.limits import MIB
from vlsn.seams import Buffer

WRITE_BUFFER_BYTES = MIB
CLOSE_TIMEOUT_S = 1.0
"""The seconds that a server waits for the other side when it closes a channel. A client does not wait."""


def size_limit(message_bytes_max: int) -> int:
    """Returns aiohttp's ``max_msg_size`` for messages of up to ``message_bytes_max``. aiohttp's limit is the smallest
    size that is refused."""
    return message_bytes_max + 1


class WebSocketChannel:
    """``vlsn.seams.Channel`` for a WebSocket. It allows one reader and one writer at a time."""

    __slots__ = ("__weakref__", "_incoming", "_masked", "_socket", "_tap", "_transport")

    def __init__(self, socket: WebSocketResponse | ClientWebSocketResponse, transport: Any, tap: Tap) -> None:
        self._socket: Any = socket
        self._incoming: Any = socket._reader
        self._masked = isinstance(socket, ClientWebSocketResponse)
        self._transport = transport
        self._tap = tap

    async def send(self, message: Buffer) -> None:
        if len(message) <= SMALL_BYTES and self.send_now(message):
            return
        try:
            await self._socket.send_bytes(message)
        except (ConnectionError, RuntimeError) as error:
            raise ChannelClosed(f"the peer is gone: {bare(error)}") from None  # aiohttp's waiter keeps the error

    def send_now(self, message: Buffer) -> bool:
        transport = self._transport
        if transport.is_closing() or transport.get_write_buffer_size():
            return False
        if len(message) <= SMALL_BYTES:
            if self._socket._writer._closing:
                return False
            transport.write(small_frame(message, masked=self._masked))
            return True
        sending = self._socket.send_bytes(message)
        try:
            sending.send(None)
        except StopIteration:
            return True
        except (ConnectionError, RuntimeError):
            return False
        # The transport has the frame already. The rest of the call only waits until the peer has read more.
        sending.close()
        return True

    def received_bytes(self) -> int:
        return self._tap.received_bytes

    async def receive(self) -> bytes:
        try:
            message = await self._socket.receive()
            while message.type in (WSMsgType.PING, WSMsgType.PONG):
                if message.type is WSMsgType.PING and not self._ping_waits():
                    await self._socket.pong(message.data)
                message = await self._socket.receive()
        except (ConnectionError, RuntimeError) as error:
            raise ChannelClosed(f"the channel is closed: {error}") from None
        if message.type is WSMsgType.BINARY:
            data: bytes = message.data
            self._tap.received()
            return data
        # the tap's error, because the tap counts frames
        if message.type is WSMsgType.ERROR and isinstance(message.data, str):
            await self._socket.close(code=WSCloseCode.POLICY_VIOLATION, message=message.data.encode())
            raise ChannelClosed(f"the peer sent {message.data}")
        if message.type is WSMsgType.TEXT:
            await self._socket.close(code=WSCloseCode.UNSUPPORTED_DATA)
            raise ChannelClosed("the peer sent a text message")
        code = self._socket.close_code or 0
        said = f": {message.extra}" if message.type is WSMsgType.CLOSE and message.extra else ""
        raise ChannelClosed(f"the channel was closed (code {code}){said}", code=code)

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

    @property
    def context(self) -> object:
        """The TLS context in which the connection was made; ``None`` without TLS."""
        return self._transport.get_extra_info("sslcontext")

    def abort(self) -> None:
        """Ends the connection at once; its reader and writer get ``ChannelClosed``."""
        self._transport.abort()

    async def close(self, code: int = 1000) -> None:
        try:
            await self._socket.close(code=code)
        finally:
            if (kept := self._socket.exception()) is not None:
                bare(kept)
