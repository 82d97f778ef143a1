"""One client's connection. It is aiohttp's connection with our limits and answers, and with a short way for repeated
requests.

**The short way.** A client that appends one entry in each request sends the same head again and again. So do all
long-polls that wait at the same VLSN. aiohttp parses a head once. If the gateway can serve every request with exactly
those bytes before its body (``Quick``), the bytes are remembered. When a later request arrives whole with the same
head, it is answered without a parser, request object or task. A head that differs in one byte goes to aiohttp.

1. Only on an idle connection whose parser stands at a message's start (``_clean``); a read that is not exactly one
   whole request ends that for good. 2. While such an answer is due, or others are parsed in this turn of the loop
   (``turns.Reading``), incoming bytes are held, at most ``HELD_BYTES_MAX`` and then one read more. 3. When the peer
   does not
take its answers, requests go through aiohttp, which waits.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from typing import Any, cast

from aiohttp import ClientError, web
from aiohttp.http import HttpVersion11
from aiohttp.http_parser import RawRequestMessage
from aiohttp.web_protocol import RequestHandler, _ErrInfo

from repl.net import reply
from repl.net.arrivals import Arrival, Arrivals
from repl.net.frames import close_frame
from repl.net.metered import MeteredTap
from repl.net.places import Places
from repl.net.tls import members_of, uris_of
from repl.net.turns import Reading, Turns
from repl.net.untaken import Untaken
from repl.web import problem
from repl.web.types import GAVE_WAY, BytesBody, Leave, Push, Quick, Request, Response, Start, Upgrade
from vlsn.errors import BadArgument, ChannelClosed, bare
from vlsn.limits import KEY_BYTES_MAX
from vlsn.seams import Buffer

LINE_BYTES_MAX = 3 * KEY_BYTES_MAX + 8 * 1024
"""A request line may contain a whole ``?key=``, with three characters for each byte."""
FIELD_BYTES_MAX = 8_190
HEADERS_MAX = 100
LINGER_S = 5.0
"""The seconds for which the rest of a refused body is read and dropped before the connection is closed."""
DEAD_PEER_S = 30
"""After this many seconds of silence keep-alive probes start. Bytes that stay unacknowledged as long end the
connection."""
KNOWN_HEADS_MAX = 1_024
KNOWN_POLLS_MAX = 64
"""How many of the remembered heads may be long-polls', the latest ones. Each names a VLSN, and is useful only while
readers wait there."""
KNOWN_HEAD_BYTES_MAX = 1_024
HELD_BYTES_MAX = 64 * 1024

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_HEAD_END = b"\r\n\r\n"
_UNKNOWN: tuple[int, Start | None] = (0, None)
_GAVE_WAY = close_frame(GAVE_WAY, "nothing was under way, and others have no place: connect again")


class Server(web.Server):
    """aiohttp's server for our connections. It has the heads that all connections remember."""

    def __init__(
        self, handler: Any, quick: Quick | None, *, head_s: float, idle_s: float, connections_max: int
    ) -> None:
        super().__init__(handler, handler_cancellation=True)
        self._quick = quick
        self.group: str | None = None
        """The group whose members' certificates count here; ``None`` without TLS."""
        self.idle_s = idle_s
        self.places = Places(head_s=head_s, connections_max=connections_max)
        self.untaken = Untaken()
        self.reading = Reading()
        self.known: dict[bytes, tuple[int, Start]] = {}
        self._polls: deque[bytes] = deque()

    def __call__(self) -> RequestHandler:
        return Connection(self, loop=self._loop)

    def learn(self, head: bytes, request: Request, body_bytes: int) -> None:
        start = None if self._quick is None else self._quick(request)
        if start is not None:
            if len(self.known) >= KNOWN_HEADS_MAX:
                self.known.clear()
            if request.method == "GET":
                self._polls.append(head)
                if len(self._polls) > KNOWN_POLLS_MAX:
                    self.known.pop(self._polls.popleft(), None)
            self.known[head] = (len(head) + body_bytes, start)


class Connection(RequestHandler):
    __slots__ = (
        "_answered",
        "_clean",
        "_heard",
        "_heard_s",
        "_held",
        "_holds",
        "_idle_s",
        "_known",
        "_leave",
        "_server",
        "_tap",
        "_upgrade",
        "_uris",
        "_waits",
        "head_since",
        "kept",
        "push",
        "sent",
        "streams",
    )

    def __init__(self, server: Server, *, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(
            server,
            loop=loop,
            access_log=None,  # type: ignore[arg-type]  # None is how aiohttp turns it off
            auto_decompress=False,
            keepalive_timeout=server.idle_s,
            lingering_time=LINGER_S,
            max_line_size=LINE_BYTES_MAX,
            max_field_size=FIELD_BYTES_MAX,
            max_headers=HEADERS_MAX,
        )
        self._server = server
        self._tap: MeteredTap | None = None
        self._holds = 0
        """The number of reasons not to read the WebSocket now."""
        self._known = server.known
        self._clean = True
        self._uris: frozenset[str] | None = None
        """The URIs of the client's certificate, once it was looked at."""
        self._leave: Leave | None = None
        self._held = bytearray()
        self._waits = False
        """True while held bytes wait for their turn to be parsed."""
        self._answered: asyncio.Future[None] | None = None
        self._idle_s = server.idle_s
        self._upgrade: Upgrade | None = None
        self._heard = True
        """Whether something arrived on the WebSocket since the last sweep, and when that was last seen."""
        self._heard_s = 0.0
        self.head_since = 0.0
        self.kept = False
        self.push: Push | None = None
        self.sent: Buffer = b""
        """The body, or the piece of a body, that is being sent in one call."""
        self.streams = False
        """True while a stream is sent, because a stream counts its own bytes."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self.kept:
            self._clean = False  # the gateway decides by the first request whether the connection is served
        end = transport.get_extra_info("socket")
        if end is not None:
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, DEAD_PEER_S)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, DEAD_PEER_S // 3)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, DEAD_PEER_S * 1000)

    def data_received(self, data: bytes) -> None:
        if self._tap is not None:
            self._heard = True
            super().data_received(data)
        elif not data:  # an empty call, by which aiohttp resumes its own parser
            self._parse(data)
        elif self._leave is not None or self._waits:
            self._hold(data)
        else:
            if self._clean:
                head_end = data.find(_HEAD_END) + len(_HEAD_END)
                size, start = self._known.get(data[:head_end], _UNKNOWN)
                if start is not None and size == len(data) and self._idle() and not self._paused:
                    self._begin(start, data[head_end:])
                    return
            if self._server.reading.share():
                self._read(data)
            else:
                self._waits = True
                self._hold(data)
                self._server.reading.wait(self._read_held)

    def _read_held(self) -> None:
        """Parses the bytes that arrived while other connections were parsed."""
        self._waits = False
        if (held := self._let_go()) and self.transport is not None:
            self._read(held)

    def _read(self, data: bytes) -> None:
        if not self._clean:
            self._parse(data)
            return
        head_end = data.find(_HEAD_END) + len(_HEAD_END)
        queued = len(self._messages)
        self._parse(data)
        self._clean = len(self._messages) == queued + 1 and self._learn(data[:head_end], len(data) - head_end)

    def _parse(self, data: bytes) -> None:
        count = self._request_count
        super().data_received(data)
        if self._messages and isinstance(refused := self._messages[-1][0], _ErrInfo):
            bare(refused.exc)
        if self._request_count != count or not self._idle():
            self.head_since = 0.0
        elif data and not self.head_since:
            self.head_since = self._loop.time()

    @property
    def silent(self) -> bool:
        """See ``places.Guest``."""
        return self.head_since > 0.0 and not self._request_count

    @property
    def idle_since(self) -> float | None:
        """See ``places.Guest``."""
        if self._upgrade is not None:
            quiet = not self._heard and self._tap is not None and not self._tap.holds
            return self._heard_s if quiet and self._upgrade.idle() else None
        if self._leave is not None or not self._idle():
            return None
        return self._next_keepalive_close_time - self._idle_s

    @property
    def context(self) -> object:
        """See ``places.Guest``."""
        return None if self.transport is None else self.transport.get_extra_info("sslcontext")

    @property
    def members(self) -> frozenset[str] | None:
        """See ``Request.members``."""
        if self._server.group is None or self.transport is None:
            return None
        if self.transport.get_extra_info("ssl_object") is None:
            return None
        return members_of(self.uris, self._server.group)

    @property
    def uris(self) -> frozenset[str]:
        """See ``Request.uris``."""
        if self._uris is None:
            shown = None if self.transport is None else self.transport.get_extra_info("ssl_object")
            self._uris = frozenset() if shown is None else frozenset(uris_of(shown.getpeercert()))
        return self._uris

    @property
    def remote(self) -> str:
        """Returns the client's HOST:PORT, "" for a connection that is lost."""
        end = None if self.transport is None else self.transport.get_extra_info("peername")
        return "" if not end else f"[{end[0]}]:{end[1]}" if ":" in str(end[0]) else f"{end[0]}:{end[1]}"

    def end(self) -> None:
        """See ``places.Guest``."""
        if self._upgrade is not None or self.streams or self.push is not None or self.idle_since is not None:
            self.force_close()
        else:
            self.close()

    def give_way(self) -> None:
        """See ``places.Guest``. The other side of a WebSocket gets a close frame, and its later frames are dropped."""
        if self._tap is not None and self._tap.queue is not None and self.transport is not None:
            self._tap.close()
            self.transport.write(_GAVE_WAY)
        self.force_close()

    def swept(self, now: float) -> None:
        if self._heard:
            self._heard, self._heard_s = False, now

    def _idle(self) -> bool:
        """True if aiohttp has no request queued or under way."""
        if self._messages or self._close or self._force_close:
            return False
        return self._request_count == 0 or (self._waiter is not None and not self._waiter.done())

    def _learn(self, head: bytes, body_bytes: int) -> bool:
        """Says whether aiohttp was just given exactly one whole request, whose head may be remembered."""
        message, payload = self._messages[-1]
        if not isinstance(message, RawRequestMessage) or not payload.is_eof() or message.chunked or self._upgraded:
            return False
        if body_bytes != int(message.headers.get("Content-Length", "0")):
            return False
        plain = message.version == HttpVersion11 and not (
            message.should_close or message.upgrade or message.compression
        )
        if plain and "Expect" not in message.headers and len(head) <= KNOWN_HEAD_BYTES_MAX and head not in self._known:
            request = Request(message.method, message.path, message.headers, BytesBody(b""))
            self._server.learn(head, request, body_bytes)
        return True

    def _begin(self, start: Start, body: bytes) -> None:
        self.head_since = 0.0
        self._next_keepalive_close_time = self._loop.time() + self._idle_s
        self._leave = _not_yet
        leave = start(body, self._answer)
        if self._leave is not None:
            self._leave = leave

    def _answer(self, response: Response) -> None:
        if self.transport is None:
            return
        self.sent = response.body
        reply.write(self.transport, response)
        self.sent = b""
        self._tell_answered()
        if self._close:
            self.transport.close()
        elif self._held:
            self._leave = _not_yet  # bytes that arrive before _resume must be held, too
            self._loop.call_soon(self._resume)
        else:
            self._leave = None

    def _resume(self) -> None:
        """Parses the bytes that arrived while an answer was due."""
        self._leave = None
        held = self._let_go()
        if self.transport is not None:
            self.data_received(held)

    def _let_go(self) -> bytes:
        """Returns the bytes that were held, and resumes reading."""
        held = bytes(self._held)
        self._held.clear()
        if self.transport is not None and len(held) > HELD_BYTES_MAX:
            self.transport.resume_reading()
        return held

    def _hold(self, data: bytes) -> None:
        self._held += data
        if len(self._held) > HELD_BYTES_MAX and self.transport is not None:
            self.transport.pause_reading()

    def _tell_answered(self) -> None:
        if self._answered is not None and not self._answered.done():
            self._answered.set_result(None)

    def tapped(self, arrivals: Arrivals, turns: Turns, upgrade: Upgrade) -> MeteredTap:
        """Makes the tap that counts the bytes of a WebSocket from now on. Call it before the upgrade."""
        message_bytes_max = upgrade.message_bytes_max
        self._upgrade = upgrade
        arrival = Arrival(
            arrivals, message_bytes_max, pause=self._hold_reading, resume=self._go_on_reading, abort=self.force_close
        )
        self._tap = MeteredTap(
            message_bytes_max,
            arrival,
            turns,
            pause=self._hold_reading,
            resume=self._go_on_reading,
            stalled=lambda: self._reading_paused,
        )
        return self._tap

    def _hold_reading(self) -> None:
        self._holds += 1
        self._pause_reading_for_buffer()

    def _go_on_reading(self) -> None:
        self._holds -= 1
        if not self._holds:
            self._resume_reading_for_buffer()

    def resume_reading(self, resume_parser: bool = True) -> None:
        super().resume_reading(resume_parser)
        if self._tap is not None:
            self._tap.resumed()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._upgrade is None and not self.streams and self.transport is not None:
            self._server.untaken.stalls(self, cast(asyncio.WriteTransport, self.transport), self.sent)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._server.untaken.goes_on(self)
        if self.push is not None:
            self.push.go_on()

    def set_parser(self, parser: Any, data_received_cb: Callable[[], None] | None = None) -> None:
        super().set_parser(parser if self._tap is None else self._tap.into(parser), data_received_cb)

    def _process_keepalive(self) -> None:
        if self._leave is not None:
            self._next_keepalive_close_time = self._loop.time() + self._idle_s
        super()._process_keepalive()

    def connection_lost(self, exc: BaseException | None) -> None:
        leave, self._leave = self._leave, None
        self._server.places.leave(self)
        self._server.untaken.goes_on(self)
        super().connection_lost(exc)
        self._tap = self._upgrade = None  # both refer to this connection
        self._tell_answered()
        if leave is not None:
            leave()

    async def shutdown(self, timeout: float | None = 15.0) -> None:
        """Gives the requests under way ``timeout`` seconds to end. This is aiohttp's own method, without its future. A
        timeout cancels that future, and a request that ends in the same turn of the loop then sets it
        (``InvalidStateError``)."""
        self._force_close = True
        if self._keepalive_handle is not None:
            self._keepalive_handle.cancel()
        task = self._task_handler
        ending: set[asyncio.Future[Any]] = {task} if task is not None else set()
        if self._leave is not None:
            self._answered = self._loop.create_future()
            ending = {self._answered}
        if ending:
            await asyncio.wait(ending, timeout=timeout)
        if task is not None and not task.done():
            if self._current_request is not None:
                self._current_request._cancel(asyncio.CancelledError())
            task.cancel()
            await asyncio.wait([task], timeout=timeout)
        self.force_close()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answers input that is not HTTP, or a fault of ours outside the gateway, with a problem document, and closes
        the connection."""
        if request.writer.output_size > 0:
            if exc is not None and status >= 500 and not isinstance(exc, ConnectionError):
                problem.internal(exc, f"{request.path}, its answer under way")  # so that it is logged
            raise ConnectionError("an answer is under way already")
        if status < 500:
            response = problem.response(BadArgument(f"this is not HTTP as it is read here: {message or exc}"))
        else:
            response = problem.response(problem.internal(exc or RuntimeError(message or ""), "a request"))
        return cast(web.StreamResponse, reply.Reply(response, reply.Streams(), last=True))


def _not_yet() -> None:
    """Takes the place of a ``Leave`` while there is none: before ``Start`` returns, and after the answer was sent."""


class IncomingBody:
    """``repl.web.types.Body`` for an aiohttp request."""

    __slots__ = ("_continued", "_incoming")

    def __init__(self, incoming: web.BaseRequest) -> None:
        self._incoming = incoming
        self._continued = False

    @property
    def length(self) -> int | None:
        headers = self._incoming.headers
        length = headers.get("Content-Length")
        if length is not None:
            return int(length)
        return None if "Transfer-Encoding" in headers else 0

    async def read(self) -> bytes:
        try:
            if not self._continued:
                self._continued = True
                if "Expect" in self._incoming.headers and self._incoming.transport is not None:
                    self._incoming.transport.write(_CONTINUE)
            return await self._incoming.content.readany()
        except (ClientError, ConnectionError, web.RequestPayloadError) as error:
            raise ChannelClosed(f"the client left in the middle of its body: {error}") from None
