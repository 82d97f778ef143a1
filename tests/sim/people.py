"""What people do to a group while it is struck: members join, go, are promoted and preferred, the lead is handed over.

Nobody is removed whose loss would leave fewer than three that may lead, or make those whose disks rot half of them.  A
machine whose member is gone is switched off some time later; it may come back under its name, with its old disk or an
empty one.  In the end the machines of members are on, and no others.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec

from tests.fakes.machine import Machine
from vlsn.errors import VlsnLogError
from vlsn.records import GroupEntry

if TYPE_CHECKING:
    from tests.sim.nemesis import Nemesis, Table

NODES_MAX = 5
ELECTABLE_MIN = 3
TRIES = 6
AGAIN_S = 0.7
AGAIN = frozenset(("no-master", "group-busy", "insufficient-replicas", "no-space", "bad-argument"))
"""A person asks again after these; a node that is added may not be up yet."""


class People:
    def __init__(self, nemesis: Nemesis) -> None:
        self.nemesis = nemesis
        self.group, self.rng = nemesis.group, nemesis.rng
        self.done: Counter[str] = Counter()
        """Changes that were answered as durable."""
        self._newcomers = 0
        self._leaving: set[str] = set()
        """Asked to be removed; perhaps they are, perhaps not."""
        self._away: dict[str, Machine] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def table(self) -> Table:
        return {
            "transfer": (1.0, self._transfer),
            "member added": (0.8, lambda _: self._add(secondary=False)),
            "secondary added": (0.4, lambda _: self._add(secondary=True)),
            "member removed": (0.8, self._remove),
            "secondary promoted": (1.2, lambda _: self._promote()),
            "priority changed": (0.4, self._prefer),
        }

    @property
    def members(self) -> GroupEntry:
        """As the newest durable GROUP entry lists them."""
        return self.group.watch.groups[-1][1]

    # Changes.

    def _add(self, *, secondary: bool) -> object:
        if len(self.group.names) >= NODES_MAX:
            return False
        if self._away and self.rng.random() < 0.6:
            name = self.rng.choice(sorted(self._away))
            machine = self._away.pop(name) if self.rng.random() < 0.7 else None
            self._away.pop(name, None)
        else:
            self._newcomers += 1
            name, machine = f"m{self._newcomers}", None
        self.group.joins(name, machine)
        if machine is None:
            self.group.watch.replaced(name)
        self._leaving.discard(name)
        if self.nemesis.rot == "everywhere":
            self.group.watch.rotten.add(name)
        self.nemesis.start(name)
        self._ask({"change": "add", "name": name, "url": self.group.url(name), "secondary": secondary})
        return True

    def _remove(self, name: str) -> object:
        electable = {member.name for member in self.members.members if member.electable}
        if name not in [member.name for member in self.members.members] or name in self._leaving:
            return False
        left = electable - self._leaving - {name}
        rotten = (electable - {name}) & set(self.nemesis.victims)  # who was asked to leave may stay
        if name in electable and (len(left) < ELECTABLE_MIN or 2 * len(rotten) >= len(left)):
            return False
        self._leaving.add(name)
        self._ask({"change": "remove", "name": name})
        return True

    def _promote(self) -> object:
        secondaries = [member.name for member in self.members.members if not (member.electable or member.joining)]
        if not secondaries:
            return False
        self._ask({"change": "promote", "name": self.rng.choice(secondaries)})
        return True

    def _prefer(self, name: str) -> None:
        self._ask({"change": "priority", "name": name, "priority": self.rng.choice((0, 1, 1, 2, 3))})

    def _transfer(self, name: str) -> None:
        to = self.rng.choice(("", f"?to={name}"))
        self._start(self._post(self.group.master, f"/v1/admin/transfer{to}"))

    def _ask(self, change: dict[str, Any]) -> None:
        self._start(self._changed(change))

    async def _changed(self, change: dict[str, Any]) -> None:
        """Asked until it is answered: durable, or nobody knows."""
        name = change["name"]
        for _ in range(TRIES):
            await asyncio.sleep(self.rng.uniform(0.5, 1.5) * AGAIN_S)
            answer = await self._post(self.group.master, "/v1/admin/group", change)
            if answer is None or not self.nemesis.active:
                break  # nobody knows
            if "members" in answer:
                self.done[change["change"]] += 1
                self.nemesis.say(f"--- {change['change']} {name}: durable at VLSN {answer['vlsn']}")
                break
            if answer.get("type") not in AGAIN:
                break
        else:
            if change["change"] == "remove":
                self._leaving.discard(name)  # it was refused each time
        self.nemesis.later(self.rng.uniform(0.5, 10.0), self.tidy)

    def asks(self, master: str, change: dict[str, Any]) -> None:
        """Of that node, once."""
        self._start(self._post(master, "/v1/admin/group", change))

    def _start(self, job: Any) -> None:
        task = asyncio.ensure_future(job)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _post(self, name: str, path: str, body: Any = None) -> dict[str, Any] | None:
        """The answer, None when there was none."""
        try:
            response = await self.group.client.request(
                "POST",
                f"{self.group.url(name)}{path}",
                headers={"Content-Type": "application/json"},
                body=msgspec.json.encode(body) if body is not None else b"",
                timeout_s=15.0 if body is not None else 5.0,
            )
        except (VlsnLogError, OSError):
            return None
        if response.status == 307:
            return {"type": "no-master"}
        found: dict[str, Any] = msgspec.json.decode(bytes(response.body))
        return found

    async def post(self, name: str, path: str) -> None:
        await self._post(name, path)

    # Machines.

    def tidy(self) -> None:
        """Who was asked to leave and is listed no more is switched off."""
        if len(self.group.watch.groups) == 0:
            return
        listed = {member.name for member in self.members.members}
        for name in sorted(self._leaving - listed):
            self._leaving.discard(name)
            self._switch_off(name)

    def settle(self) -> None:
        """Everybody's changes have ended: who is no member is switched off, and who turns out to be one is on."""
        if self._tasks:
            return
        self._leaving.clear()
        listed = {member.name for member in self.members.members}
        for name in [name for name in self.group.names if name not in listed]:
            self._switch_off(name)
        for name in sorted(listed & self._away.keys()):
            self.nemesis.say(f"--- {name} is a member: it is switched on")
            self.group.joins(name, self._away.pop(name))
            self.nemesis.start(name)

    @property
    def are_done(self) -> bool:
        """They wait for no answer; and nobody has to be admitted any more, as what it is or as electable: the master
        does that by itself."""
        members = {member.name: member for member in self.members.members}
        nodes = self.group.nodes
        return (
            not self._tasks
            and members.keys() == nodes.keys()
            and all(
                int(member.incarnation, 16) == nodes[name].incarnation and not member.joining
                for name, member in members.items()
            )
        )

    def _switch_off(self, name: str) -> None:
        if name not in self.group.names:
            return
        self.nemesis.say(f"--- {name} is no member: it is switched off")
        self.nemesis.die(name, power=False, back=False)
        self._away[name] = self.group.leaves(name)
