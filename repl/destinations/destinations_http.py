"""``/v1/destinations``: named subscriptions with acknowledgements. The master answers; other nodes answer 307.

    GET  /v1/destinations                   all destinations: {"destinations": [{"name", "uuid", "prefix", …}, …]}
    PUT  /v1/destinations/{name}            creates (201) or changes (200) a destination; durable when answered.
                                            Body, all optional: {"prefix", "from", "max_bytes", "max_messages",
                                            "full_policy", "ack_timeout_s", "attempts_max", "dead_letter", …}
    GET  /v1/destinations/{name}            one destination
    DELETE /v1/destinations/{name}          drops the destination and its acknowledgements
    GET  …/{name}/messages?max=&wait=       takes messages: a line {"vlsn", "attempt", "time", "key", "value"} for each
    GET  …/{name}/messages?peek=true        shows messages, and takes none
    WS   …/{name}/consume?max=              takes messages over a connection that stays open (``consume_messages``)
    POST …/{name}/ack?wait=                 {"vlsns": […], "uuid"}; ``wait=0`` answers before it is durable
    POST …/{name}/nack                      {"vlsns": […], "uuid", "reason", "delay_s"}
    POST …/{name}/pause · resume            no body
    POST …/{name}/move                      {"to": VLSN, "start" or "end"}
    POST …/{name}/retry-dead · delete-dead  {"vlsns": […]}; ``retry-dead`` without it tries all dead messages again

The optional ``uuid`` names one creation of the destination: a later destination of the same name refuses the call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, TypeVar

import msgspec
import numpy as np

from repl.api import DestinationChange
from repl.auth.roles import Role, Route
from repl.destinations import message_batch, message_columns
from repl.destinations.consume_messages import (
    ACKS_UNANSWERED_MAX,
    ALIVE_S,
    CREDIT_MAX,
    GRAMMAR,
    WORKER_MESSAGE_BYTES_MAX,
)
from repl.destinations.consume_ws import Consuming
from repl.destinations.delivered import Delivered
from repl.destinations.handed import Handed, Holder
from repl.destinations.node_destinations import NodeDestinations
from repl.web import ndjson, query
from repl.web.calls import (
    BYTES,
    EMPTY,
    FLAG,
    HEX16,
    JSON,
    NAME_IN_PATH,
    NAMED,
    NUMBER,
    OBJECT,
    OPEN,
    TEXT,
    TIMEOUT,
    VLSN_OR_PLACE,
    WAIT,
    WHOLE,
    Answer,
    Call,
    Schema,
    choice,
    header,
    known,
    maybe,
    ok,
    record,
    seconds,
    whole,
)
from repl.web.json_objects import HEADERS, answered, nothing_asked
from repl.web.limits import (
    LOOKS_AT_ONCE_MAX,
    TIMEOUT_S,
    TIMEOUT_S_MAX,
    WAIT_S_MAX,
    WORKER_AHEAD_BYTES,
    Budget,
)
from repl.web.mastership import redirect
from repl.web.slices import Slices
from repl.web.types import Handler, Request, Response, Upgrade, require_upgrade
from vlsn.errors import BadArgument, BadBody, NotFound, ProducersMissing, QueueFull, TooLarge, Trimmed, Unreachable
from vlsn.format.records import JSON_FAULTS
from vlsn.format.vlsn_set import Vlsns, VlsnSet
from vlsn.limits import KIB
from vlsn.seams import Channel
from vlsn.state.destination_settings import FULL_POLICIES, PAGE_FULL_POLICIES, RANGES

PATH = "/v1/destinations"
ORDERS = ("pause", "resume", "move", "retry-dead", "delete-dead")
MESSAGES_MAX = 10_000
MESSAGES = 100
"""The HTTP header of an answer with messages, for the uuid of the messages' destination."""
ACK_BODY_BYTES_MAX = 256 * KIB
"""The largest body of a call that acknowledges or returns messages, in bytes."""
_NONE: frozenset[str] = frozenset()
_PEEK: Mapping[str, bool] = {"false": False, "true": True}
_MAX = whole("max", "The most messages of one answer.", 1, MESSAGES_MAX, MESSAGES)
_TAKING = (_MAX, WAIT, choice("peek", "`true` shows messages, and takes none.", _PEEK, "false"))
_DURABLE = seconds("wait", "Seconds to wait until it is durable; 0: do not.", 0.0, TIMEOUT_S_MAX, TIMEOUT_S)
_TIMEOUT = known(TIMEOUT)
_MESSAGES = known(*_TAKING)
_CONSUME = known(_MAX)
_ACK = known(_DURABLE)


class _Ack(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    vlsns: list[int] = []
    set: bytes = b""
    """The acknowledged VLSNs as a packed set (``vlsn/format/vlsn_set``)."""
    uuid: str = ""
    reason: str = "given back"


class _Nack(_Ack, frozen=True, forbid_unknown_fields=True):
    delay_s: float | None = None


class _Order(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    to: int | str | None = None
    vlsns: list[int] | None = None


_SETTINGS: dict[str, Mapping[str, Any]] = {
    **{
        name: {"type": "integer" if isinstance(low, int) else "number", "minimum": low, "maximum": high}
        for name, (low, high) in RANGES.items()
    },
    "full_policy": {"enum": list(FULL_POLICIES)},
    "page_full_policy": {"enum": list(PAGE_FULL_POLICIES)},
    "prefix": TEXT,
    "dead_letter": TEXT,
    "uuid": HEX16,
}
_CHANGE = record({**_SETTINGS, "from": VLSN_OR_PLACE}, (*_SETTINGS, "from"))
_OPTIONAL = ("in_per_s", "delivered_per_s", "acked_per_s", "counts", "depth", "refused")
_SHOWN: dict[str, Mapping[str, Any]] = {
    "name": TEXT,
    **_SETTINGS,
    "paused": FLAG,
    "mode": TEXT,
    "blocked_by": TEXT,
    **dict.fromkeys(("from", "since", "floor", "intervals", "dead", "tried_again", "lag_vlsns"), WHOLE),
    **dict.fromkeys(("out", "delayed", "waiting", "oldest_vlsn"), WHOLE),
    **dict.fromkeys(("in_per_s", "delivered_per_s", "acked_per_s", "oldest_age_s"), NUMBER),
    "pages": maybe(OBJECT),
    "full": maybe(OBJECT),
    **dict.fromkeys(("counts", "depth", "refused"), OBJECT),
}
_ONE = record(_SHOWN, _OPTIONAL)
_VLSNS = {"type": "array", "items": {"type": "integer", "minimum": 1}, "maxItems": MESSAGES_MAX}
_CALLS_OF_ONE = f"{PATH}/{{name}}"
_OF_ONE = NAMED | {ProducersMissing, Unreachable}
_BODY = f"The body has at most {ACK_BODY_BYTES_MAX:,} bytes, and {MESSAGES_MAX:,} VLSNs."


def _order_of(order: str, title: str, body: Mapping[str, Schema], text: str = "") -> Call:
    """Describes an order to a destination."""
    return Call(
        "destinations",
        "POST",
        f"{_CALLS_OF_ONE}/{order}",
        title,
        (NAME_IN_PATH, TIMEOUT),
        (ok(_ONE, "The destination after the order, which is durable."),),
        _OF_ONE | {Trimmed},
        body,
        order in ("move", "delete-dead"),
        text=text,
    )


_MANAGING = (
    Call(
        "destinations",
        "GET",
        PATH,
        "List the destinations",
        (),
        (ok(record({"destinations": {"type": "array", "items": _ONE}}), "The destinations, by name."),),
        OPEN | {ProducersMissing, Unreachable},
    ),
    Call(
        "destinations",
        "PUT",
        _CALLS_OF_ONE,
        "Create or change a destination",
        (NAME_IN_PATH, TIMEOUT),
        (ok(_ONE, "The destination is changed."), ok(_ONE, "The destination is new.", status=201)),
        _OF_ONE | {Trimmed},
        {JSON: _CHANGE},
        False,
        text=f"Every field is optional; a change keeps what it does not name. {_BODY}",
        example="-L -X PUT $URL/v1/destinations/orders -H 'Content-Type: application/json' -d '{\"prefix\": \"o\"}'",
    ),
    Call(
        "destinations",
        "GET",
        _CALLS_OF_ONE,
        "Read a destination",
        (NAME_IN_PATH,),
        (ok(_ONE, "Its settings and figures."),),
        OPEN | {NotFound, ProducersMissing, Unreachable},
    ),
    Call(
        "destinations",
        "DELETE",
        _CALLS_OF_ONE,
        "Drop a destination",
        (NAME_IN_PATH, TIMEOUT),
        (ok(record({"name": TEXT, "dropped": FLAG}), "The destination and its acknowledgements are gone."),),
        _OF_ONE,
        EMPTY,
        False,
    ),
    _order_of("pause", "Pause a destination", EMPTY),
    _order_of("resume", "Resume a destination", EMPTY),
    _order_of(
        "move", "Move a destination", {JSON: record({"to": VLSN_OR_PLACE})}, "It delivers from `to` on. " + _BODY
    ),
    _order_of(
        "retry-dead", "Try dead messages again", {JSON: record({"vlsns": _VLSNS}, ["vlsns"])}, "Without `vlsns`: all."
    ),
    _order_of("delete-dead", "Delete dead messages", {JSON: record({"vlsns": {**_VLSNS, "minItems": 1}})}, _BODY),
)
_DELIVERING = (
    Call(
        "destinations",
        "GET",
        _CALLS_OF_ONE + "/messages",
        "Take messages",
        (NAME_IN_PATH, *_TAKING, header("Accept", f"`{message_batch.CONTENT_TYPE}`: the messages as columns.")),
        (
            Answer(
                200,
                "The messages, each to one worker; empty if nothing came.",
                {
                    ndjson.CONTENT_TYPE: {"type": "string", "x-vlsnlog-line": ndjson.MESSAGE_SCHEMA},
                    message_batch.CONTENT_TYPE: BYTES,
                },
                {message_batch.UUID: "The uuid of the destination, for the acknowledgement."},
            ),
        ),
        OPEN | {NotFound, QueueFull, ProducersMissing, Trimmed, Unreachable},
        text="A message that is not acknowledged within `ack_timeout_s` is delivered again.",
        example='-L "$URL/v1/destinations/orders/messages?max=10&wait=30"',
    ),
    Call(
        "destinations",
        "POST",
        _CALLS_OF_ONE + "/ack",
        "Acknowledge messages",
        (NAME_IN_PATH, _DURABLE),
        (ok(record({"acked": WHOLE, "durable": FLAG}), "The messages are not delivered again."),),
        _OF_ONE,
        {JSON: _Ack},
        text=f"`set` has VLSNs packed, in base64 (`vlsn/format/vlsn_set.py`), beside `vlsns` or in its place. {_BODY}",
        example="-L $URL/v1/destinations/orders/ack -H 'Content-Type: application/json' -d '{\"vlsns\": [7]}'",
    ),
    Call(
        "destinations",
        "POST",
        _CALLS_OF_ONE + "/nack",
        "Give messages back",
        (NAME_IN_PATH,),
        (ok(record({"nacked": WHOLE}), "The messages are delivered again, after the delay."),),
        _OF_ONE,
        {JSON: _Nack},
        text=_BODY,
    ),
    Call(
        "destinations",
        "GET",
        _CALLS_OF_ONE + "/consume",
        "Take messages over a WebSocket",
        (NAME_IN_PATH, _MAX),
        errors=OPEN | {NotFound, QueueFull, ProducersMissing, Trimmed, Unreachable},
        text=f"A worker has at most {CREDIT_MAX:,} messages of credit, and {ACKS_UNANSWERED_MAX:,} acknowledgements "
        f"without an answer. Its messages have at most {WORKER_MESSAGE_BYTES_MAX:,} bytes. The node sends one at least "
        f"every {ALIVE_S:g} s.",
        messages=GRAMMAR,
    ),
)
CALLS = (*_MANAGING, *_DELIVERING)
A = TypeVar("A", bound=_Ack)
_Call = Callable[[str, Request], Awaitable[Response | Upgrade]]
_changes = msgspec.json.Decoder(DestinationChange)
_acks = msgspec.json.Decoder(_Ack)
_nacks = msgspec.json.Decoder(_Nack)
_orders = msgspec.json.Decoder(_Order)


class DestinationRoutes:
    def __init__(self, destinations: NodeDestinations, readers: Budget, handed: Handed, pieces: Slices) -> None:
        self._destinations = destinations
        self._readers = readers
        self._handed = handed
        self._pieces = pieces
        self._looks = asyncio.Semaphore(LOOKS_AT_ONCE_MAX)

    def methods(self, path: str) -> Mapping[str, Route]:
        """Returns the methods of a path below ``PATH``. Raises ``NotFound``."""
        name, *call = path.removeprefix(PATH + "/").split("/")
        name = query.named(name)
        match call:
            case []:
                return {
                    "GET": self._route(self._get, name, Role.READ),
                    "PUT": self._route(self._put, name, Role.DEFINE),
                    "DELETE": self._route(self._drop, name, Role.DEFINE),
                }
            case ["messages"]:
                return {"GET": self._route(self._messages, name, Role.CONSUME, peeking=Role.READ)}
            case ["consume"]:
                return {"GET": self._route(self._consume, name, Role.CONSUME)}
            case ["ack"]:
                return {"POST": self._route(self._ack, name, Role.CONSUME)}
            case ["nack"]:
                return {"POST": self._route(self._nack, name, Role.CONSUME)}
            case [order] if order in ORDERS:
                return {"POST": self._route(partial(self._order, order=order), name, Role.DEFINE)}
        raise NotFound(f"there is no {path[:100]}")

    def _route(self, call: _Call, name: str, role: Role, *, peeking: Role | None = None) -> Route:
        prefixed = None if role is Role.READ else name
        return Route(partial(self._at_master, partial(call, name)), role, prefixed, to_master=True, peeking=peeking)

    async def list(self, request: Request) -> Response | Upgrade:
        return await self._at_master(self._list, request)

    async def _at_master(self, handler: Handler, request: Request) -> Response | Upgrade:
        if not self._destinations.member.is_master():
            return redirect(self._destinations.member, request)
        return await handler(request)

    async def _list(self, request: Request) -> Response:
        query.only(request.query, _NONE)
        return answered({"destinations": await self._destinations.destinations()})

    async def _get(self, name: str, request: Request) -> Response:
        query.only(request.query, _NONE)
        return answered(await self._destinations.destination(name))

    async def _put(self, name: str, request: Request) -> Response:
        timeout_s = _timeout(request)
        body = await request.body(ACK_BODY_BYTES_MAX)
        try:
            change = _changes.decode(body or b"{}")
        except JSON_FAULTS as error:
            raise BadBody(f"no settings of a destination: {error}") from None
        if request.grant.keys:
            request.grant.check_definition(change.prefix, change.dead_letter)
        told, made = await self._destinations.set_destination(name, change, timeout_s)
        return Response(201 if made else 200, HEADERS, msgspec.json.encode(told))

    async def _drop(self, name: str, request: Request) -> Response:
        timeout_s = _timeout(request)
        await nothing_asked(request)
        await self._destinations.drop_destination(name, timeout_s)
        return answered({"name": name, "dropped": True})

    async def _messages(self, name: str, request: Request) -> Response:
        fields = request.query
        query.only(fields, _MESSAGES)
        most = query.whole(fields, "max", MESSAGES, 1, MESSAGES_MAX)
        wait_s = query.seconds(fields, "wait", 0.0, 0.0, WAIT_S_MAX)
        with self._readers.hold():
            if query.choice(fields, "peek", False, _PEEK):
                async with self._looks:
                    return await self._shown(request, await self._destinations.peek(name, most))
            room = Holder(self._handed)
            try:
                return await self._shown(request, await self._destinations.messages(name, most, wait_s, room))
            finally:
                room.leave()

    async def _shown(self, request: Request, found: Delivered) -> Response:
        if message_batch.CONTENT_TYPE in request.headers.get("Accept", ""):
            kind, body = message_batch.CONTENT_TYPE, message_columns.encode(found.columns, found.attempts)
        else:
            kind = ndjson.CONTENT_TYPE
            body = await self._pieces.run(ndjson.encode_messages(found.columns.entries(), found.attempts))
        return Response(200, {"Content-Type": kind, "Cache-Control": "no-store", message_batch.UUID: found.uuid}, body)

    async def _consume(self, name: str, request: Request) -> Upgrade:
        query.only(request.query, _CONSUME)
        most = query.whole(request.query, "max", MESSAGES, 1, MESSAGES_MAX)
        require_upgrade(request)
        self._readers.check(1)
        consuming = Consuming(await self._destinations.worker(name), most, self._handed)

        async def run(channel: Channel) -> None:
            with self._readers.hold():
                await consuming.run(channel)

        return Upgrade(run, WORKER_MESSAGE_BYTES_MAX, consuming.idle, ahead_bytes=WORKER_AHEAD_BYTES)

    async def _ack(self, name: str, request: Request) -> Response:
        query.only(request.query, _ACK)
        wait_s = query.seconds(request.query, "wait", TIMEOUT_S, 0.0, TIMEOUT_S_MAX)
        asked, vlsns = await _asked(request, _acks)
        await self._destinations.ack(name, vlsns, asked.uuid, wait_s)
        return answered({"acked": len(vlsns), "durable": wait_s > 0})

    async def _nack(self, name: str, request: Request) -> Response:
        query.only(request.query, _NONE)
        asked, vlsns = await _asked(request, _nacks)
        await self._destinations.nack(name, vlsns, asked.uuid, asked.reason, asked.delay_s)
        return answered({"nacked": len(vlsns)})

    async def _order(self, name: str, request: Request, *, order: str) -> Response:
        timeout_s = _timeout(request)
        body = await request.body(ACK_BODY_BYTES_MAX)
        try:
            asked = _orders.decode(body or b"{}")
        except JSON_FAULTS as error:
            raise BadBody(f"no order: {error}") from None
        if (asked.to is None) == (order == "move"):
            raise BadArgument("to: move needs a VLSN, start or end; no other order accepts it")
        vlsns = None if asked.vlsns is None else _checked(asked.vlsns, VlsnSet())
        if order == "delete-dead" and (vlsns is None or not len(vlsns)):
            raise BadArgument("vlsns: delete-dead needs the VLSNs of dead messages")
        if vlsns is not None and order not in ("retry-dead", "delete-dead"):
            raise BadArgument("vlsns: only retry-dead and delete-dead accept them")
        return answered(await self._destinations.order(name, order, asked.to, vlsns, timeout_s))


async def _asked(request: Request, decoder: msgspec.json.Decoder[A]) -> tuple[A, Vlsns]:
    body = await request.body(ACK_BODY_BYTES_MAX)
    try:
        asked = decoder.decode(body)
    except JSON_FAULTS as error:
        raise BadBody(f'no acknowledgement: {error}; it is {{"vlsns": [VLSN, …]}}') from None
    return asked, _checked(asked.vlsns, VlsnSet.unpack(asked.set))


def _checked(asked: list[int], packed: VlsnSet) -> Vlsns:
    """Joins the VLSNs of the JSON list and of the packed set. Raises ``BadArgument``, ``TooLarge``."""
    count = len(asked) + packed.count
    if count > MESSAGES_MAX:
        raise TooLarge(f"{count} VLSNs; at most {MESSAGES_MAX}")
    try:
        listed = np.array(asked, np.int64)
    except OverflowError:
        listed = np.zeros(1, np.int64)
    vlsns = np.concatenate((listed, packed.vlsns())) if packed else listed
    if len(vlsns) and not (vlsns.min() > 0 and vlsns.max() <= query.VLSN_MAX // 2):
        raise BadArgument("vlsns: whole numbers from 1 on")
    return vlsns


def _timeout(request: Request) -> float:
    query.only(request.query, _TIMEOUT)
    return query.seconds(request.query, "timeout", TIMEOUT_S, 0.001, TIMEOUT_S_MAX)
