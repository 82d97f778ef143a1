"""An operator who cuts logs: ``vlsnlog truncate`` on the machine of a node that is down, at the end of some block.

The node is one of the minority whose disks may lose things, and the cut entries may have been durable.  The node
receives them again, and until then its vote floor keeps it from leading or voting for less.  The tables of its cut log
(small state, producers, handles, destinations) are compared with the remaining entries, like any node's.

All draws are from a separate stream, so that seeds without such an operator run as before.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING

from tests.fakes.clock import FakeClock
from tests.fakes.random import SeededRandom
from tests.fakes.threads import InlineThreads
from tests.sim.logs import visible
from vlsn.errors import BadArgument, Damaged
from vlsn.offline.truncate import Truncation, loss_of
from vlsn.seams import Seams
from vlsn.state.node_file import NodeRecord

if TYPE_CHECKING:
    from tests.sim.nemesis import Nemesis

RATE = 0.4
"""The share of the seeds with such a minority that have such an operator."""
EVERY_S = (2.0, 15.0)
BLOCKS_MAX = 60
"""Blocks that are cut at most."""
AWAY_S = (0.01, 1.0)
WHAT = "cut by a person"


class Cuts:
    def __init__(self, nemesis: Nemesis) -> None:
        self._nemesis, self._group = nemesis, nemesis.group
        self._rng = Random(f"cuts/{nemesis.report.seed}")
        self._is_there = nemesis.rot == "minority" and self._rng.random() < RATE

    async def run(self) -> None:
        """Runs until it is cancelled."""
        while self._is_there:
            await asyncio.sleep(self._rng.uniform(*EVERY_S))
            victims = [name for name in self._nemesis.victims if self._nemesis.disks.may_be_emptied(name)]
            if victims and not self._nemesis.images.returning:
                name = self._rng.choice(victims)
                if self._nemesis.strike(WHAT, name, self._cut):
                    self._nemesis.minority.struck(WHAT, name)

    def _cut(self, name: str) -> bool:
        nemesis, machine = self._nemesis, self._group.machines[name]
        nemesis.die(name, power=False, back=False)
        nemesis.later(self._rng.uniform(*AWAY_S), lambda: nemesis.start(name))
        machine.disk.mend()
        blocks = [block for block, _ in visible(machine.disk, f"/{name}", self._group.watch.flips)]
        if len(blocks) < 2:
            return False
        after = self._rng.choice(blocks[-BLOCKS_MAX - 1 : -1]).last
        try:
            loss = loss_of(machine.disk, machine.stores, f"/{name}", after)
            self._truncate(name, after)
        except (BadArgument, Damaged):  # in the list of members or in a level, or damage
            return False
        nemesis.lost = True
        nemesis.report.met["a cut of what was durable"] += loss.durable > 0
        nemesis.say(f"    after VLSN {after}, which {loss.entries} followed")
        self._group.watch.cut(name)
        return True

    def _truncate(self, name: str, after: int) -> None:
        machine = self._group.machines[name]
        clock = FakeClock(machine.loop.time, offset_us=machine.clock_offset_us)
        seams = Seams(
            machine.disk, clock, SeededRandom(self._rng), InlineThreads(), machine.stores, levels=machine.levels
        )
        ended: list[NodeRecord] = []
        errors: list[BaseException] = []
        Truncation(seams, f"/{name}", after, done=ended.append, failed=errors.append).close()
        if errors:
            raise errors[0]
        assert ended
