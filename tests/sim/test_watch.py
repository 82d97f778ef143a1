"""The watch itself: cases that it must report as a loss, and others that it must not."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes.loop import virtual
from tests.sim.disks import is_safe
from tests.sim.group import SimGroup
from tests.sim.logs import places
from tests.vlsn.logs import DIRECTORY, Machine, Opened


@pytest.mark.parametrize("rotten", [[1], [1, 2, 3], [5], [9]], ids=["first", "head", "inside", "last"])
def test_a_block_that_rots_on_one_of_three_rots_on_no_other(rotten: list[int]) -> None:
    """Wherever in the log it is: with all blocks before it, a copy reads as if it began behind it."""
    machines, flips = {f"n{number}": Machine(number) for number in (1, 2, 3)}, dict[str, dict[int, int]]()
    for machine in machines.values():
        opened = Opened(machine)
        for _ in range(8):
            opened.append(b"." * 100)
        opened.close()
    at = places(machines["n1"].disk, DIRECTORY)
    blocks = {block.first: block for block in at}
    for vlsn in rotten:
        path, start, _ = at[blocks[vlsn]]
        flips.setdefault(path, {})[start] = machines["n1"].disk.content(path)[start]
        machines["n1"].disk.flip_bit(path, start)
    copies = {name: places(machine.disk, DIRECTORY) for name, machine in machines.items()}
    had = {name: places(machine.disk, DIRECTORY, flips) for name, machine in machines.items()}
    assert had["n1"] == at
    for vlsn, block in blocks.items():
        assert is_safe(block, copies, had, "n2") is (vlsn not in rotten), vlsn


class GivenUp:
    """A rollback of an entry that others made durable. n1 and n4 of five nodes have one entry more than the others. The
    next master feeds n4 alone, which rolls that entry back; at this moment the new master ends."""

    def __init__(self) -> None:
        self.group = SimGroup(1, 5, lambda _: None)
        self.group.on_event = self._heard
        self.vlsn = 0
        self.rolled_back = False
        self._next = ""

    async def play(self, *, restarts: bool) -> None:
        """Runs it; with ``restarts`` n4 restarts before any node feeds it, otherwise its process continues."""
        group = self.group
        await group.start()
        await group.serving("n1")
        group.net.split(["n1", "n4", "client"], ["n2", "n3", "n5"])
        _, answer = await group.append(b"on two of five", to="n1", acks="none")
        self.vlsn = int(answer["first"])
        await group.until(lambda: group.nodes["n4"].opened().log.view.range.last >= self.vlsn, "n4 has it")
        group.kill("n1")
        await group.until(lambda: self.rolled_back, "n4 has rolled it back")
        holders = group.watch.ledger.holders[1, self.vlsn]
        assert {name for name, _ in holders} == {"n1"}, "n4 makes it durable for nobody any more"
        if restarts:
            group.kill("n4")
        else:
            group.net.split(["n4"], ["n1", "n2", "n3", "n5", "client"])
        group.net.unblock([(one, other) for one in group.names for other in group.names if "n4" not in (one, other)])
        await group.start("n1")
        await group.until(lambda: group.watch.durable_last >= self.vlsn, "n1 and two others make it durable")
        group.net.heal()
        if restarts:
            await group.start("n4")
        await group.until(lambda: "n4" in group.nodes and group.nodes["n4"].dtvlsn() > self.vlsn, "n4 has it again")
        await group.stop()

    def _heard(self, name: str, event: str, _: dict[str, Any]) -> None:
        if event == "leads" and name != "n1" and not self._next:
            self._next = name
            others = [each for each in self.group.names if each not in (name, "n4")]
            self.group.net.heal()
            self.group.net.split([name, "n4"], others)
        if event == "rolled_back" and name == "n4":
            self.rolled_back = True
            self.group.kill(self._next)  # before it has fed anything


@pytest.mark.parametrize("restarts", [True, False])
@virtual
async def test_what_a_node_has_rolled_back_may_become_durable_without_it(restarts: bool) -> None:
    story = GivenUp()
    await story.play(restarts=restarts)
    assert story.group.watch.violation is None
    assert story.group.watch.writing.rolled_back == 1
