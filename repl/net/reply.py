"""Writes responses as bytes to a transport.

aiohttp's own response objects cost more than everything else in the gateway's work for an append. So a response is
written as one run of bytes. This file does what those objects do: Content-Length, HEAD, HTTP/1.0, keep-alive,
``Connection: close`` after an unread body, chunks.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from time import gmtime, strftime, time
from typing import Protocol, cast

from aiohttp import web
from aiohttp.http import HttpVersion10

from repl.net.turns import Sending
from repl.web.types import Piece, Push, Response
from vlsn.seams import Buffer

JOIN_BYTES_MAX = 64 * 1024
"""A body of up to this many bytes is sent in one piece with its head."""

_STATUS_LINES = {int(status): f"HTTP/1.1 {int(status)} {status.phrase}\r\n" for status in HTTPStatus}
_CLOSE = "Connection: close\r\n"
_KEEP_ALIVE = "Connection: keep-alive\r\n"


class Carrier(Protocol):
    """A connection, as the bodies of its answers see it. The connection calls its ``push`` once the client has read all
    bytes."""

    push: Push | None
    sent: Buffer
    streams: bool

    @property
    def writing_paused(self) -> bool: ...


class Streams:
    """The streams of one listener that are under way: the tasks that send them, and how much they may send in a
    turn."""

    def __init__(self) -> None:
        self.tasks: set[asyncio.Task[object]] = set()
        self.sending = Sending()


class Reply:
    """A response that is being sent: the part of a response that aiohttp's connection loop calls."""

    __slots__ = ("_response", "_streams", "keep_alive")

    def __init__(self, response: Response, streams: Streams, *, last: bool = False) -> None:
        self._response = response
        self._streams = streams
        self.keep_alive = not last

    async def prepare(self, incoming: web.BaseRequest) -> None:
        self.keep_alive = self.keep_alive and incoming.keep_alive and incoming.content.is_eof()
        if self._response.stream is not None:
            await self._stream(incoming)
            return
        if self._response.push is not None:
            await self._push(incoming, self._response.push)
            return
        transport = incoming.transport
        if transport is None:
            raise ConnectionResetError("the client left before its answer")
        connection = _connection(incoming, self.keep_alive)
        cast(Carrier, incoming.protocol).sent = self._response.body
        write(transport, self._response, connection, head_only=incoming.method == "HEAD")
        cast(Carrier, incoming.protocol).sent = b""
        if incoming.protocol.writing_paused:
            await incoming.writer.drain()

    async def write_eof(self) -> None:
        """Does nothing, because ``prepare`` has written everything."""

    def _begin(self, incoming: web.BaseRequest, transport: asyncio.WriteTransport | None) -> bool:
        """Writes the head of a body whose length is not known. Says whether the body is sent in chunks."""
        if transport is None:
            raise ConnectionResetError("the client left before its answer")
        sized = "Content-Length" in self._response.headers
        chunked = not sized and incoming.version != HttpVersion10
        self.keep_alive = self.keep_alive and (sized or chunked)
        framing = "Transfer-Encoding: chunked\r\n" if chunked else ""
        transport.write(_head(self._response, framing + _connection(incoming, self.keep_alive)))
        return chunked

    async def _push(self, incoming: web.BaseRequest, push: Push) -> None:
        transport, task = incoming.transport, asyncio.current_task()
        connection = cast(Carrier, incoming.protocol)
        assert task is not None
        self._streams.tasks.add(task)
        try:
            chunked = self._begin(incoming, transport)
            if incoming.method != "HEAD":
                assert transport is not None
                sink = PushSink(transport, connection, chunked)
                connection.push = push
                push.begin(sink)
                await sink.ended
        except BaseException:
            if transport is not None:
                transport.abort()
            raise
        finally:
            connection.push = None
            self._streams.tasks.discard(task)
            push.close()

    async def _stream(self, incoming: web.BaseRequest) -> None:
        stream, transport = self._response.stream, incoming.transport
        connection, task = cast(Carrier, incoming.protocol), asyncio.current_task()
        assert stream is not None and task is not None
        self._streams.tasks.add(task)
        connection.streams = True
        try:
            chunked = self._begin(incoming, transport)
            assert transport is not None
            if incoming.method == "HEAD":
                return
            async for piece in stream:
                await self._streams.sending.may_send(len(piece))
                if transport.is_closing():
                    raise ConnectionResetError("the client left")
                if not chunked:
                    transport.write(piece)
                elif len(piece) <= JOIN_BYTES_MAX:
                    transport.write(b"%x\r\n%b\r\n" % (len(piece), piece))
                else:
                    transport.writelines((b"%x\r\n" % len(piece), piece, b"\r\n"))
                await incoming.writer.drain()
            if chunked:
                transport.write(b"0\r\n\r\n")
        except BaseException as fault:
            if transport is not None:
                transport.abort()
            if isinstance(fault, Exception) and not isinstance(fault, ConnectionError):
                raise ConnectionAbortedError(f"a stream failed: {fault}") from fault
            raise
        finally:
            connection.streams = False
            self._streams.tasks.discard(task)
            await stream.aclose()


class PushSink:
    """``repl.web.types.Sink`` for a transport."""

    __slots__ = ("_chunked", "_connection", "_transport", "ended")

    def __init__(self, transport: asyncio.WriteTransport, connection: Carrier, chunked: bool) -> None:
        self._transport = transport
        self._connection = connection
        self._chunked = chunked
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def write(self, piece: Piece) -> bool:
        if self._transport.is_closing():
            return False
        self._connection.sent = data = piece.chunk if self._chunked else piece.data
        self._transport.write(data)
        self._connection.sent = b""
        return not self._connection.writing_paused

    def end(self) -> None:
        if not self.ended.done():
            if self._chunked and not self._transport.is_closing():
                self._transport.write(b"0\r\n\r\n")
            self.ended.set_result(None)


def write(transport: asyncio.WriteTransport, response: Response, connection: str = "", head_only: bool = False) -> None:
    """Writes a whole response that is no stream. ``connection`` is the Connection field, if there is one."""
    global _shared
    if response.shared and not head_only:
        if _shared[0] is not response or _shared[1:3] != (connection, _date()):
            length = f"Content-Length: {len(response.body)}\r\n"
            _shared = response, connection, _date(), _head(response, length + connection) + bytes(response.body)
        transport.write(_shared[3])
        return
    body: Buffer = response.body
    length = "" if "Content-Length" in response.headers else f"Content-Length: {len(body)}\r\n"
    head = _head(response, length + connection)
    if head_only or not body:
        transport.write(head)
    elif len(body) <= JOIN_BYTES_MAX:
        transport.write(head + body)
    else:
        transport.write(head)
        transport.write(body)


def _connection(incoming: web.BaseRequest, keep_alive: bool) -> str:
    if not keep_alive:
        return _CLOSE
    return _KEEP_ALIVE if incoming.version == HttpVersion10 else ""


def _head(response: Response, last_fields: str) -> bytes:
    fields = "".join([f"{name}: {value}\r\n" for name, value in response.headers.items()])
    head = f"{_STATUS_LINES[response.status]}{_date()}{fields}{last_fields}\r\n"
    return head.encode("utf-8", "surrogateescape")


_shared: tuple[Response | None, str, str, bytes] = (None, "", "", b"")
"""The shared response that was written last, with its bytes."""
_date_line = (0, "")


def _date() -> str:
    """Returns the Date field, which is made once a second."""
    global _date_line
    now = int(time())
    if now != _date_line[0]:
        _date_line = (now, strftime("Date: %a, %d %b %Y %H:%M:%S GMT\r\n", gmtime(now)))
    return _date_line[1]
