"""A whole cluster under faults, in virtual time, from a seed: the node's own code on fakes.

    seed ─► machines, network, clients, nemesis ─► 60 virtual seconds of faults ─► all faults end ─► final checks

While it runs, ``watch`` checks every step against the rules.  At the end every acknowledged or received value is at its
VLSN on every node, once.  A refused value is absent.  All logs are equal block by block, ``verify`` finds nothing, and
the group serves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from random import seed as seed_global
from typing import Any

import msgspec

from repl.node.node import Node
from tests.fakes.machine import Machine
from tests.sim import cdc, destinations, durability, impatient, library, library_transactions, transactions, whole
from tests.sim.clients import Clients
from tests.sim.disks import LEADS_S
from tests.sim.group import SimGroup
from tests.sim.logs import sound, visible
from tests.sim.nemesis import Nemesis, Rot
from tests.sim.pipeline import BY_HTTP
from tests.sim.report import OPERATIONS_MIN, Report
from vlsn.levels import LEVELS
from vlsn.verify.inspection import Rule
from vlsn.verify.report import VerifyReport
from vlsn.verify.verify import verify

FAULTS_S = 60.0
HEALS_S = 60.0
CATCH_UP = 3.0
"""The time to carry the entries logged while a disk hung behind a narrow link, as a multiple of that time. The link
carries half as much again as clients log, and they continue."""
ASKED_S = 20
"""Seconds after which an operator restores a node that does not mend itself."""
SEGMENT_BYTES = 64 << 10
MASTER_S = 20.0
"""Seconds in which a master must serve after all faults ended, if no disk has lost anything. If some disks still hang,
the seconds begin once those of a majority do not; they are extended by the time for which a master with such a disk may
lead on."""
AGE_RATE, AGES_S = 0.2, (5.0, 20.0)
"""The share of the seeds that also clean by age, and the ages."""
SOON_S = 0.001
"""Seconds within which a master is said to serve already."""
LAST_WORD = b"the last word"


class Simulation:
    def __init__(self, seed: int, *, faults_s: float = FAULTS_S, few_producers: bool = False) -> None:
        self.seed = seed
        seed_global(seed)  # the client library draws its pauses from it
        self._few_producers = few_producers
        self.rng = rng = Random(f"sim/{seed}")
        self.report = Report(seed, size=_size(rng.random()))
        self.faults_s = faults_s
        self._waited_for_all = False
        self._stays_damaged = False
        """True if, after all faults, a node needed entries that only one member may have."""
        self._words = 0
        settings: dict[str, Any] = {
            "segment_bytes": SEGMENT_BYTES,
            "ring_bytes_max": rng.choice((8, 48, 200)) << 10,
            "checkpoint_bytes": 96 << 10,
            "checkpoint_period_s": rng.choice((0.7, 3.0)),
            "free_bytes_min": 0,
            "cleaning_period_s": 0.5,
            "scrub_period_s": 20.0,
        }
        if rng.random() < 0.6:
            settings["retention_bytes"] = rng.choice((3, 5)) * SEGMENT_BYTES
            settings["hold_bytes_max"] = rng.choice((1, 3)) * SEGMENT_BYTES
        ages = Random(f"age/{seed}")
        if ages.random() < AGE_RATE:
            settings["retention_age_s"] = ages.choice(AGES_S)
        if durability.are_there(seed):
            settings["sync_interval_s"] = Random(f"sync/{seed}").choice(durability.SYNC_INTERVALS_S)
        rot: Rot = rng.choices(("none", "minority", "everywhere"), (0.5, 0.4, 0.1))[0]
        if rot != "none":
            settings["scrub_period_s"] = 5.0
        if any(each.are_there(seed) for each in (transactions, impatient, cdc)):  # they need level 2, and its records
            settings["levels"] = LEVELS
        if destinations.are_there(seed):
            settings |= destinations.settings_of(seed)
        if cdc.are_there(seed):
            settings["cdc"] = cdc.settings_of(seed)
        self.group = SimGroup(seed, self.report.size, self.say, **settings)
        self.watch = self.group.watch
        self.watch.destinations.on = destinations.are_there(seed)
        self.nemesis = Nemesis(self.group, self.report, self.say, rot=rot)
        self.watch.rotten.update(self.nemesis.rotten)
        if cdc.are_there(seed):
            self.group.cdc = cdc.Cdc(self, settings["cdc"])

    # The run.

    async def run(self) -> Report:
        group, report = self.group, self.report
        began_s = group.loop.time()
        await group.start()
        self.nemesis.active, active = False, self.nemesis.active
        await group.serving()
        self.nemesis.active = active
        libraries = 2 if self.rng.random() < library.RATE else 0
        early = durability.is_the_groups(self.seed)  # then no reader that relies on reports of durable entries
        clients = self.clients = Clients(
            group,
            report,
            plain=5,
            producers=0 if early else 3,
            readers=2,
            linearizable=1,
            libraries=0 if early else libraries,
            few_producers=self._few_producers,
            transactions=transactions.CLIENTS if transactions.are_there(self.seed) and not early else 0,
            keeps_what_was_synced=self.nemesis.rot == "none",
            destinations=self.watch.destinations.on,
            impatient=impatient.are_there(self.seed),
        )
        clients.losses = self.nemesis.losses
        if clients.consumers is not None:
            clients.consumers.die = self._lose_pages
        if group.cdc is not None:
            group.cdc.begin()
        try:
            await self.nemesis.run(self.faults_s)
            if self.rng.random() < 0.3:
                self.say("*** all machines lose their power")
                report.faults["everything dies"] += 1
                for name in group.names:
                    self.nemesis.die(name, power=True)
            self.say("--- everything is mended")
            self.nemesis.end()
            await self._settled()
            clients.over = True
            await asyncio.wait(clients.tasks)
            for task in clients.tasks:
                task.result()
            if clients.consumers is not None:
                await clients.consumers.drain()
            if self.rng.random() < whole.RATE:
                await whole.Whole(self).check()
                report.met["each member asked to lead, clean and give its log"] += 1
            await self._check()
            if group.cdc is not None:
                await group.cdc.end()
        except Exception:
            if self.watch.violation is not None:
                raise self.watch.violation from None
            raise
        if self.watch.violation is not None:
            raise self.watch.violation
        report.virtual_s = group.loop.time() - began_s
        report.masters, report.rolled_back = self.watch.leads, self.watch.writing.rolled_back
        report.restored = self.watch.restored
        await group.stop()
        return report

    def _lose_pages(self, name: str) -> None:
        """Ends a node's process, so that it loses page files. No process ends once all faults have."""
        if self.nemesis.active:
            self.nemesis.die(name, power=False)

    def say(self, text: str) -> None:
        self.report.transcript.append(f"{self.group.loop.time() - 1000.0:8.3f}  {text}")

    # The end.

    def _all_up(self) -> bool:
        """Says whether all members are up; other nodes are switched off."""
        self.nemesis.people.settle()
        return len(self.group.nodes) == len(self.group.names)

    async def _settled(self) -> None:
        """Waits until every node serves, and is at the end of the master's log."""
        group = self.group
        asked: set[str] = set()
        began_s = group.loop.time()

        def equal() -> bool:
            if self.watch.violation is not None:
                raise self.watch.violation
            nodes = group.nodes
            majority_s, last_s = self.nemesis.disks.whole_by(began_s)
            self._waited_for_all |= any(map(_waits_for_all, nodes.values()))
            if self.nemesis.rotten or self._waited_for_all:
                majority_s = last_s  # a hanging disk may have a damaged log's missing blocks
            master_by_s = majority_s + MASTER_S + (LEADS_S if last_s > began_s else 0.0)
            if not self.report.to_master_s and self.serves(group.master):
                self.report.to_master_s = max(SOON_S, group.loop.time() - majority_s)
                self.nemesis.all_come()
            if self.nemesis.absent and any(map(_waits_for_all, nodes.values())):
                self.nemesis.all_come()
            self._stays_damaged |= self._is_damaged()
            by_a_person = self.nemesis.lost or self._stays_damaged
            self.watch.hold(
                bool(self.report.to_master_s) or by_a_person or group.loop.time() < master_by_s,
                f"no master serves {master_by_s - began_s:.1f} s after everything was mended: {_states(group)}",
            )
            for name in self.nemesis.minority.ever:
                if name in nodes and nodes[name].state == "DAMAGED" and name not in asked:
                    asked.add(name)
                    self.say(f"--- a person has {name} restored")
                    asyncio.ensure_future(self.nemesis.ask_for_restore(name))
            if by_a_person and group.loop.time() > last_s + ASKED_S:
                for name in [name for name, node in nodes.items() if "below-floor" in node.member.reason]:
                    if name not in self.nemesis.minority.names and name not in asked:
                        asked.add(name)
                        self.say(f"--- a person lifts the vote floor of {name}")
                        self.nemesis.lift_floor(name)
            if not self._all_up() or not nodes[group.master].member.is_master():
                return False
            last = nodes[group.master].opened().log.view.range.last
            return all(nodes[name].log is not None and nodes[name].dtvlsn() >= last - 50 for name in group.names)

        _, last_s = self.nemesis.disks.whole_by(began_s)
        catch_up_s = CATCH_UP * (last_s - began_s) if group.net.width is not None else 0.0
        await group.until(equal, "the group heals", last_s - began_s + HEALS_S + catch_up_s)
        self.report.to_heal_s = max(SOON_S, group.loop.time() - last_s)
        await group.until(lambda: self.report.operations >= OPERATIONS_MIN, "clients have asked enough", HEALS_S)
        self.clients.over = True
        await group.until(self._is_at_rest, "every node is at the master's end", HEALS_S)
        for name in self.nemesis.rotten:
            await self._mended(name)
        await self.last_word()

    def _is_damaged(self) -> bool:
        """Says whether one of a minority stays damaged: it does not report its log's end, so a node that lost its own
        tail to a power cut waits for that report, until an operator lifts its vote floor."""
        nodes = self.group.nodes
        return any(name in nodes and nodes[name].state == "DAMAGED" for name in self.nemesis.minority.ever)

    def serves(self, name: str) -> bool:
        node = self.group.nodes.get(name)
        if node is None or not node.member.is_master() or node.log is None:
            return False
        log = node.log
        return log.view.history.term_of(log.view.dtvlsn) == log.node_file.record.term

    def _is_at_rest(self) -> bool:
        """Says whether everything is durable everywhere, and nothing is under way any more."""
        nodes, names = self.group.nodes, self.group.names
        return (
            self._all_up()
            and not self.group.net.brings
            and self.nemesis.people.are_done
            and not self.nemesis.asking
            and nodes[self.group.master].member.is_master()
            and all(node.log is not None and not node.log.life.closing for node in nodes.values())
            and len(
                {nodes[name].dtvlsn() for name in names} | {nodes[name].opened().log.view.range.last for name in names}
            )
            == 1
        )

    def _all_serve(self) -> bool:
        """Says the same; and that no node is being restored, as an operator may order late."""
        return self._is_at_rest() and all(node.state in ("MASTER", "REPLICA") for node in self.group.nodes.values())

    async def _mended(self, name: str) -> None:
        """Waits until the scrub finds rotten blocks, and peers mend them; an operator restores nodes that no peer can
        mend."""
        disk = self.group.machines[name].disk
        for second in range(int(HEALS_S)):
            node = self.group.nodes.get(name)
            if node is None:
                await asyncio.sleep(1.0)
                continue
            whole = node.open is not None and not node.open.mending.damages and node.state == "REPLICA"
            if (whole or node.state == "MASTER") and sound(disk, f"/{name}", self.watch.flips):
                return
            if second == ASKED_S and (name in self.nemesis.minority.ever or self._is_alone_with(name)):
                self.say(f"--- a person has {name} restored")
                await self.nemesis.ask_for_restore(name)
            if second % 10 == 0:  # the scrub reads only segments that are no longer written
                await self.nemesis.people.post(name, "/v1/admin/rotate")
            await asyncio.sleep(1.0)
        self.watch.hold(False, f"{name} is not mended within {HEALS_S} s")

    def _is_alone_with(self, name: str) -> bool:
        """Says whether the others have cleaned the entries that are damaged there, so that no node can provide them."""
        node = self.group.nodes[name]
        damaged = [damage.vlsn for damage in node.open.mending.damages.values()] if node.open is not None else []
        firsts = [other.opened().log.view.range.first for each, other in self.group.nodes.items() if each != name]
        return bool(damaged) and all(max(damaged) < first for first in firsts)

    async def last_word(self) -> int:
        """Appends on a majority. Replicas may still be in syncup, or a narrow link may still carry earlier bytes. So
        each attempt has a value of its own, since the earlier one may be in the log."""
        for _ in range(int(HEALS_S / 0.1)):
            self._words += 1
            word = LAST_WORD + b" %d" % self._words
            status, answer = await self.clients.append(self.group.master, word, acks="majority")
            if status == 200:
                await self.group.until(
                    lambda answer=answer: answer["durable"] or self.watch.durable_last >= answer["first"],  # type: ignore[misc]
                    "the last word is durable",
                    HEALS_S,
                )
                self.clients.acknowledge(answer["first"], word)
                return int(answer["first"])
            waits = answer["type"] in ("insufficient-replicas", "no-master", "outcome-unknown")
            self.watch.hold(waits, f"the last word: {answer}")
            await asyncio.sleep(0.1)
        raise AssertionError("no append on a majority after everything was mended")

    async def _check(self) -> None:
        group, report, watch = self.group, self.report, self.watch
        await group.until(self._all_serve, "the last word is everywhere, and every node serves", HEALS_S)
        self.nemesis.remember_all()
        ranges = {name: group.nodes[name].opened().log.view.range for name in group.names}
        watch.hold(len({span.last for span in ranges.values()}) == 1, f"the logs end apart: {ranges}")
        for name in group.names:
            log, machine = group.nodes[name].opened().log, group.machines[name]
            watch.transactions.check_end(name, log.view.range)
            report.cleaned = max(report.cleaned, log.view.range.first - 1)
            held = await self._entries(name)
            first = log.view.range.first  # cleaning may continue meanwhile
            held = {vlsn: value for vlsn, value in held.items() if vlsn >= first}
            wanted = {vlsn: value for vlsn, value in watch.values.items() if vlsn >= first}
            watch.hold(held == wanted, f"{name} serves other entries than were durable: {_apart(held, wanted)}")
            for block, _ in visible(machine.disk, f"/{name}", watch.flips):
                if log.view.range.first <= block.first <= ranges[name].last:  # a later note may not be durable yet
                    watch.hold(watch.durable.get(block.first) == block, f"{name}: {block} in the end")
            aside = _set_aside(machine, name)
            watch.hold(name in watch.rotten or not aside, f"{name}: set aside, on a sound disk: {aside}")
            found = await self._verified(name)
            wrong = [each for each in found.findings if each.rule not in self._excused(name)]
            watch.hold(not wrong, f"{name}: {wrong}")
        watch.transactions.check()
        BY_HTTP.check(watch)
        if self.clients.impatient is not None:
            self.clients.impatient.check(watch)
        for each in self.clients.early:
            each.settle(over=True)
        logged = self.clients.refused & set(watch.values.values())
        watch.hold(not logged, f"lied: what was refused is in the log: {_some(logged)}")
        for vlsn, value in self.clients.acknowledged.items():
            watch.hold(watch.values.get(vlsn) == value, f"lost: VLSN {vlsn} was acknowledged, and is gone or another")
        report.last = watch.durable_last
        report.durable_bytes = sum(map(len, watch.values.values()))

    def _excused(self, name: str) -> set[Rule]:
        return {Rule.OVERMARKED_DURABLE} if name in self.watch.overmarked else set()

    async def _verified(self, name: str) -> VerifyReport:
        """Verifies that copy. Rot in ``state`` of a running node stays until its scrub finds it."""
        machine = self.group.machines[name]
        for _ in range(int(HEALS_S)):
            if name in self.watch.rotten:
                await self.group.nodes[name].services.administration.checkpoint()
            found = verify(machine.disk, machine.stores, f"/{name}", live=True)
            if name not in self.watch.rotten or all(each.rule is not Rule.STATE for each in found.findings):
                break
            await asyncio.sleep(1.0)
        return found

    async def _entries(self, name: str) -> dict[int, bytes]:
        found: dict[int, bytes] = {}
        at: int = self.group.nodes[name].opened().log.view.range.first
        while True:
            response = await self.group.client.request(
                "GET", f"{self.group.url(name)}/v1/entries?from={at}", timeout_s=9
            )
            if response.status == 410:  # cleaned meanwhile
                found.clear()
                at = msgspec.json.decode(bytes(response.body))["first"]
                continue
            assert response.status == 200, bytes(response.body)
            lines = [msgspec.json.decode(line) for line in bytes(response.body).splitlines()]
            if not lines:
                return found
            found.update((line["vlsn"], line["value"].encode()) for line in lines)
            at = int(response.headers["Vlsnlog-Next"])


def _size(drawn: float) -> int:
    """Draws the group's size: mostly three nodes; two need both for a majority, four need three."""
    return 5 if drawn < 0.2 else 3 if drawn < 0.85 else 4 if drawn < 0.95 else 2


def _waits_for_all(node: Node) -> bool:
    """Says whether the node may need all members: for the end of their logs, or for a restore."""
    floored = node.log is not None and bool(node.log.node_file.record.floor_vlsn)
    return floored or node.state == "RESTORING"


def _states(group: SimGroup) -> dict[str, tuple[str, str]]:
    return {name: (node.state, node.member.reason) for name, node in group.nodes.items()}


def _set_aside(machine: Machine, name: str) -> list[str]:
    """Lists files and stores that a node could not use and set aside, without cut tails."""
    paths = [*machine.disk.files(f"/{name}"), *machine.stores.contents]
    return [path for path in paths if any(part in path for part in (".damaged", ".old", ".aside"))]


def _some(values: set[bytes]) -> list[bytes]:
    return [value[:20] for value in sorted(values)[:3]]


def _apart(one: dict[int, bytes], other: dict[int, bytes]) -> str:
    vlsns = [vlsn for vlsn in sorted({*one, *other}) if one.get(vlsn) != other.get(vlsn)][:3]
    return "; ".join(f"{vlsn}: {one.get(vlsn, b'')[:20]!r} and {other.get(vlsn, b'')[:20]!r}" for vlsn in vlsns)


async def simulated(
    seed: int, *, faults_s: float = FAULTS_S, ended: Callable[[Simulation], None] = lambda _: None
) -> Report:
    """Returns one seed's report; a violation has the transcript of its faults. ``ended`` receives the run once all
    nodes have stopped."""
    with (
        library.few_producers(seed) as few,
        library.seeded_names(seed),
        library_transactions.staged_soon(),
        cdc.sent_little_ahead(seed),
    ):
        simulation = Simulation(seed, faults_s=faults_s, few_producers=few)
        try:
            report = await simulation.run()
        except BaseException as error:
            error.add_note("\n".join(simulation.report.transcript))
            raise
        ended(simulation)
        return report
