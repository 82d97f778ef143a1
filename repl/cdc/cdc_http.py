"""``/v1/cdc``: the CDC consumers of this node.

    GET  /v1/cdc                   {"node", "consumers": [{"name", "state", "mode", "next", "lag_vlsns", …}, …]}
    GET  /v1/cdc/{name}            one consumer
    POST /v1/cdc/{name}/pause      stops the consumer; cleaning still keeps the log from its position on
    POST /v1/cdc/{name}/resume     starts a paused or parked consumer again
    POST /v1/cdc/{name}/reset      {"to": VLSN, "start" or "end"}: moves the position
    POST /v1/cdc/{name}/skip       {"to": VLSN}: moves the position forward, and returns the VLSNs that are skipped
    POST /v1/cdc/{name}/resend     {"from": VLSN, "to": VLSN}: sends these VLSNs once more, then continues as before

Each call concerns this node alone. Only the master accepts orders to a consumer with ``run_on = "master"``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from repl.auth.roles import Role, Route
from repl.cdc.consumers import CdcConsumers
from repl.web import query
from repl.web.calls import (
    EMPTY,
    JSON,
    JSON_BODY,
    NAME_IN_PATH,
    NAMED,
    NUMBER,
    OBJECT,
    TEXT,
    VLSN_OR_PLACE,
    WHOLE,
    Call,
    Schema,
    maybe,
    ok,
    record,
)
from repl.web.json_objects import answered, nothing_asked
from repl.web.limits import PEER_BODY_BYTES_MAX
from repl.web.types import Request, Response
from vlsn.errors import BadArgument, BadBody, NotAllowed, NotFound, NotYet, Trimmed
from vlsn.format.records import JSON_FAULTS
from vlsn.ids import NUMBER_MAX

PATH = "/v1/cdc"
_NONE: frozenset[str] = frozenset()
Place = Annotated[int, Meta(ge=1, le=NUMBER_MAX)]


class _Reset(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    to: int | str


class _Skip(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    to: Place


class _Resend(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    to: Place
    first: Place = msgspec.field(name="from")


_SHOWN: dict[str, Mapping[str, Any]] = {
    **dict.fromkeys(("name", "consumer", "run_on", "state", "reason"), TEXT),
    "mode": maybe(TEXT),
    **{name: maybe(WHOLE) for name in ("paused_us", "pid", "next", "taken", "last_captured")},
    **{name: maybe(NUMBER) for name in ("lag_vlsns", "lag_s", "lag_segments")},
    **dict.fromkeys(("in_flight_bytes", "buffer_bytes", "buffer_bytes_max"), WHOLE),
    **dict.fromkeys(("entries", "segments", "commits", "starts", "failures"), WHOLE),
    "switches": OBJECT,
    "lost": maybe(OBJECT),
}
_OF_ORDERS: dict[str, Mapping[str, Any]] = {"before": WHOLE, "skipped": OBJECT, "resending": OBJECT}
_ONE = record({"node": TEXT, **_SHOWN, **_OF_ORDERS}, _OF_ORDERS)


def _order_of(order: str, title: str, body: Mapping[str, Schema], text: str = "") -> Call:
    """Describes an order to a consumer."""
    return Call(
        "CDC",
        "POST",
        f"{PATH}/{{name}}/{order}",
        title,
        (NAME_IN_PATH,),
        (ok(_ONE, "The consumer after the order."),),
        NAMED | {NotAllowed, Trimmed, NotYet},
        body,
        body is not EMPTY,
        text=f"{text}{JSON_BODY}",
    )


CALLS = (
    Call(
        "CDC",
        "GET",
        PATH,
        "List this node's CDC consumers",
        (),
        (ok(record({"node": TEXT, "consumers": {"type": "array", "items": record(_SHOWN)}}), "The consumers."),),
    ),
    Call(
        "CDC",
        "GET",
        PATH + "/{name}",
        "Read the state of a CDC consumer",
        (NAME_IN_PATH,),
        (ok(_ONE, "The consumer."),),
        frozenset({NotFound}),
        example="$URL/v1/cdc/lines",
    ),
    _order_of("pause", "Pause a CDC consumer", EMPTY, "Cleaning still keeps the log from its position on. "),
    _order_of("resume", "Resume a CDC consumer", EMPTY),
    _order_of("reset", "Move a CDC consumer", {JSON: record({"to": VLSN_OR_PLACE})}),
    _order_of("skip", "Move a CDC consumer forward", {JSON: _Skip}, "The answer has the `skipped` VLSNs. "),
    _order_of("resend", "Send VLSNs to a CDC consumer again", {JSON: _Resend}),
)
B = TypeVar("B")
_SHAPES: Mapping[type, str] = {
    _Reset: '{"to": VLSN, "start" or "end"}',
    _Skip: '{"to": VLSN}',
    _Resend: '{"from": VLSN, "to": VLSN}',
}


class CdcRoutes:
    def __init__(self, cdc: CdcConsumers) -> None:
        self._cdc = cdc

    async def list(self, request: Request) -> Response:
        query.only(request.query, _NONE)
        return answered({"node": self._cdc.name, "consumers": self._cdc.told()})

    def methods(self, path: str) -> Mapping[str, Route]:
        """Returns the methods for the path of one consumer, or of an order to a consumer. Raises ``NotFound``."""
        name, _, order = path.removeprefix(PATH + "/").partition("/")
        name = query.named(name)
        orders: Mapping[str, Callable[[str, Request], Awaitable[dict[str, Any]]]] = {
            "pause": self._pause,
            "resume": self._resume,
            "reset": self._reset,
            "skip": self._skip,
            "resend": self._resend,
        }
        if not order:
            return {"GET": Route(partial(self._get, name), Role.METRICS)}
        if order not in orders:
            raise NotFound(f"there is no {path[:100]}; the orders are {', '.join(orders)}")
        return {"POST": Route(partial(self._order, orders[order], name), Role.ADMIN)}

    async def _get(self, name: str, request: Request) -> Response:
        query.only(request.query, _NONE)
        return self._answered(self._cdc.told_of(name))

    async def _order(
        self, order: Callable[[str, Request], Awaitable[dict[str, Any]]], name: str, request: Request
    ) -> Response:
        query.only(request.query, _NONE)
        return self._answered(await order(name, request))

    def _answered(self, told: dict[str, Any]) -> Response:
        return answered({"node": self._cdc.name, **told})

    async def _pause(self, name: str, request: Request) -> dict[str, Any]:
        await nothing_asked(request)
        return await self._cdc.pause(name)

    async def _resume(self, name: str, request: Request) -> dict[str, Any]:
        await nothing_asked(request)
        return await self._cdc.resume(name)

    async def _reset(self, name: str, request: Request) -> dict[str, Any]:
        to = (await _body(request, _Reset)).to
        if to not in ("start", "end") and not (isinstance(to, int) and 1 <= to <= NUMBER_MAX):
            raise BadArgument(f"to: {str(to)[:40]!r} is neither a VLSN from 1 on, nor start or end")
        return await self._cdc.reset(name, to)

    async def _skip(self, name: str, request: Request) -> dict[str, Any]:
        return await self._cdc.skip(name, (await _body(request, _Skip)).to)

    async def _resend(self, name: str, request: Request) -> dict[str, Any]:
        asked = await _body(request, _Resend)
        return await self._cdc.resend(name, asked.first, asked.to)


async def _body(request: Request, shape: type[B]) -> B:
    body = await request.body(PEER_BODY_BYTES_MAX)
    try:
        return msgspec.json.decode(body, type=shape)
    except JSON_FAULTS as error:
        raise BadBody(f"{error}; it is {_SHAPES[shape]}") from None
