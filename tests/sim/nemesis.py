"""The faults of a simulated group: drawn from the seed, by chance and at critical moments.

Each seed has its own weights (some kinds of fault are absent, others frequent), its own pace, and its own *ambushes*.
An ambush hits a node just as something happens in it: a vote sent, an election won, a feed begun, a rollback, a
restore, a mending.  Disks are lost, older or rotten on a minority at a time (``minority``); in some seeds bits flip on
every node instead (``disks``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from random import Random
from typing import Any, Literal

from tests.fakes.loop import VirtualLoop
from tests.sim.aimed import Aimed
from tests.sim.cuts import Cuts
from tests.sim.disks import Disks
from tests.sim.group import SimGroup
from tests.sim.images import Images
from tests.sim.minority import Minority
from tests.sim.people import People
from tests.sim.report import Report
from tests.sim.strangers import Strangers
from tests.sim.ways import Ways, between
from vlsn.offline.truncate import accept_floor

Strike = Callable[[str], object]
"""Hits a machine; returns False if it had no effect."""
Table = dict[str, tuple[float, Strike]]
"""The weight and the function of each kind of fault."""
Rot = Literal["none", "minority", "everywhere"]
AMBUSHED = {
    "vote": 0.25,
    "elected": 0.5,
    "leads": 1.0,
    "feed.start": 0.4,
    "rollback": 0.3,
    "rolled_back": 1.0,
    "hands_over": 1.0,
    "restore.begin": 1.0,
    "restore.from": 1.0,
    "restore.provides": 1.0,
    "restore.done": 0.5,
    "damage": 0.5,
    "mended": 0.5,
    "group.change": 0.5,
    "group.durable": 0.5,
    "cleaned": 0.2,
    "opened": 0.1,
    "durable": 0.02,
    "first durable": 1.0,
}
"""Events of a node, with the share of the seed's probability of an ambush.  ``durable``: it is the first to call a
block durable; ``first durable``: the first block of its term; ``rollback``: it begins one."""
AMBUSHES = ("kill", "power cut", "kill at an await", "split", "stop at a disk call", "mute", "pause")
AMBUSH_RATES = (0.0, 0.1, 0.3, 0.7)
ROLLBACK_RATE = 0.3
"""The least probability that a rollback, which is rare, is stopped inside."""
PROVIDERS = ("provider cleans", "provider restarts")
PROVIDER_RATES = (0.2, 0.6, 0.9)
"""The probabilities that a provider of a restore is hit as such."""
RESTORE_LINK_S = (0.3, 0.8)
MISSES_MAX = 3
"""The most kinds that are tried for one strike."""
ASKS_AGAIN_S, ASKS_MAX = 2.0, 60
"""Seconds until an operator repeats a refused restore, and the most repeats."""
ASKS_BEFORE_A_LOOK = 5
AWAY_S, LONG_AWAY_S = (0.05, 3.0), (3.0, 15.0)
"""Seconds until an ended process is started again, mostly and sometimes."""
PAUSES_S = (0.3, 1.5, 1.5, 4.0, 4.0, 40.0)
LATE_RATES = (0.0, 0.3, 0.8)
MINORITY_RATE = 0.5
STEPS_MAX = 400
"""An ambush at an await comes after at most so many callbacks of the loop."""


class Nemesis:
    def __init__(self, group: SimGroup, report: Report, say: Callable[[str], None], *, rot: Rot) -> None:
        self.group = group
        self.report = report
        self.rng = rng = Random(f"nemesis/{report.seed}")
        self.say = say
        self.active = True
        self.rot = rot
        self.minority = Minority(self, strikes=rot == "minority")
        self.losses: list[tuple[float, str]] = []
        """The times when unsynced bytes may have been lost with a machine's power, a process, a medium."""
        self.lost = False
        """True if a disk, a node file or its contents were lost: an operator may have to decide."""
        self.ambush = rng.choice(AMBUSH_RATES)
        self.provider_rate = rng.choice(PROVIDER_RATES)
        self.quiet_until_s = 0.0
        """The time before which no fault is drawn."""
        self.pace_s = rng.choice((0.7, 1.5, 3.0))
        self.aims = rng.choice((0.3, 0.6))
        """The probability that a fault hits the master, and not any node."""
        group.net.late_rate = rng.choice(LATE_RATES)
        self.disks, self.images = Disks(self), Images(self)
        self.ways, self.people, self.aimed = Ways(self), People(self), Aimed(self)
        self.strangers, self.cuts = Strangers(self), Cuts(self)
        self._of_victims = (
            {**self.disks.rots(), **self.images.table(), **self.aimed.of_victims()} if rot == "minority" else {}
        )
        self.faults = self._drawn()
        self._starting: set[str] = set()
        self._stands_until_s: dict[str, float] = {}
        self.asking: list[str] = []
        """The nodes that an operator has ordered to restore."""
        self.absent: list[str] = []
        """The nodes that must not be started yet."""
        group.on_stop = lambda name: self.die(name, power=rng.random() < 0.5)
        group.on_end = self._ended
        group.on_event = self._heard
        group.books.on_answered = self.images.answered

    @property
    def victims(self) -> list[str]:
        """The nodes whose disks may rot, be wiped, or come back older, just now."""
        return self.minority.names

    def _drawn(self) -> Table:
        rng = self.rng
        table: Table = {
            "kill": (1.0, lambda name: self.die(name, power=False)),
            "power cut": (1.0, lambda name: self.die(name, power=True)),
            "kill at an await": (1.0, self._kill_at_an_await),
            "pause": (0.8, self._pause),
            "clock": (0.4, self._turn_clock),
            "everything dies": (0.2, lambda name: self._all_die()),
            **self.disks.table(),
            **self.ways.table(),
            **self.people.table(),
            **self.aimed.table(),
        }
        drawn = {kind: (weight * rng.choice((0, 1, 1, 3)), strike) for kind, (weight, strike) in table.items()}
        for kind in rng.sample(sorted(table), 4):  # each table has at least four kinds
            drawn[kind] = (max(drawn[kind][0], 0.5), table[kind][1])
        drawn.update(self._of_victims)
        if self.rot == "everywhere":
            drawn.update(self.disks.rots_everywhere())
        return drawn

    async def run(self, seconds: float) -> None:
        beside = [asyncio.create_task(each.run()) for each in (self.strangers, self.cuts)]
        try:
            await self._run(seconds)
        finally:
            for each in beside:
                each.cancel()

    async def _run(self, seconds: float) -> None:
        end = self.group.loop.time() + seconds
        while self.group.loop.time() < end:
            await asyncio.sleep(self.rng.uniform(0.2, 2.0) * self.pace_s)
            if self.group.watch.violation is not None:
                return
            self.minority.look()
            self.images.look()
            self.disks.look()
            if self.group.loop.time() < min(self.quiet_until_s, end):
                continue
            leader = self.group.nodes.get(self.group.master)
            late = self.group.loop.time() > end - seconds / 3
            if late and leader is not None and leader.member.is_master() and len(set(self.group.watch.leads)) < 2:
                self.strike("kill", leader.name, lambda name: self.die(name, power=False, back_s=(3.0, 6.0)))
                continue
            weights = [weight for weight, _ in self.faults.values()]
            for what in self.rng.choices(list(self.faults), weights, k=MISSES_MAX):
                name = self._aim(what)
                if name and self.strike(what, name, self.faults[what][1]):
                    break

    def _aim(self, what: str) -> str:
        names = self.group.names
        if what in self._of_victims:
            victims = [name for name in self.victims if name in names and name != self.images.returning]
            return self.rng.choice(victims) if victims else ""
        return self.group.master if self.rng.random() < self.aims else self.rng.choice(names)

    def strike(self, what: str, name: str, strike: Strike) -> bool:
        """Applies a fault, and says whether it had an effect; only then it is counted."""
        at = len(self.report.transcript)
        self.say(f"*** {what}: {name}")
        if strike(name) is False:
            del self.report.transcript[at]
            return False
        self.report.faults[what] += 1
        if what in self._of_victims:
            self.minority.struck(what, name)
        return True

    def later(self, seconds: float, then: Callable[[], object]) -> None:
        """Sets a timer that belongs to no process. A timer of the process in which a fault was drawn would end with it,
        and its next start would be lost."""
        self.group.loop.call_later(seconds, then, context=Context())

    # Ambushes.

    def _heard(self, name: str, event: str, fields: dict[str, Any]) -> None:
        self._note(name, event, str(fields.get("why", "")))
        if event == "restore.begin":
            self.loses("medium")
        if event == "restore.done":
            self.minority.restored(name)
        if event == "recognised":
            self.images.recognised(name)
        if not self.active:
            return
        if event == "leads":
            self.ways.leads(name)
        self.images.heard(name, event)
        self.aimed.heard(name, event, fields)
        if event == "restore.begin" and self.rng.random() < self.provider_rate:
            self.strike("provider rolls back", self.group.master, lambda master: self._unseat(master, name))
        elif event == "restore.provides" and self.rng.random() < self.provider_rate:
            self.later(0.0, lambda: self._strike_provider(name, str(fields.get("peer", ""))))
        if event == "rollback" and self.rng.random() < max(self.ambush, ROLLBACK_RATE):
            self.strike("stop inside a rollback", name, self.disks.stop_in_rollback)
            return
        if event not in AMBUSHED or self.rng.random() >= self.ambush * AMBUSHED[event]:
            return
        what = self.rng.choice(AMBUSHES)
        whom = name if self.rng.random() < 0.7 else self.rng.choice(self.group.names)
        delay_s = self.rng.choice((0.0, 0.0, self.rng.uniform(0.0, 0.01), self.rng.uniform(0.0, 0.1)))
        self.later(delay_s, lambda: self._spring(what, whom, event))

    def _spring(self, what: str, name: str, event: str) -> None:
        if self.active:
            self.say(f"    ambush on {event}")
            self.strike(what, name, self.faults[what][1])

    def _strike_provider(self, name: str, peer: str) -> None:
        """Slows the node's restore down, so that the next fault hits inside it."""
        if not self.active or name not in self.group.nodes or peer not in self.group.names:
            return
        self.ways.slow(name, peer, RESTORE_LINK_S, 6.0)
        what = self.rng.choice(PROVIDERS)
        self.strike(what, name, self._clean_soon if what == "provider cleans" else self._restart_soon)

    def _unseat(self, master: str, peer: str) -> object:
        """Leaves a master connected only to the clients and to ``peer``, which restores from it, slowly. The master
        logs entries that no other node has; then it meets the next master, and rolls them back."""
        electable = {member.name for member in self.people.members.members if member.electable}
        others = [each for each in self.group.names if each not in (master, peer)]
        node = self.group.nodes.get(master)
        if node is None or not node.member.is_master() or 2 * len(electable & set(others)) <= len(electable):
            return False
        self.ways.slow(master, peer, RESTORE_LINK_S, 8.0)
        self.ways.block(between([master, peer, "client"], others), (2.0, 4.0))
        return True

    def _clean_soon(self, name: str) -> None:
        for path, seconds in (("rotate", 0.2), ("checkpoint", 0.6), ("clean", 1.0)):
            self.later(seconds, lambda path=path: asyncio.ensure_future(self.people.post(name, f"/v1/admin/{path}")))  # type: ignore[misc]

    def _restart_soon(self, name: str) -> None:
        def ends() -> None:
            if self.active:
                self.die(name, power=False, back_s=(0.01, 0.5))

        self.later(self.rng.uniform(0.1, 1.5), ends)

    def _note(self, name: str, event: str, why: str) -> None:
        """Counts further faults that hit a rollback, a cleaning or the end of a term."""
        if event == "steps_down" and why.startswith("the disk has not synced"):
            self.report.met["a lead that a stalled disk ends"] += 1
        node = self.group.nodes.get(name)
        if node is not None and node.open is not None and node.open.providing.sessions:
            if event == "rolled_back":
                self.report.met["a rollback at the provider of a restore"] += 1
            elif event in ("cleaned", "hold.dropped"):
                self.report.met["a cleaning at the provider of a restore"] += 1

    # Processes.

    def die(self, name: str, *, power: bool, back: bool = True, back_s: tuple[float, float] = AWAY_S) -> None:
        node = self.group.nodes.get(name)
        if node is None:
            return
        self._resume(name)
        self._remember(name)
        self.loses("power" if power else "process")
        self.group.kill(name, power=power)
        if back:
            if back_s is AWAY_S and self.rng.random() < 0.3:
                back_s = LONG_AWAY_S
            self.later(self.rng.uniform(*back_s), lambda: self.start(name))

    def loses(self, what: str) -> None:
        self.losses.append((self.group.loop.time(), what))

    def _all_die(self) -> None:
        for name in self.group.names:
            self.die(name, power=True)

    def _ended(self, name: str, error: BaseException) -> None:
        self.say(f"{name} ended: {error!r}")
        self.report.faults["ended by itself"] += 1
        self.loses("medium")
        self.later(0.0, lambda: self.die(name, power=False))

    def start(self, name: str) -> None:
        machine = self.group.machines.get(name)
        if machine is None or machine.process is not None or name in self._starting or name in self.absent:
            return
        if self.images.returning not in ("", name):
            return  # it would be asked, and has no promise; ``images`` starts it
        self._starting.add(name)
        machine.disk.mend()
        if self.active and self.rng.random() < 0.15:
            self.report.faults["stop inside recovery"] += 1
            machine.disk.stop_at(len(machine.disk.calls) + self.rng.randrange(1, 150))
        if self.active:
            self.disks.starts(name)
        self.say(f"{name} starts")
        task = asyncio.ensure_future(self._starts(name))
        task.add_done_callback(lambda _: self._starting.discard(name))

    async def _starts(self, name: str) -> None:
        if name in self.group.names:  # it may just have been switched off
            await self.group.start(name)

    def _kill_at_an_await(self, name: str) -> None:
        loop = self.group.loop
        assert isinstance(loop, VirtualLoop)
        power = self.rng.random() < 0.5

        def strike() -> None:
            if self.active:
                self.die(name, power=power)

        loop.after_steps(self.rng.randrange(1, STEPS_MAX), strike)

    def _pause(self, name: str) -> object:
        """Sends SIGSTOP, and SIGCONT some seconds later; rarely much later."""
        return self.stand_still(name, self.rng.choice(PAUSES_S) * self.rng.uniform(0.5, 1.5))

    def stand_still(self, name: str, seconds: float) -> bool:
        loop, machine = self.group.loop, self.group.machines.get(name)
        process = machine.process if machine is not None else None
        if process is None or not self.active:
            return False
        assert isinstance(loop, VirtualLoop)
        loop.pause(process.owner)
        self._stands_until_s[name] = max(self._stands_until_s.get(name, 0.0), loop.time() + seconds)
        self.later(seconds, lambda: loop.resume(process.owner))
        return True

    def stood_still(self, name: str) -> bool:
        """Says whether it is suspended, or was a moment ago."""
        return self.group.loop.time() < self._stands_until_s.get(name, 0.0) + 1.0

    def _resume(self, name: str) -> None:
        loop, process = self.group.loop, self.group.machines[name].process
        assert isinstance(loop, VirtualLoop)
        if process is not None:
            loop.resume(process.owner)

    def _remember(self, name: str) -> None:
        """Notes the faults that an ending process has survived, and its work at the end."""
        node, met = self.group.nodes[name], self.report.met
        if node.log is not None:
            self.report.replaced += node.log.stats.rolls["error"]
            self.report.mended += node.open.mending.mended if node.open is not None else 0
        if not self.active:
            return
        met["a crash inside recovery"] += node.log is None and node.state == "UNKNOWN"
        met["a crash inside a restore"] += node.state == "RESTORING"
        met["a crash inside a mending"] += (
            bool(node.open is not None and node.open.mending.damages) or node.state == "DAMAGED"
        )
        met["a crash inside a rollback"] += node.log is not None and node.log.view.rollbacks % 2 == 1
        met["a crash of the provider of a restore"] += node.open is not None and bool(node.open.providing.sessions)

    def remember_all(self) -> None:
        for name in self.group.nodes:
            self._remember(name)
        self.report.met["a start with settings of an earlier time"] += self.group.told.old
        self.report.met["a message from a process that has ended, or to its next one"] += self.group.net.late
        self.report.met["a message that a narrow link takes long for"] += self.group.net.held_up
        for change, count in self.people.done.items():
            self.report.met[f"a change of the group: {change}"] += count

    # Time and order.

    def _turn_clock(self, name: str) -> None:
        machine = self.group.machines[name]
        machine.clock_offset_us = self.rng.randrange(-3_600_000_000, 3_600_000_000)
        if machine.process is not None:
            machine.process.clock.offset_us = machine.clock_offset_us

    async def ask_for_restore(self, name: str) -> None:
        """Restores a node that is DAMAGED, or leads with damage, as an operator does: a master is not restored.

        A refused operator, since too few others are whole yet, repeats the order while the node is not whole. After
        some attempts the operator reads the members in its settings, which a log that does not open uses."""
        self.asking.append(name)
        try:
            await self._ask_for_restore(name)
        finally:
            self.asking.remove(name)

    async def _ask_for_restore(self, name: str) -> None:
        node = self.group.nodes.get(name)
        if node is not None and node.member.is_master():
            await self.people.post(name, "/v1/admin/transfer")
        for asked in range(ASKS_MAX):
            answer = await self.people.post(name, "/v1/admin/restore")
            if answer is None or answer.get("type") != "not-ready":
                return
            if asked == ASKS_BEFORE_A_LOOK:
                self.say(f"--- a person puts the members in the settings of {name} right")
                self.group.told.corrected.add(name)
                self.die(name, power=False, back_s=(0.01, 0.5))
            await asyncio.sleep(ASKS_AGAIN_S)
            node = self.group.nodes.get(name)
            if node is not None and node.open is not None and not node.open.mending.damages:
                return  # the node has mended itself meanwhile

    def lift_floor(self, name: str) -> None:
        """Lifts the vote floor of a node as an operator does, if it waits for a member that never reports its end."""
        self.die(name, power=False)
        accept_floor(self.group.machines[name].disk, f"/{name}")

    # The end.

    def end(self) -> None:
        """Ends every fault, and starts every node but a minority. In some seeds without lost disks the minority starts
        once a master serves."""
        self.active = False
        now = self.group.loop.time()
        sound = self.rot == "none" and not self.lost and self.disks.whole_by(now)[1] <= now
        if sound and self.rng.random() < MINORITY_RATE:
            self.absent = self.people.minority()
            for name in self.absent:
                self.say(f"--- {name} stays away until a master serves")
                self.die(name, power=False, back=False)
            self.report.met["healed without a minority first"] += bool(self.absent)
        self.ways.mend()
        for name in self.group.names:
            self.disks.mend(name)
            self._resume(name)
            self.start(name)

    def all_come(self) -> None:
        """Starts the minority, too."""
        absent, self.absent = self.absent, []
        for name in absent:
            self.start(name)

    @property
    def rotten(self) -> list[str]:
        """The members whose disks have rotted."""
        return [name for name in self.group.names if self.rot == "everywhere" or name in self.minority.ever]
