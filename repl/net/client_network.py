"""The network of a client: calls and channels by the public API of aiohttp and asyncio alone, and no listener.

aiohttp's privates change between its minor versions. A client shares aiohttp with the application, so it uses none.

    request     aiohttp's session, its pool and its parser
    connect     its upgrade; then a tap in the place of the transport's protocol (``channel.py``)
    https       ``Authorities``: the files are looked at again every ``LOOK_S`` seconds
    close       each socket is shut down, so no connection waits for the other side

``network.py`` has the network of a node, which differs so: a message that is no small one alone is taken in the turn in
which it arrives, only the last of several pings is answered, and a member's certificate must name the member.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from contextvars import ContextVar
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
    ClientWebSocketResponse,
    ClientWSTimeout,
    DummyCookieJar,
    TCPConnector,
)

from repl.net.channel import WRITE_BUFFER_BYTES, ProtocolTap, SocketChannel, size_limit
from repl.tls_files import LOOK_S, Authorities, TlsFiles, lasts, said_of_tls, tls_failure
from repl.web import problem
from repl.web.types import Handler, Headers, Keeps, Listener, Quick, Response
from vlsn.errors import Unreachable, said_of
from vlsn.limits import MIB
from vlsn.real.regular_files import open_regular
from vlsn.seams import Buffer, Channel

ANSWER_BYTES_MAX = 96 * MIB
"""The largest answer that anyone asks for is a whole segment of the default size."""
CLOSE_TURNS_MAX = 16
"""The most turns of the loop in which a connection is lost that was aborted."""

_NO_TIMEOUT = ClientTimeout(total=None, sock_connect=None)
"""aiohttp's own timeouts are off, because two of its timers are nested. If a cancel comes in the same turn of the loop
as such a timeout, aiohttp takes it for the timeout, and the cancel is lost. ``asyncio.timeout`` keeps the two apart."""


class ClientNetwork:
    """``Network`` for calls. Make it and use it on one event loop."""

    def __init__(self, *, tls: TlsFiles | None = None) -> None:
        """Makes the network. ``tls``: the files for calls of https, by default those of the environment."""
        self._session: ClientSession | None = None
        self._files = tls
        self._authorities: Authorities | None = None
        self._looked_s = 0.0
        self._sockets: WeakSet[OwnSocket] = WeakSet()

    async def serve(
        self, host: str, port: int, handler: Handler, *, quick: Quick | None = None, keeps: Keeps | None = None
    ) -> Listener:
        raise NotImplementedError("a client's network does not serve")

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
        upgraded: list[ClientResponse] = []
        try:
            async with asyncio.timeout(timeout_s):
                opened = await self._upgraded(url, headers, message_bytes_max, context, upgraded)
        except _Refusal as refusal:
            if check is not None:
                check(refusal.answer)
            raise problem.error_of(bytes(refusal.answer.body)) from None
        except (ClientError, TimeoutError, OSError) as error:
            raise _unreachable(url, error, timeout_s) from None
        (answer,) = upgraded
        if check is not None:
            try:
                check(Response(answer.status, Headers(answer.headers)))
            except BaseException:
                await opened.close()
                raise
        connection = answer.connection
        if connection is None or connection.transport is None:
            raise Unreachable(f"{url}: the connection was lost right after the upgrade")
        connection.transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        # Nothing has arrived yet, because in every protocol here the connecting side speaks first.
        return self._channel(opened, answer, connection.transport, message_bytes_max)

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is None:
            return
        for each in self._sockets:  # a connection of TLS would wait for a goodbye, longer than the loop may run
            each.end()
        await session.close()
        for _ in range(CLOSE_TURNS_MAX):
            if not any(each.owns() for each in self._sockets):
                break
            await asyncio.sleep(0)

    async def _upgraded(
        self,
        url: str,
        headers: Mapping[str, str] | None,
        message_bytes_max: int,
        context: SSLContext | bool,
        upgraded: list[ClientResponse],
    ) -> ClientWebSocketResponse:
        """Opens a WebSocket. Puts the 101 into ``upgraded``."""
        session, before = self._open(), _upgrading.set(upgraded)
        try:
            return await session.ws_connect(
                url,
                headers=headers,
                compress=0,
                autoping=False,
                max_msg_size=size_limit(message_bytes_max),
                ssl=context,
                timeout=ClientWSTimeout(ws_close=0),  # the end of a feed must not wait for a silent master
            )
        finally:
            _upgrading.reset(before)

    def _channel(
        self, opened: ClientWebSocketResponse, answer: ClientResponse, transport: asyncio.Transport, bytes_max: int
    ) -> SocketChannel:
        """Makes the channel of a new WebSocket, with its tap."""
        tap = ProtocolTap(bytes_max, cast("asyncio.Protocol", transport.get_protocol()))
        transport.set_protocol(tap)
        return SocketChannel(opened, transport, tap)

    def _context(self, url: str, peer: str) -> SSLContext | bool:
        """Returns the TLS context of a call; True for one without TLS. Raises ``BadArgument``."""
        if not url.startswith("https:"):
            return True
        now = asyncio.get_running_loop().time()
        if self._authorities is None:
            self._authorities = Authorities(self._files or TlsFiles.of_environment(), _Files())
            self._looked_s = now
        elif now - self._looked_s >= LOOK_S:
            self._looked_s = now
            self._authorities.look()
        return self._authorities.context

    def _connector(self) -> TCPConnector:
        return TCPConnector(limit=0, socket_factory=self._socket)

    def _socket(self, address: tuple[Any, ...]) -> socket.socket:
        made = OwnSocket(*address[:3])
        self._sockets.add(made)
        return made

    def _open(self) -> ClientSession:
        if self._session is None:
            self._session = ClientSession(
                connector=self._connector(),
                cookie_jar=DummyCookieJar(),
                auto_decompress=False,
                trust_env=False,
                timeout=_NO_TIMEOUT,
                middlewares=(_keep_answer,),
            )
        return self._session


class OwnSocket(socket.socket):
    """A socket that closes its descriptor only while the descriptor is its own.

    uvloop uses the descriptor of a socket that aiohttp has made. If the other side resets that connection while TLS
    begins, uvloop closes the descriptor, and the socket would close it again. A later connection has that number by
    then: it would be lost, no further one could use the number, and libuv would end the process. A member that is
    killed with connections in its backlog resets them all.
    """

    _made: tuple[int, int] | None = None

    def __init__(self, family: int, kind: int, protocol: int) -> None:
        super().__init__(family, kind, protocol)
        self._made = _identity(self.fileno())
        self._process = os.getpid()

    def owns(self) -> bool:
        """Says whether the descriptor is open, and is the one that this socket was made with."""
        return self.fileno() >= 0 and _identity(self.fileno()) == self._made

    def end(self) -> None:
        """Shuts the connection down in both directions. Its transport finds that it has ended. A forked child leaves
        the connection to its parent."""
        if self.owns() and os.getpid() == self._process:
            with suppress(OSError):  # it is not connected
                self.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        if not self.owns():
            self.detach()
        super().close()

    def __del__(self) -> None:
        self.close()


def _identity(descriptor: int) -> tuple[int, int] | None:
    """Returns numbers that no two open files share; ``None`` for a descriptor that is closed."""
    try:
        found = os.fstat(descriptor)
    except OSError:
        return None
    return found.st_dev, found.st_ino


class _File:
    """A PEM file, opened to be read."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def read(self, offset: int, size: int) -> bytes:
        parts = list[bytes]()
        while size and (part := os.pread(self._descriptor, size, offset)):
            parts.append(part)
            offset, size = offset + len(part), size - len(part)
        return b"".join(parts)

    def stamp(self) -> tuple[int, ...]:
        found = os.fstat(self._descriptor)
        return found.st_ino, found.st_dev, found.st_size, found.st_mtime_ns

    def close(self) -> None:
        os.close(self._descriptor)


class _Files:
    """The real ``PemDisk``, without the rest of a node's disk."""

    def open(self, path: str) -> _File:
        return _File(open_regular(path, os.O_RDONLY))


_upgrading: ContextVar[list[ClientResponse] | None] = ContextVar("_upgrading", default=None)
"""Gets the answer to the upgrade that this task asks for. aiohttp returns the WebSocket, without its answer."""


class _Refusal(Exception):
    """The answer to an upgrade that was refused."""

    def __init__(self, answer: Response) -> None:
        super().__init__()
        self.answer = answer


async def _keep_answer(request: ClientRequest, handler: ClientHandlerType) -> ClientResponse:
    """Keeps the answer to an upgrade. Raises a refusal with its problem document, which aiohttp would drop. A redirect
    is a refusal, too: aiohttp would call any host that it names."""
    answer = await handler(request)
    upgraded = _upgrading.get()
    if upgraded is None:
        return answer
    if answer.status >= 300:
        async with answer:
            body = await _read(answer, str(request.url))
            raise _Refusal(Response(answer.status, Headers(answer.headers), body))
    upgraded.append(answer)
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
