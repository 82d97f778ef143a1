"""Requests, responses and the network, in types of our own.

Routes are functions from ``Request`` to ``Response`` or ``Upgrade``; ``repl/net`` carries them over aiohttp,
the simulation's fake over its own queues.  A body is read only when a route asks for it, and never past the
limit that it names.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol
from urllib.parse import parse_qsl

from repl.web.limits import BODY_S
from vlsn.errors import BadArgument, BadBody, TooLarge
from vlsn.histogram import Histogram
from vlsn.limits import MIB
from vlsn.seams import Buffer, Channel

QUERY_FIELDS_MAX = 16
DURABLE = "Vlsnlog-Durable"
"""The header of answers that says up to where the log is durable, as the node that answers knows it."""
_ABSOLUTE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://([^/?#]*)")


class Headers(Mapping[str, str]):
    """Header fields by name, whatever its case.  A field given twice keeps its first value."""

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
    """A request's body on its way in."""

    @property
    def length(self) -> int | None:
        """The length of Content-Length, 0 when there is no body, ``None`` for a chunked one."""
        ...

    async def read(self) -> bytes:
        """Reads the next bytes; ``b""`` at the end. Raises ``ChannelClosed`` when the sender is gone."""
        ...


class BytesBody:
    """A body that is already here."""

    __slots__ = ("_data", "length")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.length: int | None = len(data)

    async def read(self) -> bytes:
        data, self._data = self._data, b""
        return data


class Request:
    """One request. ``target`` is the path and query as they were sent, and ``path`` the first of the two. Its
    percent-encoded names are decoded later, by the routes. ``headers`` ignores case."""

    __slots__ = ("_body", "_query", "headers", "host", "method", "path", "query_text", "remote", "target")

    def __init__(self, method: str, target: str, headers: Mapping[str, str], body: Body, remote: str = "") -> None:
        self.method = method
        self.headers = headers
        self.remote = remote
        self._body = body
        self.host = headers.get("Host")
        """The host that it is for: an absolute target's host, before the header's (RFC 9112 §3.2.2)."""
        if not target.startswith("/"):
            host, target = _origin_form(target)
            self.host = self.host if host is None else host
        self.target = target
        self.path, _, self.query_text = target.partition("?")
        self._query: dict[str, str] | None = None

    @property
    def query(self) -> Mapping[str, str]:
        """The query's fields; bytes that are not UTF-8 as lone surrogates (PEP 383).  Raises ``BadArgument`` for a
        field given twice, one without ``=``, or too many."""
        if self._query is None:
            self._query = _parse_query(self.query_text) if self.query_text else {}
        return self._query

    @property
    def body_length(self) -> int | None:
        """Bytes announced; ``None`` when that is known only at the end."""
        return self._body.length

    async def body(self, limit: int) -> bytes:
        """Reads the whole body. Raises ``TooLarge`` without reading when it is announced over ``limit`` bytes, and as
        soon as more than that has come; ``BadBody`` when it does not come within ``BODY_S``."""
        length = self._body.length
        if length == 0:
            return b""
        if length is not None and length > limit:
            raise TooLarge(f"the body has {length} bytes, the limit is {limit}")
        if isinstance(self._body, BytesBody):
            return await self._body.read()
        async with in_time():
            first = await self._body.read()
            if len(first) == length:
                return first
            parts, size = [first], len(first)
            while size <= limit and (part := await self._body.read()):
                parts.append(part)
                size += len(part)
        if size > limit:
            raise TooLarge(f"the body has more than {limit} bytes")
        return b"".join(parts)

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yields the body as it comes; the caller counts its bytes, and the time (``in_time``)."""
        while piece := await self._body.read():
            yield piece


def _origin_form(target: str) -> tuple[str | None, str]:
    """Splits a target that is no path: the host of an absolute one, and the path that it stands for."""
    absolute = _ABSOLUTE.match(target)
    if absolute is None:
        return None, "/" + target
    path = target[absolute.end() :]
    return absolute.group(1), path if path.startswith("/") else "/" + path


@asynccontextmanager
async def in_time() -> AsyncIterator[None]:
    """Bounds the time of reading one body. Raises ``BadBody`` after ``BODY_S``: a client that announces a body and then
    stops sending holds its place no longer."""
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
    """A body in pieces. The carrier closes it, read or not."""

    def __aiter__(self) -> AsyncIterator[bytes]: ...

    async def __anext__(self) -> bytes: ...

    async def aclose(self) -> None: ...


class Piece:
    """Bytes for many clients; their framing on the wire is made once, too."""

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
    """The way to the client of a ``Push``."""

    def write(self, piece: Piece) -> bool:
        """Sends ``piece``; False when the client has not taken what it was sent, and gets no more until ``go_on``."""
        ...

    def end(self) -> None:
        """Ends the body, whole."""
        ...


class Push(Protocol):
    """A body that comes by itself, without a task that asks for it. The carrier closes it."""

    def begin(self, sink: Sink) -> None: ...

    def go_on(self) -> None:
        """Notes that the client has taken all bytes sent so far."""
        ...

    def close(self) -> None: ...


@dataclass(slots=True)
class Response:
    """One answer: ``body`` whole, or ``stream`` or ``push`` until it ends or the client leaves.

    A stream with a Content-Length among the headers gives exactly that many bytes, or fails; a failed stream
    breaks the connection off, so that nobody takes it for a whole one.
    """

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Buffer = b""
    stream: Stream | None = None
    push: Push | None = None
    shared: bool = False
    """Given to many clients, one after another: a carrier may keep the bytes that it made of it."""


GAVE_WAY = 4429
"""The close code of an idle WebSocket that made way for others. Later messages on it are ignored; its client may send
unanswered ones again."""


@dataclass(slots=True)
class Upgrade:
    """The answer that turns the connection into a channel of binary messages and hands it to ``run``.

    The channel is closed when ``run`` returns; a message over ``message_bytes_max`` closes it at once.
    """

    run: Callable[[Channel], Awaitable[None]]
    message_bytes_max: int
    idle: Callable[[], bool] = lambda: False
    """A test whether nothing is under way on it: its own connection may be closed then (``GAVE_WAY``)."""
    ahead_bytes: int = MIB
    """Bytes that may lie before its socket, so that the next message is made while the last one leaves."""


Handler = Callable[[Request], Awaitable[Response | Upgrade]]

Answer = Callable[[Response], None]
"""Takes the one response to a request; may be called before ``Start`` returns."""
Leave = Callable[[], None]
"""A call for when the client leaves before its answer; does nothing after it."""
Start = Callable[[bytes, Answer], Leave]
"""Serves one whole body without a task.  Never raises."""
Quick = Callable[[Request], Start | None]
"""A short way for requests with exactly one head, whose body is not looked at. It is ``None`` when only the ``Handler``
can serve them. A carrier may use it, and may do without."""


class Listener(Protocol):
    @property
    def url(self) -> str:
        """``http://HOST:PORT`` as it is bound."""
        ...

    @property
    def untaken_bytes(self) -> int:
        """Bytes of responses that clients have not taken, and that are held for them."""
        ...

    @property
    def given_up(self) -> int:
        """Connections reset so far, because those bytes were too many."""
        ...

    @property
    def lateness(self) -> Histogram:
        """Seconds by which the loop was late for a timer; empty in virtual time."""
        ...

    async def close(self) -> None:
        """Takes no more; requests under way get a moment to end, then their connections are closed."""
        ...


class Network(Protocol):
    """The way to and from other nodes and clients."""

    async def serve(self, host: str, port: int, handler: Handler, *, quick: Quick | None = None) -> Listener:
        """Raises ``OSError`` when the address cannot be had."""
        ...

    async def request(
        self, method: str, url: str, *, headers: Mapping[str, str] | None = None, body: Buffer = b"", timeout_s: float
    ) -> Response:
        """Makes one exchange; the answer's body is whole and its headers are a ``Headers``-like mapping. Redirects are
        not followed. Raises ``Unreachable``."""
        ...

    async def connect(
        self, url: str, *, headers: Mapping[str, str] | None = None, message_bytes_max: int, timeout_s: float
    ) -> Channel:
        """Opens a channel. A problem document instead of the upgrade raises the error class of its type; no connection,
        or no answer in time, ``Unreachable``."""
        ...

    async def close(self) -> None: ...


def require_upgrade(request: Request) -> None:
    if request.headers.get("Upgrade", "").lower() != "websocket":
        raise BadArgument(f"{request.path} is a WebSocket: the request must ask for that upgrade")
