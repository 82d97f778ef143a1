"""WebSockets as any client would open them; the messages are passed on unread."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress

from aiohttp import ClientError, ClientSession, ClientWebSocketResponse, WSMsgType

WAIT_S = 60.0


@asynccontextmanager
async def websocket(url: str, headers: Mapping[str, str] | None = None) -> AsyncIterator[ClientWebSocketResponse]:
    async with (
        asyncio.timeout(WAIT_S),
        ClientSession() as session,
        session.ws_connect(url, headers=headers, compress=0, max_msg_size=0) as socket,
    ):
        yield socket


async def tell(socket: ClientWebSocketResponse, message: bytes) -> None:
    """Sends, whether or not the other side hears all of it out."""
    with suppress(ConnectionError, ClientError):
        await socket.send_bytes(message)


async def until_closed(socket: ClientWebSocketResponse) -> list[bytes]:
    """Collects what still comes before the other side closes."""
    found: list[bytes] = []
    while True:
        message = await socket.receive()
        if message.type is not WSMsgType.BINARY:
            return found
        found.append(message.data)
