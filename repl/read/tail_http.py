"""``GET /v1/tail``: durable entries as server-sent events, as long as the client stays connected.

    id: 17
    data: {"vlsn":17,"term":2,"time":…,"value":"…"}

After 15 s without an event the node sends a comment. The header ``Last-Event-ID``, which a browser sends when it
reconnects, continues after that VLSN, and replaces ``?from=`` and ``after_term``. A request without any of the three
begins at the log's first entry. With ``?ids=vlsn@term`` event ids look like ``17@2``. A browser that reconnects with an
id like ``17@2`` gets ``not-in-log`` if the log does not contain VLSN 17 of term 2. An error before the first event is a
problem document. A later error is an event ``error`` with a problem document, which ends the stream.

A tail has no task. Each tail is an element in a set of waiting readers (``long_polls``), and new entries are written
directly to its socket. While the client does not take its bytes, the tail is removed from the set. The tail continues
once the bytes are taken.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from repl.group.member import Member
from repl.read.long_polls import Audience, Form, LongPolls, Page, Wanted
from repl.read.read_http import AFTER_TERM, ALL_KINDS, CHOICES, TXNS, Place, confirm
from repl.read.reads import reads_of
from repl.read.starting_point import BEGINNING, StartingPoint
from repl.web import calls, problem, query
from repl.web.calls import READS, Call, choice, header, known, ok
from repl.web.deadlines import TICK_S
from repl.web.limits import TAIL_COMMENT_S, Budget
from repl.web.ndjson import PRINTED_SCHEMA
from repl.web.types import Piece, Request, Response, Sink
from vlsn.errors import VlsnLogError

EVENTS = "text/event-stream"
HEADERS = {"Content-Type": EVENTS, "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
IDS: Mapping[str, Form] = {"vlsn": Form.EVENTS, "vlsn@term": Form.EVENTS_WITH_TERMS}
_SHOWN = (
    *BEGINNING,
    AFTER_TERM,
    choice("ids", "The form of an event's `id`.", IDS, "vlsn"),
    *CHOICES,
    *calls.CONFIRMED,
)
_PARAMETERS = known(*_SHOWN)
CALLS = (
    Call(
        "read",
        "GET",
        "/v1/tail",
        "Follow the log",
        (*_SHOWN, header("Last-Event-ID", "Continue after this event, in place of `from`.")),
        (ok({"type": "string", "x-vlsnlog-line": PRINTED_SCHEMA}, "Server-sent events.", kind=EVENTS),),
        READS,
        text="The answer is `id: VLSN`, `data: {…}` for each entry, as long as the client stays. "
        f"After {TAIL_COMMENT_S:g} s without an event a comment comes. A later error is an event `error` whose data is "
        "a problem document, and ends the answer. A long-poll of `GET /v1/entries` gives the same as NDJSON.",
        example='-N "$URL/v1/tail?from=end"',
    ),
)
_COMMENT = Piece(b": still here\n\n")


class TailRoutes:
    def __init__(self, member: Member, pages: LongPolls, readers: Budget) -> None:
        self._member = member
        self._pages = pages
        self._readers = readers

    async def tail(self, request: Request) -> Response:
        query.only(request.query, _PARAMETERS)
        begin = StartingPoint.asked(request.query)
        all_kinds = query.choice(request.query, "kinds", False, ALL_KINDS)
        form = query.choice(request.query, "ids", Form.EVENTS, IDS)
        place = Place.asked(self._member, request.query, begin.from_vlsn)
        if last_seen := request.headers.get("Last-Event-ID", ""):
            vlsn, term = _seen(last_seen)
            begin, place = StartingPoint(vlsn + 1), Place(self._member, vlsn, term)
        txns = query.choice(request.query, "txns", False, TXNS)
        wanted = Wanted(None, form, all_kinds=all_kinds, keys=query.key_filter(request.query), txns=txns)
        self._readers.take(1)
        try:
            place.check()
            await confirm(self._member, request.query)
            from_vlsn = await begin.vlsn(reads_of(self._member))
            first = await self._pages.get(wanted._replace(from_vlsn=from_vlsn, wait=False))
            place.check()
        except BaseException:
            self._readers.give(1)
            raise
        return Response(200, HEADERS, push=_Tail(self._pages, wanted, first, self._left))

    def _left(self) -> None:
        self._readers.give(1)


class _Tail:
    """The events of one client. The object is a ``Push`` of the HTTP server, and a ``Reader`` of shared pages."""

    __slots__ = (
        "_closed",
        "_deadlines",
        "_first",
        "_left",
        "_pages",
        "_sent_s",
        "_sink",
        "_wanted",
        "audience",
        "tick",
    )

    def __init__(self, pages: LongPolls, wanted: Wanted, first: Page, left: Callable[[], None]) -> None:
        self._pages = pages
        self._deadlines = pages.deadlines
        self._wanted = wanted
        self._first: Page | None = first
        self._left = left
        self._sink: Sink | None = None
        self._sent_s = 0.0
        self._closed = False
        self.audience: Audience | None = None
        self.tick = 0

    def begin(self, sink: Sink) -> None:
        self._sink, first, self._first = sink, self._first, None
        assert first is not None
        self._deadlines.set(self, self._deadlines.now() + TAIL_COMMENT_S - TICK_S)
        if self._take(first.piece if first.piece.data else _COMMENT, first.next_vlsn):
            self.go_on()

    def go_on(self) -> None:
        """Waits again for entries, after the last entry that was sent."""
        if not self._closed and self.audience is None:
            self._pages.join(self._wanted, self)

    def take(self, page: Page | VlsnLogError) -> bool:
        if isinstance(page, Page):
            return self._take(page.piece, page.next_vlsn)
        if self._sink is not None:
            self._sink.write(Piece(b"event: error\ndata: " + problem.document(page) + b"\n\n"))
            self._sink.end()
        self.close()
        return False

    def due(self) -> None:
        """Sends a comment, unless something was sent meanwhile or bytes still wait for the client. Also sets the time
        of the next comment."""
        now = self._deadlines.now()
        if self._sent_s + TAIL_COMMENT_S - TICK_S > now:
            self._deadlines.set(self, self._sent_s + TAIL_COMMENT_S - TICK_S)
            return
        self._deadlines.set(self, now + TAIL_COMMENT_S - TICK_S)
        if self.audience is not None and self._sink is not None and not self._sink.write(_COMMENT):
            self._pages.leave(self)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._deadlines.clear(self)
            self._pages.leave(self)
            self._left()

    def _take(self, piece: Piece, next_vlsn: int) -> bool:
        assert self._sink is not None
        self._wanted = self._wanted._replace(from_vlsn=next_vlsn)
        self._sent_s = self._deadlines.now()
        return self._sink.write(piece)


def _seen(last_event_id: str) -> tuple[int, int]:
    """Parses VLSN and term of an event id; a part that is missing is 0. Raises ``BadArgument``."""
    vlsn, at, term = last_event_id.partition("@")
    return (
        query.whole_of(vlsn, "Last-Event-ID", 1 if at else 0, query.VLSN_MAX - 1),
        query.whole_of(term, "Last-Event-ID", 1, query.VLSN_MAX) if at else 0,
    )
