"""Faults of a simulated network: partitions of every shape, slow links, lost connections, late messages."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.sim.nemesis import Nemesis, Table

SLOW_LINKS_S = ((0.01, 0.1), (0.2, 1.5), (0.5, 4.0))
STALLED_DISK_S = (0.5, 2.0)
LATE_LINK_S = (0.3, 3.0)
NARROW_RATE = 0.4
"""The share of the seeds that have narrow links."""
WIDTHS_BYTES_PER_S = (125e3, 300e3, 1e6, 10e6, 0.0)
"""The rates of a directed link between two nodes; 0: unlimited. Each carries 1.5 times the bytes that clients append,
so a group heals as fast as on wide links; ``test_sim`` checks this."""
CLIENT_BYTES_PER_S = 1e6
SHORT_LEAD_S = (1.0, 3.0)
"""Seconds for which a newly elected master is cut off, in times in which no leadership lasts."""


def between(one: list[str], other: list[str]) -> list[tuple[str, str]]:
    """Returns every directed link between the two sides."""
    return [way for here in one for there in other for way in ((here, there), (there, here))]


class Ways:
    def __init__(self, nemesis: Nemesis) -> None:
        self.nemesis = nemesis
        self.group, self.rng = nemesis.group, nemesis.rng
        self._unsteady_until = 0.0
        self._links = Random(f"links/{nemesis.report.seed}")
        if self._links.random() < NARROW_RATE:
            self.group.net.width = self._width

    def _width(self, source: str, target: str) -> float:
        """Draws the rate of a directed pair at its first use; it stays until the end."""
        return CLIENT_BYTES_PER_S if "client" in (source, target) else self._links.choice(WIDTHS_BYTES_PER_S)

    def table(self) -> Table:
        return {
            "split": (1.0, self._split),
            "one way": (0.8, self._one_way),
            "cut off for long": (0.4, self._cut_off),
            "mute": (0.6, self._mute),
            "half heard": (1.2, self._half_heard),
            "deaf": (0.4, self._deaf),
            "no lead lasts": (0.6, lambda _: self._no_lead_lasts()),
            "slow link": (0.8, self._slow_link),
            "messages outlive their process": (0.8, self._outlived),
            "cut connection": (0.6, self._cut),
            "lossy network": (0.4, self._lossy),
        }

    def mend(self) -> None:
        self.group.net.heal()
        self.group.net.delays_s.clear()
        self.group.net.cut_rate = self.group.net.late_rate = 0.0

    def _others(self, name: str) -> list[str]:
        return [each for each in self.group.names if each != name]

    def _split(self, name: str) -> None:
        """Parts one or two nodes from the others; clients reach both sides."""
        names = list(self.group.names)
        few = {name, *self.rng.sample(names, self.rng.randrange(0, max(1, (len(names) - 1) // 2)))}
        sides = [sorted(few), [each for each in names if each not in few]]
        self.rng.choice(sides).append("client")
        self.block(
            [pair for one in sides[0] for other in sides[1] for pair in ((one, other), (other, one))], (0.1, 6.0)
        )

    def _cut_off(self, name: str) -> None:
        """Cuts a node off for long enough that the others clean entries that it misses."""
        self.block(between([name], self._others(name)), (0.1, 20.0))

    def _one_way(self, name: str) -> None:
        one, two = self.rng.sample([name, self.rng.choice([*self._others(name), "client"])], 2)
        self.block([(one, two)], (0.1, 8.0))

    def _mute(self, name: str) -> None:
        """Mutes a node; half the time its replicas' disks are slow, and its last messages are not synced yet."""
        if self.rng.random() < 0.5:
            for other in self._others(name):
                self.nemesis.disks.slow(other)
        self.block([(name, other) for other in self._others(name)], (0.1, 6.0))

    def _half_heard(self, name: str) -> object:
        """Lets only one replica receive from the master, which then ends visibly, or is suspended for longer than the
        others wait.  The replica's disk is slow: the blocks that it alone has are not synced when it is asked for its
        vote."""
        master, nemesis, rng = self.group.master, self.nemesis, self.rng
        fed = [each for each, node in self.group.nodes.items() if node.state == "REPLICA"]
        if not fed or master not in self.group.nodes or not self.group.nodes[master].member.is_master():
            return False
        one = name if name in fed else rng.choice(fed)
        ways = [(master, other) for other in self._others(master) if other != one]
        for way in ways:
            self.group.net.block(*way)
        nemesis.disks.slow(one, STALLED_DISK_S)

        def over() -> None:
            if not nemesis.active or rng.random() < 0.5:
                nemesis.stand_still(master, rng.uniform(1.2, 5.0))
            else:
                self.group.net.unblock(ways)
                nemesis.die(master, power=False, back_s=(0.5, 3.0))

        nemesis.later(rng.uniform(0.2, 0.9), over)
        nemesis.later(rng.uniform(2.0, 6.0), lambda: self.group.net.unblock(ways))
        return True

    def _no_lead_lasts(self) -> object:
        """Cuts off each newly elected master, for some seconds, before or soon after another node has its first block.
        It is back when the next one leads: tails of different terms, each on one node (Raft, figure 8). Its own
        leadership ends first."""
        if self.group.master not in self.group.nodes:
            return False
        self._unsteady_until = self.group.loop.time() + self.rng.uniform(6.0, 15.0)
        self._cut_short(self.group.master)
        return True

    def leads(self, name: str) -> None:
        """Is called when the node begins to lead."""
        if self.group.loop.time() < self._unsteady_until:
            delay_s = self.rng.choice((0.0, 0.0, self.rng.uniform(0.0, 0.01), self.rng.uniform(0.0, 0.3)))
            self.nemesis.later(delay_s, lambda: self._cut_short(name))

    def _cut_short(self, name: str) -> None:
        if self.nemesis.active:
            self.block(between([name], self._others(name)), SHORT_LEAD_S)

    def _deaf(self, name: str) -> None:
        self.block([(other, name) for other in self._others(name)], (0.1, 6.0))

    def block(self, ways: list[tuple[str, str]], seconds: tuple[float, float]) -> None:
        net = self.group.net
        for way in ways:
            net.block(*way)
        self.nemesis.later(self.rng.uniform(*seconds), lambda: net.unblock(ways))

    def _slow_link(self, name: str) -> None:
        """Delays messages until after a restart, a wipe, or another election."""
        other = self.rng.choice([*self._others(name), "client"])
        self.slow(name, other, self.rng.choice(SLOW_LINKS_S), self.rng.uniform(1.0, 8.0))

    def slow(self, source: str, target: str, delay_s: tuple[float, float], seconds: float) -> None:
        delays_s = self.group.net.delays_s
        delays_s[source, target] = delay_s
        self.nemesis.later(seconds, lambda: delays_s.pop((source, target), None))

    def _outlived(self, name: str) -> object:
        """Delays a node's messages for long. Meanwhile the node, or their receiver, ends and soon restarts; a node
        whose disk may be lost restarts without it."""
        if name not in self.group.nodes:
            return False
        for other in self._others(name):
            self.slow(name, other, LATE_LINK_S, 4.0)
        whom = self.rng.choice([name, name, *self._others(name)])

        def ends() -> None:
            if not self.nemesis.active or whom not in self.group.nodes:
                return
            if whom not in self.nemesis.victims or self.rng.random() < 0.5 or self.nemesis.disks.wipe(whom) is False:
                self.nemesis.die(whom, power=self.rng.random() < 0.3, back_s=(0.01, 0.4))

        self.nemesis.later(self.rng.uniform(0.1, 1.0), ends)
        return True

    def _cut(self, name: str) -> None:
        self.group.net.cut(name, self.rng.choice(self.group.names))

    def _lossy(self, name: str) -> None:
        self.group.net.cut_rate = self.rng.choice((0.01, 0.1))
        self.nemesis.later(self.rng.uniform(1.0, 8.0), lambda: setattr(self.group.net, "cut_rate", 0.0))
