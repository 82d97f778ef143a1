"""What strikes a simulated group: faults drawn from the seed, by chance and at the moments that hurt.

Each seed has its own weights (some kinds of fault are left out, others come often), its own pace, and its own
*ambushes*: how likely a node is struck just as something happens in it: a vote told, an election won, a feed begun, a
rollback, a restore.  What rots or is wiped is a minority, drawn once a seed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

from tests.fakes.disk import Call
from tests.fakes.loop import VirtualLoop
from tests.sim.group import SimGroup
from tests.sim.logs import FIRST_FRAME
from tests.sim.report import Report
from vlsn.errors import VlsnLogError
from vlsn.truncate import accept_floor

AMBUSHED = {
    "vote": 0.25,
    "elected": 0.5,
    "leads": 1.0,
    "feed.start": 0.4,
    "rolled_back": 1.0,
    "hands_over": 1.0,
    "restore.begin": 1.0,
    "restore.from": 1.0,
    "restore.provides": 1.0,
    "restore.done": 0.5,
    "cleaned": 0.2,
    "opened": 0.1,
    "durable": 0.02,
    "first durable": 1.0,
}
"""Events of a node, and how much of the seed's likelihood of an ambush each has.  ``durable``: it is the first
to call a block so; ``first durable``: the first one in its lead."""
AMBUSHES = ("kill", "power cut", "kill at an await", "split", "stop at a disk call", "mute", "pause")
AMBUSH_RATES = (0.0, 0.1, 0.3, 0.7)
SLOW_DISKS_S = ((0.0, 0.02), (0.01, 0.2), (0.0, 1.0))
SLOW_LINKS_S = ((0.01, 0.1), (0.2, 1.5), (0.5, 4.0))
NEAR_BYTES = 12_000
"""So near the end of a log, most of what lies there is read again by the next open."""
QUICK_DISK_S = (0.0, 0.000_5)
STEPS_MAX = 400
"""An ambush at an await comes at most so many callbacks of the loop later."""


class Nemesis:
    def __init__(self, group: SimGroup, report: Report, say: Callable[[str], None], *, rotten: bool) -> None:
        self.group = group
        self.report = report
        self.rng = rng = Random(f"nemesis/{report.seed}")
        self.say = say
        self.active = True
        self.victims = rng.sample(group.names, (len(group.names) - 1) // 2) if rotten else []
        """Whose disks may rot or be wiped."""
        self.wiped = False
        self.ambush = rng.choice(AMBUSH_RATES)
        self.pace_s = rng.choice((0.7, 1.5, 3.0))
        self.aims = rng.choice((0.3, 0.6))
        """How likely a fault meets the master rather than anybody."""
        self.faults = self._drawn()
        self._starting: set[str] = set()
        for name in group.names:
            group.machines[name].disk.on_stop = lambda name=name: self.die(name, power=rng.random() < 0.5)
        group.on_end = self._ended
        group.on_event = self._heard

    def _drawn(self) -> dict[str, tuple[float, Callable[[str], None]]]:
        rng = self.rng
        table: dict[str, tuple[float, Callable[[str], None]]] = {
            "kill": (1.0, lambda name: self.die(name, power=False)),
            "power cut": (1.0, lambda name: self.die(name, power=True)),
            "stop at a disk call": (1.0, self._stop_soon),
            "stop inside a rollback": (0.5, self._stop_in_rollback),
            "kill at an await": (1.0, self._kill_at_an_await),
            "pause": (0.8, self._pause),
            "failed write": (0.7, lambda name: self._fail_once(name, "write")),
            "failed sync": (0.7, lambda name: self._fail_once(name, "sync")),
            "full disk": (0.5, self._fill),
            "slow disk": (0.7, self._slow),
            "split": (1.0, self._split),
            "one way": (0.8, self._one_way),
            "cut off for long": (0.4, self._cut_off),
            "mute": (0.6, self._mute),
            "deaf": (0.4, self._deaf),
            "slow link": (0.8, self._slow_link),
            "cut connection": (0.6, self._cut),
            "lossy network": (0.4, self._lossy),
            "clock": (0.4, self._turn_clock),
            "transfer": (1.0, self._transfer),
            "everything dies": (0.2, lambda name: self._all_die()),
        }
        drawn = {kind: (weight * rng.choice((0, 1, 1, 3)), strike) for kind, (weight, strike) in table.items()}
        for kind in rng.sample(sorted(table), 4):  # never too few kinds to choose from
            drawn[kind] = (max(drawn[kind][0], 0.5), table[kind][1])
        if self.victims:
            rots: dict[str, tuple[float, Callable[[str], None]]] = {
                "flipped bit": (2.0, self._flip),
                "index lost": (0.5, self._lose_index),
                "index flipped": (0.5, self._flip_index),
                "node file slot flipped": (0.5, self._flip_slot),
                "wiped": (0.7, self._wipe),
            }
            drawn.update(rots)
        return drawn

    async def run(self, seconds: float) -> None:
        end = self.group.loop.time() + seconds
        while self.group.loop.time() < end:
            await asyncio.sleep(self.rng.uniform(0.2, 2.0) * self.pace_s)
            if self.group.watch.violation is not None:
                return
            weights = [weight for weight, _ in self.faults.values()]
            what = self.rng.choices(list(self.faults), weights)[0]
            self._strike(what, self._aim(what))

    def _aim(self, what: str) -> str:
        if what in ROTS:
            return self.rng.choice(self.victims)
        return self.group.master if self.rng.random() < self.aims else self.rng.choice(self.group.names)

    def _strike(self, what: str, name: str) -> None:
        self.report.faults[what] += 1
        self.say(f"*** {what}: {name}")
        self.faults[what][1](name)

    # Ambushes.

    def _heard(self, name: str, event: str, fields: dict[str, Any]) -> None:
        if not self.active or event not in AMBUSHED or self.rng.random() >= self.ambush * AMBUSHED[event]:
            return
        what = self.rng.choice(AMBUSHES)
        whom = name if self.rng.random() < 0.7 else self.rng.choice(self.group.names)
        delay_s = self.rng.choice((0.0, 0.0, self.rng.uniform(0.0, 0.01), self.rng.uniform(0.0, 0.1)))
        self.group.loop.call_later(delay_s, self._spring, what, whom, event)

    def _spring(self, what: str, name: str, event: str) -> None:
        if self.active:
            self.say(f"    ambush on {event}")
            self._strike(what, name)

    # Processes.

    def die(self, name: str, *, power: bool) -> None:
        node = self.group.nodes.get(name)
        if node is None:
            return
        self._resume(name)
        self._remember(name)
        self.group.kill(name, power=power)
        self.group.loop.call_later(self.rng.uniform(0.05, 3.0), lambda: self.start(name))

    def _all_die(self) -> None:
        for name in self.group.names:
            self.die(name, power=True)

    def _ended(self, name: str, error: BaseException) -> None:
        self.say(f"{name} ended: {error!r}")
        self.report.faults["ended by itself"] += 1
        self.group.loop.call_soon(lambda: self.die(name, power=False))

    def start(self, name: str) -> None:
        machine = self.group.machines[name]
        if machine.process is not None or name in self._starting:
            return
        self._starting.add(name)
        machine.disk.mend()
        if self.active and self.rng.random() < 0.15:
            self.report.faults["stop inside recovery"] += 1
            machine.disk.stop_at(len(machine.disk.calls) + self.rng.randrange(1, 150))
        self.say(f"{name} starts")
        task = asyncio.ensure_future(self.group.start(name))
        task.add_done_callback(lambda _: self._starting.discard(name))

    def _kill_at_an_await(self, name: str) -> None:
        loop = self.group.loop
        assert isinstance(loop, VirtualLoop)
        power = self.rng.random() < 0.5

        def strike() -> None:
            if self.active:
                self.die(name, power=power)

        loop.after_steps(self.rng.randrange(1, STEPS_MAX), strike)

    def _pause(self, name: str) -> None:
        """SIGSTOP, and SIGCONT some seconds later."""
        loop, process = self.group.loop, self.group.machines[name].process
        if process is None:
            return
        assert isinstance(loop, VirtualLoop)
        loop.pause(process.owner)
        self._later(self.rng.choice((0.3, 1.5, 4.0)) * self.rng.uniform(0.5, 1.5), lambda: loop.resume(process.owner))

    def _resume(self, name: str) -> None:
        loop, process = self.group.loop, self.group.machines[name].process
        assert isinstance(loop, VirtualLoop)
        if process is not None:
            loop.resume(process.owner)

    def _remember(self, name: str) -> None:
        node = self.group.nodes.get(name)
        if node is not None and node.log is not None:
            self.report.replaced += node.log.stats.rolls["error"]
            self.report.mended += node.mending.mended if node.mending is not None else 0

    def remember_all(self) -> None:
        for name in self.group.nodes:
            self._remember(name)

    # Disks.

    def _stop_soon(self, name: str) -> None:
        disk = self.group.machines[name].disk
        if name in self.group.nodes:
            disk.stop_at(len(disk.calls) + self.rng.randrange(1, 120))

    def _stop_in_rollback(self, name: str) -> None:
        """At one of the calls that it makes: what it writes first, the flags, the index."""
        left = self.rng.randrange(1, 12)

        def strikes(call: Call) -> bool:
            nonlocal left
            node = self.group.nodes.get(name)
            if call.changes and node is not None and node.log is not None and node.log.rollbacks % 2:
                left -= 1
                return left == 0
            return False

        self.group.machines[name].disk.stop_at(strikes, moment=self.rng.choice(("before", "after")))

    def _fail_once(self, name: str, kind: str) -> None:
        def strikes(call: Call) -> bool:
            return call.name == kind and call.path.endswith(".vlog")

        self.group.machines[name].disk.fail_at(strikes)

    def _fill(self, name: str) -> None:
        disk = self.group.machines[name].disk
        disk.capacity_bytes = 1
        self.group.loop.call_later(self.rng.uniform(0.5, 5.0), lambda: setattr(disk, "capacity_bytes", None))

    def _slow(self, name: str) -> None:
        self._disk_takes(name, self.rng.choice(SLOW_DISKS_S))
        self._later(self.rng.uniform(1.0, 10.0), lambda: self._disk_takes(name, QUICK_DISK_S))

    def _disk_takes(self, name: str, latency_s: tuple[float, float]) -> None:
        machine = self.group.machines[name]
        machine.latency_s = latency_s
        if machine.process is not None:
            machine.process.threads.latency_s = latency_s

    # Rot, of a minority.

    def _flip(self, name: str) -> None:
        """One bit of a segment; half the time near the end of the log, and the process ends, so that it is read."""
        disk = self.group.machines[name].disk
        ends = {
            path: len(disk.content(path).rstrip(b"\0")) for path in disk.files(f"/{name}") if path.endswith(".vlog")
        }
        segments = [path for path, end in ends.items() if end > FIRST_FRAME + 512]
        if not segments:
            return
        path, near = self.rng.choice(segments), self.rng.random() < 0.5
        if near:
            self.die(name, power=False)
            path = segments[-1]
        low = max(FIRST_FRAME, ends[path] - NEAR_BYTES) if near else FIRST_FRAME
        offset, bit = self.rng.randrange(low, ends[path]), self.rng.randrange(8)
        self.group.watch.flipped(path, offset, bit)
        disk.flip_bit(path, offset, bit)

    def _lose_index(self, name: str) -> None:
        self.die(name, power=False)
        self.group.machines[name].stores.contents.pop(f"/{name}/index", None)

    def _flip_index(self, name: str) -> None:
        stores = self.group.machines[name].stores
        contents = stores.contents.get(f"/{name}/index")
        if contents is not None and contents.keys:
            stores.corrupt(f"/{name}/index", self.rng.choice(contents.keys), bit=self.rng.randrange(64))

    def _flip_slot(self, name: str) -> None:
        self.die(name, power=False)
        disk = self.group.machines[name].disk
        path = f"/{name}/node.id"
        if path in disk.files(f"/{name}") and len(disk.content(path)) == 8192:
            disk.flip_bit(path, self.rng.randrange(160) + 4096 * self.rng.randrange(2))

    def _wipe(self, name: str) -> None:
        """Another disk in its place: it comes back as an incarnation that nobody lists.  Half the time the master dies
        with it, so that who is left may be short of what was durable."""
        if not self.group.listed(name):
            return  # it is not a member again yet: the others would be a minority of who was
        self.die(name, power=False)
        machine = self.group.machines[name]
        machine.disk.wipe()
        self.wiped = True
        machine.stores.contents.clear()
        self.group.watch.replaced(name)
        if self.rng.random() < 0.5:
            self.die(self.group.master, power=False)

    # The network.

    def _split(self, name: str) -> None:
        """One or two nodes from the others, the clients with either side."""
        names = list(self.group.names)
        few = {name, *self.rng.sample(names, self.rng.randrange(0, (len(names) - 1) // 2))}
        sides = [sorted(few), [each for each in names if each not in few]]
        self.rng.choice(sides).append("client")
        self._block([pair for one in sides[0] for other in sides[1] for pair in ((one, other), (other, one))], 6.0)

    def _cut_off(self, name: str) -> None:
        """Long enough for the others to clean away what it lacks."""
        others = [each for each in self.group.names if each != name]
        self._block([pair for other in others for pair in ((name, other), (other, name))], 20.0)

    def _one_way(self, name: str) -> None:
        other = self.rng.choice([each for each in [*self.group.names, "client"] if each != name])
        one, two = self.rng.sample([name, other], 2)
        self._block([(one, two)], 8.0)

    def _mute(self, name: str) -> None:
        """Nobody hears it; half the time its replicas' disks are slow, and what it said before is not synced yet."""
        others = [each for each in self.group.names if each != name]
        if self.rng.random() < 0.5:
            for other in others:
                self._slow(other)
        self._block([(name, other) for other in others], 6.0)

    def _deaf(self, name: str) -> None:
        self._block([(other, name) for other in self.group.names if other != name], 6.0)

    def _block(self, ways: list[tuple[str, str]], seconds_max: float) -> None:
        net = self.group.net
        for way in ways:
            net.block(*way)
        self._later(self.rng.uniform(0.1, seconds_max), lambda: net.unblock(ways))

    def _slow_link(self, name: str) -> None:
        """Messages that come late: behind a restart, a wipe, another election."""
        other = self.rng.choice([each for each in [*self.group.names, "client"] if each != name])
        delays_s = self.group.net.delays_s
        delays_s[name, other] = self.rng.choice(SLOW_LINKS_S)
        self._later(self.rng.uniform(1.0, 8.0), lambda: delays_s.pop((name, other), None))

    def _cut(self, name: str) -> None:
        self.group.net.cut(name, self.rng.choice(self.group.names))

    def _lossy(self, name: str) -> None:
        self.group.net.cut_rate = self.rng.choice((0.01, 0.1))
        self._later(self.rng.uniform(1.0, 8.0), lambda: setattr(self.group.net, "cut_rate", 0.0))

    def _later(self, seconds: float, mend: Callable[[], object]) -> None:
        self.group.loop.call_later(seconds, mend)

    def _mend_network(self) -> None:
        self.group.net.heal()
        self.group.net.delays_s.clear()
        self.group.net.cut_rate = 0.0

    # Time and order.

    def _turn_clock(self, name: str) -> None:
        machine = self.group.machines[name]
        machine.clock_offset_us = self.rng.randrange(-3_600_000_000, 3_600_000_000)
        if machine.process is not None:
            machine.process.clock.offset_us = machine.clock_offset_us

    def _transfer(self, name: str) -> None:
        to = self.rng.choice(("", f"?to={name}"))
        asyncio.ensure_future(self._post(self.group.master, f"/v1/admin/transfer{to}"))

    async def _post(self, name: str, path: str) -> None:
        try:
            await self.group.client.request("POST", f"{self.group.url(name)}{path}", timeout_s=5.0)
        except (VlsnLogError, OSError):
            pass

    async def ask_for_restore(self, name: str) -> None:
        """What a person does with a node that says DAMAGED."""
        await self._post(name, "/v1/admin/restore")

    def lift_floor(self, name: str) -> None:
        """What a person does with a node that waits for a member that will never tell the end of its log."""
        self.die(name, power=False)
        accept_floor(self.group.machines[name].disk, f"/{name}")

    # The end.

    def end(self) -> None:
        """Every fault is over, and every node is up."""
        self.active = False
        self._mend_network()
        for name, machine in self.group.machines.items():
            machine.disk.mend()
            machine.disk.capacity_bytes = None
            self._disk_takes(name, QUICK_DISK_S)
            self._resume(name)
            self.start(name)


ROTS = frozenset(("flipped bit", "index lost", "index flipped", "node file slot flipped", "wiped"))
