"""The minority whose disks may lose things, by the simulation's own record.

Once all of a minority are whole again and have caught up, another one may be hit.  A node is *whole* if it

    is up, and listed by its medium's incarnation in the newest durable list, with both slots of its node file right
    has no rotten byte any more, neither in its segments nor in its stores
    has everything durable on its medium, its vote floor included, and no restore or old image under way
    has a ``state`` that was not hit since its log was last replaced whole, since its log may miss a part of that

Every member's medium must also state that the newest list is durable.  Until then a name that has passed to another
incarnation has no vote, and with one more such name the group would have lost two.  No node is asked for any of it.
"""

from __future__ import annotations

from math import inf
from random import Random
from typing import TYPE_CHECKING
from zlib import crc32

from tests.sim.logs import said_durable
from vlsn.errors import BadBody
from vlsn.state.node_file import SLOT_BYTES, NodeRecord

if TYPE_CHECKING:
    from tests.sim.nemesis import Nemesis

MOVES_RATES = (0.0, 0.3, 1.0)
"""The probabilities that losses move to another minority when they may; drawn once a seed."""
SETTLES_S = 2.0
"""Seconds after which a strike has had all its effects."""
STORES = ("index", "state")


class Minority:
    """``names`` are the nodes whose disks may be hit now; ``ever`` are all that were hit at some time."""

    def __init__(self, nemesis: Nemesis, *, strikes: bool) -> None:
        self.nemesis = nemesis
        self.group, self.rng = nemesis.group, Random(f"minority/{nemesis.report.seed}")
        self.names: list[str] = []
        self.ever: list[str] = []
        self._moves = self.rng.choice(MOVES_RATES)
        self._forgot: set[str] = set()
        """The nodes whose ``state`` was hit."""
        self._struck_s = inf
        """The time at which one of ``names`` was last hit."""
        if strikes:
            self._may_be_struck(nemesis.rng.sample(self.group.names, (len(self.group.names) - 1) // 2))

    def look(self) -> None:
        """Lets another minority be hit from here on, if all of this one are whole."""
        if self.group.loop.time() < self._struck_s + SETTLES_S or self.rng.random() >= self._moves:
            return
        electable = [member.name for member in self.nemesis.people.members.members if member.electable]
        others = [name for name in electable if name not in self.names and name in self.group.names]
        few = (len(electable) - 1) // 2
        if not few or len(others) < few or self.nemesis.images.returning:
            return
        if not all(self._is_whole(name) for name in self.names) or not all(map(self._knows_the_list, electable)):
            return
        before = ", ".join(self.names)
        self._may_be_struck(self.rng.sample(others, few))
        self.nemesis.images.begin_anew()
        self.nemesis.say(f"--- {before} whole again: from here on {', '.join(self.names)} may lose things")
        self.nemesis.report.met["another minority"] += 1

    def struck(self, what: str, name: str) -> None:
        self._struck_s = self.group.loop.time()
        if what.startswith("state"):
            self._forgot.add(name)

    def restored(self, name: str) -> None:
        """Notes that the node's log and ``state`` are copied from a peer."""
        self._forgot.discard(name)

    def _may_be_struck(self, names: list[str]) -> None:
        self.names, self._struck_s = names, inf
        self.ever = [*self.ever, *(name for name in names if name not in self.ever)]
        self.group.watch.rotten.update(names)

    # Whole nodes.

    def _is_whole(self, name: str) -> bool:
        group, machine = self.group, self.group.machines.get(name)
        if machine is None or name not in group.nodes or name in self._forgot:
            return False  # a removed node may come back with its disk
        copy = group.watch.copies[name]
        if copy.replaced or copy.given_up_after is not None or copy.synced < group.watch.durable_last:
            return False
        return self._has_its_node_file(name) and self._has_its_stores(name) and not self._has_rot(name)

    def _knows_the_list(self, name: str) -> bool:
        copy, machine = self.group.watch.copies.get(name), self.group.machines.get(name)
        if copy is None or machine is None or not copy.groups:
            return False
        return said_durable(machine.disk, f"/{name}") >= copy.groups[-1][0] >= self._newest_list()

    def _newest_list(self) -> int:
        return max((copy.groups[-1][0] for copy in self.group.watch.copies.values() if copy.groups), default=0)

    def _has_rot(self, name: str) -> bool:
        disk = self.group.machines[name].disk
        files = disk.files(f"/{name}")
        return any(
            disk.content(path)[offset : offset + 1] != bytes([byte])
            for path, flips in self.group.watch.flips.items()
            if path in files
            for offset, byte in flips.items()
        )

    def _has_its_node_file(self, name: str) -> bool:
        data = self.group.machines[name].disk.on_medium(f"/{name}/node.id") or b""
        try:
            records = [NodeRecord.decode(data[at : at + SLOT_BYTES]) for at in (0, SLOT_BYTES)]
        except BadBody:
            return False
        listed = {member.name: member for member in self.nemesis.people.members.members}
        end = self.group.watch.copies[name].synced
        return (
            name in listed
            and not listed[name].joining
            and all(int(listed[name].incarnation, 16) == record.incarnation for record in records)
            and all(record.floor_vlsn <= end for record in records)
        )

    def _has_its_stores(self, name: str) -> bool:
        stores = self.group.machines[name].stores
        paths = [f"/{name}/{store}" for store in STORES]
        return all(
            path in stores.contents
            and path not in stores.unreadable
            and all(crc32(value, crc32(key)) == check for key, (value, check) in stores.contents[path].values.items())
            for path in paths
        )
