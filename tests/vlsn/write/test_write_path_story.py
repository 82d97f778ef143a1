"""The write path under everything at once, from a seed. There are appends of each durability, rolls, checkpoints,
rollbacks, cleaning, ticks, clean stops, and a write or sync that fails every few calls; then any end of the process,
and again.

A plain dictionary says what must be there: synced entries that were not rolled back always, entries that were only
written perhaps.
"""

from __future__ import annotations

import errno
from random import Random

import pytest

from tests.fakes.seeds import seeds
from tests.vlsn.logs import DIRECTORY, Machine, Opened, Waiting
from vlsn.errors import NotMaster
from vlsn.format.block import decode_header
from vlsn.format.segment import segment_name
from vlsn.ids import Vlsn
from vlsn.state.holds import Owner
from vlsn.state.options import Durability, LogOptions
from vlsn.verify.dump import DumpFilter, dump_rows
from vlsn.verify.verify import verify
from vlsnlog.testing.fakes.disk import Call, StopHere

OPTIONS = LogOptions(
    segment_bytes=64 << 10,
    checkpoint_bytes=200 << 10,
    checkpoint_period_s=20.0,
    block_bytes_max=16 << 10,
    group_bytes_max=32 << 10,
    flush_interval_s=0.5,
    sync_interval_s=1.0,
    roll_period_s=60.0,
    retention_bytes=600 << 10,
)
DURABILITIES = (Durability.SYNC, Durability.SYNC, Durability.WRITE_NO_SYNC, Durability.NO_SYNC)
SIZES = (10, 10, 300, 3000, 9000, 30_000, 55_000)


class Story(Opened):
    """A log whose durable end lags behind what is synced, as its owner says."""

    def __init__(self, machine: Machine) -> None:
        self.behind = 0
        super().__init__(machine, OPTIONS)

    def synced(self, last_vlsn: Vlsn) -> None:
        durable = self.log.view.dtvlsn
        super().synced(last_vlsn)
        self.log.view.dtvlsn = Vlsn(max(durable, last_vlsn - self.behind))


class World:
    """One machine, the values appended to its log, and the steps that may come."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.machine = Machine(seed)
        self.given: dict[int, bytes] = {}
        """All that has its VLSN, synced or not."""
        self.appends: list[Waiting] = []
        """Those not known synced yet."""
        self.synced: dict[int, bytes] = {}
        self.number = 0
        self.undoing: int | None = None
        """The VLSN to which a rollback is under way."""
        self.stop_at = 0
        """The disk call at which this life ends; 0: when its steps are over."""
        self.failures = 0
        self.opened = Story(self.machine)

    def append(self) -> None:
        rng = self.rng
        count = rng.choice((1, 1, 1, 3))
        self.number += 1
        sizes = SIZES[: 4 if count > 1 else 7]
        values = [f"{self.number}/{at}:".encode().ljust(rng.choice(sizes), b".") for at in range(count)]
        pending = Waiting(values)
        pending.durability = rng.choice(DURABILITIES)
        self.appends.append(pending)
        self.opened.log.append(pending)
        told = pending.first
        if pending.durability is Durability.SYNC:
            self.settle()
            assert pending.synced, (pending.error, self.opened.failure)
        elif pending.durability is Durability.NO_SYNC:
            assert told or pending.synced

    def settle(self) -> None:
        """Standbys are made, and what can be written is."""
        for _ in range(3):
            self.opened.log.tick()
        self.note()

    def note(self) -> None:
        left = []
        for pending in self.appends:
            # A stopped process may go on, but reaches nobody.
            assert pending.error is None or self.machine.disk.stopped, pending.error
            if pending.synced:
                self.synced.update(zip(range(pending.first, pending.last + 1), pending.values, strict=True))
            else:
                left.append(pending)
        self.appends = left

    def fail(self) -> None:
        """The next write or sync, or the one after it, fails, unless it is of a replacement."""
        kind, skip = self.rng.choice(("write", "sync")), self.rng.randrange(2)
        seen = [0]
        log = self.opened.log

        def when(call: Call) -> bool:
            group = log.cycle.group
            if group is None or log.replacer.active or call.name != kind:
                return False
            if call.path not in [f"{DIRECTORY}/{segment_name(chunk.tail.number)}" for chunk in group.chunks]:
                return False
            seen[0] += 1
            return seen[0] > skip

        self.machine.disk.fail_at(when, code=self.rng.choice((errno.EIO, errno.ENOSPC)))

    def rollback(self) -> None:
        """Rolls back to the end of some block past the durable end."""
        log = self.opened.log
        self.sync()
        ends = [int(log.view.range.last)]
        low = max(log.view.dtvlsn, log.view.range.first)
        if low < log.view.range.last:
            reader = log.view.reader()
            at = log.view.index.at_or_before(Vlsn(low + 1))
            assert at is not None
            run = reader.blocks(low + 1, start=at[1], upto_vlsn=log.view.range.last, bytes_max=1 << 30)
            reader.close()
            ends += [first - 1 for first in (decode_header(block).first_vlsn for block in run.data) if first - 1 >= low]
        matchpoint = self.rng.choice(ends)
        self.undoing = matchpoint
        log.stop_sealing(NotMaster("another term"))
        over: list[int] = []
        log.rollback(Vlsn(matchpoint), lambda: over.append(1), lambda error: pytest.fail(str(error)))
        self.settle()
        assert over == [1], self.opened.failure
        self.synced = {vlsn: data for vlsn, data in self.synced.items() if vlsn <= matchpoint}
        self.undoing = None
        assert log.view.range.last == matchpoint
        self.opened.take_term()

    def sync(self) -> None:
        over: list[int] = []
        self.opened.log.cycle.drain(lambda: over.append(1))
        self.settle()
        assert over == [1], self.opened.failure
        assert not self.appends

    def clean(self) -> None:
        log = self.opened.log
        reports: list[object] = []
        if self.rng.random() < 0.5:
            log.care.checkpointer.run()
        if self.rng.random() < 0.3:
            log.care.holds.place(Owner.BACKUP, "b", Vlsn(max(log.view.range.last - 30, log.care.holds.floor + 1)))
        log.care.cleaner.run(reports.append)
        self.settle()
        assert len(reports) == 1

    def check(self) -> None:
        """Checks that what is synced is read, and nothing else."""
        log = self.opened.log
        self.note()
        found = self.opened.entries()
        wanted = {vlsn: data for vlsn, data in self.synced.items() if vlsn >= log.view.range.first}
        assert found == wanted

    def step(self) -> None:
        log, rng = self.opened.log, self.rng
        if rng.random() < 0.3:
            self.failures += 1
            self.fail()
        draw = rng.random()
        if draw < 0.75:
            self.append()
        elif draw < 0.80:
            log.cycle.rotate(rng.choice(("request", "slow_sync")))
        elif draw < 0.84:
            log.care.checkpointer.run()
        elif draw < 0.88:
            self.rollback()
        elif draw < 0.91:
            self.clean()
        elif draw < 0.97:
            self.machine.clock.advance(rng.choice((0.3, 0.6, 1.1, 30.0)))
            log.tick()
        elif draw < 0.99:
            self.opened.behind = rng.choice((0, 3, 20))
        else:
            self.check()
        self.mend()
        assert self.opened.failure is None, self.opened.failure
        self.note()

    def mend(self) -> None:
        self.machine.disk.mend()
        if self.stop_at:
            self.machine.disk.stop_at(self.stop_at, moment=self.rng.choice(("before", "during", "after")))

    def life(self, steps: int) -> None:
        """Makes so many steps, or fewer; then the process ends."""
        if self.rng.random() < 0.6:
            self.stop_at = len(self.machine.disk.calls) + self.rng.randrange(1, steps * 15)
        self.mend()
        try:
            for _ in range(steps):
                self.step()
        except StopHere:
            self.note()
        self.stop_at = 0
        self.end()

    def end(self) -> None:
        """The process ends in one way or another; the next one finds all it must, and nothing else."""
        machine, rng = self.machine, self.rng
        how = rng.choice(("close", "kill", "power cut", "torn"))
        if how == "close" and not machine.disk.stopped:
            machine.disk.mend()
            if rng.random() < 0.3:
                self.fail()
            self.opened.close()
            assert self.opened.log.life.closed
            self.note()
            assert not self.appends
        machine.kill() if how in ("close", "kill") else machine.power_cut(tear=how == "torn")
        perhaps = {v: data for p in self.appends for v, data in zip(range(p.first, p.last + 1), p.values, strict=False)}
        self.appends = []
        self.opened = Story(machine)
        found = self.opened.entries()
        span = self.opened.log.view.range
        undone = self.undoing is not None and span.last <= self.undoing + 1  # and the TERM entry of this life
        for vlsn, data in self.synced.items():
            if vlsn >= span.first and not (undone and self.undoing is not None and vlsn > self.undoing):
                assert found.get(vlsn) == data, (how, vlsn)
        for vlsn, data in found.items():
            assert self.synced.get(vlsn, perhaps.get(vlsn)) == data, (how, vlsn)
        self.undoing = None
        self.synced = found
        report = verify(machine.disk, machine.stores, DIRECTORY, live=True)
        assert report.ok, (how, report.findings)

    def outside(self) -> None:
        """A clean stop; then verify and dump of the closed directory find it whole."""
        self.sync()
        self.check()
        self.opened.close()
        self.machine.kill()
        report = verify(self.machine.disk, self.machine.stores, DIRECTORY)
        assert report.ok, report.findings
        rows = list(dump_rows(self.machine.disk, self.machine.stores, DIRECTORY, DumpFilter()))
        assert not [row for row in rows if row.damaged]
        assert [(row.first, row.last) for row in rows if row.kind == "BLOCK"][-1][1] == self.opened.log.view.range.last


@pytest.mark.parametrize("seed", seeds(30))
def test_nothing_that_was_acknowledged_is_lost_doubled_or_shown_too_early(seed: int) -> None:
    world = World(seed)
    for _ in range(world.rng.choice((1, 3, 4))):
        world.life(world.rng.choice((10, 60)))
    world.outside()
    print(f"{world.failures} failures asked for; in the last life {world.opened.log.stats.write_errors} came")
