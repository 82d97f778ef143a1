"""``GET /v1/tail``: durable entries as server-sent events, for as long as the client stays.

    id: 17
    data: {"vlsn":17,"term":2,"time":…,"value":"…"}

A comment comes at the latest after 15 s without an event.  ``Last-Event-ID`` (as a browser sends when it comes back)
goes on after that VLSN and wins over ``?from=`` and ``after_term``; with neither, the first entry there
is begins.
With ``?ids=vlsn@term`` ids are ``17@2``: a browser that comes back with one is told (``not-in-log``) if the log does
not hold VLSN 17 of term 2.
What cannot be served is a problem document before the first event; after it, an event ``error`` that carries one and
ends the stream.  So do events for which there is no room, since other clients do not take theirs (``queue-full``).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial

from repl.http import problem, query
from repl.http.limits import TAIL_COMMENT_S, TAILS_MAX, Budget
from repl.http.pages import Events, Pages
from repl.http.read import ALL_KINDS, CHOSEN, CONFIRMED, Place, confirm
from repl.http.services import Reads
from repl.http.starting_point import PARAMETERS as BEGINNINGS
from repl.http.starting_point import StartingPoint
from repl.http.types import Request, Response
from vlsn.errors import VlsnLogError

HEADERS = {"Content-Type": "text/event-stream", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
IDS: Mapping[str, bool] = {"vlsn": False, "vlsn@term": True}
_PARAMETERS = frozenset({"after_term", "ids"}) | BEGINNINGS | CHOSEN | CONFIRMED


class TailRoutes:
    def __init__(self, reads: Reads) -> None:
        self._reads = reads
        self._tails = Budget("tails", TAILS_MAX)
        self._pages = Pages(reads)

    async def tail(self, request: Request) -> Response:
        query.only(request.query, _PARAMETERS)
        begin = StartingPoint.asked(request.query)
        all_kinds = query.choice(request.query, "kinds", False, ALL_KINDS)
        with_term = query.choice(request.query, "ids", False, IDS)
        place = Place.asked(self._reads, request.query, begin.from_vlsn)
        if last_seen := request.headers.get("Last-Event-ID", ""):
            vlsn, term = _seen(last_seen)
            begin, place = StartingPoint(vlsn + 1), Place(self._reads, vlsn, term)
        keys = query.key_filter(request.query)
        get = partial(self._pages.get, all_kinds=all_kinds, with_term=with_term, keys=keys)
        self._tails.take(1)
        try:
            place.check()
            await confirm(self._reads, request.query)
            first = await get(begin.vlsn(self._reads), wait_s=0.0)
            place.check()
        except BaseException:
            self._tails.give(1)
            raise
        return Response(200, HEADERS, stream=_Tail(first, get, self._left))

    def _left(self) -> None:
        self._tails.give(1)


class _Tail:
    """The events of one client, a page a piece."""

    def __init__(self, first: Events, get: Callable[..., Awaitable[Events]], left: Callable[[], None]) -> None:
        self._next: Events | None = first
        self._get = get
        self._left = left
        self._next_vlsn = first.next_vlsn
        self._on_its_way: Events | None = None
        self._ended = self._closed = False

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        if self._ended:
            raise StopAsyncIteration
        self._let_go()  # whoever asks for more has sent what it had
        try:
            events = self._next or await self._get(self._next_vlsn, wait_s=TAIL_COMMENT_S)
            self._next, self._next_vlsn = None, events.next_vlsn
            events.hold()
        except VlsnLogError as error:
            self._ended = True
            return b"event: error\ndata: " + problem.document(error) + b"\n\n"
        self._on_its_way = events
        return events.data

    async def aclose(self) -> None:
        self._ended = True
        if not self._closed:
            self._closed = True
            self._let_go()
            self._left()

    def _let_go(self) -> None:
        events, self._on_its_way = self._on_its_way, None
        if events is not None:
            events.let_go()


def _seen(last_event_id: str) -> tuple[int, int]:
    """Parses VLSN and term, 0 where it does not say one. Raises ``BadArgument``."""
    vlsn, at, term = last_event_id.partition("@")
    return (
        query.whole_of(vlsn, "Last-Event-ID", 1 if at else 0, query.VLSN_MAX - 1),
        query.whole_of(term, "Last-Event-ID", 1, query.VLSN_MAX) if at else 0,
    )
