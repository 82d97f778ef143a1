"""The duties of each member of a healed group: lead, clean, and provide its log for a restore.

A member may follow with the same log as all others, and still be useless.  One that has lost its GROUP entry never
leads or cleans, and its loss spreads to members restored from it.  So each member is asked, in turn, and named if it
cannot.  Meanwhile there are no faults.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tests.sim.ways import between

if TYPE_CHECKING:
    from tests.sim.world import Simulation

RATE = 0.25
"""The share of the seeds in which each member is asked."""
LEADS_S, CLEANS_S, RESTORES_S = 15.0, 5.0, 20.0
LOOK_S = 0.1
WIPE_RATE = 0.4
"""The rate at which the first restored member has lost its disk."""


class Whole:
    def __init__(self, simulation: Simulation) -> None:
        self._group, self._nemesis = simulation.group, simulation.nemesis
        self._watch, self._rng, self._say = simulation.watch, simulation.rng, simulation.say
        self._serves = simulation.serves

    async def check(self) -> None:
        # A whole log on a narrow link may take long, which is no fault of the member.
        self._group.net.width = None
        self._group.net.bytes_per_s.clear()
        _, whole_s = self._nemesis.disks.whole_by(self._group.loop.time())
        await asyncio.sleep(max(0.0, whole_s - self._group.loop.time()))  # nor is a hanging disk
        names = list(self._group.names)
        electable = [member.name for member in self._nemesis.people.members.members if member.electable]
        for name in electable:
            await self._leads(name)
        for name in names:
            await self._cleans(name)
        if len(names) > 2:
            await self._restores(self._rng.choice(names), names)

    async def _leads(self, name: str) -> None:
        answers: list[Any] = []
        self._say(f"--- {name} is to lead")
        await self._within(
            LEADS_S,
            lambda: self._group.master == name and self._serves(name),
            lambda: f"{name} is whole and does not lead; {self._nodes()}; {answers[-1:]}",
            lambda: self._ask(self._group.master, f"/v1/admin/transfer?to={name}", answers),
        )

    async def _cleans(self, name: str) -> None:
        answers: list[Any] = []
        await self._within(
            CLEANS_S,
            lambda: bool(answers) and answers[-1] is not None and _is_free(answers[-1]),
            lambda: f"{name} is whole and does not clean: {answers[-1:]}",
            lambda: self._ask(name, "/v1/admin/clean", answers),
        )

    async def _restores(self, name: str, names: list[str]) -> None:
        others = [each for each in names if each != name]
        for provider in others:
            if self._group.master == name:
                await self._leads(self._rng.choice(self._others_that_lead(name)))
            await self._restores_from(provider, name, [each for each in others if each != provider])
        electors = self._others_that_lead(name)  # if one of two is wiped, no majority is left
        if self._rng.random() < WIPE_RATE and len(electors) != 1:
            await self._wiped(name)

    async def _restores_from(self, provider: str, name: str, others: list[str]) -> None:
        """Restores a node from ``provider``; it reaches no other node meanwhile."""
        self._say(f"--- {name} is to be restored from {provider}")
        before = self._watch.restored
        ways = between([name], others)
        for way in ways:
            self._group.net.block(*way)
        # An operator's order would be refused: the node must reach a majority of the others.
        wanted = self._group.nodes[name].restoration.want("it is to be restored from one alone")
        self._watch.hold(wanted, f"{name} does not want to be restored")
        await self._within(
            RESTORES_S,
            lambda: self._watch.restored > before,
            lambda: f"{provider} is whole and {name} is not restored from it; {self._nodes()}",
        )
        self._group.net.unblock(ways)
        await self._is_back(name, provider)

    async def _wiped(self, name: str) -> None:
        """Wipes a node, which restarts empty, and becomes a member again."""
        if self._group.master == name:
            await self._leads(self._rng.choice(self._others_that_lead(name)))
        self._say(f"--- {name} is wiped")
        self._nemesis.die(name, power=False, back=False)
        self._nemesis.disks.empty(name)
        self._nemesis.start(name)
        await self._is_back(name, "the others")

    async def _is_back(self, name: str, provider: str) -> None:
        """Waits until the node is back. If it was one of two electors, no majority was left meanwhile, so it may lead,
        too."""
        nodes = self._group.nodes
        await self._within(
            RESTORES_S,
            lambda: name in nodes and nodes[name].state in ("REPLICA", "MASTER") and self._group.listed(name),
            lambda: f"{name} serves nothing with what it has from {provider}; {self._nodes()}",
        )

    def _others_that_lead(self, name: str) -> list[str]:
        members = self._nemesis.people.members.members
        return [member.name for member in members if member.electable and member.name != name]

    async def _within(
        self,
        seconds: float,
        holds: Callable[[], bool],
        said: Callable[[], str],
        again: Callable[[], Any] | None = None,
    ) -> None:
        end = self._group.loop.time() + seconds
        while not holds():
            self._watch.hold(self._group.loop.time() < end, said())
            if again is not None:
                await again()
            await asyncio.sleep(LOOK_S)

    async def _ask(self, name: str, path: str, answers: list[Any]) -> None:
        answers.append(await self._nemesis.people.post(name, path))

    def _nodes(self) -> str:
        return str({name: (node.state, node.member.reason) for name, node in self._group.nodes.items()})


def _is_free(answer: dict[str, Any]) -> bool:
    """Says whether cleaning is not blocked; changed clocks stay wrong, and then nothing is cleaned by age."""
    paused = answer.get("paused", "the answer says nothing")
    return not paused or paused.startswith("the clock of")
