"""An operator who moves, pauses, drops and makes anew the destinations of a simulation, drawn separately.

    move to a VLSN, start, end  ─► answered: nothing before it is delivered again, everything from it on is owed
                                ─► 410: some node's log begins after it
    pause                       ─► answered: nothing is delivered until a resume
    drop, and made anew         ─► answered: the messages of the new one are owed

An order without an answer may still take effect for ``LATE_S``, so nothing is concluded from it.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING, Any

import msgspec

from tests.sim.destinations import LATE_S

if TYPE_CHECKING:
    from tests.sim.consumers import Consumers
    from tests.sim.destinations import Folded

RATE = 0.7
"""The share of the seeds with destinations that have such an operator."""
EVERY_S = (0.3, 3.0)
PAUSED_S = (0.5, 4.0)
WORDS = ("move", "move", "move", "pause", "drop")
END_S = 60.0
TRIMMED = 410


class Orders:
    def __init__(self, consumers: Consumers) -> None:
        self._all = consumers
        self._rng = Random(f"orders/{consumers.report.seed}")
        self._is_there = self._rng.random() < RATE
        self.made: set[str] = set()
        """The destinations whose creation was answered."""
        self.ordered: set[str] = set()
        """The destinations with any order."""
        self.dropped: set[str] = set()
        """The destinations with an order to drop."""
        self.paused: set[str] = set()
        """The destinations that are certainly paused."""
        self._unsure: dict[str, float] = {}
        """The time of the last order without an answer, by destination."""

    async def run(self) -> None:
        while self._is_there and not self._all.clients.over:
            await asyncio.sleep(self._rng.uniform(*EVERY_S))
            if not self.made or self._all.clients.over:
                continue
            name, word = self._rng.choice(sorted(self.made)), self._rng.choice(WORDS)
            self.ordered.add(name)
            if word == "move":
                await self._move(name)
            elif word == "pause":
                await self._pause(name)
            else:
                await self._drop(name)

    async def end(self) -> None:
        """Resumes paused destinations, and makes dropped ones anew, now that all faults have ended."""
        loop = self._all.group.loop
        for name in sorted(self.ordered):
            until_s = loop.time() + END_S
            while not (await self._made_anew(name) and await self._told("POST", f"{name}/resume", b"{}", name) == 200):
                self._all.group.watch.hold(loop.time() < until_s, f"{name} is neither made nor resumed")
                await asyncio.sleep(0.5)

    async def _told(self, method: str, path: str, body: bytes, name: str) -> int:
        from tests.sim.consumers import Caller

        caller = Caller(self._all, "person")
        caller.rng = self._rng
        status, told = await caller.call(method, path, body)
        self._all.group.watch.hold(status not in (400, 500), f"{status} of {method} {path}: {told[:300]!r}")
        if status in (200, 201):
            self._all.report.met[f"{path.partition('/')[2] or method} of a destination"] += 1
        elif status != TRIMMED:
            self._unsure[name] = (
                self._all.group.loop.time()
            )  # for example 503: it may have been logged, or is still under way
        return status

    def _is_unsure(self, name: str) -> bool:
        return self._all.group.loop.time() < self._unsure.get(name, -LATE_S) + LATE_S

    def _folded(self, name: str) -> Folded | None:
        return self._all.books.of.get(self._all.books.named.get(name, ""))

    async def _move(self, name: str) -> None:
        group, books = self._all.group, self._all.books
        first = max(books.first(each) for each in group.names)
        last = group.watch.durable_last
        to: Any = self._rng.choice(("start", "end", 0, 1, 1))
        if isinstance(to, int):  # some are below the logs' beginning, and refused
            to = self._rng.randint(1, max(first, 1)) if to == 0 else self._rng.randint(min(first, last), last)
            to = max(to, 1)
        status = await self._told("POST", f"{name}/move", msgspec.json.encode({"to": to}), name)
        folded, first = self._folded(name), max(books.first(each) for each in group.names)
        if status == TRIMMED:
            group.watch.hold(isinstance(to, int) and to < first, f"{name}: a move to {to} is refused; first is {first}")
        if status == 200 and folded is not None:
            folded.told_s = group.loop.time()
            is_so = not isinstance(to, int) or folded.begin == to or self._is_unsure(name)
            group.watch.hold(is_so, f"{name} begins at {folded.begin}, moved to {to}")

    async def _pause(self, name: str) -> None:
        status = await self._told("POST", f"{name}/pause", b"{}", name)
        if status == 200 and not self._is_unsure(name):
            self.paused.add(name)
        await asyncio.sleep(self._rng.uniform(*PAUSED_S))
        self.paused.discard(name)
        for _ in range(10):
            if await self._told("POST", f"{name}/resume", b"{}", name) in (200, 404) or self._all.clients.over:
                return
            await asyncio.sleep(0.5)

    async def _drop(self, name: str) -> None:
        self.dropped.add(name)
        status = await self._told("DELETE", name, b"", name)
        if status == 200:
            await asyncio.sleep(self._rng.uniform(0.0, 2.0))
        await self._made_anew(name)

    async def _made_anew(self, name: str) -> bool:
        made = next(each for each in self._all.made if each.name == name)
        settings = {**made.settings, "from": self._rng.choice(("start", "end"))}
        status = await self._told("PUT", name, msgspec.json.encode(settings), name)
        folded = self._folded(name)
        if status == 201 and folded is not None:
            folded.told_s = self._all.group.loop.time()
        return status in (200, 201)
