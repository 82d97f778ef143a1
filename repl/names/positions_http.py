"""``/v1/consumers``: named positions.

    GET /v1/consumers              {"consumers": [{"name", "next", "term", "at", "lag_vlsns", "lag_s", "by"}, …]}
    GET /v1/consumers/{name}       one position
    PUT /v1/consumers/{name}       {"next"} sets the position, durable when answered; {"next", "at"} only if VLSN ``at``
                                   has set the present position (0: there is none), otherwise 409 ``stale-term``
    DELETE /v1/consumers/{name}    deletes the position; ``?at=`` as with PUT

``{name}`` may be ``GROUP/NAME``: a consumer that reads the log of that group and keeps its position here. ``by``, 16
hex digits, identifies a commit. If the same commit is sent again, it gets the same answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import msgspec

from repl.api import (
    ConsumerAt,
    ConsumerChange,
)
from repl.auth.roles import Role, Route
from repl.names.positions import NodePositions
from repl.read.read_http import confirm_alone
from repl.web import query
from repl.web.calls import (
    AT,
    CONFIRM,
    CONFIRMED,
    EMPTY,
    FLAG,
    JSON,
    JSON_BODY,
    NAMED,
    SLASHED_NAME,
    TEXT,
    TIMEOUT,
    Call,
    known,
    ok,
    record,
)
from repl.web.json_objects import answered, nothing_asked
from repl.web.limits import PEER_BODY_BYTES_MAX, TIMEOUT_S, TIMEOUT_S_MAX
from repl.web.mastership import redirect
from repl.web.types import Request, Response
from vlsn.errors import BadBody, NotFound, NotYet, ProducersMissing, Trimmed
from vlsn.format.records import JSON_FAULTS

PATH = "/v1/consumers"
_PUT = known(TIMEOUT)
_DELETE = known(TIMEOUT, AT)
_FIELDS = (
    "`next` is the VLSN that the consumer reads next, `term` that of the VLSN before it, `at` the COMMIT that set the "
    "position, and `by` the name of that commit. A lag that this node does not know is null."
)


class _Listed(msgspec.Struct):
    consumers: list[ConsumerAt]


CALLS = (
    Call(
        "consumers",
        "GET",
        PATH,
        "List the consumers' positions",
        CONFIRMED,
        (ok(_Listed, _FIELDS),),
        CONFIRM,
        example="$URL/v1/consumers",
    ),
    Call(
        "consumers",
        "GET",
        PATH + "/{name}",
        "Read a consumer's position",
        (SLASHED_NAME, *CONFIRMED),
        (ok(ConsumerAt, _FIELDS),),
        CONFIRM | {NotFound, ProducersMissing},
        example="$URL/v1/consumers/billing",
    ),
    Call(
        "consumers",
        "PUT",
        PATH + "/{name}",
        "Commit a consumer's position",
        (SLASHED_NAME, TIMEOUT),
        (ok(ConsumerAt, "The position is durable."),),
        NAMED | {Trimmed, NotYet, ProducersMissing},
        {JSON: ConsumerChange},
        text="With `at` the position is set only if the COMMIT at that VLSN has set the present one (0: there is "
        f"none), else the answer is 409 `stale-term`. The same `by` again gets the same answer. {JSON_BODY}",
        example="-L -X PUT $URL/v1/consumers/billing -H 'Content-Type: application/json' -d '{\"next\": 8}'",
    ),
    Call(
        "consumers",
        "DELETE",
        PATH + "/{name}",
        "Delete a consumer's position",
        (SLASHED_NAME, TIMEOUT, AT),
        (ok(record({"name": TEXT, "deleted": FLAG}), "It is durable that the position is gone."),),
        NAMED | {ProducersMissing},
        EMPTY,
        False,
    ),
)
_decoder = msgspec.json.Decoder(ConsumerChange)


class ConsumerRoutes:
    def __init__(self, consumers: NodePositions) -> None:
        self._consumers = consumers

    def methods(self, path: str) -> Mapping[str, Route]:
        """Returns the methods for the path of one consumer."""
        name = query.named(path.removeprefix(PATH + "/"))
        return {
            "GET": Route(partial(self._get, name), Role.READ),
            "PUT": Route(partial(self._put, name), Role.CONSUME, name, to_master=True),
            "DELETE": Route(partial(self._delete, name), Role.DEFINE, name, to_master=True),
        }

    async def list(self, request: Request) -> Response:
        await confirm_alone(self._consumers.member, request.query)
        return answered({"consumers": [msgspec.to_builtins(each) for each in await self._consumers.consumers()]})

    async def _get(self, name: str, request: Request) -> Response:
        await confirm_alone(self._consumers.member, request.query)
        return answered(msgspec.to_builtins(await self._consumers.consumer(name)))

    async def _put(self, name: str, request: Request) -> Response:
        timeout_s = _timeout(request, _PUT)
        if not self._consumers.member.is_master():
            return redirect(self._consumers.member, request)
        body = await request.body(PEER_BODY_BYTES_MAX)
        try:
            change = _decoder.decode(body)
        except JSON_FAULTS as error:
            raise BadBody(f'no position: {error}; it is {{"next": VLSN}}, with "at" if it replaces one') from None
        return answered(msgspec.to_builtins(await self._consumers.set_consumer(name, change, timeout_s)))

    async def _delete(self, name: str, request: Request) -> Response:
        timeout_s = _timeout(request, _DELETE)
        at = query.whole(request.query, "at", None, 0, query.VLSN_MAX)
        if not self._consumers.member.is_master():
            return redirect(self._consumers.member, request)
        await nothing_asked(request)
        await self._consumers.delete_consumer(name, at, timeout_s)
        return answered({"name": name, "deleted": True})


def _timeout(request: Request, known: frozenset[str]) -> float:
    query.only(request.query, known)
    return query.seconds(request.query, "timeout", TIMEOUT_S, 0.001, TIMEOUT_S_MAX)
