"""Incoming connections, from a bound address to the gateway's handler.

A handler is cancelled when its client leaves.  Streams and channels are ended first when the listener closes;
other requests get ``CLOSE_S`` to be answered.
"""

from __future__ import annotations

import asyncio
from typing import cast

from aiohttp import HttpVersion10, web

from repl.http import problem
from repl.http.types import Handler, Quick, Request, Response, Upgrade
from repl.net.arrivals import Arrivals
from repl.net.connection import Connection, IncomingBody, Server
from repl.net.reply import Reply
from repl.net.websocket import CLOSE_TIMEOUT_S, WRITE_BUFFER_BYTES, WebSocketChannel, size_limit
from vlsn.errors import BadArgument

BACKLOG = 1_024
CLOSE_S = 2.0


class HttpListener:
    """One bound address and its connections."""

    def __init__(self, handler: Handler, quick: Quick | None) -> None:
        self._handler = handler
        self._server = Server(self._serve, quick)
        self._streams: set[asyncio.Task[object]] = set()
        self._arrivals = Arrivals()
        self._bound: asyncio.Server | None = None
        self.url = ""

    @classmethod
    async def open(cls, host: str, port: int, handler: Handler, quick: Quick | None = None) -> HttpListener:
        """Port 0 takes a free one.  Raises ``OSError``."""
        listener = cls(handler, quick)
        loop = asyncio.get_running_loop()
        listener._bound = await loop.create_server(listener._server, host, port, backlog=BACKLOG)
        port = listener._bound.sockets[0].getsockname()[1]
        listener.url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        return listener

    async def close(self) -> None:
        if self._bound is not None:
            self._bound.close()
        for task in self._streams:
            task.cancel()
        self._server.pre_shutdown()
        await self._server.shutdown(CLOSE_S)
        if self._bound is not None:
            await self._bound.wait_closed()

    async def _serve(self, incoming: web.BaseRequest) -> web.StreamResponse:
        target = incoming.raw_path
        if not target.startswith("/"):
            target = str(incoming.rel_url) if "://" in target else "/" + target
        body = IncomingBody(incoming)
        if incoming.version < HttpVersion10:  # a bare "GET /": the parser takes it for HTTP/0.9
            return self._reply(problem.response(BadArgument("the request names no version of HTTP")), body)
        answer = await self._handler(Request(incoming.method, target, incoming.headers, body))
        if isinstance(answer, Upgrade):
            return await self._upgrade(incoming, answer)
        return self._reply(answer, body)

    def _reply(self, response: Response, body: IncomingBody) -> web.StreamResponse:
        return cast(web.StreamResponse, Reply(response, body, self._streams))

    async def _upgrade(self, incoming: web.BaseRequest, upgrade: Upgrade) -> web.StreamResponse:
        ws = web.WebSocketResponse(
            compress=False, max_msg_size=size_limit(upgrade.message_bytes_max), timeout=CLOSE_TIMEOUT_S
        )
        connection = cast(Connection, incoming.protocol)
        tap = connection.tapped(self._arrivals, upgrade.message_bytes_max)
        try:
            await ws.prepare(incoming)
        except web.HTTPException as refused:
            tap.close()
            response = problem.response(BadArgument(f"the upgrade is not one: {refused.text}"))
            return self._reply(response, IncomingBody(incoming))
        transport = incoming.transport
        if transport is None:  # it is lost already
            tap.close()
            return ws
        transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        task = asyncio.current_task()
        assert task is not None
        self._streams.add(task)
        try:
            await upgrade.run(WebSocketChannel(ws, transport, tap))
        finally:
            self._streams.discard(task)
            tap.close()
            await ws.close()
        return ws
