"""Sinks without asyncio."""

from __future__ import annotations

from collections.abc import Sequence

from repl.api import Appended, SinkAt, SinkChange
from repl.client.sinks import Sinks
from repl.client.sync_consumer import Runner


class SyncSinks:
    """``Sinks``, blocking."""

    def __init__(self, client: Runner, sinks: Sinks) -> None:
        self._client = client
        self._sinks = sinks

    def get(self, name: str) -> SinkAt | None:
        """Asks as ``Sinks.get``."""
        return self._client.run(self._sinks.get(name))

    def list(self) -> list[SinkAt]:
        """Asks as ``Sinks.list``."""
        return self._client.run(self._sinks.list())

    def delete(self, name: str) -> None:
        """Deletes as ``Sinks.delete``."""
        self._client.run(self._sinks.delete(name))

    def commit(self, name: str, parts: Sequence[tuple[bytes, int]], change: SinkChange | None) -> Appended:
        """Commits as ``Sinks.commit``."""
        return self._client.run(self._sinks.commit(name, parts, change))
