"""Incoming connections, from a bound address to the gateway's handler.

A handler is cancelled when its client leaves.  Streams and channels are ended first when the listener closes;
other requests get ``CLOSE_S`` to be answered.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import cast

from aiohttp import HttpVersion10, web

from repl.net.accepting import Accepting
from repl.net.arrivals import Arrivals
from repl.net.connection import Connection, IncomingBody, Server
from repl.net.doorway import Doorway
from repl.net.lateness import Lateness
from repl.net.places import CONNECTIONS_MAX, HEAD_S, IDLE_S, is_kept
from repl.net.reply import Reply, Streams
from repl.net.turns import Serving, Turns
from repl.net.websocket import CLOSE_TIMEOUT_S, WebSocketChannel, size_limit
from repl.web import problem
from repl.web.types import Handler, Quick, Request, Response, Upgrade
from vlsn.errors import BadArgument, QueueFull
from vlsn.histogram import Histogram

CLOSE_S = 2.0


class HttpListener:
    """One bound address and its connections."""

    def __init__(
        self, handler: Handler, quick: Quick | None, *, head_s: float, idle_s: float, connections_max: int
    ) -> None:
        self._handler = handler
        self._server = Server(self._serve, quick, head_s=head_s, idle_s=idle_s, connections_max=connections_max)
        self._streams = Streams()
        self._arrivals = Arrivals()
        self._turns = Turns()
        self._serving, self._serving_kept = Serving(), Serving()
        """Each turn has one share of time for strangers' requests, and one for requests of members, operators and
        health checks."""
        self._lateness = Lateness()
        self._accepting = Accepting(partial(Doorway, self._server))
        self.url = ""

    @classmethod
    async def open(
        cls,
        host: str,
        port: int,
        handler: Handler,
        quick: Quick | None = None,
        *,
        head_s: float = HEAD_S,
        idle_s: float = IDLE_S,
        connections_max: int = CONNECTIONS_MAX,
    ) -> HttpListener:
        """Opens a listener; port 0 takes a free one. Raises ``OSError``."""
        listener = cls(handler, quick, head_s=head_s, idle_s=idle_s, connections_max=connections_max)
        port = await listener._accepting.bind(host, port)
        listener._lateness.begin()
        listener.url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        return listener

    @property
    def untaken_bytes(self) -> int:
        return self._server.untaken.bytes

    @property
    def given_up(self) -> int:
        return self._server.untaken.given_up

    @property
    def lateness(self) -> Histogram:
        return self._lateness.seconds

    async def close(self) -> None:
        self._lateness.close()
        await self._accepting.close()
        self._server.places.close()
        for task in self._streams.tasks:
            task.cancel()
        self._server.pre_shutdown()
        await self._server.shutdown(CLOSE_S)

    async def _serve(self, incoming: web.BaseRequest) -> web.StreamResponse:
        if incoming.version < HttpVersion10:  # a bare "GET /", which the parser takes for HTTP/0.9
            return self._reply(problem.response(BadArgument("the request names no version of HTTP")))
        connection = cast(Connection, incoming.protocol)
        request = Request(incoming.method, incoming.raw_path, incoming.headers, IncomingBody(incoming))
        if not self._server.places.serves(connection, request.target):
            busy = QueueFull("all connections are busy; those left are for members, operators and health checks")
            return cast(web.StreamResponse, Reply(problem.response(busy), self._streams, last=True))
        await (self._serving_kept if is_kept(request.target) else self._serving).turn()
        answer = await self._handler(request)
        if isinstance(answer, Upgrade):
            return await self._upgrade(incoming, answer)
        return self._reply(answer)

    def _reply(self, response: Response) -> web.StreamResponse:
        return cast(web.StreamResponse, Reply(response, self._streams))

    async def _upgrade(self, incoming: web.BaseRequest, upgrade: Upgrade) -> web.StreamResponse:
        ws = web.WebSocketResponse(
            compress=False,
            autoping=False,
            max_msg_size=size_limit(upgrade.message_bytes_max),
            timeout=CLOSE_TIMEOUT_S,
        )
        ws.headers.update(upgrade.headers)
        connection = cast(Connection, incoming.protocol)
        tap = connection.tapped(self._arrivals, self._turns, upgrade)
        try:
            await ws.prepare(incoming)
        except web.HTTPException as refused:
            tap.close()
            response = problem.response(BadArgument(f"the upgrade is not one: {refused.text}"))
            return self._reply(response)
        tap.queue = ws._reader
        transport = incoming.transport
        if transport is None:  # the connection is lost already
            tap.close()
            return ws
        transport.set_write_buffer_limits(high=upgrade.ahead_bytes)
        channel = WebSocketChannel(ws, transport, tap)
        task = asyncio.current_task()
        assert task is not None
        self._streams.tasks.add(task)
        try:
            await upgrade.run(channel)
        finally:
            self._streams.tasks.discard(task)
            tap.close()
            if connection.writing_paused:  # its answers wait here, because the client does not read
                transport.abort()
            await channel.close()
        return ws
