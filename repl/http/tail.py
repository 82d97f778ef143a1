"""``GET /v1/tail``: durable entries as server-sent events, for as long as the client stays.

    id: 17
    data: {"vlsn":17,"term":2,"time":…,"value":"…"}

A comment comes whenever 15 s passed without an event.  ``Last-Event-ID`` (as a browser sends when it comes back)
goes on after that VLSN and wins over ``?from=`` and ``after_term``; with neither, the first entry there is begins.
With ``?ids=vlsn@term`` ids are ``17@2``: a browser that comes back with one is told (``not-in-log``) if the log does
not hold VLSN 17 of term 2.
What cannot be served is a problem document before the first event; after it, an event ``error`` that carries one and
ends the stream.  So do events for which there is no room, since other clients do not take theirs (``queue-full``).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping

from repl.api import EntryPage, NodeApi
from repl.http import ndjson, problem, query
from repl.http.limits import (
    TAIL_COMMENT_S,
    TAIL_PAGE_ENTRIES_MAX,
    TAIL_UNCOUNTED_BYTES,
    TAILS_IN_FLIGHT_BYTES_MAX,
    TAILS_MAX,
    WAITED_BYTES_MAX,
    Budget,
)
from repl.http.read import ALL_KINDS, CONFIRMED, Place, confirm
from repl.http.types import Request, Response
from vlsn.errors import VlsnLogError, WaitEnded

HEADERS = {"Content-Type": "text/event-stream", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
_COMMENT = b": still here\n\n"
IDS: Mapping[str, bool] = {"vlsn": False, "vlsn@term": True}
_PARAMETERS = frozenset({"from", "kinds", "after_term", "ids"}) | CONFIRMED


class Tails:
    def __init__(self, node: NodeApi) -> None:
        self._node = node
        self._tails = Budget("tails", TAILS_MAX)
        self.in_flight = Budget("bytes of events on their way to tails", TAILS_IN_FLIGHT_BYTES_MAX)

    async def tail(self, request: Request) -> Response:
        query.only(request.query, _PARAMETERS)
        from_vlsn = query.whole(request.query, "from", None, 1, query.VLSN_MAX)
        all_kinds = query.choice(request.query, "kinds", False, ALL_KINDS)
        with_term = query.choice(request.query, "ids", False, IDS)
        place = Place.asked(self._node, request.query, from_vlsn)
        if last_seen := request.headers.get("Last-Event-ID", ""):
            vlsn, term = _seen(last_seen)
            from_vlsn, place = vlsn + 1, Place(self._node, vlsn, term)
        self._tails.take(1)
        try:
            place.check()
            await confirm(self._node, request.query)
            page = await self._read(from_vlsn, 0.0, all_kinds)
            place.check()
        except BaseException:
            self._tails.give(1)
            raise
        return Response(200, HEADERS, stream=_Tail(self, page, all_kinds, with_term))

    async def _read(self, from_vlsn: int | None, wait_s: float, all_kinds: bool) -> EntryPage:
        return await self._node.read(
            from_vlsn, limit=TAIL_PAGE_ENTRIES_MAX, bytes_max=WAITED_BYTES_MAX, wait_s=wait_s, all_kinds=all_kinds
        )

    async def page_after(self, page: EntryPage, all_kinds: bool) -> EntryPage:
        """The next page; an empty one after ``TAIL_COMMENT_S``, or when a change of role ended the wait."""
        try:
            return await self._read(page.next_vlsn, TAIL_COMMENT_S, all_kinds)
        except WaitEnded:
            return EntryPage([], page.next_vlsn, page.durable)

    def left(self) -> None:
        self._tails.give(1)


class _Tail:
    """The events of one client, a page a piece."""

    def __init__(self, tails: Tails, first: EntryPage, all_kinds: bool, with_term: bool) -> None:
        self._tails = tails
        self._page = first
        self._all_kinds = all_kinds
        self._with_term = with_term
        self._counted = 0
        self._begun = self._ended = self._closed = False

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        if self._ended:
            raise StopAsyncIteration
        self._count(0)  # whoever asks for more has sent what it had
        try:
            if self._begun:
                self._page = await self._tails.page_after(self._page, self._all_kinds)
            self._begun = True
            events = _events(self._page, self._all_kinds, self._with_term)
            self._page = EntryPage([], self._page.next_vlsn, self._page.durable)
            self._count(len(events))
        except VlsnLogError as error:
            self._ended = True
            return b"event: error\ndata: " + problem.document(error) + b"\n\n"
        return events

    async def aclose(self) -> None:
        self._ended = True
        if not self._closed:
            self._closed = True
            self._count(0)
            self._tails.left()

    def _count(self, size: int) -> None:
        """So many bytes are on their way, in place of those before."""
        self._tails.in_flight.give(self._counted)
        self._counted = 0
        if size > TAIL_UNCOUNTED_BYTES:
            self._tails.in_flight.take(size)
            self._counted = size


def _seen(last_event_id: str) -> tuple[int, int]:
    """VLSN and term, 0 where it does not say one.  Raises ``BadArgument``."""
    vlsn, at, term = last_event_id.partition("@")
    return (
        query.whole_of(vlsn, "Last-Event-ID", 1 if at else 0, query.VLSN_MAX - 1),
        query.whole_of(term, "Last-Event-ID", 1, query.VLSN_MAX) if at else 0,
    )


def _events(page: EntryPage, all_kinds: bool, with_term: bool) -> bytes:
    if not page.entries:
        return _COMMENT
    rows = zip(page.entries, ndjson.encode_each(page.entries, kinds=all_kinds), strict=True)
    if with_term:
        return b"".join([b"id: %d@%d\ndata: %b\n\n" % (entry.vlsn, entry.term, row) for entry, row in rows])
    return b"".join([b"id: %d\ndata: %b\n\n" % (entry.vlsn, row) for entry, row in rows])
