"""Requests, responses and the network, as types of our own.

Routes are functions from ``Request`` to ``Response`` or ``Upgrade``. ``repl/net`` carries requests and responses over
aiohttp; the simulation's fake network carries them over its own queues. A body is read only if a route asks for it, and
never beyond the limit that the route names.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol
from urllib.parse import parse_qsl

from repl.web.grants import ANYBODY
from repl.web.limits import BODY_S
from vlsn.errors import BadArgument, BadBody, Forbidden, TooLarge
from vlsn.histogram import Histogram
from vlsn.limits import MIB
from vlsn.seams import Buffer, Channel

QUERY_FIELDS_MAX = 16
DURABLE = "Vlsnlog-Durable"
"""The header in which a node answers up to where it knows the log to be durable."""
TLS = "Vlsnlog-Tls"
TLS_ALONE = "require"
"""The header by which a port that speaks TLS alone refuses plain HTTP, and its value."""
_ABSOLUTE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://([^/?#]*)")


class Headers(Mapping[str, str]):
    """Header fields by name; upper and lower case count as the same. A field that is given twice keeps its first
    value."""

    __slots__ = ("_fields",)

    def __init__(self, fields: Mapping[str, str] | Iterable[tuple[str, str]] = ()) -> None:
        pairs = fields.items() if isinstance(fields, Mapping) else fields
        self._fields: dict[str, tuple[str, str]] = {}
        for name, value in pairs:
            self._fields.setdefault(name.lower(), (name, value))

    def __getitem__(self, name: str) -> str:
        return self._fields[name.lower()][1]

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self._fields.values())

    def __len__(self) -> int:
        return len(self._fields)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name.lower() in self._fields


class Body(Protocol):
    """The body of a request that is being received."""

    @property
    def length(self) -> int | None:
        """The value of Content-Length, 0 if there is no body, ``None`` for a chunked body."""
        ...

    async def read(self) -> bytes:
        """Reads the next bytes, or ``b""`` at the end. Raises ``ChannelClosed`` if the sender is gone."""
        ...


class BytesBody:
    """A body whose bytes have all arrived."""

    __slots__ = ("_data", "length")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.length: int | None = len(data)

    async def read(self) -> bytes:
        data, self._data = self._data, b""
        return data


class Request:
    """One request. ``target`` is the path and query as they were sent; ``path`` is its path. Routes decode
    percent-encoded names in the path later. ``headers`` ignores upper and lower case."""

    __slots__ = (
        "_body",
        "_query",
        "grant",
        "headers",
        "host",
        "key",
        "members",
        "method",
        "path",
        "query_text",
        "remote",
        "target",
        "uris",
    )

    def __init__(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: Body,
        remote: str = "",
        *,
        members: frozenset[str] | None = None,
        uris: frozenset[str] = frozenset(),
    ) -> None:
        self.method = method
        self.headers = headers
        self.remote = remote
        self.members = members
        """The members that the certificate of this connection names. ``None`` for a connection without TLS."""
        self.uris = uris
        """The URIs of the verified certificate that the client has shown."""
        self.key = ""
        """The ID of the group's key that has signed this request, once its signature is checked; "" for none."""
        self._body = body
        self.grant = ANYBODY
        """The rights of the sender, once the gateway has found them out."""
        self.host = headers.get("Host")
        """The host that the request is for. The host of an absolute target takes precedence over the header (RFC 9112
        §3.2.2)."""
        if not target.startswith("/"):
            host, target = _origin_form(target)
            self.host = self.host if host is None else host
        self.target = target
        self.path, _, self.query_text = target.partition("?")
        self._query: dict[str, str] | None = None

    @property
    def query(self) -> Mapping[str, str]:
        """The fields of the query. Bytes that are not UTF-8 become lone surrogates (PEP 383). Raises ``BadArgument``
        for a field that is given twice or has no ``=``, and for too many fields."""
        if self._query is None:
            self._query = _parse_query(self.query_text) if self.query_text else {}
        return self._query

    @property
    def body_length(self) -> int | None:
        """The number of bytes announced; ``None`` if it is known only at the end."""
        return self._body.length

    async def body(self, limit: int) -> bytes:
        """Reads the whole body. Raises ``TooLarge`` without reading if more than ``limit`` bytes are announced, and as
        soon as more have arrived. Raises ``BadBody`` if the body does not arrive within ``BODY_S``, and the refusal
        of a grant that has ended meanwhile."""
        length = self._body.length
        if length == 0:
            return b""
        if length is not None and length > limit:
            raise TooLarge(f"the body has {length} bytes, the limit is {limit}")
        if isinstance(self._body, BytesBody):
            return await self._body.read()
        async with in_time():
            parts, size = [first := await self._body.read()], len(first)
            while size != length and size <= limit and (part := await self._body.read()):
                parts.append(part)
                size += len(part)
        if size > limit:
            raise TooLarge(f"the body has more than {limit} bytes")
        if (refusal := self.grant.refusal()) is not None:
            raise refusal
        return b"".join(parts)

    def with_body(self, data: bytes) -> Request:
        """Returns the same request with its body, which was read, to be read again."""
        sent = self.method, self.target, self.headers, BytesBody(data), self.remote
        request = Request(*sent, members=self.members, uris=self.uris)
        request.host = self.host
        return request

    def check_member(self, name: str | None) -> None:
        """Checks that the certificate of this connection, if it has TLS, names the member ``name``, or any member if
        ``name`` is ``None``. Raises ``Forbidden``."""
        if self.members is not None and not (self.members if name is None else name in self.members):
            raise Forbidden(f"the certificate of this connection does not name {'a member' if name is None else name}")

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yields the body as it arrives. The caller must count the bytes, and limit the time (``in_time``)."""
        while piece := await self._body.read():
            yield piece


def _origin_form(target: str) -> tuple[str | None, str]:
    """Splits a target that is not a path. Returns the host of an absolute target, and the path."""
    absolute = _ABSOLUTE.match(target)
    if absolute is None:
        return None, "/" + target
    path = target[absolute.end() :]
    return absolute.group(1), path if path.startswith("/") else "/" + path


@asynccontextmanager
async def in_time() -> AsyncIterator[None]:
    """Bounds the time of reading one body. Raises ``BadBody`` after ``BODY_S``, so that a client that announces a body
    and then stops sending does not keep its place."""
    limit = asyncio.timeout(BODY_S)
    try:
        async with limit:
            yield
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise BadBody(f"the body did not come whole within {BODY_S:g} s") from error


def _parse_query(text: str) -> dict[str, str]:
    try:
        pairs = parse_qsl(
            text, keep_blank_values=True, strict_parsing=True, errors="surrogateescape", max_num_fields=QUERY_FIELDS_MAX
        )
    except ValueError as error:
        raise BadArgument(f"the query cannot be read: {error}") from None
    query: dict[str, str] = {}
    for name, value in pairs:
        if name in query:
            raise BadArgument(f"the parameter {name[:40]!a} is given twice")
        query[name] = value
    return query


class Stream(Protocol):
    """A body in pieces. The carrier closes the stream, whether or not it was read to the end."""

    def __aiter__(self) -> AsyncIterator[bytes]: ...

    async def __anext__(self) -> bytes: ...

    async def aclose(self) -> None: ...


class Piece:
    """Bytes for many clients. Their chunk framing is made only once, too."""

    __slots__ = ("_chunk", "data")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self._chunk = b""

    @property
    def chunk(self) -> bytes:
        """The bytes as one chunk of a body without Content-Length."""
        if not self._chunk:
            self._chunk = b"%x\r\n%b\r\n" % (len(self.data), self.data)
        return self._chunk


class Sink(Protocol):
    """Sends a ``Push``'s pieces to its client."""

    def write(self, piece: Piece) -> bool:
        """Sends ``piece``. Returns False if the client has not taken what it was sent; then send no more until
        ``go_on``."""
        ...

    def end(self) -> None:
        """Ends the body, which is complete."""
        ...


class Push(Protocol):
    """A body that sends its pieces by itself, without a task that asks for them. The carrier closes it."""

    def begin(self, sink: Sink) -> None: ...

    def go_on(self) -> None:
        """Is called once the client has taken all bytes sent so far."""
        ...

    def close(self) -> None: ...


@dataclass(slots=True)
class Response:
    """One answer, with a whole ``body``, or with a ``stream`` or ``push`` that lasts until it ends or the client
    leaves. If the headers have a Content-Length, the stream must yield exactly that many bytes, or fail. A stream that
    fails breaks the connection, so that nobody takes the body for a whole one."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Buffer = b""
    stream: Stream | None = None
    push: Push | None = None
    shared: bool = False
    """True if many clients get this answer, one after another. A carrier may keep the bytes that it has made of such an
    answer."""


GOING_AWAY = 1001
"""The close code of a feed whose master's term is over (RFC 6455 §7.4.1)."""
GAVE_WAY = 4429
"""The close code of an idle WebSocket that was closed to make a place for others. Messages that arrive on it later are
ignored, so its client may safely send messages without an answer again."""


@dataclass(slots=True)
class Upgrade:
    """The answer that turns the connection into a channel of binary messages, and passes the channel to ``run``. The
    channel is closed when ``run`` returns. A message over ``message_bytes_max`` closes the channel at once."""

    run: Callable[[Channel], Awaitable[None]]
    message_bytes_max: int
    idle: Callable[[], bool] = lambda: False
    """Says whether nothing is under way on the channel, so that its connection may be closed (``GAVE_WAY``)."""
    ahead_bytes: int = MIB
    """The bytes that may wait before the channel's socket, so that the next message is made while the last message is
    sent."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Further header fields of the 101."""


Handler = Callable[[Request], Awaitable[Response | Upgrade]]

Answer = Callable[[Response], None]
"""Takes the only response to a request. It may be called before ``Start`` returns."""
Leave = Callable[[], None]
"""Is called if the client leaves before its answer. After the answer it does nothing."""
Start = Callable[[bytes, Answer], Leave]
"""Serves one whole body without a task. It never raises."""
Quick = Callable[[Request], Start | None]
"""Returns a short way for requests with exactly this head; the body is not looked at. Returns ``None`` if only the
``Handler`` can serve these requests. A carrier may use the short way or ignore it."""
Keeps = Callable[[Request], bool]
"""Says whether a request is served when all connections but the kept ones are busy."""


class Listener(Protocol):
    @property
    def url(self) -> str:
        """The bound address as ``http://HOST:PORT``, or ``https://`` where only TLS is spoken."""
        ...

    @property
    def untaken_bytes(self) -> int:
        """The bytes of responses that are held for clients that have not taken them."""
        ...

    @property
    def given_up(self) -> int:
        """The number of connections that were reset because those bytes were too many."""
        ...

    @property
    def lateness(self) -> Histogram:
        """The seconds by which the event loop was late for a timer. The histogram stays empty in virtual time."""
        ...

    @property
    def tls_not_after_s(self) -> float:
        """When the certificate shown here ends, in seconds since the epoch; 0 without TLS."""
        ...

    async def close(self) -> None:
        """Accepts no more connections. Requests under way get a moment to end; then their connections are closed."""
        ...


class Network(Protocol):
    """Calls other nodes, and serves other nodes and clients."""

    async def serve(
        self, host: str, port: int, handler: Handler, *, quick: Quick | None = None, keeps: Keeps | None = None
    ) -> Listener:
        """Serves at an address. ``keeps`` says which requests are served when all connections but the kept ones are
        busy. Raises ``OSError`` if the address cannot be bound."""
        ...

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
        """Makes one request, and returns the answer with its whole body and with headers like ``Headers``. Redirects
        are not followed. ``peer`` names the member that is called: under TLS its certificate must name it, or nothing
        is sent. Raises ``Unreachable``."""
        ...

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
        """Opens a channel. If the answer is a problem document instead of the upgrade, raises the error of the
        document's type. ``check`` is called with the answer before, whether a refusal or the 101, and may raise; then
        there is no channel. Raises ``Unreachable`` if there is no connection, or no answer in time."""
        ...

    async def close(self) -> None: ...


def require_upgrade(request: Request) -> None:
    if request.headers.get("Upgrade", "").lower() != "websocket":
        raise BadArgument(f"{request.path} is a WebSocket: the request must ask for that upgrade")
