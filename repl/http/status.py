"""The node's word about itself: status, metrics, health, readiness, and the live page."""

from __future__ import annotations

from importlib.resources import files

import msgspec

from repl.http import query
from repl.http.limits import EVENTS_MAX, RETRY_AFTER_S
from repl.http.services import Monitoring
from repl.http.types import Request, Response

_NONE: frozenset[str] = frozenset()
_EVENTS = frozenset({"from", "limit"})
_PAGE = files("repl.http").joinpath("page.html").read_bytes()
_PAGE_HEADERS = {
    "Content-Type": "text/html; charset=utf-8",
    "Cache-Control": "no-cache",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
}
_JSON = {"Content-Type": "application/json", "Cache-Control": "no-store"}


class StatusRoutes:
    def __init__(self, monitoring: Monitoring) -> None:
        self._monitoring = monitoring

    async def status(self, request: Request) -> Response:
        query.only(request.query, _NONE)
        return Response(200, _JSON, msgspec.json.encode(self._monitoring.status()))

    async def events(self, request: Request) -> Response:
        """Tells what happened to the node, from event ``from`` on; those that are kept no more are missing."""
        query.only(request.query, _EVENTS)
        number = query.whole(request.query, "from", 1, 1, query.VLSN_MAX)
        limit = query.whole(request.query, "limit", EVENTS_MAX, 1, EVENTS_MAX)
        return Response(200, _JSON, msgspec.json.encode(self._monitoring.events_since(number, limit)))

    async def metrics(self, request: Request) -> Response:
        return Response(
            200, {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}, self._monitoring.metrics_text()
        )

    async def healthz(self, request: Request) -> Response:
        """Answers while the process lives and its loop turns; looks at nothing else."""
        return Response(200, _JSON, b'{"alive":true}')

    async def readyz(self, request: Request) -> Response:
        reasons = self._monitoring.readiness()
        if not reasons:
            return Response(200, _JSON, b'{"ready":true,"reasons":[]}')
        fields = {
            "type": "not-ready",
            "title": "The node is not ready",
            "status": 503,
            "detail": "; ".join(reasons),
            "ready": False,
            "reasons": reasons,
        }
        headers = {"Content-Type": "application/problem+json", "Retry-After": str(RETRY_AFTER_S)}
        return Response(503, headers, msgspec.json.encode(fields))

    async def page(self, request: Request) -> Response:
        return Response(200, _PAGE_HEADERS, _PAGE)
