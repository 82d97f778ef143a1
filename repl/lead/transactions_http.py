"""``/v1/transactions``: entries that several calls stage and one call logs whole.

    POST /v1/transactions                begins one: {"transaction", "expires_s", "bytes_max"}
    POST /v1/transactions/{h}/entries    stages a body of any type that POST /v1/entries accepts: {"staged"}
    POST /v1/transactions/{h}/commit     logs all entries; answered as an append, and the same again if repeated
    DELETE /v1/transactions/{h}          forgets the staged entries

A commit may have a body, ``{"positions": {NAME: {"next", "at"}}, "sinks": {NAME: {"state", "at"}}}``: positions of
consumers that are set with it, each as by ``PUT /v1/consumers/NAME``, and states of sinks (``sinks.py``).

``id=HEX`` names the transaction; if it is begun again before anything is staged, it is the same one. ``after=N`` is the
number of entries staged before, so that a repeated last call adds nothing. ``rewinds=N`` counts earlier calls that the
client abandoned, whether they staged entries or not. The first call with a new count drops the entries after ``after``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from functools import partial

import msgspec

from repl.api import HANDLE, Acks, Appended, CommitSets, Done, Handle
from repl.auth.roles import Role, Route
from repl.group.member import Member
from repl.lead.append_book import Append
from repl.lead.append_http import (
    ACKS,
    APPENDING,
    ENTRIES_TEXT,
    ENTRY_BODIES,
    KEY,
    SUBMITTED,
    AppendRoutes,
    durability_in,
    producer_in,
    puts_of,
)
from repl.lead.leading import lead_of
from repl.names import positions
from repl.web import problem, query
from repl.web.calls import (
    EMPTY,
    HEX16,
    JSON,
    JSON_BODY,
    NUMBER,
    OPEN,
    ORDERED,
    TEXT,
    WHOLE,
    Answer,
    Call,
    Errors,
    Parameter,
    in_path,
    known,
    ok,
    record,
    whole,
)
from repl.web.json_objects import HEADERS, answered, nothing_asked
from repl.web.limits import PEER_BODY_BYTES_MAX, STAGED_S, TIMEOUT_S_MAX, AppendLimits
from repl.web.mastership import redirect
from repl.web.types import Request, Response
from vlsn.durability import GroupDurability
from vlsn.errors import (
    BadArgument,
    BadBody,
    NotFound,
    NotMaster,
    OutcomeUnknown,
    ProducersMissing,
    QueueFull,
    StaleTerm,
    TransactionClosed,
    TransactionGone,
    Trimmed,
    VlsnLogError,
)
from vlsn.format.batch import Batch
from vlsn.format.records import JSON_FAULTS
from vlsn.format.submission import Values
from vlsn.ids import NUMBER_MAX
from vlsn.limits import BATCH_ENTRIES_MAX
from vlsn.seams import Buffer

PATH = "/v1/transactions"
_NONE: frozenset[str] = frozenset()


_decoder = msgspec.json.Decoder(CommitSets)
REWINDS_MAX = 1_000_000
_ID = Parameter("id", "Names the transaction, so that a repeated call begins no second one; below 2^63.", HEX16)
_REPEATS = (
    whole(
        "after", "The number of entries staged before; a repeat of the last call adds nothing.", 0, BATCH_ENTRIES_MAX
    ),
    whole("rewinds", "The number of calls that the client has abandoned.", 0, REWINDS_MAX, 0),
)
_BEGINNING = known(_ID)
_STAGING = known(*_REPEATS)
_COMMITTING = known(*APPENDING, *_REPEATS)
_HANDLE = in_path("transaction", "The `transaction` that the begin answered.", {"type": "string", "pattern": HANDLE})
_STAGED: Errors = OPEN | ORDERED | {TransactionGone, TransactionClosed, OutcomeUnknown, QueueFull, ProducersMissing}
CALLS = (
    Call(
        "transactions",
        "POST",
        PATH,
        "Begin a transaction",
        (_ID,),
        (ok(record({"transaction": TEXT, "expires_s": NUMBER, "bytes_max": WHOLE}), "An open transaction."),),
        OPEN | ORDERED | {QueueFull},
        EMPTY,
        False,
        text=f"It ends, with nothing logged, {STAGED_S:g} s after its last call.",
        example="-L -X POST $URL/v1/transactions -H 'Content-Type: application/json'",
    ),
    Call(
        "transactions",
        "POST",
        PATH + "/{transaction}/entries",
        "Stage entries",
        (_HANDLE, *_REPEATS, KEY),
        (ok(record({"staged": WHOLE}), "The number of staged entries."),),
        _STAGED,
        ENTRY_BODIES,
        text=f"The entries are in the master's memory until the commit. {ENTRIES_TEXT}",
        example="-L $URL/v1/transactions/$T/entries -H 'Content-Type: application/octet-stream' --data-binary 'hello'",
    ),
    Call(
        "transactions",
        "POST",
        PATH + "/{transaction}/commit",
        "Commit a transaction",
        (_HANDLE, *APPENDING, *_REPEATS),
        (ok(Appended, "All entries are in the log; `last` is the COMMIT."),),
        SUBMITTED | _STAGED | {StaleTerm, Trimmed},
        {JSON: CommitSets},
        False,
        text="A repeated commit gets the first answer again. The body may set positions and sinks' states with it. "
        + JSON_BODY,
        example="-L -X POST $URL/v1/transactions/$T/commit -H 'Content-Type: application/json'",
    ),
    Call(
        "transactions",
        "DELETE",
        PATH + "/{transaction}",
        "Abort a transaction",
        (_HANDLE,),
        (Answer(204, "The staged entries are dropped."),),
        _STAGED,
        EMPTY,
        False,
    ),
)


class NodeTransactions:
    """Transactions in the memory of the moment's lead, until their commits log them whole."""

    def __init__(self, member: Member) -> None:
        self.member = member

    def begin(self, id: int | None, owner: str = "") -> tuple[Handle, int]:
        """Begins one named ``id``, None for any name, for the token ``owner``. Returns it, and the bytes of a segment
        that it may take. Raises
        ``NotMaster``, ``QueueFull``, ``BadArgument`` for another one's name, ``WrongVersion`` below the level that has
        them."""
        transactions = lead_of(self.member).transactions
        return transactions.begin(id, owner), transactions.bytes_max

    async def stage(self, handle: Handle, part: Values | Batch, after: int | None, rewinds: int) -> int:
        """Stages more entries, and returns how many there are; ``after``: how many there were, ``rewinds``: how many
        calls were given up. Raises ``TooLarge``, ``QueueFull``, ``BadArgument``, ``TransactionGone``,
        ``TransactionClosed``, ``OutcomeUnknown``."""
        return await lead_of(self.member).transactions.stage(handle, part, after, rewinds)

    async def commit(
        self,
        handle: Handle,
        acks: Acks,
        done: Done,
        *,
        name: tuple[int, int] | None,
        born: int | None,
        sets: CommitSets | None,
        durability: GroupDurability | None,
        after: int | None,
        rewinds: int,
    ) -> Append:
        """Submits all staged entries as one append, as the producer's submission where it has a ``name``. Its COMMIT
        sets the names in ``sets``. Asked again it is answered as the first time. ``after`` and ``rewinds`` as in
        ``stage``. ``done`` and what it raises: as for ``NodeAppends.submit``; ``StaleTerm`` where another commit has
        replaced a value."""
        lead = lead_of(self.member)
        if durability is not None:
            lead.admission.check_durability(durability)
        if sets is not None:
            await positions.confirm_end(lead, sets.positions)
        puts = puts_of(lead, sets)
        return lead.transactions.commit(
            handle,
            acks,
            done,
            name=name,
            born=born,
            puts=puts,
            durability=durability,
            after=after,
            rewinds=rewinds,
        )

    async def abort(self, handle: Handle) -> None:
        """Forgets what is staged. Raises ``TransactionClosed`` once a commit is under way."""
        await lead_of(self.member).transactions.abort(handle)

    def forget(self, handle: Handle) -> None:
        """Forgets the staged entries, unless a commit is under way, or this node leads no more."""
        with suppress(NotMaster):
            lead_of(self.member).transactions.forget(handle)


class TransactionRoutes:
    """The routes of transactions. ``appends`` decodes the bodies of entries."""

    def __init__(self, transactions: NodeTransactions, appends: AppendRoutes, limits: AppendLimits) -> None:
        self._transactions = transactions
        self._appends = appends
        self._limits = limits

    def methods(self, path: str) -> Mapping[str, Route]:
        """Returns the methods of a path below ``PATH``. Raises ``NotFound``, ``BadArgument``."""
        text, *call = path.removeprefix(PATH + "/").split("/")
        if call not in ([], ["entries"], ["commit"]):
            raise NotFound(f"there is no {path[:100]}")
        handle = Handle.parse(query.named(text))
        if not call:
            return {"DELETE": Route(partial(self._abort, handle), Role.APPEND, to_master=True)}
        if call == ["entries"]:
            return {"POST": Route(partial(self._stage, handle), Role.APPEND, to_master=True)}
        return {"POST": Route(partial(self._commit, handle), Role.APPEND, to_master=True)}

    async def begin(self, request: Request) -> Response:
        query.only(request.query, _BEGINNING)
        named = request.query.get("id")
        id = None if named is None else query.hex16(named, "id")
        if id is not None and id > NUMBER_MAX:
            raise BadArgument(f"id={named}: it is below 2^63")
        if not self._transactions.member.is_master():
            return redirect(self._transactions.member, request)
        await nothing_asked(request)
        owner = request.grant.who if request.grant.usage is not None else ""
        handle, bytes_max = self._transactions.begin(id, owner)
        self._watch(request, handle)
        return answered({"transaction": str(handle), "expires_s": STAGED_S, "bytes_max": bytes_max})

    def _watch(self, request: Request, handle: Handle) -> None:
        """Has the transaction end with the token that stages, as long as its stage lasts without another call."""
        if request.grant.ends:
            request.grant.watch(partial(self._transactions.forget, handle), key=handle, lasts_s=2 * STAGED_S)

    async def _stage(self, handle: Handle, request: Request) -> Response:
        if not self._transactions.member.is_master():
            return redirect(self._transactions.member, request)
        after, rewinds = _behind(request)
        async with self._appends.entries(request, _STAGING) as part:
            if part.producer:
                raise BadArgument("a transaction has its producer's name from its commit: the batch may not name one")
            self._watch(request, handle)
            return answered({"staged": await self._transactions.stage(handle, part, after, rewinds)})

    async def _commit(self, handle: Handle, request: Request) -> Response:
        fields = request.query
        query.only(fields, _COMMITTING)
        acks = query.choice(fields, "acks", Acks.MAJORITY, ACKS)
        timeout_s = query.seconds(fields, "timeout", self._limits.timeout_s, 0.001, TIMEOUT_S_MAX)
        name, born = producer_in(fields), query.whole(fields, "born", None, 0, query.VLSN_MAX)
        durability, (after, rewinds) = durability_in(fields), _behind(request)
        if not self._transactions.member.is_master():
            return redirect(self._transactions.member, request)
        body = await request.body(PEER_BODY_BYTES_MAX)
        sets = decode_sets(body) if body else None
        if sets is not None and request.grant.ends:
            request.grant.check_sets(sets)
        loop = asyncio.get_running_loop()
        told: asyncio.Future[Appended | VlsnLogError] = loop.create_future()

        def done(result: Appended | VlsnLogError) -> None:
            if not told.done():
                told.set_result(result)

        pending = await self._transactions.commit(
            handle,
            acks,
            done,
            name=name,
            born=born,
            sets=sets,
            durability=durability,
            after=after,
            rewinds=rewinds,
        )
        timer = loop.call_later(timeout_s, pending.expire)
        try:
            result = await told
        finally:
            timer.cancel()
            pending.expire()  # for a client that has left: the wait ends without an answer
        if isinstance(result, Appended):
            return Response(200, HEADERS, result.document())
        return problem.response(result)

    async def _abort(self, handle: Handle, request: Request) -> Response:
        query.only(request.query, _NONE)
        if not self._transactions.member.is_master():
            return redirect(self._transactions.member, request)
        await nothing_asked(request)
        await self._transactions.abort(handle)
        return Response(204)


def _behind(request: Request) -> tuple[int | None, int]:
    """Reads ``after`` and ``rewinds``. Raises ``BadArgument``."""
    after = query.whole(request.query, "after", None, 0, BATCH_ENTRIES_MAX)
    return after, query.whole(request.query, "rewinds", 0, 0, REWINDS_MAX)


def decode_sets(body: Buffer) -> CommitSets:
    """Decodes the names that a commit sets. Raises ``BadBody``."""
    try:
        return _decoder.decode(body)
    except JSON_FAULTS as error:
        raise BadBody(f"the body of a commit is invalid: {error}") from None
