"""A channel over one WebSocket, of either side.

No compression (it would cost more than it saves, and blocks are to stay as they are); a text message, or one over
the limit, ends the channel.  ``send`` returns while less than ``WRITE_BUFFER_BYTES`` wait in the socket,
so that the next message can be made while the last one leaves.
"""

from __future__ import annotations

from typing import Any

from aiohttp import ClientWebSocketResponse, WSCloseCode, WSMsgType
from aiohttp.web import WebSocketResponse

from repl.net.arrivals import Arrival
from vlsn.errors import ChannelClosed
from vlsn.limits import MIB
from vlsn.seams import Buffer

WRITE_BUFFER_BYTES = MIB
CLOSE_TIMEOUT_S = 1.0
"""How long a close waits for the other side's."""


def size_limit(message_bytes_max: int) -> int:
    """aiohttp's ``max_msg_size`` for messages of up to ``message_bytes_max``: its limit is the first size refused."""
    return message_bytes_max + 1


class WebSocketChannel:
    """``vlsn.seams.Channel``; one reader and one writer at a time."""

    __slots__ = ("_arrival", "_socket", "_transport")

    def __init__(
        self, socket: WebSocketResponse | ClientWebSocketResponse, transport: Any = None, arrival: Arrival | None = None
    ) -> None:
        self._socket: Any = socket
        self._transport = transport
        self._arrival = arrival

    async def send(self, message: Buffer) -> None:
        try:
            await self._socket.send_bytes(message)
        except (ConnectionError, RuntimeError) as error:
            raise ChannelClosed(f"the peer is gone: {error}") from None

    def send_now(self, message: Buffer) -> bool:
        transport = self._transport
        if transport is None or transport.is_closing() or transport.get_write_buffer_size():
            return False
        sending = self._socket.send_bytes(message)
        try:
            sending.send(None)
        except StopIteration:
            return True
        except (ConnectionError, RuntimeError):
            return False
        # The frame is with the transport: what is left of the call only waits until the peer has read more.
        sending.close()
        return True

    async def receive(self) -> bytes:
        try:
            message = await self._socket.receive()
        except RuntimeError as error:
            raise ChannelClosed(f"the channel is closed: {error}") from None
        if message.type is WSMsgType.BINARY:
            data: bytes = message.data
            if self._arrival is not None:
                self._arrival.received()
            return data
        if message.type is WSMsgType.TEXT:
            await self._socket.close(code=WSCloseCode.UNSUPPORTED_DATA)
            raise ChannelClosed("the peer sent a text message")
        raise ChannelClosed(f"the channel was closed (code {self._socket.close_code})")

    async def close(self) -> None:
        await self._socket.close()
