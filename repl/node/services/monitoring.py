"""A node's word about itself."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any

from repl.node.metrics import metrics_text
from repl.node.services.service import NodeService
from repl.node.status import founding, long_status, readiness, status
from vlsn.errors import WrongGroup


class NodeMonitoring(NodeService):
    """``repl.node.status_http.Monitoring``."""

    def addresses(self) -> list[str]:
        parts = self._parts
        return [parts.member.config.listen, *parts.member.members.urls.values(), *parts.member.config.hosts]

    def status(self, long: Mapping[str, Any] | None = None) -> dict[str, Any]:
        return status(self._parts, long)

    def long_status(self) -> dict[str, Any]:
        return long_status(self._parts)

    def check_founding(self, named: str) -> None:
        own = founding(self._parts)
        if own and named != own:
            raise WrongGroup(
                f"{self.name} has the log of group {self._parts.member.config.group!r} that was founded as {own}, and "
                f"{named[:80]} is asked for: it is another group, or this one was founded anew"
            )

    def events_since(self, number: int, limit: int) -> dict[str, Any]:
        return {"node": self.name, **self._parts.member.events.since(number, limit)}

    def readiness(self) -> list[str]:
        return readiness(self._parts)

    def metrics_text(self) -> Generator[int, None, bytes]:
        return metrics_text(self._parts)
