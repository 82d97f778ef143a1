"""``/v1/transactions``: entries that are staged by several calls and logged whole by one.

    POST /v1/transactions                begins one: {"transaction", "expires_s", "bytes_max"}
    POST /v1/transactions/{h}/entries    stages a body, of any type that POST /v1/entries takes: {"staged"}
    POST /v1/transactions/{h}/commit     logs all of it, answered as an append; asked again, as the first time
    DELETE /v1/transactions/{h}          forgets what is staged

A commit may have a body, ``{"positions": {NAME: {"next", "at"}}, "sinks": {NAME: {"state", "at"}}}``: positions of
consumers that are set with it, each as by ``PUT /v1/consumers/NAME``, and states of sinks (``sinks.py``).

``id=HEX`` names what is begun: begun again before anything is staged, it is the same one. ``after=N`` says how many
entries were staged before: the last call, sent again, is known by it and adds nothing. ``rewinds=N`` counts the calls
before this one that were given up, staged or not. The first call of a new count drops the entries behind ``after``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial

import msgspec

from repl.api import Acks, Appended, CommitSets, Handle
from repl.auth.roles import Role, Route
from repl.lead.append_http import ACKS, APPEND_PARAMETERS, AppendRoutes, durability_in, producer_in
from repl.lead.service import NodeTransactions
from repl.web import problem, query
from repl.web.json_objects import HEADERS, answered, nothing_asked
from repl.web.limits import PEER_BODY_BYTES_MAX, STAGED_S, TIMEOUT_S_MAX, AppendLimits
from repl.web.mastership import redirect
from repl.web.types import Request, Response
from vlsn.errors import BadArgument, BadBody, NotFound, VlsnLogError
from vlsn.format.records import JSON_FAULTS
from vlsn.ids import NUMBER_MAX
from vlsn.limits import BATCH_ENTRIES_MAX
from vlsn.seams import Buffer

PATH = "/v1/transactions"
_NONE: frozenset[str] = frozenset()


_decoder = msgspec.json.Decoder(CommitSets)
_BEGINNING = frozenset({"id"})
_STAGING = frozenset({"after", "rewinds"})
_COMMITTING = APPEND_PARAMETERS | _STAGING
REWINDS_MAX = 1_000_000


class TransactionRoutes:
    """``appends`` decodes the bodies of entries."""

    def __init__(self, transactions: NodeTransactions, appends: AppendRoutes, limits: AppendLimits) -> None:
        self._transactions = transactions
        self._appends = appends
        self._limits = limits

    def methods(self, path: str) -> Mapping[str, Route]:
        """Finds the methods of a path below ``PATH``. Raises ``NotFound``, ``BadArgument``."""
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
        handle, bytes_max = self._transactions.begin(id)
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
            pending.expire()  # for a client that is gone: the wait ends, unanswered
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
    """Decodes what a commit sets. Raises ``BadBody``."""
    try:
        return _decoder.decode(body)
    except JSON_FAULTS as error:
        raise BadBody(f"what a commit sets is not what it may say: {error}") from None
