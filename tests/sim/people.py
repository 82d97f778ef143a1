"""Operators' changes of a simulated group: members join, leave, are promoted and preferred, leadership moves.

No member is removed whose loss would leave fewer than three that may lead, or a group of which half may rot.  The
machine of a removed member is switched off some time later; it may come back under its name, with its old disk or an
empty one.  At the end the machines of members are on, and no others.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from tests.fakes.machine import Machine
from vlsn.errors import VlsnLogError
from vlsn.format.records import GroupEntry

if TYPE_CHECKING:
    from tests.sim.nemesis import Nemesis, Table

NODES_MAX = 5
ELECTABLE_LOOKS = 20
"""The checks by an operator whether a newcomer is electable, before another member leaves."""
ELECTABLE_MIN = 3
TRIES = 6
AGAIN_S = 0.7
CALM_RATE, CALM_S = 0.6, 10.0
"""The rate and length of calms, so that a list can change twice."""
BACK_RATE = 0.6
"""The probability that a removed member is added again soon."""
MOVES_RATE = 0.7
"""The probability that a member comes back at another URL."""
AGAIN = frozenset(("no-master", "group-busy", "insufficient-replicas", "no-space", "no-segment", "bad-argument"))
"""Answers after which an operator repeats an order; an added node may not be up yet."""


class People:
    def __init__(self, nemesis: Nemesis) -> None:
        self.nemesis = nemesis
        self.group, self.rng = nemesis.group, nemesis.rng
        self.done: Counter[str] = Counter()
        """Changes that were answered as durable."""
        self._newcomers = 0
        self._leaving: set[str] = set()
        """Members with an order to remove them; they may be removed or not."""
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
            "absent while the list changes": (1.2, self._absent),
        }

    @property
    def members(self) -> GroupEntry:
        """The members, as the newest durable GROUP entry lists them."""
        return self.group.watch.groups[-1][1]

    # Changes.

    def _add(self, *, secondary: bool, back: bool = False) -> object:
        change = self._newcomer(secondary=secondary, back=back)
        if change is not None:
            self._ask(change)
        return change is not None

    def _newcomer(self, *, secondary: bool, back: bool = False) -> dict[str, Any] | None:
        """Returns a machine that waits to be listed, and the change that adds it."""
        if len(self.group.names) >= NODES_MAX:
            return None
        if self._away and (back or self.rng.random() < 0.6):
            name = self.rng.choice(sorted(self._away))
            machine = self._away.pop(name) if self.rng.random() < 0.7 else None
            self._away.pop(name, None)
            if self.rng.random() < MOVES_RATE:
                self.group.told.moves(name)
                self.nemesis.report.met["a name at another URL"] += 1
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
        return {"change": "add", "name": name, "url": self.group.url(name), "secondary": secondary}

    def _remove(self, name: str) -> object:
        if not self._may_leave(name):
            return False
        self._leaving.add(name)
        self._ask({"change": "remove", "name": name})
        return True

    def _may_leave(self, name: str) -> bool:
        electable = {member.name for member in self.members.members if member.electable}
        if name not in [member.name for member in self.members.members] or name in self._leaving:
            return False
        left = electable - self._leaving - {name}
        rotten = (electable - {name}) & set(self.nemesis.victims)  # a member with an order to leave may stay
        return name not in electable or (len(left) >= ELECTABLE_MIN and 2 * len(rotten) < len(left))

    def _absent(self, name: str) -> object:
        """A member is away while another joins and a third leaves; often the master ends as it is back."""
        if name not in self.group.nodes or name not in self._electable() or self._tasks:
            return False
        self.nemesis.die(name, power=self.rng.random() < 0.3, back=False)
        if self.rng.random() < CALM_RATE:
            self.nemesis.quiet_until_s = self.group.loop.time() + CALM_S
        self._start(self._changes_without(name))
        return True

    async def _changes_without(self, absent: str) -> None:
        coming = self._newcomer(secondary=False)
        if coming is not None:
            await self._changed(coming)
            for _ in range(ELECTABLE_LOOKS):
                if coming["name"] in self._electable():
                    break
                await asyncio.sleep(0.3)
        going = [name for name in self._electable() if name != absent and self._may_leave(name)]
        if going and self.nemesis.active:
            name = self.rng.choice(going)
            self._leaving.add(name)
            await self._changed({"change": "remove", "name": name})
            self.nemesis.report.met["a member absent while the list changed twice"] += coming is not None
        self.nemesis.quiet_until_s = 0.0
        await asyncio.sleep(self.rng.uniform(0.0, 1.0))
        if self.nemesis.active and self.rng.random() < 0.5:
            self.nemesis.die(self.group.master, power=False, back_s=(3.0, 8.0))
        self.nemesis.start(absent)

    def _electable(self) -> list[str]:
        return sorted(member.name for member in self.members.members if member.electable)

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
        """Repeats a change until it is answered: durable, or unknown."""
        name = change["name"]
        for _ in range(TRIES):
            await asyncio.sleep(self.rng.uniform(0.5, 1.5) * AGAIN_S)
            answer = await self._post(self.group.master, "/v1/admin/group", change)
            if answer is None or not self.nemesis.active:
                break  # the outcome is unknown
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

    def restores(self, name: str, then: Callable[[], object] = lambda: None) -> None:
        """Orders a node to restore itself; ``then`` is called once it discards its log.  It may refuse."""
        self._start(self._restored(name, then))

    async def _restored(self, name: str, then: Callable[[], object]) -> None:
        answer = await self._post(name, "/v1/admin/restore")
        if answer is not None:
            self.nemesis.say(f"--- {name}, asked to restore: {answer.get('detail') or answer.get('state')}")
            met = self.nemesis.report.met
            met["a restore on request"] += "state" in answer
            met["a restore on request refused"] += answer.get("type") == "not-ready"
            if "state" in answer:
                then()

    def hand_over(self, to: str) -> None:
        self._start(self._post(self.group.master, f"/v1/admin/transfer?to={to}"))

    def asks(self, master: str, change: dict[str, Any]) -> None:
        """Orders a change from that node, once."""
        self._start(self._post(master, "/v1/admin/group", change))

    def _start(self, job: Any) -> None:
        task = asyncio.ensure_future(job)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _post(self, name: str, path: str, body: Any = None) -> dict[str, Any] | None:
        """Returns the answer; None without one."""
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

    async def post(self, name: str, path: str) -> dict[str, Any] | None:
        return await self._post(name, path)

    # Machines.

    def tidy(self) -> None:
        """Switches off removed machines that are no longer listed."""
        if len(self.group.watch.groups) == 0:
            return
        listed = {member.name for member in self.members.members}
        for name in sorted(self._leaving - listed):
            self._leaving.discard(name)
            self._switch_off(name)
            if self.rng.random() < BACK_RATE:
                self.nemesis.later(self.rng.uniform(0.5, 6.0), self._comes_again)

    def _comes_again(self) -> None:
        if self.nemesis.active and self._away:
            self.nemesis.strike("member added", self.group.master, lambda _: self._add(secondary=False, back=True))

    def settle(self) -> None:
        """Switches off nodes that are no members, and switches on members, after all changes."""
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
        """True when they wait for no answer, and no member has to be admitted any more. The master itself admits a
        member that is another incarnation by now, or joins."""
        members = {member.name: member for member in self.members.members}
        nodes = self.group.nodes
        return (
            not self._tasks
            and members.keys() == nodes.keys()
            and all(
                int(member.incarnation, 16) == nodes[name].member.incarnation and not member.joining
                for name, member in members.items()
            )
        )

    def minority(self) -> list[str]:
        """Chooses members to do without: the others are a majority of every list that one of them has. It rather takes
        members that were there of late than those that were away."""
        names = self._electable()
        copies = {name: self.group.watch.copies[name] for name in self.group.names}
        lists = [
            [each.name for each in group.members if each.electable]
            for copy in copies.values()
            for _, group in copy.groups[-2:]
        ]
        self.rng.shuffle(names)
        names.sort(key=lambda name: name not in self.group.nodes)
        off: list[str] = []
        for name in names:
            left = set(self.group.names) - {*off, name}
            if all(2 * len(left & set(each)) > len(each) for each in [*lists, names]):
                off.append(name)
        return off

    def _switch_off(self, name: str) -> None:
        if name not in self.group.names:
            return
        self.nemesis.say(f"--- {name} is no member: it is switched off")
        self.nemesis.die(name, power=False, back=False)
        self._away[name] = self.group.leaves(name)
