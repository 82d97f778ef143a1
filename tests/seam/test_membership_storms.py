"""Members join, leave, are wiped and return with old disks while nodes die and the network fails: nothing acknowledged
is lost.

One disk is lost or old at a time: its node is admitted again before the next one is hit, as an operator would ensure.
"""

from __future__ import annotations

import asyncio
from random import Random

import msgspec
import pytest

from repl.group.membership import listed_as
from tests.fakes.loop import virtual
from tests.fakes.machine import Image
from tests.fakes.seeds import seeds
from tests.seam.nodes import Group
from tests.seam.test_membership import ordered
from vlsn.errors import VlsnLogError
from vlsn.format.records import GroupEntry

STEPS = 15
OK = ("MASTER", "REPLICA")


class Storm:
    """One seed's run.  ``told`` has every acknowledged value by its VLSN."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(f"storm/{seed}")
        self.group = Group(seed)
        self.told: dict[int, bytes] = {}
        self.images: dict[str, Image] = {}
        self.newcomers = 0
        self.done: dict[str, int] = {}

    # What is there.

    def members(self) -> GroupEntry:
        found = self.group.nodes[self.group.master].opened().log.view.history.group
        assert found is not None
        return found

    def whole(self) -> bool:
        """Says whether every member is up, fed and rightly listed, and the last change is durable."""
        group = self.group
        try:
            master = group.nodes[group.master]
            if not master.member.is_master():
                return False
            log, members = master.opened().log, self.members()
            if log.view.dtvlsn < max(log.view.history.group_vlsn, log.view.range.last):
                return False
            return all(
                member.name in group.nodes
                and member.electable
                and group.state(member.name) in OK
                and listed_as(members, member.name, group.nodes[member.name].member.incarnation) is not None
                for member in members.members
            )
        except (VlsnLogError, KeyError):
            return False

    async def heal(self) -> None:
        group = self.group
        group.net.heal()
        for name in [name for name in group.machines if name not in group.nodes]:
            await group.start(name)
        await group.until(self.whole, "the group is whole", limit_s=90)

    async def append(self, count: int) -> None:
        """Appends at the master; unacknowledged entries may be in the log or not."""
        for _ in range(count):
            value = b"%d" % self.rng.getrandbits(60)
            try:
                status, answer = await self.group.append(value)
            except (VlsnLogError, OSError, KeyError):
                continue
            if status == 200:
                assert self.told.get(answer["first"], value) == value
                self.told[answer["first"]] = value

    # What happens.

    async def step(self) -> None:
        if len(self.group.nodes) < 2:
            await self.heal()
        act = self.rng.choice(
            [self.kills, self.wipes, self.puts_back, self.cuts, self.joins, self.leaves, self.moves, self.copies]
        )
        await act()
        self.done[act.__name__] = self.done.get(act.__name__, 0) + 1

    def any(self) -> str:
        return self.rng.choice(sorted(self.group.nodes))

    async def kills(self) -> None:
        for name in self.rng.sample(sorted(self.group.nodes), self.rng.randrange(1, len(self.group.nodes) + 1)):
            self.group.kill(name, power=self.rng.random() < 0.5)
        await asyncio.sleep(self.rng.uniform(0, 2))

    async def wipes(self) -> None:
        await self.heal()
        name = self.any()
        self.group.kill(name)
        self.group.machine(name)
        self.images.pop(name, None)
        await self.group.start(name)
        await self.append(3)
        if self.rng.random() < 0.5:
            await self.cuts()
        await self.heal()

    async def copies(self) -> None:
        name = self.any()
        self.images[name] = self.group.machines[name].image()

    async def puts_back(self) -> None:
        """Replaces a disk by an older image, while running members have later reports of its node."""
        await self.heal()
        await asyncio.sleep(6.0)
        name = self.any()
        if name not in self.images:
            return
        self.group.kill(name)
        self.group.machines[name].put_back(self.images[name])
        await self.group.start(name)
        await self.append(3)
        await self.heal()

    async def cuts(self) -> None:
        names = sorted(self.group.nodes)
        apart = self.rng.sample(names, self.rng.randrange(1, len(names) + 1))
        rest = [name for name in names if name not in apart]
        self.group.net.split([*apart], [*rest, "client"])
        await self.append(2)
        await asyncio.sleep(self.rng.uniform(0, 4))
        await self.append(2)
        self.group.net.heal()

    async def joins(self) -> None:
        await self.heal()
        if len(self.members().members) >= 5:
            return
        self.newcomers += 1
        name = f"m{self.newcomers}"
        self.group.machine(name)
        await self.group.start(name)
        await self.group.until(lambda: self.group.nodes[name].member.recognised, "it is up")
        await self.order(change="add", name=name, url=self.group.url(name))
        if self.rng.random() < 0.5:
            await self.cuts()
        await self.heal_but(name)
        await self.settle(name)

    async def leaves(self) -> None:
        await self.heal()
        if len(self.members().members) <= 3:
            return
        name = self.rng.choice([member.name for member in self.members().members])
        await self.order(change="remove", name=name)
        await self.heal_but(name)
        await self.settle(name)

    async def settle(self, name: str) -> None:
        """Writes the present members into all settings; removes the machine of a removed member."""
        names = [member.name for member in self.members().members]
        if name not in names:
            self.group.kill(name)
            del self.group.machines[name]
            self.images.pop(name, None)
        self.group.names = names

    async def heal_but(self, name: str) -> None:
        """Heals the group as far as possible while ``name`` may no longer be a member."""
        group = self.group
        group.net.heal()
        await group.until(self.whole, f"the group is whole, {name} removed or not", limit_s=90)

    async def moves(self) -> None:
        to = self.any()
        try:
            await self.group.client.request(
                "POST", f"{self.group.url(self.group.master)}/v1/admin/transfer?to={to}", timeout_s=5.0
            )
        except (VlsnLogError, OSError, KeyError):
            pass

    async def order(self, **change: str) -> None:
        try:
            await ordered(self.group, **change)
        except (VlsnLogError, OSError, KeyError):
            pass


@pytest.mark.parametrize("seed", seeds(2))
@virtual
async def test_nothing_acknowledged_is_lost_whoever_comes_and_goes(seed: int) -> None:
    storm = Storm(seed)
    group = storm.group
    await group.start()
    await group.serving()
    await storm.heal()
    for _ in range(STEPS):
        await storm.append(3)
        await storm.step()
    await storm.heal()
    assert len(storm.told) > STEPS, storm.done
    last = max(storm.told)
    members = [member.name for member in storm.members().members]
    logs: list[dict[int, bytes]] = []
    for name in members:
        await group.until(lambda name=name: group.nodes[name].dtvlsn() >= last, f"{name} has all")  # type: ignore[misc]
        logs.append(await group.read(name))
        assert {vlsn: logs[-1].get(vlsn) for vlsn in storm.told} == storm.told, name
    await group.stop()
    assert not group.fatal, msgspec.json.encode(storm.done)
