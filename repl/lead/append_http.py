"""``POST /v1/entries``: one body, one atomic append.

    octet-stream  the body is one entry      x-ndjson  a line is an entry      x-vlsnlog-batch  a binary batch

These checks run in order, each before bytes for the next one are kept: this node is the master (otherwise 307 with the
same path and query), content type (415), parameters (400), announced length (413), room in the budget (429), the body
itself (400, 413), the node's own refusals. The bytes of the body count in the budget until the answer. A client that
leaves early loses only its answer: its append stays submitted.

A server that has a whole small request in memory may skip the coroutine. ``quick`` decides once how requests with the
same head are served; each such request is then one call with its body.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator, Mapping
from contextlib import asynccontextmanager

from repl.api import Acks, Appended, CommitSets, Done, Pending, Puts
from repl.group.member import Member
from repl.lead.append_book import Append
from repl.lead.leading import Leading, lead_of
from repl.names import positions, sinks
from repl.web import ndjson, problem, query
from repl.web.calls import BYTES, LOGGED, TIMEOUT, Call, Errors, Parameter, choice, known, ok, whole, words
from repl.web.limits import PIECE_BYTES, TIMEOUT_S_MAX, AppendLimits, Budget
from repl.web.mastership import redirect
from repl.web.slices import Slices
from repl.web.types import Answer, Leave, Request, Response, Start, in_time
from vlsn.durability import GroupDurability, group_durability
from vlsn.errors import (
    BadArgument,
    DestinationFull,
    DuplicateForgotten,
    OutOfSequence,
    ProducersMissing,
    TooLarge,
    UnknownProducer,
    UnsupportedType,
    VlsnLogError,
)
from vlsn.format import batch
from vlsn.format.batch import Batch
from vlsn.format.producer_columns import SEQUENCE_MAX
from vlsn.format.submission import Submission, Transaction, Values, values_of
from vlsn.limits import BATCH_ENTRIES_MAX, BODY_BYTES_MAX, ENTRY_BYTES_MAX, KEY_BYTES_MAX
from vlsn.seams import Buffer

OCTETS = "application/octet-stream"
BATCH = "application/x-vlsnlog-batch"

ACKS: Mapping[str, Acks] = {acks.value: acks for acks in Acks}
APPENDING: tuple[Parameter, ...] = (
    choice("acks", "The members whose syncs the answer waits for.", ACKS, Acks.MAJORITY.value),
    words("durability", "`sync`, `write_no_sync` or `no_sync`; two with a comma: at the master, at replicas."),
    TIMEOUT,
    words("producer", "The producer's id, with `sequence`.", "^[0-9a-f]{16}$"),
    whole("sequence", "The number of the producer's submission.", 0, SEQUENCE_MAX),
    whole("born", "A VLSN that was durable before the producer's first submission.", 0, query.VLSN_MAX),
)
APPEND_PARAMETERS = known(*APPENDING)
_KEY = frozenset({"key"})
_KINDS = (OCTETS, ndjson.CONTENT_TYPE, BATCH)
_JSON = {"Content-Type": "application/json"}
SUBMITTED: Errors = LOGGED | {
    *(DestinationFull, DuplicateForgotten, OutOfSequence, ProducersMissing, UnknownProducer),
}
"""The errors of an append."""
ENTRY_BODIES = {
    OCTETS: BYTES,
    ndjson.CONTENT_TYPE: {"type": "string", "x-vlsnlog-line": ndjson.LINE_SCHEMA},
    BATCH: BYTES,
}
ENTRIES_TEXT = (
    f"`{OCTETS}`: the body is one entry, of at most {ENTRY_BYTES_MAX:,} bytes, and may be empty. "
    f"`{ndjson.CONTENT_TYPE}`: each line is one entry. `{BATCH}`: a binary batch (`vlsn/format/batch.py`). "
    f"A body has at most {BODY_BYTES_MAX:,} bytes and {BATCH_ENTRIES_MAX:,} entries. "
)
KEY = words("key", f"The key of a single entry, at most {KEY_BYTES_MAX:,} bytes. For `{OCTETS}` only.")
CALLS = (
    Call(
        "append",
        "POST",
        "/v1/entries",
        "Append entries",
        (*APPENDING, KEY),
        (ok(Appended, "The entries are in the log: VLSNs `first` to `last`, of `term`."),),
        SUBMITTED,
        ENTRY_BODIES,
        text=f"All entries of one body are logged, or none. {ENTRIES_TEXT}"
        "`durable` says that a majority has synced the entries, and `synced` counts the nodes that had. "
        "After 503 or 429 nothing was logged: send the body again. After `outcome-unknown` it may be in the log.",
        example="-L \"$URL/v1/entries?key=a\" -H 'Content-Type: application/octet-stream' --data-binary 'hello'",
    ),
)


class NodeAppends:
    """Appends to the log of the moment's lead."""

    def __init__(self, member: Member) -> None:
        self.member = member

    def submit(
        self,
        submission: Submission,
        acks: Acks,
        done: Done,
        born: int | None = None,
        durability: GroupDurability | None = None,
        sets: CommitSets | None = None,
    ) -> Append:
        """Queues one atomic append. A transaction's COMMIT also sets the names in ``sets``. A producer's that is in the
        queue or the log already is not queued again, and answered when its original meets ``acks``. ``born``: a VLSN
        that was durable before the producer's first. ``durability``: less than the group's setting, None for that.

        ``done`` is called exactly once, never from inside this call. Raises at once, with nothing logged:
        ``QueueFull``, ``NotMaster``, ``InsufficientReplicas``, ``NoSpace``, ``TooLarge``, ``Halted``,
        ``StrongerDurability``, ``WrongVersion`` for less than a sync at level 1; for a producer ``OutOfSequence``,
        ``UnknownProducer``, ``DuplicateForgotten``; for a bad value in ``sets`` ``BadArgument``. ``done`` receives
        ``StaleTerm`` where another commit has replaced a name's value.
        """
        lead = lead_of(self.member)
        if durability is not None:
            lead.admission.check_durability(durability)
        if sets is None:
            return lead.admission.submit(submission, acks, done, born, None, durability)
        assert isinstance(submission, Transaction)
        try:
            puts = puts_of(lead, sets)
        except BadArgument as error:
            if positions.is_past(
                lead.log, sets.positions
            ):  # of its end: an unseated master misses entries that were read elsewhere
                return lead.admission.refuse(submission, acks, done, error)
            raise
        if puts is not None:
            submission = Transaction(submission.parts, puts.entry(), (submission.producer, submission.sequence))
        return lead.admission.submit(submission, acks, done, born, puts, durability)


class AppendRoutes:
    def __init__(self, appends: NodeAppends, bodies: Budget, limits: AppendLimits, pieces: Slices) -> None:
        self._appends = appends
        self._bodies = bodies
        self._limits = limits
        self._pieces = pieces
        self._decoding = asyncio.Lock()

    async def append(self, request: Request) -> Response:
        if not self._appends.member.is_master():
            return redirect(self._appends.member, request)
        terms = _Terms(request, self._limits)
        body = await self._take_body(request, terms.body_bytes_max)
        submission = await self._submission(terms, body) if terms.long(len(body)) else None
        answered: asyncio.Future[Response] = asyncio.get_running_loop().create_future()

        def answer(response: Response) -> None:
            if not answered.done():
                answered.set_result(response)

        leave = _Append(self._appends, self._bodies, answer).begin(terms, body, submission)
        try:
            return await answered
        except asyncio.CancelledError:
            leave()
            raise

    @asynccontextmanager
    async def entries(self, request: Request, known: frozenset[str]) -> AsyncIterator[Values | Batch]:
        """Decodes a body of entries as ``append`` does, for callers that keep the entries. The bytes count in the
        budget until the end. ``known`` are the call's own parameters."""
        terms = _Terms(request, self._limits, known)
        body = await self._take_body(request, terms.body_bytes_max)
        submission = await self._submission(terms, body) if terms.long(len(body)) else None
        try:
            part = submission or terms.submission(body)
            terms.grant.check(part)
            yield part
        finally:
            self._bodies.give(len(body))

    async def _submission(self, terms: _Terms, body: bytes) -> Batch:
        """Decodes a long body to a batch, with turns of the event loop for other tasks in between. If that fails, the
        bytes are returned to the budget. One body is decoded at a time, because lines as objects take several times the
        bytes that the budget counts."""
        try:
            async with self._decoding:
                return await self._pieces.run(self._decoded(terms, body))
        except BaseException:
            self._bodies.give(len(body))
            raise

    def _decoded(self, terms: _Terms, body: bytes) -> Generator[int, None, Batch]:
        decoded = yield from ndjson.decode_in_steps(body)
        yield len(body)  # each of these steps processes the whole body
        parts = batch.encode_parts(*decoded, producer=terms.producer)
        yield len(body)
        data = b"".join(parts)
        yield len(body)
        return decode_batch(data, self._limits)

    def quick(self, request: Request) -> Start | None:
        """Returns how to serve appends with exactly this head, or None if ``append`` must find the error."""
        try:
            terms = _Terms(request, self._limits)
        except VlsnLogError:
            return None
        if terms.producer is not None:
            return None  # such a head is never sent twice
        if terms.long(request.body_length or int(request.headers.get("Content-Length", "0"))):
            return None

        def start(body: bytes, answer: Answer) -> Leave:
            try:
                if not self._appends.member.is_master():
                    answer(redirect(self._appends.member, request))
                    return _nothing
                if len(body) > terms.body_bytes_max:
                    raise _too_long(len(body), terms.body_bytes_max)
                self._bodies.take(len(body))
            except VlsnLogError as error:
                self._appends.member.counts.refused[error.slug] += 1
                answer(problem.response(error))
                return _nothing
            return _Append(self._appends, self._bodies, answer).begin(terms, body)

        return start

    async def _take_body(self, request: Request, limit: int) -> bytes:
        """Reads the body, and takes its bytes from the budget: before reading, or piece by piece if the body is
        chunked."""
        length = request.body_length
        if length is not None:
            if length > limit:
                raise _too_long(length, limit)
            self._bodies.take(length)
            try:
                return await request.body(limit)
            except BaseException:
                self._bodies.give(length)
                raise
        body = bytearray()
        try:
            async with in_time():
                async for piece in request.pieces():
                    if len(body) + len(piece) > limit:
                        raise _too_long(len(body) + len(piece), limit)
                    self._bodies.take(len(piece))
                    body += piece
        except BaseException:
            self._bodies.give(len(body))
            raise
        return bytes(body)


class _Terms:
    """The parameters in the head of an append: how to decode its body, and when to answer."""

    __slots__ = (
        "acks",
        "body_bytes_max",
        "born",
        "durability",
        "grant",
        "key",
        "kind",
        "limits",
        "producer",
        "timeout_s",
    )

    def __init__(self, request: Request, limits: AppendLimits, known: frozenset[str] = APPEND_PARAMETERS) -> None:
        """Reads the parameters. ``known`` are the parameters of the route, besides the key of a single entry."""
        self.limits = limits
        self.grant = request.grant
        self.kind = _content_type(request)
        self.body_bytes_max = limits.entry_bytes_max if self.kind == OCTETS else limits.body_bytes_max
        self.acks, self.timeout_s, self.key = Acks.MAJORITY, limits.timeout_s, b""
        self.producer: tuple[int, int] | None = None
        self.born: int | None = None
        self.durability: GroupDurability | None = None
        if request.query_text:
            fields = request.query
            query.only(fields, known | _KEY if self.kind == OCTETS else known)
            self.acks = query.choice(fields, "acks", Acks.MAJORITY, ACKS)
            self.timeout_s = query.seconds(fields, "timeout", limits.timeout_s, 0.001, TIMEOUT_S_MAX)
            self.key = fields.get("key", "").encode("utf-8", "surrogateescape")
            self.producer = producer_in(fields)
            self.born = query.whole(fields, "born", None, 0, query.VLSN_MAX)
            self.durability = durability_in(fields)
        if len(self.key) > limits.key_bytes_max:
            raise TooLarge(f"a key of {len(self.key)} bytes; at most {limits.key_bytes_max}")

    def submission(self, body: bytes) -> Values | Batch:
        named = self.producer
        if self.kind == OCTETS:
            return Values([body], [self.key] if self.key else None, named or (0, 0))
        if self.kind == BATCH:
            given = decode_batch(body, self.limits)
            if named is None:
                return given
            if given.producer:
                raise BadArgument("producer: the batch names one itself")
            return decode_batch(b"".join(batch.of_producer([body], named)), self.limits)
        limits = self.limits
        return values_of(
            *ndjson.decode(body),
            named or (0, 0),
            entry_bytes_max=limits.entry_bytes_max,
            key_bytes_max=limits.key_bytes_max,
            body_bytes_max=limits.body_bytes_max,
        )

    def long(self, length: int) -> bool:
        """Returns whether decoding ``length`` bytes in one step would hold up other tasks for long."""
        return self.kind == ndjson.CONTENT_TYPE and length > PIECE_BYTES


def decode_batch(data: Buffer, limits: AppendLimits) -> Batch:
    """Decodes a binary batch. Raises ``BadBody`` and ``TooLarge``."""
    return batch.decode(
        data,
        entry_bytes_max=limits.entry_bytes_max,
        key_bytes_max=limits.key_bytes_max,
        body_bytes_max=limits.body_bytes_max,
    )


class _Append:
    """One append, from the body whose bytes are taken from the budget, to the answer, which returns them."""

    __slots__ = ("_answer", "_appends", "_bodies", "_held", "_pending", "_timer")

    def __init__(self, appends: NodeAppends, bodies: Budget, answer: Answer) -> None:
        self._appends = appends
        self._bodies = bodies
        self._answer: Answer | None = answer
        self._held = 0
        self._pending: Pending | None = None
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, terms: _Terms, body: bytes, submission: Values | Batch | None = None) -> Leave:
        """Begins the append. ``submission`` is the decoded body, if it was decoded already."""
        self._held = len(body)
        try:
            if submission is None:
                submission = terms.submission(body)
            if terms.grant.ends:
                terms.grant.check(submission)
            self._pending = self._appends.submit(submission, terms.acks, self._done, terms.born, terms.durability)
            self._timer = asyncio.get_running_loop().call_later(terms.timeout_s, self._pending.expire)
        except VlsnLogError as error:
            self._refuse(error)
        except Exception as fault:  # the boundary of a request without a task
            self._refuse(problem.internal(fault, "an append"))
        return self._leave

    def _done(self, result: Appended | VlsnLogError) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if isinstance(result, Appended):
            self._end(Response(200, _JSON, result.document()))
        else:
            self._refuse(result)

    def _refuse(self, error: VlsnLogError) -> None:
        self._appends.member.counts.refused[error.slug] += 1
        self._end(problem.response(error))

    def _end(self, response: Response) -> None:
        self._bodies.give(self._held)
        self._held = 0
        answer, self._answer = self._answer, None
        if answer is not None:
            answer(response)

    def _leave(self) -> None:
        """Ends the wait for a client that has left. Its append stays submitted, without an answer."""
        if self._answer is not None:
            self._answer = None
            assert self._pending is not None
            self._pending.expire()


def _nothing() -> None:
    pass


def puts_of(lead: Leading, sets: CommitSets | None) -> Puts | None:
    """Makes the names and values that a transaction's COMMIT sets. Raises ``BadArgument``, ``TooLarge``."""
    if sets is None:
        return None
    return sinks.joined(
        positions.puts_of(lead.log, sets.positions) if sets.positions else None,
        sinks.puts_of(lead.log, sets.sinks) if sets.sinks else None,
    )


def producer_in(fields: Mapping[str, str]) -> tuple[int, int] | None:
    """Reads id and sequence of a producer, which must be sent together."""
    text = fields.get("producer")
    sequence = query.whole(fields, "sequence", None, 0, SEQUENCE_MAX)
    if (text is None) != (sequence is None):
        raise BadArgument("producer and sequence go together")
    if text is None or sequence is None:
        return None
    return query.hex16(text, "producer"), sequence


def durability_in(fields: Mapping[str, str]) -> GroupDurability | None:
    """Returns the durability that an append asks for, or None if the append asks for none. Raises ``BadArgument``."""
    text = fields.get("durability")
    return None if text is None else group_durability(text)


def _content_type(request: Request) -> str:
    given = request.headers.get("Content-Type", "")
    kind = given if given in _KINDS else given.partition(";")[0].strip().lower()
    if kind not in _KINDS:
        raise UnsupportedType(f"content type {given[:80]!r}; this call reads {', '.join(_KINDS)}")
    return kind


def _too_long(length: int, limit: int) -> TooLarge:
    return TooLarge(f"a body of {length} bytes or more; at most {limit} for this content type")
