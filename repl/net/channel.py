"""A channel over one WebSocket of aiohttp, by aiohttp's public API alone. A text message, or a message over the limit,
ends the channel. There is no compression: it would cost more than it saves, and blocks must stay as they are.

    received ─► one small message, alone, and ``deliver`` waits ─► take
             └► anything else ─► aiohttp's reader and its queue ─► ``deliver`` or ``receive``, one turn later

``send`` returns while few bytes wait in the socket, so that the next message can be made while the last message is
sent. ``WRITE_BUFFER_BYTES`` is the limit for a client.
"""

from __future__ import annotations

import asyncio
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any

from aiohttp import ClientWebSocketResponse, WSCloseCode, WSMsgType

from repl.net.frames import SMALL_BYTES, small_frame
from repl.net.tap import ALL_READ, Tap
from vlsn.errors import ChannelClosed, bare
from vlsn.limits import MIB
from vlsn.seams import Buffer

WRITE_BUFFER_BYTES = MIB


def size_limit(message_bytes_max: int) -> int:
    """Returns aiohttp's ``max_msg_size`` for messages of up to ``message_bytes_max``. aiohttp's limit is the smallest
    size that is refused."""
    return message_bytes_max + 1


class ProtocolTap(Tap, asyncio.Protocol):
    """A tap in the place of a transport's protocol, which gets all that the tap does not take."""

    def __init__(self, message_bytes_max: int, inner: asyncio.Protocol) -> None:
        super().__init__(message_bytes_max)
        self._inner = inner

    data_received = Tap.feed_data  # type: ignore[assignment]

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self.take = None
        self._inner.connection_lost(exc)

    def _read(self, data: bytes) -> tuple[bool, bytes]:
        self._frames.feed(data)
        self.take = None  # aiohttp's reader gets a message, which comes before all later messages
        self._inner.data_received(data)
        return ALL_READ


class SocketChannel:
    """``vlsn.seams.Channel`` for a client's WebSocket. It allows one reader and one writer at a time."""

    __slots__ = ("__weakref__", "_masked", "_socket", "_tap", "_transport")

    def __init__(self, socket: Any, transport: Any, tap: Tap) -> None:
        self._socket = socket
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
            if self._has_said_goodbye():
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
        return await self._received(self._socket.receive)

    async def _received(self, next_one: Callable[[], Awaitable[Any]]) -> bytes:
        """Returns the next message that ``next_one`` returns, and answers pings before it."""
        try:
            message = await next_one()
            while message.type in (WSMsgType.PING, WSMsgType.PONG):
                if message.type is WSMsgType.PING and not self._ping_waits():
                    await self._socket.pong(message.data)
                message = await next_one()
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
        tap, socket = self._tap, self._socket
        wanted = True
        fault: BaseException | None = None
        waiter: asyncio.Future[Any] | None = None

        def taken(message: bytes) -> None:
            nonlocal wanted, fault
            try:
                wanted = take(message)
            except BaseException as error:  # an error in the loop's callback goes to our caller
                wanted, fault = False, error
            if not wanted:
                tap.take = None
                assert waiter is not None
                waiter.cancel()

        def waits(future: asyncio.Future[Any]) -> None:
            """Takes small messages from the tap while aiohttp has none."""
            nonlocal waiter
            waiter = future
            if not socket.closed:
                tap.take = taken

        async def next_one() -> Any:
            return await _watched(socket.receive(), waits)

        try:
            while True:
                try:
                    message = await self._received(next_one)
                except asyncio.CancelledError:
                    if wanted or _is_cancelled():
                        raise
                    if fault is not None:
                        raise fault from None
                    return
                if not take(message):
                    return
        finally:
            tap.take = None
            fault = waiter = None  # the error's traceback refers to ``taken``

    def _has_said_goodbye(self) -> bool:
        """Says whether a close frame was sent, after which no frame may follow."""
        closed: bool = self._socket.closed
        return closed

    def _ping_waits(self) -> bool:
        """Says whether a later ping waits already, whose answer is enough (RFC 6455 §5.5.3)."""
        return False

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


def _is_cancelled() -> bool:
    """Says whether somebody has cancelled the task that runs, and not only the future that it waited for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


@types.coroutine
def _watched(
    receiving: Coroutine[Any, Any, Any], waits: Callable[[asyncio.Future[Any]], None]
) -> Generator[Any, None, Any]:
    """Awaits ``receiving``. Calls ``waits`` with each future that it waits for."""
    step: Callable[[Any], Any] = receiving.send
    with_: Any = None
    try:
        while True:
            try:
                future = step(with_)
            except StopIteration as done:
                return done.value
            waits(future)
            try:
                yield future
            except BaseException as error:
                step, with_ = receiving.throw, error
            else:
                step, with_ = receiving.send, None
    finally:
        with_ = None  # the error's traceback refers to this frame
