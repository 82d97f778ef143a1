"""``GET /v1/spans``: a range of VLSNs divided into spans of about equal bytes, so that several readers can share it.

    GET /v1/spans?from=100&to=900&bytes=1048576&entries=10000&limit=16
    {"first": 1, "durable": 731, "spans": [{"next": 412, "term": 3, "bytes": 1048000}, …]}

The default for ``from`` is the log's first VLSN, ``first`` in the answer. ``next`` is the first VLSN of the next span.
``term`` is the term of the entry before ``next``; a reader sends it later as ``after_term``.
"""

from __future__ import annotations

import msgspec

from repl.group.member import Member
from repl.read.read_http import CONFIRMED, Place, confirm
from repl.read.reads import reads_of
from repl.read.spans import spans_of
from repl.web import query
from repl.web.json_objects import HEADERS
from repl.web.limits import READS_MAX, SPANS_MAX, Budget
from repl.web.types import Request, Response

PATH = "/v1/spans"
_PARAMETERS = frozenset({"from", "to", "bytes", "entries", "limit", "after_term"}) | CONFIRMED


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
