"""``GET /v1/entries`` and ``GET /v1/entries/{vlsn}``: durable entries, as lines, as whole blocks, or one value.

A *page* is the answer to one read; it may have 4 MiB. Two limits bound the memory of reads. Only a few pages are made
at once, and an answer counts against a budget until its socket has accepted it. A read that waits for new entries uses
no slot for concurrent reads. A waiting reader gets a small page, which all readers with the same request share
(``long_polls``).

The default ``consistency=durable`` shows all entries that this node knows to be durable. With ``linearizable`` a
majority first confirms the master, so the answer contains every entry that was acknowledged before the request, on any
node. ``at_least=VLSN`` requires a node that has this VLSN durable. ``lag_max=S`` requires a node that has every entry
acknowledged S seconds ago. A node that does not reach this within ``timeout`` refuses the read (``lagging``).

``after_term=T`` beside ``from=N`` says that the reader has read VLSN N - 1, of term T. If the log does not contain that
entry, the read is refused (``not-in-log``).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from functools import partial

import msgspec

from repl.api import ANY, Freshness, ProducerAt
from repl.group.member import Member, OpenMember
from repl.read.long_polls import BLOCKS, Audience, Form, LongPolls, Page, Wanted
from repl.read.read_index import ReadIndex
from repl.read.reads import Reads, missing, reads_of
from repl.read.starting_point import BEGINNING, StartingPoint
from repl.web import calls, problem, query
from repl.web.calls import (
    BYTES,
    CONFIRM,
    HEX16,
    OCTETS,
    READS,
    WAIT,
    WHOLE,
    Answer,
    Call,
    choice,
    header,
    in_path,
    known,
    ok,
    record,
    whole,
    words,
)
from repl.web.limits import (
    CONFIRM_S,
    LAG_S_MAX,
    PAGES_IN_FLIGHT_BYTES_MAX,
    READ_BYTES_MAX,
    READ_LIMIT,
    READ_LIMIT_MAX,
    READS_AT_ONCE_MAX,
    READS_MAX,
    WAIT_S_MAX,
    Budget,
)
from repl.web.ndjson import PRINTED_SCHEMA
from repl.web.types import Answer as Answered
from repl.web.types import Leave, Request, Response, Start
from vlsn.errors import BadArgument, NotData, ProducersMissing, QueueFull, VlsnLogError
from vlsn.state.producers import ProducerPlace

ALL_KINDS: Mapping[str, bool] = {"data": False, "all": True}
TXNS: Mapping[str, bool] = {"false": False, "true": True}
CONSISTENCY: Mapping[str, bool] = {"durable": False, "linearizable": True}
CONFIRMED = known(*calls.CONFIRMED)
"""Query parameters that require how new a node is, and how long the request may wait for that."""
CHOICES = (
    choice("kinds", "`all` adds the log's own entries, each with its `kind`.", ALL_KINDS, "data"),
    choice("txns", "`true` adds `txn`, the first VLSN of the entry's transaction.", TXNS, "false"),
    words("key", "Only entries with this key; empty: entries without one. At most one `key…` may be sent."),
    words("key_b64", "As `key`, in base64.", contentEncoding="base64"),
    words("key_prefix", "Only entries whose key begins so."),
    words("key_prefix_b64", "As `key_prefix`, in base64.", contentEncoding="base64"),
)
CHOSEN = known(*CHOICES)
"""Query parameters that select the entries, and the fields that are returned."""

AFTER_TERM = whole("after_term", "The term of the VLSN before `from`, which the reader has read.", 1, query.VLSN_MAX)
_LIMIT = whole("limit", "The most entries of the answer.", 1, READ_LIMIT_MAX, READ_LIMIT)
_LISTING = (*BEGINNING, _LIMIT, WAIT, AFTER_TERM, *CHOICES, *calls.CONFIRMED)
_PARAMETERS = known(*_LISTING)
_TIMEOUT = frozenset({"timeout"})
_VLSN = in_path("vlsn", "The VLSN of the entry.", {"type": "integer", "minimum": 1, "maximum": query.VLSN_MAX})
CALLS = (
    Call(
        "read",
        "GET",
        "/v1/entries",
        "Read entries",
        (*_LISTING, header("Accept", f"`{BLOCKS}` asks for whole blocks instead of lines.")),
        (
            Answer(
                200,
                "The entries in the order of their VLSNs; empty if nothing came.",
                {
                    "application/x-ndjson": {"type": "string", "x-vlsnlog-line": PRINTED_SCHEMA},
                    BLOCKS: BYTES,
                },
                {
                    "Vlsnlog-Next": "The VLSN to continue from.",
                    "Vlsnlog-Durable": "The durable end on this node.",
                    "Vlsnlog-Term": "The term of the VLSN before `Vlsnlog-Next`, for `after_term`.",
                },
            ),
        ),
        READS,
        text=f"A page has at most {READ_BYTES_MAX:,} bytes of entries, and at least one entry. VLSNs rise with gaps. "
        "Read on from `Vlsnlog-Next` while it is not above `Vlsnlog-Durable`.",
        example='"$URL/v1/entries?from=1&limit=10&wait=30"',
    ),
    Call(
        "read",
        "GET",
        "/v1/entries/{vlsn}",
        "Read one entry",
        (_VLSN, *calls.CONFIRMED),
        (
            ok(
                BYTES,
                "The entry's value.",
                kind=OCTETS,
                Vlsnlog_Vlsn="The VLSN.",
                Vlsnlog_Term="The entry's term.",
                Vlsnlog_Time="Microseconds since the epoch.",
            ),
        ),
        READS | {NotData},
        example="$URL/v1/entries/7",
    ),
    Call(
        "read",
        "GET",
        "/v1/producers/{producer}",
        "Read the last submission of a producer",
        (in_path("producer", "The producer's id.", HEX16), calls.CONFIRMED[-1]),
        (
            ok(
                record(
                    {
                        "producer": HEX16,
                        **dict.fromkeys((*ProducerPlace.__struct_fields__, "durable", "forgotten_to"), WHOLE),
                    }
                ),
                "The place where the producer continues.",
            ),
        ),
        CONFIRM | {ProducersMissing},
        text="A stopped producer continues with the sequence after this one. The read is linearizable.",
    ),
)
_PIECE_BYTES = 256 * 1024


class ReadRoutes:
    def __init__(self, member: Member, shared: LongPolls, readers: Budget) -> None:
        self._member = member
        self._shared = shared
        self._readers = readers
        self._under_way = Budget("reads under way", READS_MAX)
        self._at_once = asyncio.Semaphore(READS_AT_ONCE_MAX)
        self._pages = Budget("bytes of pages on their way to readers", PAGES_IN_FLIGHT_BYTES_MAX)

    async def entries(self, request: Request) -> Response:
        fields = request.query
        query.only(fields, _PARAMETERS)
        begin = StartingPoint.asked(fields)
        wait_s = query.seconds(fields, "wait", 0.0, 0.0, WAIT_S_MAX)
        wanted = _wanted(request)
        place = Place.asked(self._member, fields, begin.from_vlsn)
        with self._under_way.hold():
            place.check()
            await confirm(self._member, fields)
            from_vlsn = await begin.vlsn(reads_of(self._member))
            async with self._at_once:
                page = await self._shared.make(wanted._replace(from_vlsn=from_vlsn), READ_BYTES_MAX)
            place.check()
        if wait_s and not page.piece.data and page.next_vlsn > page.durable:
            with self._readers.hold():
                page = await self._shared.get(wanted._replace(from_vlsn=page.next_vlsn), wait_s)
            place.check()
        return self._answer(page.headers, page.piece.data)

    def quick(self, request: Request) -> Start | None:
        """Returns the fast path for long-polls. The fast path is possible because all readers with equal requests get
        the same HTTP head, byte for byte. Raises ``BadArgument``."""
        fields = request.query
        if "wait" not in fields or _asked(fields) != ANY:
            return None
        query.only(fields, _PARAMETERS)
        query.seconds(fields, "timeout", CONFIRM_S, 0.001, WAIT_S_MAX)
        from_vlsn = StartingPoint.asked(fields).from_vlsn
        wait_s = query.seconds(fields, "wait", 0.0, 0.0, WAIT_S_MAX)
        if from_vlsn is None or not wait_s:
            return None
        place = Place.asked(self._member, fields, from_vlsn)
        wanted = _wanted(request)._replace(from_vlsn=from_vlsn, after_vlsn=place.vlsn, after_term=place.term)
        return partial(self._start, wanted, wait_s)

    def _start(self, wanted: Wanted, wait_s: float, body: bytes, answer: Answered) -> Leave:
        poll = _Poll(self._shared, self._readers, answer)
        poll.begin(wanted, wait_s)
        return poll.leave

    async def entry(self, request: Request, item: str) -> Response:
        query.only(request.query, CONFIRMED)
        vlsn = query.whole_of(item, "vlsn", 1, query.VLSN_MAX)
        with self._under_way.hold():
            await confirm(self._member, request.query)
            entry = await reads_of(self._member).one(vlsn)
        headers = {
            "Content-Type": "application/octet-stream",
            "Vlsnlog-Vlsn": str(entry.vlsn),
            "Vlsnlog-Term": str(entry.term),
            "Vlsnlog-Time": str(entry.time),
        }
        return self._answer(headers, entry.value)

    async def producer(self, request: Request, item: str) -> Response:
        """Answers ``GET /v1/producers/{id}``: the sequence with which a stopped producer continues; linearizable."""
        query.only(request.query, _TIMEOUT)
        producer = query.hex16(item, "producer")
        with self._under_way.hold():
            timeout_s = query.seconds(request.query, "timeout", CONFIRM_S, 0.001, WAIT_S_MAX)
            await self._member.opened().part(ReadIndex).confirm(timeout_s)
            found = _producer_at(self._member.opened(), producer)
        said = {
            "producer": item,
            **msgspec.to_builtins(found.place),
            "durable": found.durable,
            "forgotten_to": found.forgotten_to,
        }
        return self._answer(
            {"Content-Type": "application/json", "Cache-Control": "no-store"}, msgspec.json.encode(said)
        )

    def _answer(self, headers: dict[str, str], body: bytes) -> Response:
        if len(body) <= _PIECE_BYTES:
            return Response(200, headers, body)
        headers["Content-Length"] = str(len(body))
        self._pages.take(len(body))
        return Response(200, headers, stream=_Counted(body, self._pages))


def _wanted(request: Request) -> Wanted:
    """Reads from the query which entries and which form the reader wants. Raises ``BadArgument``."""
    fields = request.query
    form = Form.BLOCKS if BLOCKS in request.headers.get("Accept", "") else Form.LINES
    keys = query.key_filter(fields)
    if form is Form.BLOCKS and keys is not None:
        raise BadArgument("a key filter cannot be used with blocks: read lines, or select keys after decoding")
    limit = query.whole(fields, "limit", READ_LIMIT, 1, READ_LIMIT_MAX)
    all_kinds, txns = query.choice(fields, "kinds", False, ALL_KINDS), query.choice(fields, "txns", False, TXNS)
    return Wanted(None, form, limit, all_kinds, keys=keys, txns=txns)


@dataclass(frozen=True, slots=True)
class Place:
    """The last entry that the reader has read, if the request names it; otherwise ``term`` is 0."""

    member: Member
    vlsn: int
    term: int

    @classmethod
    def asked(cls, member: Member, fields: Mapping[str, str], from_vlsn: int | None) -> Place:
        term = query.whole(fields, "after_term", 0, 1, query.VLSN_MAX)
        if term and (from_vlsn or 0) < 2:
            raise BadArgument("after_term is the term of the VLSN before from, so from must be 2 or more")
        return cls(member, (from_vlsn or 0) - 1, term)

    def check(self) -> None:
        """Checks that the log contains the reader's last entry. Called before a read and again before the answer,
        because the answer may use more of the log. Raises ``NotInLog``."""
        if self.term:
            reads_of(self.member).check_place(self.vlsn, self.term)


async def confirm(member: Member, fields: Mapping[str, str]) -> None:
    """Returns when this node is as new as the request requires. Raises ``BadArgument``, and the errors of
    ``ReadIndex.confirm``."""
    asked, timeout_s = _asked(fields), query.seconds(fields, "timeout", CONFIRM_S, 0.001, WAIT_S_MAX)
    if asked != ANY:
        await member.opened().part(ReadIndex).confirm(timeout_s, asked)


def _asked(fields: Mapping[str, str]) -> Freshness:
    """Reads from the query how new the node must be. Raises ``BadArgument``."""
    return Freshness(
        query.choice(fields, "consistency", False, CONSISTENCY),
        query.whole(fields, "at_least", 0, 1, query.VLSN_MAX),
        query.seconds(fields, "lag_max", 0.0, 0.0, LAG_S_MAX) if "lag_max" in fields else None,
    )


async def confirm_alone(member: Member, fields: Mapping[str, str]) -> None:
    """Does the same as ``confirm``, for a call that has no other parameters. Raises ``BadArgument`` too."""
    query.only(fields, CONFIRMED)
    await confirm(member, fields)


def _producer_at(opened: OpenMember, producer: int) -> ProducerAt:
    """Returns the producer's last submission among the durable entries. Raises ``ProducersMissing``."""
    table, durable = opened.log.view.history.producers, opened.part(Reads).durable
    life = table.find(producer, at=durable + 1)
    place = life.as_of(durable) if life is not None else ProducerPlace()
    if table.lacks_to and not place.last:
        raise missing(f"producer {producer:016x}", table.lacks_to)
    return ProducerAt(place, durable, table.forgotten_to(at=durable + 1))


class _Poll:
    """A long-poll on the fast path, without a task or timer of its own (``long_polls.Reader``)."""

    __slots__ = ("_answer", "_pages", "_readers", "audience", "tick")

    def __init__(self, pages: LongPolls, readers: Budget, answer: Answered) -> None:
        self._pages = pages
        self._readers = readers
        self._answer: Answered | None = answer
        self.audience: Audience | None = None
        self.tick = 0

    def begin(self, wanted: Wanted, wait_s: float) -> None:
        try:
            self._readers.take(1)
        except QueueFull as error:
            answer, self._answer = self._answer, None
            assert answer is not None
            answer(problem.response(error))
            return
        deadlines = self._pages.deadlines
        deadlines.set(self, deadlines.now() + wait_s)
        self._pages.join(wanted, self)

    def take(self, page: Page | VlsnLogError) -> bool:
        answer = self._answer
        self._end()
        if answer is not None:
            answer(page.response if isinstance(page, Page) else problem.response(page))
        return False

    def due(self) -> None:
        page = self._pages.nothing(self)
        self._pages.leave(self)
        self.take(page)

    def leave(self) -> None:
        """Ends the wait, because the client has left."""
        self._end()
        self._pages.leave(self)

    def _end(self) -> None:
        if self._answer is not None:
            self._answer = None
            self._readers.give(1)
            self._pages.deadlines.clear(self)


class _Counted:
    """A large body in pieces. The body's bytes count against a budget until it is sent or abandoned."""

    def __init__(self, body: bytes, budget: Budget) -> None:
        self._body = memoryview(body)
        self._budget: Budget | None = budget
        self._at = 0

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        if self._at >= len(self._body):
            await self.aclose()
            raise StopAsyncIteration
        piece = self._body[self._at : self._at + _PIECE_BYTES]
        self._at += len(piece)
        return bytes(piece)

    async def aclose(self) -> None:
        if self._budget is not None:
            self._budget.give(len(self._body))
            self._budget = None
