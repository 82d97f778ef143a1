"""``/v1/sinks``: the progress of writers of numbered batches.

    GET /v1/sinks              {"sinks": [{"name", "at", "state": {"query", "batch", "part", "parts", …}}, …]}
    GET /v1/sinks/{name}       one state
    DELETE /v1/sinks/{name}    deletes the state, durable when answered; with ``?at=`` only if VLSN ``at`` has set the
                               present state, otherwise 409 ``stale-term``

``{name}`` may be ``SINK/RUN``. ``POST /v1/transactions/{h}/commit`` with ``{"sinks": …}`` sets a state.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import msgspec

from repl.api import SinkAt
from repl.auth.roles import Role, Route
from repl.names.sinks import NodeSinks
from repl.read.read_http import confirm_alone
from repl.web import query
from repl.web.calls import (
    AT,
    CONFIRM,
    CONFIRMED,
    EMPTY,
    FLAG,
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
from repl.web.limits import TIMEOUT_S, TIMEOUT_S_MAX
from repl.web.mastership import redirect
from repl.web.types import Request, Response
from vlsn.errors import NotFound, ProducersMissing

PATH = "/v1/sinks"
_DELETE = known(TIMEOUT, AT)


class _Listed(msgspec.Struct):
    sinks: list[SinkAt]


CALLS = (
    Call(
        "consumers",
        "GET",
        PATH,
        "List the states of sinks",
        CONFIRMED,
        (ok(_Listed, "The writers of numbered batches, and the batch that each has logged last."),),
        CONFIRM,
    ),
    Call(
        "consumers",
        "GET",
        PATH + "/{name}",
        "Read a sink's state",
        (SLASHED_NAME, *CONFIRMED),
        (ok(SinkAt, "The state; `at` is the COMMIT that set it."),),
        CONFIRM | {NotFound, ProducersMissing},
    ),
    Call(
        "consumers",
        "DELETE",
        PATH + "/{name}",
        "Delete a sink's state",
        (SLASHED_NAME, TIMEOUT, AT),
        (ok(record({"name": TEXT, "deleted": FLAG}), "It is durable that the state is gone."),),
        NAMED | {ProducersMissing},
        EMPTY,
        False,
    ),
)


class SinkRoutes:
    def __init__(self, sinks: NodeSinks) -> None:
        self._sinks = sinks

    def methods(self, path: str) -> Mapping[str, Route]:
        """Returns the methods for the path of one sink."""
        name = query.named(path.removeprefix(PATH + "/"))
        return {
            "GET": Route(partial(self._get, name), Role.READ),
            "DELETE": Route(partial(self._delete, name), Role.DEFINE, name, to_master=True),
        }

    async def list(self, request: Request) -> Response:
        await confirm_alone(self._sinks.member, request.query)
        return answered({"sinks": [msgspec.to_builtins(each) for each in self._sinks.sinks()]})

    async def _get(self, name: str, request: Request) -> Response:
        await confirm_alone(self._sinks.member, request.query)
        return answered(msgspec.to_builtins(self._sinks.sink(name)))

    async def _delete(self, name: str, request: Request) -> Response:
        query.only(request.query, _DELETE)
        timeout_s = query.seconds(request.query, "timeout", TIMEOUT_S, 0.001, TIMEOUT_S_MAX)
        at = query.whole(request.query, "at", None, 0, query.VLSN_MAX)
        if not self._sinks.member.is_master():
            return redirect(self._sinks.member, request)
        await nothing_asked(request)
        await self._sinks.delete_sink(name, at, timeout_s)
        return answered({"name": name, "deleted": True})
