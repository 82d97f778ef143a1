"""What a node says of itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from repl.node.metrics import metrics_text
from repl.node.status import readiness, status

if TYPE_CHECKING:
    from repl.node.node import Node


class NodeMonitoring:
    """``repl.http.services.Monitoring``."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def addresses(self) -> list[str]:
        node = self._node
        return [node.config.listen, *node.members.urls.values(), *node.config.hosts]

    def status(self) -> dict[str, Any]:
        return status(self._node)

    def events_since(self, number: int, limit: int) -> dict[str, Any]:
        return {"node": self._node.config.name, **self._node.events.since(number, limit)}

    def readiness(self) -> list[str]:
        return readiness(self._node)

    def metrics_text(self) -> bytes:
        return metrics_text(self._node)
