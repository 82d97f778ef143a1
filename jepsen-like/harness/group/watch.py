"""The group seen from outside: requests each node's status again and again, and notes changes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from harness.ops import Recorder
from repl.client.endpoints import Endpoints, Status
from repl.web.types import Network
from vlsn.errors import VlsnLogError

PERIOD_S = 0.1
DURABLE_EACH_S = 1.0
"""Seconds between two notes of a node's durable end if nothing else has changed."""


class Watch:
    """Reported masters: ``masters`` has them in the order of their first report."""

    def __init__(self, urls: Mapping[str, str], network: Network, recorder: Recorder) -> None:
        self.masters: list[tuple[int, str]] = []
        """(term, node)."""
        self.statuses: dict[str, dict[str, Any]] = {}
        """The last answer of each node that answered its last request."""
        self._urls = urls
        self._endpoints = Endpoints(network, list(urls.values()))
        self._recorder = recorder
        self._noted: dict[str, tuple[object, ...]] = {}
        self._noted_s: dict[str, float] = {}

    @property
    def master(self) -> str | None:
        """The node that leads in the highest reported term; None if no node reports that it leads."""
        leading = [
            (int(status.get("term") or 0), name)
            for name, status in self.statuses.items()
            if status.get("state") == "MASTER"
        ]
        return max(leading)[1] if leading else None

    @property
    def changes(self) -> int:
        """Changes of (term, master)."""
        return max(0, len(self.masters) - 1)

    async def run(self) -> None:
        """Watches until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for name in self._urls:
                tasks.create_task(self._ask(name))

    async def _ask(self, name: str) -> None:
        while True:
            try:
                self._seen(name, await self._endpoints.status(self._urls[name]))
            except VlsnLogError:
                self.statuses.pop(name, None)
                self._note(name, {"state": "UNREACHABLE"})
            await asyncio.sleep(PERIOD_S)

    def _seen(self, name: str, status: Status) -> None:
        document = status.document
        self.statuses[name] = document
        state = str(document.get("state"))
        leads = (status.term, name)
        if state == "MASTER" and leads not in self.masters:
            self.masters.append(leads)
        self._note(
            name,
            {
                "state": state,
                "term": status.term,
                "master": status.master,
                "process": str(document.get("process") or ""),
                "incarnation": str(document.get("incarnation") or ""),
                "reason": str(document.get("reason") or ""),
                "dtvlsn": int(document.get("dtvlsn") or 0),
                "last": int((document.get("range") or {}).get("last") or 0),
                "level": int(document.get("level") or 0) if document.get("log") is not None else 0,
            },
        )

    def _note(self, name: str, value: dict[str, Any]) -> None:
        now = self._recorder.now_s()
        what = tuple(value.get(key) for key in ("state", "term", "master", "process", "reason", "level"))
        moved = value["state"] != "UNREACHABLE" and now - self._noted_s.get(name, 0.0) > DURABLE_EACH_S
        if self._noted.get(name) != what or moved:
            self._noted[name], self._noted_s[name] = what, now
            self._recorder.record("watch", "info", "status", {"node": name, **value})
