"""``/v1/peer/restore``: a restoring member opens sessions (POST), and fetches ranges of segments (GET).
``/v1/peer/block``: a mending member fetches one block. ``/v1/peer/copy``: a member compares its copy of a block with
this node's. ``/v1/peer/messages``: a member fetches messages of a destination that are missing from its pages.

A range is sent with the crc32c of its bytes and with the log's generation, a number that every rollback changes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from repl.group.member import Member
from repl.repair import integrity, providing
from repl.repair.providing import Providing
from repl.repair.restoring import CRC_FIELD
from repl.web import query
from repl.web.calls import (
    BYTES,
    JSON,
    MEMBERS,
    OCTETS,
    Call,
    Parameter,
    known,
    ok,
    required,
    whole,
    words,
)
from repl.web.json_objects import HEADERS, answered, asked_object
from repl.web.limits import RESTORE_RANGES_MAX, STATE_RECORDS_MAX, Budget
from repl.web.types import Request, Response
from vlsn.errors import BadArgument
from vlsn.format.checksum import crc
from vlsn.format.segment import NUMBER_MAX
from vlsn.limits import RESTORE_RANGE_BYTES_MAX, SEGMENT_BYTES_MAX
from vlsn.repair.restore_messages import RECORD, Offer, RestoreAsk

GENERATION_FIELD = "Vlsnlog-Generation"
_OFFER = "/v1/peer/restore"


def _all(*parameters: Parameter) -> tuple[Parameter, ...]:
    return tuple(required(each) for each in parameters)


_FROM_TO = (words("group", "The group."), words("sender", "The member that asks."), words("to", "The member asked."))
_OF_RANGE = _all(
    words("session", "The session that the offer opened."),
    whole("segment", "The segment.", 1, NUMBER_MAX),
    whole("start", "The first byte.", 0, SEGMENT_BYTES_MAX),
    whole("end", f"The end, exclusive; at most {RESTORE_RANGE_BYTES_MAX:,} bytes on.", 0, SEGMENT_BYTES_MAX),
    whole("have", "The VLSN up to which the restoring node has synced entries.", 0, query.VLSN_MAX),
)
_OF_BLOCK = _all(
    *_FROM_TO,
    whole("term", "The block's term; 0: any, if the block is durable.", 0, query.VLSN_MAX),
    whole("first", "The block's first VLSN.", 1, query.VLSN_MAX),
)
_OF_MESSAGES = _all(
    *_FROM_TO,
    words("uuid", "The destination."),
    whole("since", "The VLSN that set the destination.", 0, query.VLSN_MAX),
    whole("first", "The first VLSN.", 1, query.VLSN_MAX),
    whole("last", "The last VLSN.", 1, query.VLSN_MAX),
)
_OF_COPY = _all(*_FROM_TO, whole("vlsn", "A VLSN of the block.", 1, query.VLSN_MAX))
_RANGE, _BLOCK, _MESSAGES, _COPY = known(*_OF_RANGE), known(*_OF_BLOCK), known(*_OF_MESSAGES), known(*_OF_COPY)
_BYTES = ok(BYTES, "The bytes.", kind=OCTETS, Vlsnlog_Crc32c="The crc32c of the bytes, in hex.")
CALLS = (
    Call("members", "POST", _OFFER, "Offer a restore", (), (ok(Offer),), MEMBERS, {JSON: RestoreAsk}),
    Call("members", "GET", _OFFER, "Send bytes of a segment to a restoring member", _OF_RANGE, (_BYTES,), MEMBERS),
    Call("members", "GET", "/v1/peer/block", "Send one block", _OF_BLOCK, (_BYTES,), MEMBERS),
    Call("members", "GET", "/v1/peer/messages", "Send messages of a destination", _OF_MESSAGES, (_BYTES,), MEMBERS),
    Call("members", "GET", "/v1/peer/copy", "Compare one block", _OF_COPY, (ok(integrity.Copy),), MEMBERS),
)


Give = Callable[[str, int, int, int], Awaitable[bytes]]
"""Reads messages of a destination, as records of a page (``repl.destinations.filling``). The arguments are the
destination's uuid, the VLSN that set it, and the first and last VLSN. Raises ``NotFound``, ``NotMaster``, and
``Damaged`` if the messages cannot be read now."""


class RepairRoutes:
    """Helps members that restore or mend their logs. Each call raises ``FeedRefused`` for another group, sender or
    receiver, and ``NotMaster`` while the log is not open. Each call also raises the errors of ``repl.repair.providing``
    and ``integrity``."""

    def __init__(self, member: Member, give: Give) -> None:
        self._member = member
        self._give = give
        self._ranges = Budget("ranges of restores", RESTORE_RANGES_MAX)
        self._records = Budget("state records", STATE_RECORDS_MAX)

    async def offer(self, request: Request) -> Response:
        asked = await asked_object(request)
        request.check_member(str(asked.get("sender")))
        with self._records.hold(asked.get("purpose") == RECORD):
            ask = providing.asked_of(self._member, asked)
            answer = await self._member.opened().part(Providing).answer(ask)
        return Response(200, HEADERS, answer)

    async def block(self, request: Request) -> Response:
        """Answers ``GET /v1/peer/block``: one block by its name, for a member whose own copy is damaged."""
        _require(request, _BLOCK)
        term = query.whole(request.query, "term", 0, 0, query.VLSN_MAX)
        first = query.whole(request.query, "first", 0, 1, query.VLSN_MAX)
        with self._ranges.hold():
            data = await providing.block_of(self._member, request.query, term, first)
        return Response(200, {"Content-Type": "application/octet-stream", CRC_FIELD: f"{crc(data):08x}"}, data)

    async def messages(self, request: Request) -> Response:
        """Answers ``GET /v1/peer/messages``: messages of a destination, for a member that is missing them."""
        _require(request, _MESSAGES)
        first = query.whole(request.query, "first", 0, 1, query.VLSN_MAX)
        last = query.whole(request.query, "last", 0, first, query.VLSN_MAX)
        since = query.whole(request.query, "since", 0, 0, query.VLSN_MAX)
        with self._ranges.hold():
            asked = request.query
            providing.check_names(self._member, asked["group"], asked["sender"], asked["to"])
            data = await self._give(asked["uuid"], since, first, last)
        return Response(200, {"Content-Type": "application/octet-stream", CRC_FIELD: f"{crc(data):08x}"}, data)

    async def copy(self, request: Request) -> Response:
        """Answers ``GET /v1/peer/copy``: the name and digest of the block that contains a VLSN."""
        _require(request, _COPY)
        vlsn = query.whole(request.query, "vlsn", 0, 1, query.VLSN_MAX)
        with self._ranges.hold():
            answer = await integrity.answer_copy(self._member, request.query, vlsn)
        return answered(answer)

    async def range(self, request: Request) -> Response:
        _require(request, _RANGE)
        request.check_member(None)
        number = query.whole(request.query, "segment", 0, 1, NUMBER_MAX)
        start = query.whole(request.query, "start", 0, 0, SEGMENT_BYTES_MAX)
        end = query.whole(request.query, "end", 0, 0, SEGMENT_BYTES_MAX)
        have = query.whole(request.query, "have", 0, 0, query.VLSN_MAX)
        if not 0 < end - start <= RESTORE_RANGE_BYTES_MAX:
            raise BadArgument(f"a range from {start} to {end}; at most {RESTORE_RANGE_BYTES_MAX} bytes at once")
        with self._ranges.hold():
            provided = self._member.opened().part(Providing)
            data, generation = await provided.read(request.query["session"], number, start, end, have)
        headers = {
            "Content-Type": "application/octet-stream",
            CRC_FIELD: f"{crc(data):08x}",
            GENERATION_FIELD: str(generation),
        }
        return Response(200, headers, data)


def _require(request: Request, names: frozenset[str]) -> None:
    """Checks that the request has all of ``names``. Other fields, for example of a later release, are ignored. Raises
    ``BadArgument``."""
    if not names <= request.query.keys():
        raise BadArgument(f"this call needs all of: {', '.join(sorted(names))}")
    if "sender" in names:
        request.check_member(request.query["sender"])
