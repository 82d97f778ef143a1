"""The real ``Network``: listeners and outgoing calls on this process's sockets."""

from __future__ import annotations

from collections.abc import Mapping

from repl.net.client import Client
from repl.net.places import CONNECTIONS_MAX, HEAD_S, IDLE_S
from repl.net.server import HttpListener
from repl.web.types import Handler, Quick, Response
from vlsn.seams import Buffer, Channel


class AiohttpNetwork:
    """The real network, made and used on one event loop."""

    def __init__(
        self, *, head_s: float = HEAD_S, idle_s: float = IDLE_S, connections_max: int = CONNECTIONS_MAX
    ) -> None:
        """Sets the seconds that clients of its listeners have for a head, and between two requests, and how many may
        be connected."""
        self._client = Client()
        self._head_s, self._idle_s = head_s, idle_s
        self._connections_max = connections_max

    async def serve(self, host: str, port: int, handler: Handler, *, quick: Quick | None = None) -> HttpListener:
        return await HttpListener.open(
            *(host, port, handler, quick),
            head_s=self._head_s,
            idle_s=self._idle_s,
            connections_max=self._connections_max,
        )

    async def request(
        self, method: str, url: str, *, headers: Mapping[str, str] | None = None, body: Buffer = b"", timeout_s: float
    ) -> Response:
        return await self._client.request(method, url, headers=headers, body=body, timeout_s=timeout_s)

    async def connect(
        self, url: str, *, headers: Mapping[str, str] | None = None, message_bytes_max: int, timeout_s: float
    ) -> Channel:
        return await self._client.connect(
            url, headers=headers, message_bytes_max=message_bytes_max, timeout_s=timeout_s
        )

    async def close(self) -> None:
        await self._client.close()
