"""An open log on a disk in memory, driven step by step, and what it must hold."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from tests.fakes.clock import FakeClock
from tests.fakes.random import SeededRandom
from tests.fakes.threads import InlineThreads
from vlsn.embedded.log import GROUP_NAME, NODE_NAME, Log
from vlsn.errors import LogFailed, NoSpace, VlsnLogError
from vlsn.format.block import EntryKind
from vlsn.format.records import TermEntry
from vlsn.format.submission import Submission, Values
from vlsn.ids import Lsn, Term, Vlsn
from vlsn.limits import RETRY_S_MAX
from vlsn.real.threads import CallerThreads
from vlsn.recover.recovery import recover
from vlsn.seams import Seams
from vlsn.segments.reader import LogReader
from vlsn.state.options import Durability, LogOptions
from vlsn.write.local_log import LocalLog
from vlsn.write.queue import Pending
from vlsn.write.write_cycle import LogListener
from vlsnlog.testing.fakes.disk import FakeDisk
from vlsnlog.testing.fakes.kv import FakeStores

DIRECTORY = "/log"
SMALL = LogOptions(segment_bytes=64 << 10, checkpoint_bytes=1 << 30, block_bytes_max=16 << 10, group_bytes_max=32 << 10)


def embedded_log(disk: FakeDisk, options: LogOptions = SMALL, *, clock: FakeClock | None = None) -> Log:
    """Opens an embedded log in real threads, on that disk in memory; its stores are new."""
    seams = Seams(disk, clock or FakeClock(), SeededRandom(Random(2)), CallerThreads(), FakeStores(disk))
    keeper = seams.threads.worker("vlsnlog-keeper")
    recovered = recover(DIRECTORY, seams, group=GROUP_NAME, node=NODE_NAME, segment_bytes=options.segment_bytes)
    log = Log(recovered, options, seams, keeper)
    log._take_term()
    return log


class Machine:
    """A machine that outlives a process: disk and stores."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = Random(seed)
        self.disk = FakeDisk(rng=self.rng)
        self.directory = DIRECTORY
        self.stores = FakeStores(self.disk)
        self.clock = FakeClock()
        self._stop_at = 0
        self._fail_at = (0, 0)
        self.begun = 0
        self.lives: list[Opened] = []
        """Every log that was opened here, or begun to be, in turn."""

    def begin(self) -> None:
        """Marks where what is under test begins."""
        self.begun = len(self.disk.calls)

    def stop_at(self, number: int) -> None:
        """Stops at that disk call, also if it is made by a later process."""
        self._stop_at = number
        self.disk.stop_at(number)

    def fail_at(self, number: int, code: int) -> None:
        """Fails that disk call, also if it is made by a later process."""
        self._fail_at = (number, code)
        self.disk.fail_at(number, code=code)

    def seams(self) -> Seams:
        return Seams(self.disk, self.clock, SeededRandom(self.rng), InlineThreads(), self.stores)

    def kill(self) -> None:
        self.disk.process_kill()
        self.stores.abandon()
        if self._stop_at > len(self.disk.calls):
            self.disk.stop_at(self._stop_at)
        if self._fail_at[0] > len(self.disk.calls):
            self.disk.fail_at(self._fail_at[0], code=self._fail_at[1])

    def end(self, how: str) -> None:
        """Ends the process by a ``kill``, a ``power_cut`` or a ``torn`` one."""
        if how == "kill":
            self.kill()
        else:
            self.power_cut(tear=how == "torn")

    def power_cut(self, *, tear: bool = False) -> None:
        self.disk.process_kill()
        self.stores.abandon()
        self.disk.power_cut(self.rng, tear=tear)


def contents(machine: Machine) -> dict[str, bytes]:
    """Its log's files, by name."""
    found = {}
    for name in machine.disk.list("/log"):
        file = machine.disk.open(f"/log/{name}")
        found[name] = file.read(0, file.size())
        file.close()
    return found


class Waiting(Pending):
    """An append and what came of it."""

    __slots__ = ("error", "synced", "values")

    def __init__(
        self, values: list[bytes], durability: Durability = Durability.SYNC, submission: Submission | None = None
    ) -> None:
        super().__init__(submission or Values(values), durability)
        self.values = values
        self.synced = False
        self.error: VlsnLogError | None = None

    def refused(self, error: VlsnLogError) -> None:
        self.error = error


class Opened(LogListener):
    """A log that is open: ``append`` returns the append, which is synced on return (its jobs run inline)."""

    def __init__(self, machine: Machine, options: LogOptions = SMALL, *, take_term: bool = True) -> None:
        self.machine = machine
        self.waiting: list[Waiting] = []
        self.failure: LogFailed | None = None
        machine.lives.append(self)
        self.written_vlsn = 0
        seams = machine.seams()
        recovered = recover(machine.directory, seams, group="g", node="n1", segment_bytes=options.segment_bytes)
        self.notes = recovered.notes
        self.keeper, self.writer = seams.threads.worker("keeper"), seams.threads.worker("writer")
        self.log = LocalLog(
            recovered, options, seams, writer=self.writer, keeper=self.keeper, listener=self, failed=self.failed
        )
        if take_term:
            self.take_term()

    def take_term(self) -> None:
        log = self.log
        term = Term(max(log.node_file.record.term, log.view.history.last_term) + 1)
        log.node_file.replace(replace(log.node_file.record, term=term))
        log.start_sealing(term)
        entry = TermEntry(term=term, master="n1", incarnation=f"{log.node_file.record.incarnation:016x}")
        log.append_entries([EntryKind.TERM], [entry.encode()], lambda _: None)

    def append(self, *values: bytes, durability: Durability = Durability.SYNC) -> Waiting:
        pending = Waiting(list(values), durability)
        self.log.append(pending)
        return pending

    def entries(self) -> dict[int, bytes]:
        """DATA entries by VLSN, read from the segments through the index."""
        span = self.log.view.range
        if not span.last:
            return {}
        mapping = self.log.view.index.at_or_before(span.first)
        assert mapping is not None
        reader = LogReader(self.machine.disk, self.machine.directory, self.log.view.synced_end)
        found: dict[int, bytes] = {}
        at, start = int(span.first), mapping[1]
        while at <= span.last_sync:
            run = reader.entries(at, start=start, upto_vlsn=span.last_sync, limit=1000, bytes_max=1 << 20)
            assert run.next_vlsn > at
            found.update((entry.vlsn, entry.value) for entry in run.entries)
            at, start = run.next_vlsn, run.next_lsn
        reader.close()
        return found

    def frames_after(self, matchpoint: int) -> list[Lsn]:
        """LSNs of the visible blocks after ``matchpoint``, a block's end."""
        reader = LogReader(self.machine.disk, self.machine.directory, self.log.view.synced_end)
        mapping = self.log.view.index.at_or_before(Vlsn(matchpoint + 1))
        assert mapping is not None
        last = self.log.view.range.last
        run = reader.blocks(matchpoint + 1, start=mapping[1], upto_vlsn=last, bytes_max=1 << 30)
        assert run.last == last
        reader.close()
        return run.lsns

    def close(self) -> None:
        self.log.close(lambda: None)
        self.log.node_file.close()

    # The listener.

    def sealed(self, pendings: list[Pending]) -> None:
        self.waiting.extend(pending for pending in pendings if isinstance(pending, Waiting))

    def written(self, last_vlsn: Vlsn) -> None:
        self.written_vlsn = last_vlsn

    def synced(self, last_vlsn: Vlsn) -> None:
        while self.waiting and self.waiting[0].last <= last_vlsn:
            self.waiting.pop(0).synced = True
        self.log.view.raise_dtvlsn(last_vlsn)

    def failed(self, error: LogFailed) -> None:
        self.failure = error


class Undurable(Opened):
    """A log whose group has acknowledged up to ``durable`` only, so that it can be rolled back to there."""

    def __init__(self, machine: Machine, durable: int = 4, options: LogOptions = SMALL) -> None:
        self.durable = durable
        super().__init__(machine, options)

    def synced(self, last_vlsn: Vlsn) -> None:
        super().synced(last_vlsn)
        self.log.view.dtvlsn = Vlsn(min(last_vlsn, self.durable))


def put(opened: Opened, held: dict[int, bytes], count: int, size: int = 700) -> None:
    """Appends ``count`` values, no two of a log the same; ``held`` gets those that are acknowledged, by VLSN.  An
    append refused for want of a segment is sent again when another try to make one is due."""
    for number in range(count):
        value = f"{len(held)}/{number}/{opened.log.view.history.last_term}:".encode().ljust(size, b".")
        try:
            pending = opened.append(value)
        except NoSpace:
            opened.machine.clock.advance(RETRY_S_MAX)
            opened.log.tick()
            pending = opened.append(value)
        if pending.synced:
            held[pending.first] = value
