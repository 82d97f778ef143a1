"""The real ``Network``: listeners and outgoing calls on this process's sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from math import inf
from ssl import SSLContext
from typing import Any, cast
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
from aiohttp.client_exceptions import ClientConnectorError
from aiohttp.client_proto import ResponseHandler

from repl.net.listener import HttpListener
from repl.net.places import CONNECTIONS_MAX, HEAD_S, IDLE_S
from repl.net.tap import Tap
from repl.net.tls import LOOK_S, TlsFiles, Trust, end_over
from repl.net.websocket import WRITE_BUFFER_BYTES, WebSocketChannel, size_limit
from repl.tls_files import lasts, said_of_tls, tls_failure
from repl.web import problem
from repl.web.types import Handler, Headers, Keeps, Quick, Response
from vlsn.errors import Unreachable, said_of
from vlsn.limits import MIB
from vlsn.seams import Buffer, Channel

ANSWER_BYTES_MAX = 96 * MIB
"""The largest answer that anyone asks for is a whole segment of the default size."""
CLOSE_TURNS_MAX = 16
"""The most turns of the loop in which a connection is lost that was aborted."""


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
        self._secure: set[asyncio.Transport] = set()
        """The connections of calls by https, until each is lost."""
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
            raise _unreachable(f"{method} {url}", error, timeout_s) from None

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
            raise _unreachable(url, error, timeout_s) from None
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
            for transport in tuple(
                self._secure
            ):  # each would wait for the other side's goodbye, longer than the loop may run
                transport.abort()
            for _ in range(CLOSE_TURNS_MAX):
                if not self._secure:
                    break
                await asyncio.sleep(0)

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
            connector = _Connector(limit=0)
            made = partial(_Connection, self._secure, loop=asyncio.get_running_loop())
            connector._factory = cast("partial[ResponseHandler]", made)
            self._session = ClientSession(
                connector=connector,
                cookie_jar=DummyCookieJar(),
                auto_decompress=False,
                trust_env=False,
                timeout=_NO_TIMEOUT,
                middlewares=(_raise_refusal,),
            )
        return self._session


class _Connection(ResponseHandler):
    """One connection of a call; one of TLS is in ``secure`` while it lasts."""

    def __init__(self, secure: set[asyncio.Transport], *, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._secure = secure
        self._kept: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if transport.get_extra_info("ssl_object") is not None:
            self._kept = cast("asyncio.Transport", transport)
            self._secure.add(self._kept)

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        if self._kept is not None:
            self._secure.discard(self._kept)
            self._kept = None


class _Connector(TCPConnector):
    """Lets uvloop make the sockets of connections.

    aiohttp gives it a socket of its own. If the other side resets that connection while TLS begins, uvloop has closed
    the descriptor and the socket closes it again. A later connection has that number by then: it is lost, no further
    one can use the number, and libuv ends the process. A member that is killed with connections in its backlog resets
    them all.
    """

    async def _wrap_create_connection(
        self, *args: Any, addr_infos: list[Any], **how: Any
    ) -> tuple[asyncio.Transport, ResponseHandler]:
        """Connects to the first of the addresses that answers."""
        if not type(self._loop).__module__.startswith("uvloop"):
            return await super()._wrap_create_connection(*args, addr_infos=addr_infos, **how)
        for *_, (host, port, *_) in addr_infos[:-1]:
            with suppress(ClientConnectorError):
                return await self._wrap_existing_connection(*args, host=host, port=port, **how)
        host, port, *_ = addr_infos[-1][-1]
        return await self._wrap_existing_connection(*args, host=host, port=port, **how)


class _Refusal(Exception):
    """The answer to an upgrade that was refused."""

    def __init__(self, answer: Response) -> None:
        super().__init__()
        self.answer = answer


async def _raise_refusal(request: ClientRequest, handler: ClientHandlerType) -> ClientResponse:
    """Raises a refused upgrade's answer with its problem document, which aiohttp would drop. A redirect is a refusal,
    too: aiohttp would call any host that it names."""
    answer = await handler(request)
    if answer.status >= 300 and "Upgrade" in request.headers:
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


def _unreachable(what: str, error: BaseException, timeout_s: float) -> Unreachable:
    refused = isinstance(getattr(error, "os_error", error), ConnectionRefusedError)
    return Unreachable(f"{what}: {_said(error, timeout_s)}", refused=refused, tls=lasts(tls_failure(error)))


def _said(error: BaseException, timeout_s: float) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {timeout_s:g} s"
    if isinstance(error, ClientResponseError):
        return f"it does not answer as a node does: {error.message.partition(':')[0]}"
    failure = tls_failure(error)
    return said_of_tls(failure) if failure is not None else said_of(getattr(error, "os_error", error))
