"""Incoming connections, from a bound address to the gateway's handler.

A handler is cancelled when its client leaves.  Streams and channels are ended first when the listener closes;
other requests get ``CLOSE_S`` to be answered.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Coroutine
from functools import partial
from typing import Any, cast

from aiohttp import HttpVersion10, web

from repl.net.accepting import Accepting
from repl.net.arrivals import Arrivals
from repl.net.channel import size_limit
from repl.net.connection import Connection, IncomingBody, Server
from repl.net.doorway import Doorway
from repl.net.entrance import Entrance, room_of
from repl.net.lateness import Lateness
from repl.net.places import CONNECTIONS_MAX, HEAD_S, IDLE_S, is_kept
from repl.net.reply import Reply, Streams
from repl.net.tls import END_OLD_S, Trust, end_over
from repl.net.turns import Serving, Turns
from repl.net.websocket import CLOSE_TIMEOUT_S, WebSocketChannel
from repl.web import problem
from repl.web.types import Handler, Keeps, Quick, Request, Response, Upgrade
from vlsn.errors import BadArgument, QueueFull
from vlsn.histogram import Histogram

CLOSE_S = 2.0


class HttpListener:
    """One bound address and its connections."""

    def __init__(
        self,
        handler: Handler,
        quick: Quick | None,
        keeps: Keeps | None,
        *,
        head_s: float,
        idle_s: float,
        connections_max: int,
        trust: Trust | None = None,
        plain: bool = True,
    ) -> None:
        waiting_max = 0 if trust is None else room_of(connections_max)
        connections_max -= waiting_max  # each has a file descriptor
        self._handler = handler
        self._keeps = keeps or _is_of_kept_kind
        self._server = Server(self._serve, quick, head_s=head_s, idle_s=idle_s, connections_max=connections_max)
        self._streams = Streams()
        self._arrivals = Arrivals()
        self._turns = Turns()
        self._serving, self._serving_kept = Serving(), Serving()
        """Each turn has one share of time for strangers' requests, and one for requests of members, operators and
        health checks."""
        self._lateness = Lateness()
        self._trust = trust
        self._accepting = Accepting(
            partial(Doorway, self._server), trust=trust, plain=plain, head_s=head_s, waiting_max=waiting_max
        )
        self._scheme = "http" if plain else "https"
        self._looking: set[asyncio.Task[None]] = set()
        """The look at the files of TLS, and the ends of old connections."""
        self.url = ""

    @classmethod
    async def open(
        cls,
        host: str,
        port: int,
        handler: Handler,
        quick: Quick | None = None,
        keeps: Keeps | None = None,
        *,
        head_s: float = HEAD_S,
        idle_s: float = IDLE_S,
        connections_max: int = CONNECTIONS_MAX,
        trust: Trust | None = None,
        plain: bool = True,
    ) -> HttpListener:
        """Opens a listener; port 0 takes a free one. With ``trust`` it speaks TLS, and without TLS only if ``plain``.
        Raises ``OSError``."""
        listener = cls(
            *(handler, quick, keeps),
            head_s=head_s,
            idle_s=idle_s,
            connections_max=connections_max,
            trust=trust,
            plain=plain,
        )
        port = await listener._accepting.bind(host, port)
        listener._lateness.begin()
        listener.url = f"{listener._scheme}://{f'[{host}]' if ':' in host else host}:{port}"
        if trust is not None and trust.own is not None:
            listener._server.group = trust.own.group
            trust.shrunk.append(listener._end_old)
            listener._keep(trust.run())
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

    @property
    def tls_not_after_s(self) -> float:
        return 0.0 if self._trust is None else self._trust.loaded.not_after_s

    @property
    def entrance(self) -> Entrance | None:
        return self._accepting.entrance

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name="tls")
        self._looking.add(task)
        task.add_done_callback(self._looking.discard)

    def _end_old(self, contexts: frozenset[ssl.SSLContext]) -> None:
        old = self._server.places.of_other_contexts(contexts)
        self._keep(end_over([each.end for each in old]))
        self._keep(end_over([each.give_way for each in old], after_s=END_OLD_S))

    async def close(self) -> None:
        self._lateness.close()
        for looking in self._looking:
            looking.cancel()
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
        request = Request(
            *(incoming.method, incoming.raw_path, incoming.headers, IncomingBody(incoming), connection.remote),
            members=connection.members,
            uris=connection.uris,
        )
        if not self._server.places.serves(connection, partial(self._keeps, request)):
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


def _is_of_kept_kind(request: Request) -> bool:
    return is_kept(request.target)
