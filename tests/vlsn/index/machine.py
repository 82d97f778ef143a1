"""A log as a list of blocks, and the machine that holds the index against it and the model.

The log is the truth: inside the range a lookup answers, with a block that is in the log, at that LSN, on the
right side; outside it does not.  The model (``model``) tells what is kept: which mappings there are, to the last one.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import nullcontext

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.vlsn.index import inspect
from tests.vlsn.index.builder import put_block
from tests.vlsn.index.model import ModelIndex
from vlsn.errors import LogClosed, LogFailed, VlsnLogError
from vlsn.ids import NULL_LSN, Lsn, Vlsn
from vlsn.index.index import VlsnIndex
from vlsn.seams import Stores
from vlsnlog.testing.fakes.kv import FakeStores

Block = tuple[int, int, int]
"""(first VLSN, last VLSN, LSN)"""

PATH = "index"
COUNTS = st.sampled_from([1, 1, 3, 20])
SIZES = st.sampled_from([100, 1_000, 5_000, 120_000])
BLOCKS = st.lists(st.tuples(COUNTS, SIZES, st.integers(0, 7)), min_size=1, max_size=12)
"""(entries, bytes, 0 to roll first)"""
PICK = st.integers(0, 1 << 30)


class IndexMachine(RuleBasedStateMachine):
    """Blocks are placed in order, put in any order behind the first, synced, flushed, lost by a crash, cut."""

    path = PATH

    def make_stores(self) -> Stores:
        return FakeStores()

    @initialize(
        stride=st.sampled_from([1, 3, 10]),
        mapping_bytes_min=st.sampled_from([1, 4096]),
        max_mappings=st.sampled_from([2, 3, 8, 1000]),
    )
    def start(self, stride: int, mapping_bytes_min: int, max_mappings: int) -> None:
        self.settings = {
            "stride": stride,
            "mapping_bytes_min": mapping_bytes_min,
            "max_distance": 100_000,
            "max_mappings": max_mappings,
        }
        self.stores = self.make_stores()
        self.model = ModelIndex(**self.settings)
        self.log: list[Block] = []  # live: neither rolled back nor trimmed
        self.waiting: list[Block] = []  # placed, not put yet
        self.put_blocks: list[Block] = []
        self.file, self.offset = 1, 4096
        self.next_vlsn = 1
        self.checkpoint: int | None = None
        self.scan_from = 1  # the first VLSN that recovery re-tracks
        self.synced = 0
        self.uncapped = False
        self.woken: dict[int, list[VlsnLogError | None]] = {}
        self.waited: dict[int, int] = {}
        self.cancels: dict[int, Callable[[], None]] = {}
        self.open()

    def open(self) -> None:
        self.index = VlsnIndex(self.stores.open(self.path, map_bytes=1 << 16), nullcontext(), **self.settings)

    # Steps of a node.

    @rule(blocks=BLOCKS)
    def place(self, blocks: list[tuple[int, int, int]]) -> None:
        """The latch gives VLSNs and LSNs; the mappings come later."""
        for count, size, roll in blocks:
            if roll == 0:
                self.file, self.offset = self.file + 1, 4096
            block = self.next_vlsn, self.next_vlsn + count - 1, self.file << 32 | self.offset
            self.next_vlsn += count
            self.offset += size
            self.log.append(block)
            self.waiting.append(block)

    @precondition(lambda self: self.waiting)
    @rule(pick=PICK, synced=st.booleans())
    def put_any(self, pick: int, synced: bool) -> None:
        block = self.waiting[pick % len(self.waiting)] if self.put_blocks else min(self.waiting)
        self.waiting.remove(block)
        self.put_blocks.append(block)
        if synced:
            self.synced = max(self.synced, block[1])
        put_block(self.index, *block)
        if synced:
            self.index.note_synced(Vlsn(block[1]))
        self.model.put(*block)

    @precondition(lambda self: self.waiting)
    @rule(pick=PICK)
    def put_run(self, pick: int) -> None:
        """Maps blocks in order, with known ones among them now and then, which are passed over."""
        if any(block[0] < (self.log[0][0] if not self.put_blocks else self.last) for block in self.waiting):
            return self.put_rest(pick)
        run = self.waiting[: 1 + pick % len(self.waiting)]
        del self.waiting[: len(run)]
        again = self.put_blocks[-(pick % 3) :] if pick % 3 else []
        again = [block for block in sorted(self.put_blocks) if again and block[0] >= again[0][0]]
        self.put_blocks += run
        firsts, lasts, lsns = (list(column) for column in zip(*again, *run, strict=True))
        self.index.put_run(firsts, lasts, lsns)
        for block in run:
            self.model.put(*block)
        return None

    @rule(seed=PICK)
    def put_rest(self, seed: int) -> None:
        random.Random(seed).shuffle(self.waiting)
        while self.waiting:
            self.put_any(0, synced=False)

    @precondition(lambda self: self.put_blocks)
    @rule()
    def sync(self) -> None:
        self.synced = self.last
        self.index.note_synced(Vlsn(self.last))

    @rule(seed=PICK, blocks=BLOCKS, puts=st.integers(0, 12))
    def checkpoint_with_puts_meanwhile(self, seed: int, blocks: list[tuple[int, int, int]], puts: int) -> None:
        self.put_rest(seed)
        start = self.next_vlsn
        identity = (self.checkpoint or 0) + 1
        flush = self.index.start_flush(identity)
        self.model.start_flush()
        self.place(blocks)
        for _ in range(min(puts, len(self.waiting))):
            self.put_any(seed, synced=False)
        self.check_lookups(seed)
        flush.run()
        self.model.commit()
        self.check_lookups(seed)
        self.index.finish_flush(flush)
        self.checkpoint, self.scan_from = identity, start

    @rule(seed=PICK)
    def stop_between_start_and_commit(self, seed: int) -> None:
        self.put_rest(seed)
        self.index.start_flush((self.checkpoint or 0) + 1)
        self.crash(back=0)

    @rule(back=st.integers(0, 5))
    def crash(self, back: int) -> None:
        """The log is whole; the unflushed part is tracked again, from the checkpoint's start or before it."""
        self.index.close()
        self.open()
        assert self.index.load() == self.checkpoint
        self.uncapped = self.uncapped or self.checkpoint is not None
        scan_from = self.scan_from - back
        found = [block for block in self.log if block[0] >= scan_from]
        before = self.log[: len(self.log) - len(found)]
        base = before[-1][1] if before else 0
        firsts, lasts, lsns = ([block[column] for block in found] for column in range(3))
        self.index.merge(Vlsn(base), firsts, lasts, lsns)
        self.model.crash()
        self.model.merge(base, found)
        self.waiting, self.put_blocks = [], list(self.log)
        self.forget_waits()
        self.synced = self.index.range.last_sync

    @rule(seed=PICK)
    def rebuild(self, seed: int) -> None:
        """Rebuilds, as a caller does about ``Damaged``."""
        self.index.clear()
        self.model.clear()
        assert self.index.range.last == 0
        self.checkpoint, self.scan_from, self.uncapped = None, 1, False
        firsts, lasts, lsns = ([block[column] for block in self.log] for column in range(3))
        self.index.put_run(firsts, lasts, lsns)
        for block in self.log:
            self.model.put(*block)
        self.waiting, self.put_blocks, self.synced = [], list(self.log), 0

    @precondition(lambda self: self.log)
    @rule(pick=PICK, seed=PICK, known=st.booleans())
    def roll_back(self, pick: int, seed: int, known: bool) -> None:
        """Rolls back to any block's end, or to nothing; VLSNs are given again, at new places."""
        self.put_rest(seed)
        keep = pick % (len(self.log) + 1)
        first, matchpoint, at = self.log[keep - 1] if keep else (0, self.log[0][0] - 1, NULL_LSN)
        self.index.truncate_tail(Vlsn(matchpoint), Lsn(at), block_first=Vlsn(first if known else 0))
        self.model.truncate_tail(matchpoint, (first, at) if known and first else None)
        if keep < len(self.log):
            self.uncapped = keep > 0 and not known
        del self.log[keep:]
        self.put_blocks = list(self.log)
        self.next_vlsn = matchpoint + 1
        self.synced = min(self.synced, self.log[-1][1] if self.log else 0)
        self.scan_from = min(self.scan_from, self.next_vlsn)

    @precondition(lambda self: len(self.log) > 1)
    @rule(pick=PICK, seed=PICK)
    def trim(self, pick: int, seed: int) -> None:
        self.put_rest(seed)
        gone = 1 + pick % (len(self.log) - 1)
        if self.log[gone][0] > self.scan_from:
            return  # cleaning never goes past the checkpoint
        self.index.truncate_head(Vlsn(self.log[gone][0]), Lsn(self.log[gone][2]))
        self.model.truncate_head(self.log[gone][0], self.log[gone][2])
        del self.log[:gone]
        self.put_blocks = list(self.log)

    @precondition(lambda self: self.log)
    @rule(pick=PICK, seed=PICK)
    def replace_the_segment(self, pick: int, seed: int) -> None:
        """Its last blocks were written again, into the next one."""
        self.put_rest(seed)
        kept = pick % len(self.log)
        self.file, self.offset = self.file + 1, 4096
        moved = []
        for first, last, _ in self.log[kept:]:
            moved.append((first, last, self.file << 32 | self.offset))
            self.offset += 5_000
        self.index.relocate(*([block[column] for block in moved] for column in range(3)))
        self.model.relocate(moved)
        self.log[kept:] = moved
        self.put_blocks = list(self.log)
        self.scan_from = min(self.scan_from, moved[0][0])
        self.uncapped = False

    # Waiting.

    @rule(ahead=st.integers(-3, 20))
    def wait(self, ahead: int) -> None:
        vlsn = max(1, self.last + ahead)
        number = len(self.waited)
        self.woken[number], self.waited[number] = [], vlsn
        self.cancels[number] = self.index.wait_for(Vlsn(vlsn), self.woken[number].append)

    @precondition(lambda self: self.waited)
    @rule(pick=PICK)
    def cancel(self, pick: int) -> None:
        number = pick % len(self.waited)
        self.cancels[number]()
        if not self.woken[number]:
            self.waited[number] = 0

    @rule()
    def end_all_waits(self) -> None:
        ended = LogClosed("a role change")
        self.index.fail_waiters(ended)
        for number, calls in self.woken.items():
            if self.waited[number] and calls[:1] != [None]:
                assert calls == [ended]
        self.forget_waits()

    def forget_waits(self) -> None:
        self.woken.clear()
        self.waited.clear()
        self.cancels.clear()

    # Invariants.

    @property
    def last(self) -> int:
        return max((block[1] for block in self.put_blocks), default=0)

    @invariant()
    def the_range_is_the_models(self) -> None:
        held = self.index.range
        held.verify()
        first = min((block[0] for block in self.put_blocks), default=0)
        assert (held.first, held.last, held.last_sync) == (first, self.last, self.synced)

    @invariant()
    def lookups_are_true(self) -> None:
        self.check_lookups(self.next_vlsn)

    @invariant()
    def the_mappings_are_the_models_and_in_the_log(self) -> None:
        inspect.verify(self.index)
        mapped = dict(inspect.mappings(self.index))
        assert mapped == self.model.mapped()
        places = {block[0]: block[2] for block in self.log}
        assert all(places[vlsn] == at for vlsn, at in mapped.items())

    @invariant()
    def waiters_are_called_once_and_in_time(self) -> None:
        for number, calls in self.woken.items():
            if self.waited[number] and self.waited[number] <= self.last:
                assert calls == [None]
            assert len(calls) <= 1

    def check_lookups(self, seed: int) -> None:
        first, last = min((block[0] for block in self.put_blocks), default=0), self.last
        for outside in (0, first - 1, last + 1, last + 100):
            if outside >= 0 and not (first <= outside <= last and outside):
                assert self.index.at_or_before(Vlsn(outside)) is None
                assert self.index.at_or_after(Vlsn(outside)) is None
        if not last:
            return
        places = {block[0]: block[2] for block in self.log}
        current = self.index.at_or_before(Vlsn(last))
        assert current is not None
        probes = {first, last, *(random.Random(seed).randint(first, last) for _ in range(8))}
        for vlsn in map(Vlsn, probes):
            before, after = self.index.at_or_before(vlsn), self.index.at_or_after(vlsn)
            assert before == self.model.at_or_before(vlsn)
            assert after == self.model.at_or_after(vlsn)
            assert before is not None
            assert after is not None
            assert places[before[0]] == before[1]
            assert places[after[0]] == after[1]
            assert self.index.exact(vlsn) in (None, places.get(vlsn))
        assert self.index.exact(Vlsn(first)) == places[first]
        if not self.uncapped:
            assert current[0] == max(block[0] for block in self.put_blocks)


class FailingWritesMachine(IndexMachine):
    """The same, with writes that fail: the process ends there, and its index is opened again."""

    @rule(seed=PICK, pick=PICK, blocks=BLOCKS)
    def fail_a_write(self, seed: int, pick: int, blocks: list[tuple[int, int, int]]) -> None:
        self.place(blocks)
        self.put_rest(seed)
        assert isinstance(self.stores, FakeStores)
        self.stores.fail_writes_after = self.stores.writes
        matchpoint = self.log[pick % len(self.log)]
        try:
            if pick % 2:
                self.index.start_flush((self.checkpoint or 0) + 1).run()
            else:
                self.index.truncate_tail(Vlsn(matchpoint[1]), Lsn(matchpoint[2]), block_first=Vlsn(matchpoint[0]))
        except LogFailed:
            pass
        self.stores.fail_writes_after = None
        self.crash(back=0)
