"""Faults that are aimed at one promise each, at the moment when the fewest copies support it.

a block on the fewest disks      rots there, or its holder discards it for a restore, and the other holders end
all copies but one               an operator requests restores of two nodes at once
a durable end of clients         the next master does not have it yet, and learns it late
a change of the group            is requested while another waits for the master's disk, or is rolled back
an append that is delayed        passes its deadline while a successor is suspended
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.sim.logs import places
from tests.sim.ways import between

if TYPE_CHECKING:
    from tests.sim.nemesis import Nemesis, Table

FEW_S = (0.2, 0.8)
"""Seconds for which the nodes that must miss the last blocks are cut off."""
AWAY_S = (2.0, 5.0)
"""Seconds for which the nodes with these blocks are then down."""
AS_MUCH_RATE, LESS_RATE = 0.5, 0.02
"""The shares of the moments in which a restore may be requested: if another node has less and the same durable end, or
also a lower durable end."""
RESTARTED_RATE, TOGETHER_S = 0.7, (0.05, 0.6)
"""The rate at which two nodes to be restored have just been restarted, and how long before."""
LAST_WORD_RATE, LAST_WORD_S = 0.006, (0.002, 0.015)
"""The rate at which a master ends right after it called entries durable: clients have the answer, replicas not yet."""
LONE_LIST_RATE, ALONE_S = 0.2, (2.0, 4.0)
"""The rate at which a master is cut off as it logs another list, which is rolled back later."""
HEIR_RATE, HEIR_S = 0.4, (1.6, 4.0)
BUSY_DISK_S = (0.4, 1.5)


class Aimed:
    def __init__(self, nemesis: Nemesis) -> None:
        self.nemesis = nemesis
        self.group, self.rng = nemesis.group, nemesis.rng
        self._next_is_slow = False
        """True if the next master's replicas are slow, so that nothing of its term is durable for a while."""

    def table(self) -> Table:
        return {
            "two changes at once": (0.6, self._two_changes),
            "restored by a person": (0.6, self._restored),
            "two restored by people at once": (0.6, self._two_restored),
        }

    def of_victims(self) -> Table:
        return {"last block rots": (1.5, self._last_block_rots)}

    def heard(self, name: str, event: str, fields: dict[str, Any]) -> None:
        if event in ("durable", "first durable"):
            self._looks_for_less(name)
            if self.rng.random() < LAST_WORD_RATE:
                self.nemesis.later(self.rng.uniform(*LAST_WORD_S), lambda: self._last_word(name))
        elif event == "group.change" and self.rng.random() < LONE_LIST_RATE:
            self.nemesis.later(0.0, lambda: self.nemesis.strike("alone with a list", name, self._alone))
        elif event == "leads" and self._next_is_slow:
            self._next_is_slow = False
            for each in self.group.names:
                if each != name:
                    self.nemesis.disks.slow(each, BUSY_DISK_S)
        elif event == "hands_over" and self.rng.random() < HEIR_RATE:
            heir, seconds = str(fields["to"]), self.rng.uniform(*HEIR_S)
            stands = lambda heir: self.nemesis.stand_still(heir, seconds)  # noqa: E731
            self.nemesis.later(0.0, lambda: self.nemesis.strike("heir stands still", heir, stands))

    # A block on the fewest disks.

    def _last_block_rots(self, name: str) -> object:
        """Lets only a majority receive from the master for a moment. Then all of it ends, and the last block of the
        node that comes back at once cannot be read."""
        master = self.group.master
        node = self.group.nodes.get(master)
        fed = [each for each, other in self.group.nodes.items() if other.state == "REPLICA"]
        if node is None or not node.member.is_master() or name not in fed:
            return False
        others = [each for each in fed if each != name]
        few = self.rng.sample(others, min(len(others), (len(self.group.names) - 1) // 2))
        self.nemesis.ways.block([(master, each) for each in few], AWAY_S)

        def over() -> None:
            if self.nemesis.active and name in self.group.nodes:
                for each in others:
                    if each not in few:
                        self.nemesis.die(each, power=False, back_s=AWAY_S)
                self.nemesis.die(master, power=False, back_s=AWAY_S)
                self.nemesis.die(name, power=False, back_s=(0.01, 0.3))
                self._rots_at_its_end(name)

        self.nemesis.later(self.rng.uniform(*FEW_S), over)
        return True

    def _rots_at_its_end(self, name: str) -> None:
        disk = self.group.machines[name].disk
        found = places(disk, f"/{name}")
        if found:
            path, start, end = found[max(found)]
            self.nemesis.disks.flip_at(name, path, self.rng.randrange(start, end))

    def _looks_for_less(self, master: str) -> None:
        """Restores a replica without the master. The replica has the newly durable block, and ideally does not know
        that it is durable. Some other replica does not have the block."""
        watch, nodes = self.group.watch, self.group.nodes
        behind = [each for each, copy in watch.copies.items() if copy.last < watch.durable_last and each in nodes]
        if not behind or master not in nodes:
            return
        drawn, known = self.rng.random(), max(nodes[each].dtvlsn() for each in behind)
        for each, node in nodes.items():
            rate = AS_MUCH_RATE if node.dtvlsn() <= known else LESS_RATE
            if node.state == "REPLICA" and each not in behind and drawn < rate and self._may_be_restored(each):
                self.nemesis.later(0.0, lambda each=each: self._less(master, each))  # type: ignore[misc]
                return

    def _less(self, master: str, name: str) -> None:
        if self.nemesis.active and self._may_be_restored(name) and self.group.nodes[name].state == "REPLICA":
            self.nemesis.strike("restored from one with less", name, lambda each: self._restored(each, ends=master))

    def _restored(self, name: str, ends: str = "") -> object:
        """Requests a restore of ``name``; ``ends`` is a node that ends once ``name`` discards its log."""
        node = self.group.nodes.get(name)
        if node is None or node.state != "REPLICA" or not self._may_be_restored(name):
            return False

        def taken() -> None:
            if ends and self.nemesis.active:
                self.nemesis.die(ends, power=False, back_s=AWAY_S)

        self.nemesis.people.restores(name, taken)
        return True

    def _two_restored(self, name: str) -> object:
        """Restores two members, often just restarted ones, which have forgotten how much is durable."""
        rng, nemesis = self.rng, self.nemesis
        others = [each for each in self.group.names if each != name and self._may_be_restored(each)]
        if not others or not self._may_be_restored(name):
            return False
        both = (name, rng.choice(others))
        if rng.random() < RESTARTED_RATE:
            for each in both:
                nemesis.die(each, power=rng.random() < 0.5, back_s=(0.01, 0.1))
        at_s = rng.uniform(*TOGETHER_S)
        for each in both:
            nemesis.later(at_s + rng.uniform(0.0, 0.05), lambda each=each: self._asks_to_restore(each))  # type: ignore[misc]
        return True

    def _asks_to_restore(self, name: str) -> None:
        if self.nemesis.active and self._may_be_restored(name):
            self.nemesis.people.restores(name)

    def _may_be_restored(self, name: str) -> bool:
        """Says whether a node may be restored: if disks may rot, only a node whose disk may. Its copy and another lost
        one would otherwise be a majority. The nodes themselves decide how many may be restored at once."""
        nemesis = self.nemesis
        return (nemesis.rot == "none" or name in nemesis.victims) and self.group.listed(name)

    def _last_word(self, master: str) -> None:
        if self.nemesis.active and master in self.group.nodes:
            self._next_is_slow = True
            self.nemesis.strike(
                "ends behind its last word", master, lambda name: self.nemesis.die(name, power=False, back_s=AWAY_S)
            )

    # Changes that are requested while another waits.

    def _two_changes(self, name: str) -> object:
        """Requests two changes whose entries are in the master's queue at once, since its disk is busy."""
        people, master = self.nemesis.people, self.group.master
        members = [member.name for member in people.members.members]
        if master not in self.group.nodes or len(members) < 2:
            return False
        self.nemesis.disks.slow(master, BUSY_DISK_S)
        for each in self.rng.sample(members, 2):
            change = {"change": "priority", "name": each, "priority": self.rng.choice((0, 1, 1, 2))}
            self.nemesis.later(0.5, lambda change=change: self._asks(master, change))  # type: ignore[misc]
        return True

    def _alone(self, name: str) -> None:
        others = [each for each in self.group.names if each != name]
        self.nemesis.ways.block(between([name], others), ALONE_S)

    def _asks(self, master: str, change: dict[str, Any]) -> None:
        if self.nemesis.active:
            self.nemesis.people.asks(master, change)
