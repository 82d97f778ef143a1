"""``GET /v1/spans``: a range of VLSNs divided into spans of about equal bytes, so that several readers can share it.

    GET /v1/spans?from=100&to=900&bytes=1048576&entries=10000&limit=16
    {"first": 1, "durable": 731, "spans": [{"next": 412, "term": 3, "bytes": 1048000}, …]}

The default for ``from`` is the log's first VLSN, ``first`` in the answer. ``next`` is the first VLSN of the next span.
``term`` is the term of the entry before ``next``; a reader sends it later as ``after_term``.
"""

from __future__ import annotations

import msgspec

from repl.api import Spans
from repl.group.member import Member
from repl.read.read_http import AFTER_TERM, Place, confirm
from repl.read.reads import reads_of
from repl.read.spans import spans_of
from repl.web import calls, query
from repl.web.calls import READS, Call, known, ok, whole
from repl.web.json_objects import HEADERS
from repl.web.limits import READS_MAX, SPANS_MAX, Budget
from repl.web.types import Request, Response

PATH = "/v1/spans"
_MOST = query.VLSN_MAX
_ASKED = (
    whole("from", "The first VLSN; without it the log's first.", 1, _MOST),
    whole("to", "The last VLSN.", 1, _MOST, _MOST),
    whole("bytes", "About how many bytes of files a span has.", 1, _MOST, _MOST),
    whole("entries", "The most VLSNs of a span.", 1, _MOST, _MOST),
    whole("limit", "The most spans of the answer.", 1, SPANS_MAX, 1),
    AFTER_TERM,
    *calls.CONFIRMED,
)
_PARAMETERS = known(*_ASKED)
CALLS = (
    Call(
        "read",
        "GET",
        PATH,
        "Divide a range of VLSNs into spans",
        _ASKED,
        (ok(Spans, "`next` is the first VLSN of the next span, `term` that of the entry before it."),),
        READS,
        text="Several readers can share a log by spans of about equal bytes.",
        example='"$URL/v1/spans?bytes=1048576&limit=16"',
    ),
)


class SpanRoutes:
    def __init__(self, member: Member) -> None:
        self._member = member
        self._under_way = Budget("cuts of the log under way", READS_MAX)

    async def spans(self, request: Request) -> Response:
        fields = request.query
        query.only(fields, _PARAMETERS)
        most = query.VLSN_MAX
        from_vlsn = query.whole(fields, "from", None, 1, most)
        place = Place.asked(self._member, fields, from_vlsn)
        with self._under_way.hold():
            place.check()
            await confirm(self._member, fields)
            found = await spans_of(
                self._member.opened().log,
                reads_of(self._member).durable,
                from_vlsn,
                query.whole(fields, "to", most, 1, most),
                bytes_each=query.whole(fields, "bytes", most, 1, most),
                entries_each=query.whole(fields, "entries", most, 1, most),
                limit=query.whole(fields, "limit", 1, 1, SPANS_MAX),
            )
            place.check()
        return Response(200, {**HEADERS, "Cache-Control": "no-store"}, msgspec.json.encode(found))
