"""The node's word about itself: status, metrics, health, readiness, and the live page."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import Callable, Generator, Mapping
from hashlib import sha256
from importlib.resources import files
from typing import Any, Generic, TypeVar

import msgspec

from repl.credentials.loopback import is_loopback
from repl.node.metrics import metrics_text
from repl.node.parts import NodeParts
from repl.node.status import founding, long_status, readiness, status
from repl.web import explained, problem, query
from repl.web.calls import (
    FLAG,
    LIST,
    OBJECT,
    TEXT,
    TEXTS,
    WHOLE,
    Answer,
    Call,
    in_path,
    known,
    maybe,
    ok,
    record,
    whole,
)
from repl.web.limits import EVENTS_MAX, PIECE_COST, RETRY_AFTER_S, TOLD_S
from repl.web.slices import Slices
from repl.web.types import Request, Response
from vlsn.errors import NotFound, Restoring, WrongGroup

T = TypeVar("T")
KEY_PATH = "/v1/key"
_NONE: frozenset[str] = frozenset()
_SEEN = (
    whole("from", "The number of the first event.", 1, query.VLSN_MAX, 1),
    whole("limit", "The most events of the answer.", 1, EVENTS_MAX, EVENTS_MAX),
)
_EVENTS = known(*_SEEN)
_STATE: dict[str, Mapping[str, Any]] = {
    "state": {"enum": ["MASTER", "REPLICA", "UNKNOWN", "DAMAGED", "RESTORING", "HALTED"]},
    "reason": TEXT,
    **dict.fromkeys(("group", "node", "url", "version", "incarnation", "process", "founding"), TEXT),
    "master": maybe(TEXT),
    **dict.fromkeys(("term", "level", "members_at", "dtvlsn"), WHOLE),
    "levels": {"type": "array", "items": WHOLE},
    **dict.fromkeys(("listed", "insecure"), FLAG),
    "range": record(dict.fromkeys(("first", "last", "last_sync", "last_txn_end"), WHOLE)),
    **dict.fromkeys(("settings", "restore", "elections"), OBJECT),
    **{name: maybe(OBJECT) for name in ("checkpoint", "replica", "transactions", "log", "cleaning", "key", "scrub")},
    "protection_missing": TEXTS,
    **dict.fromkeys(("feeders", "damage", "members", "alarms", "syncups", "holds"), LIST),
    **dict.fromkeys(("consumers", "destinations", "cdc"), LIST),
}
_READY: dict[str, Mapping[str, Any]] = {"ready": FLAG, "reasons": TEXTS}
CALLS = (
    Call(
        "health and status",
        "GET",
        "/v1/status",
        "Read the state of this node",
        (),
        (ok(record(_STATE, ["reason"]), f"The state. Lists of names may be {TOLD_S:g} s old."),),
        text="The range of an empty log is all 0. `last_sync` is the last VLSN that is synced here, and `dtvlsn` the "
        "durable end. `reason` says why a node is UNKNOWN or HALTED.",
        example="$URL/v1/status",
    ),
    Call(
        "health and status",
        "GET",
        "/v1/events",
        "Read the events of this node",
        _SEEN,
        (ok(record({"node": TEXT, "first": WHOLE, "next": WHOLE, "events": LIST}), "The events that are kept."),),
    ),
    Call(
        "health and status",
        "GET",
        "/v1/key",
        "Read what a command needs to sign its calls",
        (),
        (
            ok(
                record({"group": TEXT, "node": TEXT, "signs": maybe(TEXT), "accepts": TEXTS, "file": maybe(TEXT)}),
                "The IDs of keys; on loopback also the path of the key file.",
            ),
        ),
    ),
    Call("health and status", "GET", "/healthz", "Ask if the process lives", (), (ok(record({"alive": FLAG})),)),
    Call(
        "health and status",
        "GET",
        "/readyz",
        "Ask if the node serves durable reads",
        (),
        (ok(record(_READY), "It does."),),
        frozenset({Restoring}),
        text="503 `not-ready` has `ready` and `reasons`, too.",
        example="$URL/readyz",
    ),
    Call(
        "health and status",
        "GET",
        "/metrics",
        "Read the metrics",
        (),
        (ok(TEXT, "The text format of Prometheus.", kind="text/plain"),),
    ),
    Call(
        "health and status",
        "GET",
        f"{problem.HELP_PATH}/{{slug}}",
        "Read what an error means, and what to do",
        (in_path("slug", "The `type` of a problem document.", TEXT),),
        (ok(TEXT, "The error's entry in Markdown.", kind="text/plain"),),
        frozenset({NotFound}),
        example="$URL/errors/no-master",
    ),
    Call(
        "health and status",
        "GET",
        "/",
        "Open the live page",
        (),
        (Answer(200, "A page for a browser.", {"text/html": TEXT}),),
    ),
)
_PAGE = files("repl.node").joinpath("page.html").read_bytes()


def _hash_of(tag: str) -> str:
    """Returns the source of a content security policy that allows the page's one element ``tag``, as it is."""
    inside = _PAGE.partition(f"<{tag}>".encode())[2].partition(f"</{tag}>".encode())[0]
    return f"'sha256-{b64encode(sha256(inside).digest()).decode()}'"


_PAGE_HEADERS = {
    "Content-Type": "text/html; charset=utf-8",
    "Cache-Control": "no-cache",
    "Content-Security-Policy": f"default-src 'none'; style-src {_hash_of('style')}; script-src {_hash_of('script')}; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
}
_TEXT_HEADERS = {"Content-Type": "text/plain; charset=utf-8", "X-Content-Type-Options": "nosniff"}
"""For Markdown, which browsers show as plain text only."""
_JSON = {"Content-Type": "application/json", "Cache-Control": "no-store"}


class _Told(Generic[T]):
    """An answer that takes a while to make: made once for all who ask within ``TOLD_S``."""

    def __init__(self, slices: Slices, make: Callable[[], Generator[int, None, T]]) -> None:
        self._slices = slices
        self._make = make
        self._found: T | None = None
        self._until_s = 0.0
        self._making = asyncio.Lock()

    async def get(self) -> T:
        if (found := self._fresh()) is not None:
            return found
        async with self._making:
            if (found := self._fresh()) is None:
                self._found, self._until_s = None, asyncio.get_running_loop().time() + TOLD_S
                found = self._found = await self._slices.run(self._make())
            return found

    def forget(self) -> None:
        """Makes it anew for later callers."""
        self._until_s = 0.0

    def _fresh(self) -> T | None:
        return self._found if asyncio.get_running_loop().time() < self._until_s else None


class StatusRoutes:
    """The routes by which a node reports about itself. ``slices`` limit the bytes that all routes encode in one
    turn of the event loop."""

    def __init__(self, monitoring: NodeMonitoring, slices: Slices) -> None:
        self._monitoring = monitoring
        self._metrics = _Told(slices, self._make_metrics)

    def changed(self) -> None:
        """Makes later answers show a change that a call through this node has made."""
        self._metrics.forget()
        self._monitoring.long.forget()

    async def status(self, request: Request) -> Response:
        """Returns the fields that clients go by as they are now; long fields may be ``TOLD_S`` old."""
        query.only(request.query, _NONE)
        return Response(200, _JSON, msgspec.json.encode(self._monitoring.status(await self._monitoring.long.get())))

    async def events(self, request: Request) -> Response:
        """Returns the node's events, from number ``from`` on; events that are kept no more are missing."""
        query.only(request.query, _EVENTS)
        number = query.whole(request.query, "from", 1, 1, query.VLSN_MAX)
        limit = query.whole(request.query, "limit", EVENTS_MAX, 1, EVENTS_MAX)
        return Response(200, _JSON, msgspec.json.encode(self._monitoring.events_since(number, limit)))

    async def metrics(self, request: Request) -> Response:
        return await self._metrics.get()

    def _make_metrics(self) -> Generator[int, None, Response]:
        text = yield from self._monitoring.metrics_text()
        return Response(200, {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}, text, shared=True)

    async def healthz(self, request: Request) -> Response:
        """Answers while the process lives and its loop turns; looks at nothing else."""
        return Response(200, _JSON, b'{"alive":true}')

    async def key(self, request: Request) -> Response:
        """Answers what a command has to know to sign its calls to this node."""
        query.only(request.query, _NONE)
        return Response(200, _JSON, msgspec.json.encode(self._monitoring.key()))

    async def readyz(self, request: Request) -> Response:
        reasons = self._monitoring.readiness()
        if not reasons:
            return Response(200, _JSON, b'{"ready":true,"reasons":[]}')
        fields = {
            "type": "not-ready",
            "title": "The node is not ready",
            "status": 503,
            "detail": "; ".join(reasons),
            "help": problem.help_of("not-ready"),
            "ready": False,
            "reasons": reasons,
        }
        headers = {"Content-Type": problem.CONTENT_TYPE, "Retry-After": str(RETRY_AFTER_S)}
        return Response(503, headers, msgspec.json.encode(fields))

    async def error(self, request: Request, *, slug: str) -> Response:
        """Answers the entry of an error's slug, as Markdown. Raises ``NotFound``."""
        query.only(request.query, _NONE)
        return Response(200, _TEXT_HEADERS, explained.entry(slug).encode())

    async def page(self, request: Request) -> Response:
        return Response(200, _PAGE_HEADERS, _PAGE)


class NodeMonitoring:
    """The node's word about itself. ``long`` are the long fields of its status, encoded."""

    def __init__(self, parts: NodeParts, slices: Slices) -> None:
        self.member = parts.member
        self._parts = parts
        self.long = _Told(slices, self._make_long)

    def addresses(self) -> list[str]:
        """Lists the names that this node may be called by: hosts, with a port or without, and URLs."""
        parts = self._parts
        return [parts.member.config.listen, *parts.member.members.urls.values(), *parts.member.config.hosts]

    def key(self) -> dict[str, Any]:
        """Answers ``GET /v1/key``: names, the IDs of keys, and on loopback the path of the file, which its owner alone
        can read."""
        config, keys = self.member.config, self.member.keyring.keys
        shown = config.group_key is not None and is_loopback(config.host)
        return {
            "group": config.group,
            "node": config.name,
            "signs": None if keys is None else keys.signing.id,
            "accepts": [] if keys is None else list(keys.ids),
            "file": str(config.group_key.absolute()) if shown and config.group_key is not None else None,
        }

    def status(self, long: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Returns the object of ``GET /v1/status``, as it is now; ``long`` is what ``long_status`` gave of late."""
        return status(self._parts, long)

    def long_status(self) -> Generator[int, None, dict[str, Any]]:
        """Makes the fields of a status that grow with the group's names, in steps."""
        return long_status(self._parts)

    def _make_long(self) -> Generator[int, None, dict[str, msgspec.Raw]]:
        said = yield from self.long_status()
        found = {}
        for name, value in said.items():
            yield PIECE_COST * (1 + len(value))
            found[name] = msgspec.Raw(msgspec.json.encode(value))
        return found

    def check_founding(self, named: str) -> None:
        """Raises ``WrongGroup`` where this node's log is known to have another name than ``named``."""
        own = founding(self._parts)
        if own and named != own:
            raise WrongGroup(
                f"{self.member.name} has the log of group {self.member.config.group!r} that was founded as {own}, and "
                f"{named[:80]} is asked for: it is another group, or this one was founded anew"
            )

    def events_since(self, number: int, limit: int) -> dict[str, Any]:
        """Returns the object of ``GET /v1/events`` (``repl.events``)."""
        return {"node": self.member.name, **self.member.events.since(number, limit)}

    def readiness(self) -> list[str]:
        """Reasons why this node is not ready to serve durable reads; none when it is."""
        return readiness(self._parts)

    def metrics_text(self) -> Generator[int, None, bytes]:
        """Makes Prometheus' text format, in steps that tell what each costs (``repl.web.slices``)."""
        return metrics_text(self._parts)
