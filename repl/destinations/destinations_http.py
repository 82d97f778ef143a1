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
from typing import TypeVar

import msgspec
import numpy as np

from repl.api import DestinationChange
from repl.auth.roles import Role, Route
from repl.destinations import message_batch, message_columns
from repl.destinations.consume_messages import WORKER_MESSAGE_BYTES_MAX
from repl.destinations.consume_ws import Consuming
from repl.destinations.delivered import Delivered
from repl.destinations.handed import Handed, Holder
from repl.destinations.node_destinations import NodeDestinations
from repl.web import ndjson, query
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
from vlsn.errors import BadArgument, BadBody, NotFound, TooLarge
from vlsn.format.records import JSON_FAULTS
from vlsn.format.vlsn_set import Vlsns, VlsnSet
from vlsn.limits import KIB
from vlsn.seams import Channel

PATH = "/v1/destinations"
ORDERS = ("pause", "resume", "move", "retry-dead", "delete-dead")
MESSAGES_MAX = 10_000
MESSAGES = 100
"""The HTTP header of an answer with messages, for the uuid of the messages' destination."""
ACK_BODY_BYTES_MAX = 256 * KIB
"""The largest body of a call that acknowledges or returns messages, in bytes."""
_NONE: frozenset[str] = frozenset()
_TIMEOUT = frozenset({"timeout"})
_MESSAGES = frozenset({"max", "wait", "peek"})
_CONSUME = frozenset({"max"})
_ACK = frozenset({"wait"})
_PEEK: Mapping[str, bool] = {"false": False, "true": True}


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
