"""A whole cluster under faults, in virtual time, from a seed: the node's own code on fakes.

    seed ─► machines, network, clients, nemesis ─► 60 virtual seconds of faults ─► all mended ─► what must hold

Clients append unique values through HTTP and note what they were told; readers follow some node; the nemesis kills,
cuts the power, stops a node at a disk call, fails writes and syncs, fills and slows disks, cuts and splits the
network one way or both, turns clocks.  While it runs: no reader ever sees a value at a VLSN that another one saw
otherwise, what is shown is never taken back, a DTVLSN never falls within a process.  In the end every value that was
acknowledged stands at its VLSN on every node, what was refused nowhere, nothing twice, all logs are equal block by
block, ``verify`` finds nothing, and the group serves.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import msgspec

from tests.fakes.disk import Call
from tests.seam.nodes import Group
from vlsn.block import decode_header
from vlsn.errors import VlsnLogError
from vlsn.reader import LogReader
from vlsn.verify import verify

FAULTS_S = 60.0
HEALS_S = 60.0
CLIENTS = 4
READERS = 2
UNKNOWN = {"outcome-unknown", "internal"}


@dataclass(slots=True)
class Report:
    """What happened in one seed."""

    seed: int
    acknowledged: int = 0
    refused: int = 0
    unknown: int = 0
    read: int = 0
    last: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    virtual_s: float = 0.0
    replaced: int = 0
    """Segments that a failed write or sync cost."""
    cleaned: int = 0
    transcript: list[str] = field(default_factory=list)


class SimGroup(Group):
    """A node that ends itself, as after a second failure of its disk, is a process that is gone."""

    def __init__(self, seed: int, **settings: Any) -> None:
        super().__init__(seed, **settings)
        self.on_end: Callable[[str, BaseException], None] = lambda name, error: None

    def _ended(self, name: str, error: BaseException) -> None:
        self.on_end(name, error)


class Simulation:
    def __init__(self, seed: int, *, faults_s: float = FAULTS_S) -> None:
        self.seed = seed
        self.rng = Random(f"sim/{seed}")
        self.report = Report(seed)
        self.faults_s = faults_s
        settings: dict[str, Any] = {
            "segment_bytes": 64 << 10,
            "ring_bytes_max": 48 << 10,
            "checkpoint_bytes": 96 << 10,
            "checkpoint_period_s": 3.0,
            "free_bytes_min": 0,
            "cleaning_period_s": 1.0,
        }
        self.group = SimGroup(seed, **settings)
        self.group.on_end = self._ended
        self.acknowledged: dict[int, bytes] = {}
        self.refused: set[bytes] = set()
        self.shown: dict[int, bytes] = {}
        self.durable: dict[str, int] = {}
        self.over = False
        self.starting: set[str] = set()

    # The run.

    async def run(self) -> Report:
        group, report = self.group, self.report
        for name in group.names:
            group.machines[name].disk.on_stop = lambda name=name: self._die(name, power=False)
        await group.start()
        await group.serving()
        jobs = [self._client(number) for number in range(CLIENTS)]
        jobs += [self._reader(number) for number in range(READERS)]
        tasks = [asyncio.create_task(job) for job in [*jobs, self._watch()]]
        end = group.loop.time() + self.faults_s
        while group.loop.time() < end:
            await asyncio.sleep(self.rng.uniform(0.3, 3.0))
            self._fault()
        await self._heal()
        await self._settled()
        self.over = True
        await asyncio.wait(tasks)
        for task in tasks:
            task.result()
        await self._check()
        report.virtual_s = group.loop.time()
        await group.stop()
        return report

    def say(self, text: str) -> None:
        self.report.transcript.append(f"{self.group.loop.time():8.3f}  {text}")

    # Clients.

    async def _client(self, number: int) -> None:
        rng = Random(f"client/{self.seed}/{number}")
        count = 0
        while not self.over:
            value = f"{number}.{count}:".encode().ljust(rng.choice((12, 200, 1500, 5000)), b"x")
            acks = rng.choice(("majority", "majority", "all", "none"))
            count += 1
            try:
                status, answer = await self.group.append(value, acks=acks)
            except (VlsnLogError, OSError):
                self.report.unknown += 1
                await asyncio.sleep(0.2)
                continue
            if status == 200:
                if answer["durable"]:
                    self._acknowledge(answer["first"], value)
                else:
                    self.report.unknown += 1
            elif answer["type"] in UNKNOWN:
                self.report.unknown += 1
            else:
                self.report.refused += 1
                self.refused.add(value)
            await asyncio.sleep(rng.uniform(0.0, 0.3))

    def _acknowledge(self, vlsn: int, value: bytes) -> None:
        self.report.acknowledged += 1
        assert self.acknowledged.setdefault(vlsn, value) == value, f"VLSN {vlsn} was told twice"
        self._show(vlsn, value, "an acknowledgement")

    def _show(self, vlsn: int, value: bytes, who: str) -> None:
        assert self.shown.setdefault(vlsn, value) == value, f"{who} has another value at VLSN {vlsn}"

    async def _reader(self, number: int) -> None:
        """Follows node after node from where it is; what was cleaned away is skipped."""
        rng = Random(f"reader/{self.seed}/{number}")
        at = 1
        while not self.over:
            name = rng.choice(self.group.names)
            try:
                response = await self.group.client.request(
                    "GET", f"{self.group.url(name)}/v1/entries?from={at}&wait=1", timeout_s=5.0
                )
            except (VlsnLogError, OSError):
                await asyncio.sleep(0.2)
                continue
            body = bytes(response.body)
            if response.status == 410:
                at = msgspec.json.decode(body)["first"]
                continue
            if response.status != 200:
                await asyncio.sleep(0.2)
                continue
            for line in body.splitlines():
                entry = msgspec.json.decode(line)
                assert entry["vlsn"] >= at, "a reader went back"
                self._show(entry["vlsn"], entry["value"].encode(), f"a reader of {name}")
                self.report.read += 1
            at = int(response.headers["Vlsnlog-Next"])

    async def _watch(self) -> None:
        while not self.over:
            for name, node in self.group.nodes.items():
                now = node.dtvlsn()
                if node.log is not None:
                    assert now >= self.durable.get(name, 0), f"{name}: the DTVLSN fell to {now}"
                    self.durable[name] = now
            await asyncio.sleep(0.05)

    # The nemesis.

    def _fault(self) -> None:
        faults: list[tuple[str, Callable[[str], None]]] = [
            ("kill", lambda name: self._die(name, power=False)),
            ("power cut", lambda name: self._die(name, power=True)),
            ("stop at a disk call", self._stop_soon),
            ("failed write", lambda name: self._fail_once(name, "write")),
            ("failed sync", lambda name: self._fail_once(name, "sync")),
            ("full disk", self._fill),
            ("slow disk", self._slow),
            ("split", self._split),
            ("one way", self._one_way),
            ("cut connections", self._cut),
            ("network healed", lambda name: self.group.net.heal()),
            ("network healed", lambda name: self.group.net.heal()),
            ("clock", self._turn_clock),
            ("everything dies", lambda name: self._all_die()),
        ]
        weights = [1.0] * (len(faults) - 1) + [0.3]
        what, strike = self.rng.choices(faults, weights)[0]
        name = self.rng.choice(self.group.names)
        self.report.faults[what] += 1
        self.say(f"{what}: {name}")
        strike(name)

    def _die(self, name: str, *, power: bool) -> None:
        node = self.group.nodes.get(name)
        if node is None:
            return
        self._remember(name)
        self.group.kill(name, power=power)
        self.durable.pop(name, None)
        self.group.loop.call_later(self.rng.uniform(0.1, 3.0), lambda: self._start(name))

    def _all_die(self) -> None:
        for name in self.group.names:
            self._die(name, power=True)

    def _ended(self, name: str, error: BaseException) -> None:
        self.say(f"{name} ended: {error}")
        self.report.faults["ended by itself"] += 1
        self.group.loop.call_soon(lambda: self._die(name, power=False))

    def _start(self, name: str) -> None:
        machine = self.group.machines[name]
        if machine.process is None and name not in self.starting:
            self.starting.add(name)
            machine.disk.mend()
            machine.disk.on_stop = lambda: self._die(name, power=self.rng.random() < 0.5)
            task = asyncio.ensure_future(self.group.start(name))
            task.add_done_callback(lambda _: self.starting.discard(name))

    def _stop_soon(self, name: str) -> None:
        disk = self.group.machines[name].disk
        if name in self.group.nodes:
            disk.stop_at(len(disk.calls) + self.rng.randrange(1, 120))

    def _fail_once(self, name: str, kind: str) -> None:
        def strikes(call: Call) -> bool:
            return call.name == kind and call.path.endswith(".vlog")

        self.group.machines[name].disk.fail_at(strikes)

    def _fill(self, name: str) -> None:
        disk = self.group.machines[name].disk
        disk.capacity_bytes = 1
        self.group.loop.call_later(self.rng.uniform(0.5, 5.0), lambda: setattr(disk, "capacity_bytes", None))

    def _slow(self, name: str) -> None:
        machine = self.group.machines[name]
        machine.latency_s = self.rng.choice(((0.0, 0.000_5), (0.01, 0.2), (0.0, 1.0)))
        if machine.process is not None:
            machine.process.threads.latency_s = machine.latency_s

    def _split(self, name: str) -> None:
        others = [each for each in [*self.group.names, "client"] if each != name]
        self.group.net.split([name], others)

    def _one_way(self, name: str) -> None:
        other = self.rng.choice([each for each in self.group.names if each != name])
        self.group.net.block(name, other)

    def _cut(self, name: str) -> None:
        for other in self.group.names:
            self.group.net.cut(name, other)

    def _turn_clock(self, name: str) -> None:
        machine = self.group.machines[name]
        machine.clock_offset_us = self.rng.randrange(-3_600_000_000, 3_600_000_000)
        if machine.process is not None:
            machine.process.clock.offset_us = machine.clock_offset_us

    # The end.

    async def _heal(self) -> None:
        self.say("everything is mended")
        self.group.net.heal()
        for name, machine in self.group.machines.items():
            machine.disk.mend()
            machine.disk.capacity_bytes = None
            machine.latency_s = (0.0, 0.000_5)
            if machine.process is not None:
                machine.process.threads.latency_s = machine.latency_s
            self._start(name)
        await asyncio.sleep(0)

    async def _settled(self) -> None:
        """Every node serves, and is at the end of the master's log."""
        group = self.group

        def equal() -> bool:
            nodes = group.nodes
            if len(nodes) < len(group.names) or not nodes[group.master].is_master():
                return False
            last = nodes[group.master].opened().range.last
            return all(node.log is not None and node.dtvlsn() >= last - 50 for node in nodes.values())

        await group.until(equal, "the group heals", HEALS_S)
        self.over = True
        await group.until(
            lambda: (
                len({node.dtvlsn() for node in group.nodes.values()}) == 1
                and group.nodes[group.master].dtvlsn() == group.nodes[group.master].opened().range.last
            ),
            "every node is at the master's end",
            HEALS_S,
        )
        answer = await self._last_word()
        self._acknowledge(answer["first"], b"the last word")
        await group.until(
            lambda: all(node.dtvlsn() >= answer["first"] for node in group.nodes.values()), "it is everywhere", HEALS_S
        )

    async def _last_word(self) -> dict[str, Any]:
        """An append on a majority; a moment may pass until the replicas are past their syncup."""
        for _ in range(int(HEALS_S / 0.1)):
            status, answer = await self.group.append(b"the last word")
            if status == 200:
                return answer
            assert answer["type"] in ("insufficient-replicas", "no-master"), answer
            await asyncio.sleep(0.1)
        raise AssertionError("no append on a majority after everything was mended")

    def _remember(self, name: str) -> None:
        node = self.group.nodes.get(name)
        if node is not None and node.log is not None:
            self.report.replaced += node.log.stats.rolls["error"]

    async def _check(self) -> None:
        group, report = self.group, self.report
        held: dict[str, dict[int, bytes]] = {}
        names: dict[tuple[int, int], bytes] = {}
        for name, node in group.nodes.items():
            self._remember(name)
            log = node.opened()
            report.cleaned = max(report.cleaned, log.range.first - 1)
            held[name] = await self._entries(name)
            for block in _blocks(log):
                header = decode_header(block)
                assert names.setdefault((header.term, header.first_vlsn), block) == block, f"{name}: {header.name}"
            for vlsn, value in self.shown.items():
                if vlsn >= log.range.first:
                    assert held[name].get(vlsn) == value, f"{name}: VLSN {vlsn} was shown, and is gone or another"
            values = list(held[name].values())
            assert not self.refused.intersection(values), f"{name} has what was refused"
            assert len(values) == len(set(values)), f"{name} has a value twice"
            found = verify(group.machines[name].disk, group.machines[name].stores, f"/{name}", live=True)
            assert found.ok, f"{name}: {found.findings}"
        ranges = {name: node.opened().range for name, node in group.nodes.items()}
        assert len({span.last for span in ranges.values()}) == 1, ranges
        begin = max(span.first for span in ranges.values())
        common = [{vlsn: value for vlsn, value in each.items() if vlsn >= begin} for each in held.values()]
        assert all(each == common[0] for each in common)
        report.last = group.nodes[group.master].opened().range.last

    async def _entries(self, name: str) -> dict[int, bytes]:
        found: dict[int, bytes] = {}
        at: int = self.group.nodes[name].opened().range.first
        while True:
            response = await self.group.client.request(
                "GET", f"{self.group.url(name)}/v1/entries?from={at}", timeout_s=9
            )
            if response.status == 410:  # cleaned away meanwhile
                found.clear()
                at = msgspec.json.decode(bytes(response.body))["first"]
                continue
            assert response.status == 200, bytes(response.body)
            lines = [msgspec.json.decode(line) for line in bytes(response.body).splitlines()]
            if not lines:
                return found
            found.update((line["vlsn"], line["value"].encode()) for line in lines)
            at = int(response.headers["Vlsnlog-Next"])


def _blocks(log: Any) -> list[bytes]:
    """Every visible block of a log, from its segments."""
    span = log.range
    mapping = log.index.at_or_before(span.first)
    reader: LogReader = log.reader()
    blocks: list[bytes] = []
    at: int = span.first
    start = mapping[1]
    while at <= span.last_sync:
        run = reader.blocks(at, start=start, upto_vlsn=span.last_sync, bytes_max=1 << 20)
        assert run.data, f"nothing at VLSN {at} of {span}"
        blocks += run.data
        at, start = run.next_vlsn, run.next_lsn
    reader.close()
    return blocks


async def simulated(seed: int, *, faults_s: float = FAULTS_S) -> Report:
    """One seed's report; a violation comes with the story of its faults."""
    simulation = Simulation(seed, faults_s=faults_s)
    try:
        return await simulation.run()
    except BaseException as error:
        error.add_note("\n".join(simulation.report.transcript))
        raise
