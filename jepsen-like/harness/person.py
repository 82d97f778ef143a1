"""Does an operator's work on a node with a damaged disk, as docs/damage.md describes it.

A node that stays DAMAGED, or has damage that no peer can mend, receives the order to restore. Each log is scrubbed
after its current segment was rolled, so that remaining damage shows then, and not only in ``verify``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from harness.group.nodes import Group
from harness.group.watch import Watch
from harness.ops import Recorder
from harness.orders import order
from repl.web.types import Network
from vlsn.errors import VlsnLogError

PATIENCE_S = 10.0
"""Seconds that a node may spend on mending itself before the operator acts."""
POLL_S = 0.2
PASSES = 2
"""Passes of the scrub, since the first may have begun before the roll."""


class Person:
    """Looks after ``names``."""

    def __init__(self, group: Group, watch: Watch, network: Network, recorder: Recorder, names: Iterable[str]) -> None:
        self._group = group
        self._watch = watch
        self._network = network
        self._recorder = recorder
        self._names = list(names)

    async def look_after(self) -> None:
        """Looks after the nodes until cancelled: restores each that has been damaged for too long."""
        loop = asyncio.get_running_loop()
        since: dict[str, float] = {}
        while True:
            await asyncio.sleep(POLL_S)
            for name in self._names:
                status = self._watch.statuses.get(name, {})
                if status.get("state") != "DAMAGED" and not status.get("damage"):
                    since.pop(name, None)
                elif loop.time() - since.setdefault(name, loop.time()) > PATIENCE_S:
                    await self._tell(name, "restore")
                    since[name] = loop.time()

    async def scrubbed(self) -> None:
        """Returns once each member's log has been scrubbed as a whole, and no damage is known."""
        members = [name for name in self._names if name in self._group.listed]
        for name in members:
            await self._tell(name, "rotate")
        due = {name: self._passes(name) + PASSES for name in members}
        await self._until(
            lambda: all(self._passes(name) >= passes and self._whole(name) for name, passes in due.items())
        )

    def _passes(self, name: str) -> int:
        return int((self._watch.statuses.get(name, {}).get("scrub") or {}).get("passes") or 0)

    def _whole(self, name: str) -> bool:
        return not self._watch.statuses.get(name, {}).get("damage")

    async def _until(self, holds: Callable[[], bool]) -> None:
        while not holds():  # noqa: ASYNC110  another process's state
            await asyncio.sleep(POLL_S)

    async def _tell(self, name: str, what: str) -> None:
        answer: dict[str, Any] = {"node": name}
        try:
            told = await order(self._network, self._group.urls[name], what, timeout_s=10.0)
            answer["status"] = told.status
        except VlsnLogError as error:
            answer["error"] = str(error)[:200]
        self._recorder.record("person", "info", what, answer)
