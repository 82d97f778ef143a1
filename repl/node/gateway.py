"""The gateway: finds the handler of every HTTP call, by path and method.

A handler takes a request, and returns a response or an upgrade or raises one of ``vlsn.errors``. Only the gateway turns
such an error into a problem document. A GET handler also answers HEAD. A fault of the program is logged, and answered
as ``internal``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

from repl.auth.peer_door import PeerDoor, is_between_members
from repl.auth.roles import Role, Route
from repl.auth.signatures import HEADER
from repl.cdc.cdc_http import PATH as CDC
from repl.cdc.cdc_http import CdcRoutes
from repl.cdc.consumers import CdcConsumers
from repl.destinations.destinations_http import PATH as DESTINATIONS
from repl.destinations.destinations_http import DestinationRoutes
from repl.destinations.handed import Handed
from repl.destinations.node_destinations import NodeDestinations
from repl.group.member import Member
from repl.lead.append_http import AppendRoutes, NodeAppends
from repl.lead.feed_ws import FeedRoutes, NodeFeeds
from repl.lead.produce_ws import ProduceRoutes
from repl.lead.transactions_http import PATH as TRANSACTIONS
from repl.lead.transactions_http import NodeTransactions, TransactionRoutes
from repl.names.positions import NodePositions
from repl.names.positions_http import PATH as CONSUMERS
from repl.names.positions_http import ConsumerRoutes
from repl.names.sinks import NodeSinks
from repl.names.sinks_http import PATH as SINKS
from repl.names.sinks_http import SinkRoutes
from repl.names.tokens import NodeTokens
from repl.names.tokens_http import PATH as TOKENS
from repl.names.tokens_http import TokenRoutes
from repl.node.access import Access
from repl.node.admin_http import AdminRoutes, NodeAdministration
from repl.node.browser_sessions import PATH as SESSION
from repl.node.browser_sessions import SessionRoutes
from repl.node.openapi import PATH as OPENAPI
from repl.node.openapi import OpenApiRoutes
from repl.node.overview import PATH as OVERVIEW
from repl.node.overview import PEER_PATH as PEER_STATUS
from repl.node.overview import Overview
from repl.node.peers import NodePeers
from repl.node.status_http import KEY_PATH, NodeMonitoring, StatusRoutes
from repl.node.trail import Trail
from repl.read.long_polls import LongPolls
from repl.read.read_http import ReadRoutes
from repl.read.reads import reads_of
from repl.read.segments_http import NodeFiles, SegmentRoutes
from repl.read.spans_http import PATH as SPANS
from repl.read.spans_http import SpanRoutes
from repl.read.tail_http import TailRoutes
from repl.repair.restore_http import RepairRoutes
from repl.web import problem, query
from repl.web.browsers import Browsers, check_json
from repl.web.json_objects import answering_members
from repl.web.limits import READERS_MAX, AppendLimits, Budget
from repl.web.slices import Slices
from repl.web.types import DURABLE, Handler, Quick, Request, Response, Start, Upgrade
from vlsn.errors import Forbidden, NotAllowed, NotFound, Unauthorized, UnsupportedType, VlsnLogError
from vlsn.format.own_entries import FOUNDING_FIELD


@dataclass(frozen=True, slots=True)
class Services:
    """The parts of a node that answer the gateway's calls."""

    access: Access
    appends: NodeAppends
    transactions: NodeTransactions
    member: Member
    trail: Trail
    consumers: NodePositions
    sinks: NodeSinks
    destinations: NodeDestinations
    tokens: NodeTokens
    cdc: CdcConsumers
    files: NodeFiles
    door: PeerDoor
    feeds: NodeFeeds
    peers: NodePeers
    repairs: RepairRoutes
    administration: NodeAdministration
    monitoring: NodeMonitoring
    overview: Overview
    pieces: Slices


Methods = Mapping[str, Route]
_APPENDS = "/v1/entries"
_OF_COMMITS = (TRANSACTIONS, CONSUMERS, SINKS, DESTINATIONS)
"""The calls whose answers depend on COMMIT entries. The answers carry the durable end, so that their clients can then
read up to there."""
_HEALTH = ("/healthz", "/readyz", "/metrics")
_ORDERS = "/v1/admin/"
_READS = ("GET", "HEAD")
_LEFT = 499
"""The status that is noted of an order whose caller left before its answer, or that met a fault."""
_CODINGS = {"content-encoding": "identity", "transfer-encoding": "chunked"}
"""The header fields that name codings of a body, each with the only coding that it may name."""


class Gateway:
    """The HTTP surface of one node. A ``Network`` serves its ``handle`` and ``quick``."""

    def __init__(
        self, services: Services, limits: AppendLimits | None = None, *, readers_max: int = READERS_MAX
    ) -> None:
        self._door = services.door
        limits = limits or AppendLimits()
        bodies = limits.budget()
        pieces = services.pieces
        appends = AppendRoutes(services.appends, bodies, limits, pieces)
        transactions = TransactionRoutes(services.transactions, appends, limits)
        producers = ProduceRoutes(services.appends, bodies, limits)
        pages = LongPolls(services.member, pieces)
        self.readers = Budget("waiting readers", readers_max)
        self.handed = Handed()
        reads = ReadRoutes(services.member, pages, self.readers)
        tails = TailRoutes(services.member, pages, self.readers)
        segments, feeds = SegmentRoutes(services.files), FeedRoutes(services.feeds)
        self._consumers = consumers = ConsumerRoutes(services.consumers)
        self._sinks = sinks = SinkRoutes(services.sinks)
        self._tokens = tokens = TokenRoutes(services.tokens)
        self._cdc = cdc = CdcRoutes(services.cdc)
        self._destinations = destinations = DestinationRoutes(services.destinations, self.readers, self.handed, pieces)
        sessions = SessionRoutes(services.access.sessions, services.access)
        admin = AdminRoutes(services.administration)
        self._status = status = StatusRoutes(services.monitoring, pieces)
        self._member = services.member
        self._access = services.access
        self._trail = services.trail
        self._browsers = Browsers(services.monitoring.addresses)
        self._check_founding = services.monitoring.check_founding
        self._quick: Mapping[str, Quick] = {"POST": appends.quick, "GET": reads.quick}
        self._entry, self._producer, self._segment = reads.entry, reads.producer, segments.segment
        self._transaction = transactions.methods
        self._paths: Mapping[str, Methods] = {
            _APPENDS: {
                "POST": Route(appends.append, Role.APPEND, to_master=True),
                "GET": Route(reads.entries, Role.READ),
            },
            TRANSACTIONS: {"POST": Route(transactions.begin, Role.APPEND, to_master=True)},
            "/v1/tail": {"GET": Route(tails.tail, Role.READ)},
            "/v1/produce": {"GET": Route(producers.produce, Role.APPEND, to_master=True)},
            "/v1/feed": {"GET": Route(feeds.feed, Role.KEY)},
            "/v1/segments": {"GET": Route(segments.listing, Role.READ)},
            CONSUMERS: {"GET": Route(consumers.list, Role.READ)},
            SINKS: {"GET": Route(sinks.list, Role.READ)},
            SPANS: {"GET": Route(SpanRoutes(services.member).spans, Role.READ)},
            CDC: {"GET": Route(cdc.list, Role.METRICS)},
            DESTINATIONS: {"GET": Route(destinations.list, Role.READ, to_master=True)},
            SESSION: {"POST": Route(sessions.open, Role.OPEN), "DELETE": Route(sessions.close, Role.OPEN)},
            "/v1/status": {"GET": Route(status.status, Role.METRICS)},
            OVERVIEW: {"GET": Route(services.overview.overview, Role.METRICS)},
            OPENAPI: {"GET": Route(OpenApiRoutes(self._route, _OF_COMMITS, pieces).openapi, Role.METRICS)},
            "/v1/events": {"GET": Route(status.events, Role.METRICS)},
            **_of_members(services.peers, services.repairs, services.overview),
            "/v1/group": {"GET": Route(admin.group, Role.METRICS)},
            "/v1/admin/group": {"POST": Route(admin.change_group, Role.ADMIN, to_master=True)},
            "/v1/admin/group/settings": {"POST": Route(admin.change_settings, Role.ADMIN, to_master=True)},
            "/v1/admin/transfer": {"POST": Route(admin.transfer, Role.ADMIN, to_master=True)},
            "/v1/admin/checkpoint": {"POST": Route(admin.checkpoint, Role.ADMIN)},
            "/v1/admin/rotate": {"POST": Route(admin.rotate, Role.ADMIN)},
            "/v1/admin/clean": {"POST": Route(admin.clean, Role.ADMIN)},
            TOKENS: {"GET": Route(tokens.list, Role.ADMIN)},
            "/v1/admin/restore": {"POST": Route(admin.restore, Role.ADMIN)},
            "/metrics": {"GET": Route(status.metrics, Role.METRICS)},
            KEY_PATH: {"GET": Route(status.key, Role.OPEN)},
            "/healthz": {"GET": Route(status.healthz, Role.OPEN)},
            "/readyz": {"GET": Route(status.readyz, Role.OPEN)},
            "/": {"GET": Route(status.page, Role.OPEN)},
        }

    async def handle(self, request: Request) -> Response | Upgrade:
        """Answers any request. It never raises, except for a cancel."""
        try:
            self._check(request)
            if is_between_members(request.path):
                return await self._door.serve(request, self._answered)
            if HEADER in request.headers:
                return await self._door.serve_outside(request, self._answered)
        except VlsnLogError as error:
            if isinstance(error, Unauthorized):
                self._trail.refused(request, error)
            return self._refused(request, error)
        return await self._answered(request)

    async def _answered(self, request: Request) -> Response | Upgrade:
        """Answers a request that may be looked at. It never raises, except for a cancel."""
        try:
            methods = self._paths.get(request.path) or self._item(request.path)
            route = methods.get(request.method)
            if route is None:
                route = methods.get("GET") if request.method == "HEAD" else None
            if route is None:
                refusal = NotAllowed(f"{request.method[:20]} does not go to {request.path[:100]}")
                return self._refused(request, refusal, {"Allow": ", ".join(_allowed(methods))})
            try:
                self._access.check(request, route)
            except VlsnLogError as refusal:
                if isinstance(refusal, Unauthorized | Forbidden):
                    self._trail.refused(request, refusal)
                return self._access.redirected(request, route) or self._refused(request, refusal)
            answering = self._ordered if route.role is Role.ADMIN else self._answer
            answer = await answering(request, route.handler)
            return self._access.guarded(request.grant, answer, reads=request.method in _READS)
        except VlsnLogError as error:
            if isinstance(error, Unauthorized):  # a token in a body
                self._trail.refused(request, error)
            return self._refused(request, error)
        except Exception as fault:  # a fault must end the request only, not the task's owner
            return self._refused(request, problem.internal(fault, f"{request.method} {request.path}"))

    def _refused(self, request: Request, error: VlsnLogError, headers: Mapping[str, str] | None = None) -> Response:
        """Makes the answer of an error, and counts it. Members refuse each other's calls in a healthy group, too, so
        these are counted only if the sender was no member."""
        if isinstance(error, Unauthorized) or not is_between_members(request.path):
            self._member.counts.refused[error.slug] += 1
        return problem.response(error, headers)

    async def _ordered(self, request: Request, handler: Handler) -> Response | Upgrade:
        """Answers a person's order, and notes it."""
        status = _LEFT
        try:
            answer = await self._answer(request, handler)
            assert isinstance(answer, Response)
            status = answer.status
            return answer
        except VlsnLogError as error:
            answer = self._refused(request, error)
            status = answer.status
            return answer
        finally:
            self._trail.called(request, status)

    async def _answer(self, request: Request, handler: Handler) -> Response | Upgrade:
        if request.path == _APPENDS:
            return await handler(request)
        if request.method in _READS:
            return self._with_durable(request, await handler(request))
        if request.method in ("POST", "PUT") and not _is_staging(request.path):
            check_json(request)
        try:
            return self._with_durable(request, await handler(request))
        finally:
            self._status.changed()

    def _with_durable(self, request: Request, answer: Response | Upgrade) -> Response | Upgrade:
        """Adds the durable end to answers whose clients will want to read up to there."""
        if isinstance(answer, Response) and answer.status < 300 and request.path.startswith(_OF_COMMITS):
            return replace(answer, headers={**answer.headers, DURABLE: str(reads_of(self._member).durable)})
        return answer

    def quick(self, request: Request) -> Start | None:
        """Returns the short way for appends and long-polls. Returns None for a head that ``handle`` would refuse."""
        quick = self._quick.get(request.method)
        if quick is None or request.path != _APPENDS or HEADER in request.headers:
            return None
        try:
            self._check(request)
            route = self._paths[_APPENDS][request.method]
            self._access.check(request, route)
            return self._access.guarded_start(request, route, quick(request))
        except VlsnLogError:
            return None

    def keeps(self, request: Request) -> bool:
        """Says whether a request is served when all connections but the kept ones are busy: health checks, what a key
        of the group has signed, and the orders of operators. A stranger's request is not, whatever its path."""
        if request.path in _HEALTH:
            return True
        if is_between_members(request.path) or HEADER in request.headers:
            return self._door.is_signed(request)
        if not request.path.startswith(_ORDERS):
            return False
        try:
            methods = self._paths.get(request.path) or self._item(request.path)
            self._access.check(request, methods[request.method])
        except (VlsnLogError, KeyError):
            return False
        return True

    def _check(self, request: Request) -> None:
        """Makes the checks that apply to every call. Raises ``Misdirected``, ``Forbidden``, ``UnsupportedType``, and
        ``WrongGroup`` for a call that is meant for another log."""
        self._browsers.check(request)
        if any(name in request.headers for name in _CODINGS):
            _check_codings(request)
        named = request.headers.get(FOUNDING_FIELD)
        if named is not None:
            self._check_founding(named)

    def _route(self, method: str, path: str) -> Route:
        """Finds a route of the table. Raises ``NotFound``, and KeyError for a method that does not go there."""
        return (self._paths.get(path) or self._item(path))[method]

    def _item(self, path: str) -> Methods:
        """Finds the methods of a path that contains a number or a name. Raises ``NotFound``, ``BadArgument``."""
        if path.startswith(TRANSACTIONS + "/"):
            return self._transaction(path)
        if path.startswith(CONSUMERS + "/"):
            return self._consumers.methods(path)
        if path.startswith(SINKS + "/"):
            return self._sinks.methods(path)
        if path.startswith(DESTINATIONS + "/"):
            return self._destinations.methods(path)
        if path.startswith(TOKENS + "/"):
            return self._tokens.methods(path)
        if path.startswith(CDC + "/"):
            return self._cdc.methods(path)
        collection, _, item = path.rpartition("/")
        item = query.named(item)
        if item and collection == "/v1/entries":
            return {"GET": Route(partial(self._entry, item=item), Role.READ)}
        if item and collection == "/v1/producers":
            return {"GET": Route(partial(self._producer, item=item), Role.READ)}
        if item and collection == problem.HELP_PATH:
            return {"GET": Route(partial(self._status.error, slug=item), Role.OPEN)}
        if item and collection == "/v1/segments":
            return {"GET": Route(partial(self._segment, item=item), Role.READ)}
        raise NotFound(f"there is no {path[:100]}")


def _of_members(peers: NodePeers, repairs: RepairRoutes, overview: Overview) -> dict[str, Methods]:
    """Returns the routes of calls between members."""
    return {
        PEER_STATUS: {"GET": Route(overview.peer_status, Role.KEY)},
        "/v1/peer/hello": {"POST": Route(answering_members(peers.hello), Role.KEY)},
        "/v1/peer/restore": {"POST": Route(repairs.offer, Role.KEY), "GET": Route(repairs.range, Role.KEY)},
        "/v1/peer/block": {"GET": Route(repairs.block, Role.KEY)},
        "/v1/peer/messages": {"GET": Route(repairs.messages, Role.KEY)},
        "/v1/peer/copy": {"GET": Route(repairs.copy, Role.KEY)},
        "/v1/peer/vote": {"POST": Route(answering_members(peers.vote), Role.KEY)},
        "/v1/peer/read_index": {"POST": Route(answering_members(peers.read_index), Role.KEY)},
        "/v1/peer/stand": {"POST": Route(answering_members(peers.stand), Role.KEY)},
        "/v1/peer/cdc": {"POST": Route(answering_members(peers.begun), Role.KEY)},
    }


def _is_staging(path: str) -> bool:
    return path.startswith(TRANSACTIONS) and path.endswith("/entries")


def _check_codings(request: Request) -> None:
    """Checks that the body is not coded, except that it may be chunked. Raises ``UnsupportedType``."""
    for name, value in request.headers.items():  # every field counts, because two fields of one name form one list
        plain = _CODINGS.get(name.lower())
        if plain is not None and value.strip().lower() != plain:
            raise UnsupportedType(f"{name}: {value[:40]}; bodies are read as they are")


def _allowed(methods: Methods) -> list[str]:
    return sorted({*methods, "HEAD"} if "GET" in methods else methods)
