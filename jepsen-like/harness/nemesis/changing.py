"""Members that join, leave and return under other faults: one step at a time, each to its end.

present members ─► draw a step ─► the node is ready ─► repeat the order until it is done ─► present members
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final

from harness.group.members import Listed, Step
from harness.group.membership import Membership, Ordered
from harness.group.nodes import SPARE, Group
from harness.nemesis import disk
from harness.nemesis.plan import Strike
from harness.nemesis.steps import draw
from harness.ops import Recorder
from repl.web.types import Network

SPARES: Final = 2
PATIENCE_S: Final = 20.0
"""Seconds beyond its planned time that a step may take: nodes start meanwhile, and other faults delay it."""
POLL_S: Final = 0.1


class Changing:
    """The changes of one run. ``stay`` are members that are never removed, and the only ones that are wiped."""

    def __init__(self, group: Group, network: Network, recorder: Recorder, *, stay: Sequence[str]) -> None:
        self._group = group
        self._membership = Membership(group, network)
        self._recorder = recorder
        self._stay = stay
        self._loose: set[str] = set()
        """Members whose change had no answer, and may still take effect."""
        self._busy = False
        self.went: dict[int, str] = {}
        """The change that each strike became, by its number."""

    def begin(self) -> None:
        """Notes the members at the start."""
        self._note("founded", {"members": self._group.listed, "electable": self._group.electable})

    async def strike(self, strike: Strike, number: int, chance: Random, now: dict[int, str]) -> bool:
        """Notes the beginning and the end of a step; returns whether the members changed.  Does nothing while another
        step is under way."""
        if self._busy:
            return False
        self._busy = True
        try:
            return await self._strike(strike, number, chance, now)
        finally:
            self._busy = False

    async def _strike(self, strike: Strike, number: int, chance: Random, now: dict[int, str]) -> bool:
        loop = asyncio.get_running_loop()
        until_s = loop.time() + strike.lasts_s + PATIENCE_S
        before = await self._membership.settled(until_s)
        if before is None:
            return False
        step = draw(
            strike.way,
            before,
            self._group.names,
            votes_min=len(self._group.founders),
            stay=self._stay,
            keep=self._loose,
            chance=chance,
        )
        if step is None:
            return False
        now[number] = f"members {step}"
        return (await self._through(step, before, strike.lasts_s, number, until_s)).done

    async def take(self, step: Step, number: int, seconds: float, holds: Callable[[Listed], bool]) -> bool:
        """Takes one step at once, noted as those of strikes are. Returns true once it is done and the members are such
        that ``holds``, false if that is not so after ``seconds``."""
        until_s = asyncio.get_running_loop().time() + seconds
        before = await self._membership.settled(until_s)
        if before is None or not (await self._through(step, before, 0.0, number, until_s)).done:
            return False
        return await self._membership.settled(until_s, holds) is not None

    async def _through(self, step: Step, before: Listed, lasts_s: float, number: int, until_s: float) -> Ordered:
        self.went[number] = "secondary" if step.secondary else step.change
        told = {"change": step.change, "name": step.name, "nodes": [step.name], "way": self.went[number]}
        self._note("begin", {"id": number, **told, "step": str(step), **_members(before)}, kind="nemesis")
        ordered = await self._do(step, before, lasts_s, number, until_s)
        after = await self._membership.settled(asyncio.get_running_loop().time() + PATIENCE_S)
        if ordered.unknown:
            self._loose.add(step.name)
        ending = {"id": number, "struck": ordered.done, **told, "unknown": ordered.unknown, "why": ordered.why}
        self._note("end", {**ending, **(_members(after) if after is not None else {})}, kind="nemesis")
        return ordered

    async def _do(self, step: Step, before: Listed, lasts_s: float, number: int, until_s: float) -> Ordered:
        reason = f"members {number}"
        group, loop = self._group, asyncio.get_running_loop()
        if step.fresh and group.used(step.name):
            await group.stop([step.name], reason)
            disk.wipe(group.directory(step.name))
            if step.change == "readmit":
                await asyncio.sleep(lasts_s)
            group.start_again([step.name], reason)
        if step.change == "readmit":
            seen = await self._membership.settled(until_s, lambda listed: step.done(before, listed))
            return Ordered(done=seen is not None, why="" if seen is not None else "not admitted again in time")
        if not group.used(step.name):
            group.start_again([step.name], SPARE)
        while not group.running(step.name) and loop.time() < until_s:  # noqa: ASYNC110  another process's
            await asyncio.sleep(POLL_S)
        return await self._membership.order(step, before, until_s)

    async def at_rest(self, seconds: float) -> Listed | None:
        """Returns and notes the members at the end, once none is joining; None if no node reports them."""
        until_s = asyncio.get_running_loop().time() + seconds
        listed = await self._membership.settled(until_s, lambda listed: not listed.joining)
        if listed is not None:
            self._note("end", _members(listed))
        return listed

    def _note(self, phase: str, value: dict[str, Any], kind: str = "group") -> None:
        self._recorder.record(kind, "info", "members", {"phase": phase, **value})


def _members(listed: Listed) -> dict[str, Any]:
    return {"members": list(listed.members), "electable": sorted(listed.electable), "term": listed.term}
