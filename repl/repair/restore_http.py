"""``/v1/peer/restore``: a peer that restores its log asks (POST), and fetches ranges of segments (GET).
``/v1/peer/block``: a peer that mends its log fetches one block; ``/v1/peer/copy``: it asks which copy is here;
``/v1/peer/messages``: it fetches messages of a destination that its pages lack.

A range is given with the crc32c of its bytes and the log's generation, which changes with every rollback.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from repl.web import query
from repl.web.json_objects import HEADERS, answered, asked_object
from repl.web.limits import RESTORE_RANGES_MAX, STATE_RECORDS_MAX, Budget
from repl.web.types import Request, Response
from vlsn.errors import BadArgument
from vlsn.format.checksum import crc
from vlsn.format.segment import NUMBER_MAX
from vlsn.limits import RESTORE_RANGE_BYTES_MAX, SEGMENT_BYTES_MAX
from vlsn.repair.restore_messages import RECORD


class Repairs(Protocol):
    """The help for a member that restores or mends its log."""

    async def offer(self, body: dict[str, Any]) -> bytes:
        """Answers ``POST /v1/peer/restore`` (``vlsn.repair.restore_messages``) with JSON. Raises as
        ``repl.repair.providing`` says."""
        ...

    async def range(self, session: str, number: int, start: int, end: int, have: int) -> tuple[bytes, int]:
        """Reads bytes of a segment for a restoring peer, and the log's generation. Raises ``NotFound`` when the session
        is over, ``NotYet``, ``Trimmed``."""
        ...

    async def block(self, asked: Mapping[str, str], term: int, first: int) -> bytes:
        """Answers ``GET /v1/peer/block``: a block by its name, for a member that mends its own. ``asked`` holds the
        names of group, sender and receiver. Raises ``FeedRefused``, ``NotFound``, ``Damaged``."""
        ...

    async def messages(self, asked: Mapping[str, str], uuid: str, since: int, first: int, last: int) -> bytes:
        """Answers ``GET /v1/peer/messages``: messages of a destination from ``first`` on, as records of a page
        (``repl.destinations.filling``); ``since`` is the VLSN that has set where it begins. Raises ``FeedRefused``,
        ``NotFound``, ``Damaged`` where they cannot be read for now."""
        ...

    async def copy(self, asked: Mapping[str, str], vlsn: int) -> dict[str, Any]:
        """Answers ``GET /v1/peer/copy``: which block holds ``vlsn``, and its SHA-256. Raises ``FeedRefused``,
        ``NotFound``, ``Damaged``."""
        ...


CRC_FIELD = "Vlsnlog-Crc32c"
GENERATION_FIELD = "Vlsnlog-Generation"
_RANGE = frozenset({"session", "segment", "start", "end", "have"})
_BLOCK = frozenset({"group", "sender", "to", "term", "first"})
_MESSAGES = frozenset({"group", "sender", "to", "uuid", "since", "first", "last"})
_COPY = frozenset({"group", "sender", "to", "vlsn"})


class RepairRoutes:
    def __init__(self, repairs: Repairs) -> None:
        self._repairs = repairs
        self._ranges = Budget("ranges of restores", RESTORE_RANGES_MAX)
        self._records = Budget("state records", STATE_RECORDS_MAX)

    async def offer(self, request: Request) -> Response:
        asked = await asked_object(request)
        request.check_member(str(asked.get("sender")))
        with self._records.hold(asked.get("purpose") == RECORD):
            answer = await self._repairs.offer(asked)
        return Response(200, HEADERS, answer)

    async def block(self, request: Request) -> Response:
        """Answers ``GET /v1/peer/block``: one block by its name, for a member whose own is damaged."""
        _require(request, _BLOCK)
        term = query.whole(request.query, "term", 0, 0, query.VLSN_MAX)
        first = query.whole(request.query, "first", 0, 1, query.VLSN_MAX)
        with self._ranges.hold():
            data = await self._repairs.block(request.query, term, first)
        return Response(200, {"Content-Type": "application/octet-stream", CRC_FIELD: f"{crc(data):08x}"}, data)

    async def messages(self, request: Request) -> Response:
        """Answers ``GET /v1/peer/messages``: messages of a destination, for a member whose pages lack them."""
        _require(request, _MESSAGES)
        first = query.whole(request.query, "first", 0, 1, query.VLSN_MAX)
        last = query.whole(request.query, "last", 0, first, query.VLSN_MAX)
        since = query.whole(request.query, "since", 0, 0, query.VLSN_MAX)
        with self._ranges.hold():
            data = await self._repairs.messages(request.query, request.query["uuid"], since, first, last)
        return Response(200, {"Content-Type": "application/octet-stream", CRC_FIELD: f"{crc(data):08x}"}, data)

    async def copy(self, request: Request) -> Response:
        """Answers ``GET /v1/peer/copy``: the name and digest of the block that holds a VLSN."""
        _require(request, _COPY)
        vlsn = query.whole(request.query, "vlsn", 0, 1, query.VLSN_MAX)
        with self._ranges.hold():
            answer = await self._repairs.copy(request.query, vlsn)
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
            data, generation = await self._repairs.range(request.query["session"], number, start, end, have)
        headers = {
            "Content-Type": "application/octet-stream",
            CRC_FIELD: f"{crc(data):08x}",
            GENERATION_FIELD: str(generation),
        }
        return Response(200, headers, data)


def _require(request: Request, names: frozenset[str]) -> None:
    """Checks that ``names`` are asked; ignores further fields of a later peer. Raises ``BadArgument``."""
    if not names <= request.query.keys():
        raise BadArgument(f"this call takes all of: {', '.join(sorted(names))}")
    if "sender" in names:
        request.check_member(request.query["sender"])
