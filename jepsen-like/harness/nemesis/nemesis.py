"""Applies faults as planned, notes each beginning and end in the history, and counts those that had an effect.

A fault *struck* if it had its effect.  A kill or pause met a running process, a kill after a cleaning one that had just
removed a segment.  A partition held back or cut something; a clock was read by its process.  A disk fault met data or a
call; a transfer moved the leadership; a change of the members is in the list.  Only these are counted.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any

from harness.group.nodes import Group
from harness.group.watch import Watch
from harness.nemesis import clock, disk
from harness.nemesis.changing import Changing
from harness.nemesis.plan import Strike
from harness.nemesis.targets import nodes_hit, pairs_hit
from harness.ops import Recorder
from harness.orders import order
from repl.web.types import Network
from vlsn.errors import VlsnLogError

TRANSFER_S = 15.0
AGAIN_S = 0.2
LOOK_S = 0.002
"""Seconds between two checks for a removed segment."""
DOWN_S = 2.0


class Nemesis:
    """The faults of one run."""

    def __init__(
        self, group: Group, watch: Watch, network: Network, recorder: Recorder, *, fragile: Sequence[str]
    ) -> None:
        self.struck: Counter[str] = Counter()
        self.ways: Counter[str] = Counter()
        """Faults with an effect, by kind and way: ``kill master``."""
        self.now: dict[int, str] = {}
        """Short descriptions of the faults under way."""
        self._group = group
        self._watch = watch
        self._network = network
        self._recorder = recorder
        self._fragile = list(fragile)
        self._number = 0
        self._parting = asyncio.Lock()
        """Held during a partition, since a second one would take over the first one's pairs and their counts, and the
        first would heal them. The plan has no overlap, but on a busy machine a partition may last longer."""
        self.changing = Changing(group, network, recorder, stay=self._fragile)

    async def run(self, strikes: Sequence[Strike]) -> None:
        """Returns once the last fault has ended.  After a cancel ``Group.release`` ends the faults under way."""
        began = self._recorder.now_s()
        async with asyncio.TaskGroup() as tasks:
            for strike in strikes:
                await asyncio.sleep(began + strike.at_s - self._recorder.now_s())
                tasks.create_task(self._strike(strike))

    async def _strike(self, strike: Strike) -> None:
        self._number += 1
        number = self._number
        chance = Random(strike.draw)
        match strike.kind:
            case "kill" | "pause" | "clock" | "cleaning":
                running = [name for name in self._group.listed if self._group.running(name)]
                nodes = nodes_hit(strike.way, self._group.electable, running, self._watch.master, chance)
            case "disk":
                nodes = [chance.choice(self._fragile)]
            case _:
                nodes = []
        strikes = {"kill": self._kill, "pause": self._pause, "partition": self._partition}
        strikes |= {"clock": self._clock, "disk": self._disk, "transfer": self._transfer, "members": self._members}
        strikes |= {"cleaning": self._cleaning}
        struck = await strikes[strike.kind](strike, number, nodes, chance)
        self.now.pop(number, None)
        if struck:
            self.struck[strike.kind] += 1
            self.ways[f"{strike.kind} {self.changing.went.get(number, strike.way)}"] += 1

    def _begins(self, strike: Strike, number: int, nodes: Sequence[str], **more: Any) -> None:
        self.now[number] = f"{strike.kind} {' '.join(nodes)}"
        value = {"id": number, "phase": "begin", "way": strike.way, "nodes": list(nodes), **more}
        self._recorder.record("nemesis", "info", strike.kind, value)

    def _ends(self, strike: Strike, number: int, struck: bool, **more: Any) -> bool:
        value = {"id": number, "phase": "end", "struck": struck, **more}
        self._recorder.record("nemesis", "info", strike.kind, value)
        return struck

    async def _kill(self, strike: Strike, number: int, nodes: list[str], chance: Random) -> bool:
        self._begins(strike, number, nodes)
        hit = await self._group.stop(nodes, f"kill {number}")
        await asyncio.sleep(strike.lasts_s)
        self._group.start_again(nodes, f"kill {number}")
        return self._ends(strike, number, bool(hit))

    async def _cleaning(self, strike: Strike, number: int, nodes: list[str], chance: Random) -> bool:
        """Kills a node as soon as it has removed a segment; waits for that as long as the strike may last."""
        (name,) = nodes
        loop = asyncio.get_running_loop()
        until_s = loop.time() + strike.lasts_s
        first = disk.first_segment(self._group.directory(name))
        self._begins(strike, number, nodes)
        cleaned, hit = False, list[str]()
        while not cleaned and loop.time() < until_s:
            await asyncio.sleep(LOOK_S)
            cleaned = "" < first < disk.first_segment(self._group.directory(name))
        if cleaned:
            hit = await self._group.stop(nodes, f"cleaning {number}")
            await asyncio.sleep(chance.uniform(0.0, DOWN_S))
            self._group.start_again(nodes, f"cleaning {number}")
        return self._ends(strike, number, bool(hit))

    async def _pause(self, strike: Strike, number: int, nodes: list[str], chance: Random) -> bool:
        hit = self._group.pause(nodes, f"pause {number}")
        self._begins(strike, number, nodes)
        await asyncio.sleep(strike.lasts_s)
        self._group.go_on(nodes, f"pause {number}")
        return self._ends(strike, number, bool(hit))

    async def _partition(self, strike: Strike, number: int, nodes: list[str], chance: Random) -> bool:
        async with self._parting:
            return await self._part(strike, number, chance)

    async def _part(self, strike: Strike, number: int, chance: Random) -> bool:
        links = self._group.links
        pairs = pairs_hit(strike.way, self._group.electable, self._watch.master, chance)
        how = chance.choice(("hold", "hold", "cut"))
        cut_after = chance.random() < 0.5
        await links.block(pairs, "cut" if how == "cut" else "hold")
        self._begins(strike, number, _sides(pairs), pairs=pairs, how=how)
        await asyncio.sleep(strike.lasts_s)
        met = await links.met(pairs)
        await links.heal(pairs, cut=cut_after)
        return self._ends(strike, number, met > 0, met=met)

    async def _clock(self, strike: Strike, number: int, nodes: list[str], chance: Random) -> bool:
        offsets = {name: clock.draw_offset(chance) for name in nodes}
        for name, offset in offsets.items():
            clock.set_offset(self._group.directory(name), offset)
        self._begins(strike, number, nodes, offsets=offsets)
        await asyncio.sleep(strike.lasts_s)
        pids = self._group.pids()
        struck = any(clock.moved(pids.get(name)) for name in nodes)
        if chance.random() < 0.7:  # otherwise it stays wrong
            for name in nodes:
                clock.set_offset(self._group.directory(name), 0.0)
        return self._ends(strike, number, struck)

    async def _disk(self, strike: Strike, number: int, nodes: list[str], chance: Random) -> bool:
        (name,) = nodes
        self._begins(strike, number, nodes)
        self._group.may_end.add(name)
        match strike.way:
            case "eio" | "eio-for-good":
                return await self._failing_calls(strike, number, name, chance)
            case "wipe":
                await self._group.stop(nodes, f"disk {number}")
                struck, where = disk.wipe(self._group.directory(name)), "all"
            case _:
                if stopped := chance.random() < 0.5:
                    await self._group.stop(nodes, f"disk {number}")
                where = disk.flip_bit(self._group.directory(name), chance)
                struck = bool(where)
                where += " of a stopped node" if stopped else " of a running node"
        await asyncio.sleep(strike.lasts_s)
        self._group.start_again(nodes, f"disk {number}")
        return self._ends(strike, number, struck, where=where)

    async def _transfer(self, strike: Strike, number: int, nodes: list[str], chance: Random) -> bool:
        """Orders the master to transfer leadership, again and again, until one has done it or the strike is over. Other
        faults may hit the master meanwhile."""
        loop, status = asyncio.get_running_loop(), 0
        until_s = loop.time() + strike.lasts_s
        while self._watch.master is None and loop.time() < until_s:  # noqa: ASYNC110  the watch sees it
            await asyncio.sleep(AGAIN_S)
        master = self._watch.master
        self._begins(strike, number, [master] if master is not None else [])
        while status != 200 and loop.time() < until_s:
            if (master := self._watch.master) is not None:
                status = await self._handed_over(master, strike.way, chance)
            await asyncio.sleep(AGAIN_S)
        return self._ends(strike, number, status == 200, status=status)

    async def _handed_over(self, master: str, way: str, chance: Random) -> int:
        """Orders a transfer and returns the answer's status, 0 without an answer."""
        others = [name for name in self._group.electable if name != master]
        heir = f"?to={chance.choice(others)}" if way == "named" else ""
        try:
            answer = await order(self._network, self._group.urls[master], f"transfer{heir}", timeout_s=TRANSFER_S)
        except VlsnLogError:
            return 0
        return answer.status

    async def _members(self, strike: Strike, number: int, nodes: list[str], chance: Random) -> bool:
        return await self.changing.strike(strike, number, chance, self.now)

    async def _failing_calls(self, strike: Strike, number: int, name: str, chance: Random) -> bool:
        pid = self._group.pids().get(name)
        if pid is None:
            return self._ends(strike, number, False)
        when = str(chance.randrange(1, 8)) if strike.way == "eio" else f"{chance.randrange(1, 20)}+"
        calls = disk.FailingCalls(pid, self._group.directory(name) / f"eio-{number}.trace", when)
        await calls.begin()
        await asyncio.sleep(strike.lasts_s)
        failed = await calls.end()
        return self._ends(strike, number, failed > 0, failed=failed)


def _sides(pairs: Sequence[tuple[str, str]]) -> list[str]:
    """Returns the nodes of a partition: those with the most blocked pairs; both sides if all have equally many."""
    lost = Counter(name for pair in pairs for name in pair)
    most = max(lost.values())
    return sorted(name for name, count in lost.items() if count == most)
