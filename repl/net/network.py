"""The real ``Network``: listeners and outgoing calls on this process's sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from aiohttp import (
    ClientError,
    ClientHandlerType,
    ClientRequest,
    ClientResponse,
    ClientResponseError,
    ClientSession,
    ClientTimeout,
    ClientWSTimeout,
    DummyCookieJar,
    TCPConnector,
)

from repl.net.listener import HttpListener
from repl.net.places import CONNECTIONS_MAX, HEAD_S, IDLE_S
from repl.net.tap import Tap
from repl.net.websocket import WRITE_BUFFER_BYTES, WebSocketChannel, size_limit
from repl.web import problem
from repl.web.types import Handler, Headers, Quick, Response
from vlsn.errors import Unreachable, said_of
from vlsn.limits import MIB
from vlsn.seams import Buffer, Channel

ANSWER_BYTES_MAX = 96 * MIB
"""The largest answer that anyone asks for is a whole segment of the default size."""


def _refused(error: BaseException) -> bool:
    return isinstance(getattr(error, "os_error", error), ConnectionRefusedError)


_NO_TIMEOUT = ClientTimeout(total=None, sock_connect=None)
"""aiohttp's own timeouts are off, because two of its timers are nested. If a cancel comes in the same turn of the loop
as such a timeout, aiohttp takes it for the timeout, and the cancel is lost. ``asyncio.timeout`` keeps the two apart."""


class AiohttpNetwork:
    """The real network. Make it and use it on one event loop."""

    def __init__(
        self, *, head_s: float = HEAD_S, idle_s: float = IDLE_S, connections_max: int = CONNECTIONS_MAX
    ) -> None:
        """Makes the network. ``head_s``: the seconds that a client of a listener has to send a head. ``idle_s``: the
        seconds that may pass between two of its requests. ``connections_max``: the most connections of a listener."""
        self._session: ClientSession | None = None
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
        call = self._open().request(method, url, headers=headers, data=body or None, allow_redirects=False)
        try:
            async with asyncio.timeout(timeout_s), call as answer:
                return Response(answer.status, Headers(answer.headers), await _read(answer, url))
        except (ClientError, TimeoutError, OSError) as error:
            raise Unreachable(f"{method} {url}: {_said(error, timeout_s)}", refused=_refused(error)) from None

    async def connect(
        self,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        message_bytes_max: int,
        timeout_s: float,
        check: Callable[[Response], None] | None = None,
    ) -> Channel:
        try:
            async with asyncio.timeout(timeout_s):
                socket = await self._open().ws_connect(
                    url,
                    headers=headers,
                    compress=0,
                    autoping=False,
                    max_msg_size=size_limit(message_bytes_max),
                    timeout=ClientWSTimeout(ws_close=0),  # the end of a feed must not wait for a silent master
                )
        except _Refusal as refusal:
            if check is not None:
                check(refusal.answer)
            raise problem.error_of(bytes(refusal.answer.body)) from None
        except (ClientError, TimeoutError, OSError) as error:
            raise Unreachable(f"{url}: {_said(error, timeout_s)}", refused=_refused(error)) from None
        if check is not None:
            try:
                check(Response(socket._response.status, Headers(socket._response.headers)))
            except BaseException:
                await socket.close()
                raise
        connection = socket._response.connection
        protocol = connection.protocol if connection is not None else None
        if connection is None or protocol is None or connection.transport is None:
            raise Unreachable(f"{url}: the connection was lost right after the upgrade")
        connection.transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        # Nothing has arrived yet, because in every protocol here the connecting side speaks first.
        tap = Tap(message_bytes_max)
        protocol._payload_parser = tap.into(protocol._payload_parser)
        return WebSocketChannel(socket, connection.transport, tap)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _open(self) -> ClientSession:
        if self._session is None:
            self._session = ClientSession(
                connector=TCPConnector(limit=0),
                cookie_jar=DummyCookieJar(),
                auto_decompress=False,
                trust_env=False,
                timeout=_NO_TIMEOUT,
                middlewares=(_raise_refusal,),
            )
        return self._session


class _Refusal(Exception):
    """The answer to an upgrade that was refused."""

    def __init__(self, answer: Response) -> None:
        super().__init__()
        self.answer = answer


async def _raise_refusal(request: ClientRequest, handler: ClientHandlerType) -> ClientResponse:
    """Raises a refused upgrade's answer with its problem document, which aiohttp would drop."""
    answer = await handler(request)
    if answer.status >= 400 and "Upgrade" in request.headers:
        async with answer:
            body = await _read(answer, str(request.url))
            raise _Refusal(Response(answer.status, Headers(answer.headers), body))
    return answer


async def _read(answer: ClientResponse, url: str) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for part in answer.content.iter_any():
        size += len(part)
        if size > ANSWER_BYTES_MAX:
            raise Unreachable(f"{url}: an answer of more than {ANSWER_BYTES_MAX} bytes")
        parts.append(part)
    return b"".join(parts)


def _said(error: BaseException, timeout_s: float) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {timeout_s:g} s"
    if isinstance(error, ClientResponseError):
        return f"it does not answer as a node does: {error.message.partition(':')[0]}"
    return said_of(getattr(error, "os_error", error))
