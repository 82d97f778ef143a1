"""The real ``Network``: listeners and outgoing calls on this process's sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from math import inf
from ssl import SSLContext, SSLError
from weakref import WeakSet

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
from repl.net.tls import LOOK_S, TlsFiles, Trust, end_over, refusal_of
from repl.net.websocket import WRITE_BUFFER_BYTES, WebSocketChannel, size_limit
from repl.web import problem
from repl.web.types import Handler, Headers, Keeps, Quick, Response
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
        self,
        *,
        head_s: float = HEAD_S,
        idle_s: float = IDLE_S,
        connections_max: int = CONNECTIONS_MAX,
        tls: Trust | TlsFiles | None = None,
        plain: bool = True,
    ) -> None:
        """Makes the network. ``head_s``: the seconds that a client of a listener has to send a head. ``idle_s``: the
        seconds that may pass between two of its requests. ``connections_max``: the most connections of a listener.

        ``tls``: a node's ``Trust``, by which a listener speaks TLS, and without TLS only if ``plain``; or the files for
        calls of https, by default those of the environment."""
        self._session: ClientSession | None = None
        self._files = tls if isinstance(tls, TlsFiles) else None
        self._trust = tls if isinstance(tls, Trust) else None
        self._serves_tls = self._trust is not None
        self._plain = plain
        self._looked_s = 0.0
        self._channels: WeakSet[WebSocketChannel] = WeakSet()
        """The channels of calls by https."""
        self._ending: set[asyncio.Task[None]] = set()
        self._head_s, self._idle_s = head_s, idle_s
        self._connections_max = connections_max

    async def serve(
        self, host: str, port: int, handler: Handler, *, quick: Quick | None = None, keeps: Keeps | None = None
    ) -> HttpListener:
        return await HttpListener.open(
            *(host, port, handler, quick, keeps),
            head_s=self._head_s,
            idle_s=self._idle_s,
            connections_max=self._connections_max,
            trust=self._trust if self._serves_tls else None,
            plain=self._plain,
        )

    async def request(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: Buffer = b"",
        timeout_s: float,
        peer: str = "",
    ) -> Response:
        call = self._open().request(
            *(method, url), headers=headers, data=body or None, allow_redirects=False, ssl=self._context(url, peer)
        )
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
        peer: str = "",
    ) -> Channel:
        context = self._context(url, peer)
        try:
            async with asyncio.timeout(timeout_s):
                socket = await self._open().ws_connect(
                    url,
                    headers=headers,
                    compress=0,
                    autoping=False,
                    max_msg_size=size_limit(message_bytes_max),
                    ssl=context,
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
        channel = WebSocketChannel(socket, connection.transport, tap)
        if context is not True:
            self._channels.add(channel)
        return channel

    async def close(self) -> None:
        for ending in self._ending:
            ending.cancel()
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _context(self, url: str, peer: str) -> SSLContext | bool:
        """Returns the TLS context of a call; True for one without TLS. Raises ``BadArgument``."""
        if not url.startswith("https:"):
            return True
        now = asyncio.get_running_loop().time()
        if self._trust is None:
            self._trust, self._looked_s = Trust(self._files or TlsFiles.of_environment()), now
        if not self._looked_s and self._serves_tls:  # a listener looks at the files
            self._looked_s = inf
            self._trust.shrunk.append(self._end_old)
        elif now - self._looked_s >= LOOK_S:
            self._looked_s = now
            self._trust.look()
        return self._trust.loaded.to(peer)

    def _end_old(self, contexts: frozenset[SSLContext]) -> None:
        """Ends the channels that were opened before an authority was removed. Other connections end by themselves,
        because none is used again in another context."""
        old = [each.abort for each in self._channels if each.context not in contexts]
        task = asyncio.create_task(end_over(old), name="tls")
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

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
    cause: BaseException = getattr(error, "certificate_error", getattr(error, "os_error", error))
    return f"TLS: {refusal_of(cause)}" if isinstance(cause, SSLError) else said_of(cause)
