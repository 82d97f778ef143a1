"""The index: cases that the machine's random walks do not single out."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.vlsn.index import inspect
from tests.vlsn.index.builder import PATH, columns, flush, open_index, place, put, put_block, span
from vlsn.errors import BadArgument, Damaged, LogClosed, VlsnLogError
from vlsn.ids import Lsn, Vlsn, lsn
from vlsn.index.index import IndexHole, VlsnIndex
from vlsn.index.range import EMPTY
from vlsn.index.scanner import ForwardScanner
from vlsn.index.stored import RECORD_KEY
from vlsn.real.lmdb_store import LmdbStores
from vlsnlog.testing.fakes.kv import FakeStore, FakeStores


@pytest.fixture
def stores() -> FakeStores:
    return FakeStores()


@pytest.fixture
def index(stores: FakeStores) -> VlsnIndex:
    return open_index(stores)


# Putting.


def test_a_new_index_is_empty_and_answers_nothing(index: VlsnIndex) -> None:
    assert index.load() is None
    assert index.range == EMPTY
    assert index.at_or_before(Vlsn(1)) is None
    assert index.at_or_after(Vlsn(0)) is None
    assert list(inspect.mappings(index)) == []
    inspect.verify(index)


def test_a_put_leaves_what_is_synced_and_where_a_transaction_ends(index: VlsnIndex) -> None:
    put_block(index, 1, 5, lsn(1, 4096))
    index.note_txn_end(Vlsn(5))
    put_block(index, 6, 9, lsn(1, 5000))
    index.note_synced(Vlsn(9))
    index.put_run([10], [12], [lsn(1, 7000)])
    assert (index.range.last, index.range.last_sync, index.range.last_txn_end) == (12, 9, 5)
    index.note_synced(Vlsn(3))
    assert index.range.last_sync == 9


def test_nothing_is_synced_before_it_is_put(index: VlsnIndex) -> None:
    put(index, 0)
    with pytest.raises(AssertionError):
        index.note_synced(Vlsn(11))


def test_a_put_never_writes(stores: FakeStores, index: VlsnIndex) -> None:
    for number in range(200):
        put(index, number)
    assert stores.writes == 0


# Flushing and loading.


def test_a_flush_is_one_transaction_and_a_load_brings_it_back(stores: FakeStores, index: VlsnIndex) -> None:
    put(index, *range(20))
    index.note_synced(Vlsn(190))
    mappings, held = list(inspect.mappings(index)), index.range
    flush(index, 7)
    assert stores.writes == 1
    assert list(inspect.mappings(index)) == mappings
    again = open_index(stores)
    assert again.load() == 7
    assert (again.range, list(inspect.mappings(again))) == (held, mappings)
    assert again.checkpoint_id == 7


def test_a_flush_writes_its_buckets_ascending_and_the_range_last(
    stores: FakeStores, index: VlsnIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[list[bytes]] = []
    write = FakeStore.write

    def noted(store: FakeStore, puts: Sequence[tuple[bytes, bytes]] = (), **more: Any) -> None:
        written.append([key for key, _ in puts if not key.startswith(b"t")])
        write(store, puts, **more)

    monkeypatch.setattr(FakeStore, "write", noted)
    put(index, *range(40))
    flush(index, 1)
    put(index, *range(40, 60))
    index.truncate_tail(*reversed_span(50), block_first=span(50)[0])
    index.truncate_head(Vlsn(85), place(8) + 4)  # type: ignore[arg-type]
    assert [len(keys) for keys in written] == [6, 3, 2]
    for keys in written:
        assert keys == sorted(keys)
        assert keys[-1] == RECORD_KEY


def test_a_put_before_what_was_flushed_first_is_dropped(stores: FakeStores, index: VlsnIndex) -> None:
    put(index, 3, 4)
    started = index.start_flush(1)
    put(index, 1)
    started.run()
    index.finish_flush(started)
    put(index, 2, 0)
    assert (index.range.first, index.range.last) == (31, 50)
    flush(index, 2)
    again = open_index(stores)
    again.load()
    assert again.range.first == 31
    inspect.verify(again)


def test_flushes_exclude_each_other_and_cuts(index: VlsnIndex) -> None:
    put(index, 0, 1)
    held, mappings = index.range, list(inspect.mappings(index))
    started = index.start_flush(1)
    with pytest.raises(AssertionError):
        index.start_flush(2)
    with pytest.raises(AssertionError):
        index.truncate_tail(*reversed_span(0))
    with pytest.raises(AssertionError):
        index.truncate_head(Vlsn(11), place(1))
    with pytest.raises(AssertionError):
        index.merge(Vlsn(0), *columns(0, 1))
    with pytest.raises(AssertionError):
        index.clear()
    assert (index.range, list(inspect.mappings(index))) == (held, mappings)
    started.run()
    index.finish_flush(started)
    flush(index, 2)
    assert (index.range, list(inspect.mappings(index))) == (held, mappings)


def reversed_span(number: int) -> tuple[Vlsn, Lsn]:
    return span(number)[1], place(number)


# Cutting.


def test_a_truncation_maps_a_block_that_never_was(stores: FakeStores, index: VlsnIndex) -> None:
    put(index, 0, 1, 9, 5, 7)  # 5 and 7 come late: they lie in a gap between buckets of three segments
    flush(index, 1)
    index.truncate_tail(*reversed_span(7), block_first=span(7)[0])
    assert index.exact(Vlsn(71)) == place(7)
    assert index.at_or_before(Vlsn(70)) == (11, place(1))
    assert index.at_or_after(Vlsn(21)) == (71, place(7))
    again = open_index(stores)
    again.load()
    assert list(inspect.mappings(again)) == list(inspect.mappings(index))


def stretched(stores: FakeStores) -> VlsnIndex:
    """Returns blocks 0 … 11, of which 2 … 11 came late, cut to block 9 of the next segment without naming it: the
    bucket of segment 1 covers all that is left."""
    index = open_index(stores)
    put(index, 0, 1, 20, *range(2, 12))
    flush(index, 1)
    index.truncate_tail(span(9)[1], place(9))
    assert [(bucket.file, bucket.first, bucket.last) for bucket in index.buckets()] == [(1, 1, 100)]
    return index


def test_a_second_truncation_in_the_segment_that_the_first_did_not_map(stores: FakeStores) -> None:
    index = stretched(stores)
    index.truncate_tail(span(8)[1], place(8), block_first=span(8)[0])
    assert index.exact(Vlsn(81)) == place(8)
    assert index.at_or_before(Vlsn(80)) == (11, place(1))
    inspect.verify(index)
    again = open_index(stores)
    assert again.load() == 1
    assert list(inspect.mappings(again)) == list(inspect.mappings(index))


def test_a_trim_in_the_segment_that_a_truncation_did_not_map(stores: FakeStores) -> None:
    index = stretched(stores)
    index.truncate_head(Vlsn(81), place(8))
    assert (index.range.first, index.range.last) == (81, 100)
    assert index.at_or_before(Vlsn(100)) == (81, place(8))
    again = open_index(stores)
    assert again.load() == 1
    inspect.verify(again)


def test_a_matchpoint_at_or_past_the_last_changes_nothing(stores: FakeStores, index: VlsnIndex) -> None:
    put(index, *range(3))
    flush(index, 1)
    epoch = index.epoch
    index.truncate_tail(Vlsn(30), place(2), block_first=Vlsn(21))
    index.truncate_tail(Vlsn(99), place(9), block_first=Vlsn(91))
    assert (index.range.last, index.epoch, stores.writes) == (30, epoch, 1)


def test_nothing_before_the_range_is_answered_while_a_trim_is_being_written(
    stores: FakeStores, index: VlsnIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(index, 0, 29, *range(1, 29))  # between the first and the last nothing is mapped
    flush(index, 1)
    scanner = ForwardScanner(index)
    assert scanner.at_or_before(Vlsn(145)) == (1, place(0))
    write, seen = FakeStore.write, []

    def looked_up(store: FakeStore, *puts: Any, **more: Any) -> None:
        for vlsn in map(Vlsn, range(1, 301)):
            for found in (index.at_or_before(vlsn), scanner.at_or_before(vlsn)):
                assert (found is None) == (vlsn < 131)
                assert found is None or 131 <= found[0] <= vlsn
            after = index.at_or_after(vlsn)
            assert (after is None) == (vlsn < 131)
            assert after is None or after[0] >= vlsn or vlsn > 291
        seen.append(True)
        write(store, *puts, **more)

    monkeypatch.setattr(FakeStore, "write", looked_up)
    index.truncate_head(span(13)[0], place(13))
    assert seen
    assert index.at_or_before(Vlsn(145)) == (131, place(13))


def test_a_trim_of_everything_is_refused(index: VlsnIndex) -> None:
    put(index, *range(3))
    with pytest.raises(BadArgument):
        index.truncate_head(Vlsn(31), place(3))
    assert index.range.first == 1


def test_an_index_that_has_a_block_elsewhere_is_damage(index: VlsnIndex) -> None:
    put(index, *range(4))
    with pytest.raises(Damaged, match="segment"):
        index.truncate_tail(Vlsn(20), lsn(7, 4096), block_first=Vlsn(11))
    assert index.range.last == 40


# Recovery.


@pytest.mark.parametrize("blocks", [columns(6, 7), columns()], ids=["blocks", "none"])
def test_a_hole_between_index_and_log_is_named(
    stores: FakeStores, index: VlsnIndex, blocks: tuple[list[int], list[int], list[int]]
) -> None:
    put(index, *range(5))
    flush(index, 1)
    again = open_index(stores)
    again.load()
    with pytest.raises(IndexHole) as hole:
        again.merge(Vlsn(60), *blocks)
    assert hole.value.vlsn == 60
    assert again.range.last == 50
    again.clear()
    again.put_run(*columns(*range(8)))
    assert again.range.last == 80
    inspect.verify(again)


def test_a_block_across_the_end_of_the_index_is_damage(index: VlsnIndex) -> None:
    put(index, *range(3))
    with pytest.raises(Damaged, match="within the block"):
        put_block(index, 25, 35, lsn(1, 30_000))
    with pytest.raises(Damaged, match="within the block"):
        index.put_run([21, 25], [24, 35], [lsn(1, 20_000), lsn(1, 30_000)])


# Looking at it.


def test_stats_count_lookups_buckets_and_flushes(index: VlsnIndex) -> None:
    put(index, *range(20))
    index.at_or_before(Vlsn(5))
    flush(index, 1)
    index.at_or_before(Vlsn(5))
    index.at_or_before(Vlsn(6))
    index.truncate_tail(*reversed_span(9), block_first=span(9)[0])
    index.truncate_head(Vlsn(81), place(8))
    stats = index.stats
    assert (stats.hits, stats.misses, stats.buckets_created) == (1, 2, 3)
    assert (stats.flushes, stats.buckets_deleted) == (3, 3)


# Waiting.


def test_a_put_past_a_vlsn_wakes_those_that_wait_for_it(index: VlsnIndex) -> None:
    woken: list[tuple[str, object]] = []
    for name, vlsn in (("third", 25), ("first", 5), ("also first", 10)):
        index.wait_for(Vlsn(vlsn), lambda error, name=name: woken.append((name, error)))  # type: ignore[misc]
    put(index, 1)
    assert woken == [("first", None), ("also first", None)]
    put(index, 0)
    assert len(woken) == 2
    assert index.waiting == 1
    index.put_run(*columns(2))
    assert woken[2:] == [("third", None)]
    assert index.waiting == 0


def test_a_waiter_may_wait_again_when_it_is_woken(index: VlsnIndex) -> None:
    woken: list[int] = []

    def wake(_: object) -> None:
        woken.append(index.range.last)
        if len(woken) < 3:
            index.wait_for(Vlsn(index.range.last + 1), wake)

    index.wait_for(Vlsn(1), wake)
    put(index, 0, 1, 2, 3)
    assert woken == [10, 20, 30]


def test_cancelled_waits_are_let_go(index: VlsnIndex) -> None:
    index.wait_for(Vlsn(1_000), lambda _: None)
    for vlsn in range(10_000):
        index.wait_for(Vlsn(2_000 + vlsn), lambda _: None)()
    assert len(index._waiters._heap) < 50
    assert index.waiting == 1


# Threads.


def test_any_number_of_threads_wait_for_any_vlsn_while_others_put_and_each_is_woken_once() -> None:
    index = VlsnIndex(FakeStores().open(PATH, map_bytes=1 << 16), threading.RLock())
    blocks, threads = 400, 12
    answers: list[tuple[int, VlsnLogError | None]] = []
    ready = threading.Barrier(threads + 1)
    ended = LogClosed("the log was closed")

    def waiter(share: int) -> None:
        ready.wait()
        for vlsn in range(1 + share, blocks * 10 + 200, threads):
            woken = threading.Event()

            def wake(error: VlsnLogError | None, vlsn: int = vlsn, woken: threading.Event = woken) -> None:
                answers.append((vlsn, error))
                woken.set()

            index.wait_for(Vlsn(vlsn), wake)
            if not woken.wait(20):
                return

    waiters = [threading.Thread(target=waiter, args=(share,)) for share in range(threads)]
    for thread in waiters:
        thread.start()
    ready.wait()
    for number in range(blocks):
        put(index, number)
    while any(thread.is_alive() for thread in waiters):
        if index.waiting:
            index.fail_waiters(ended)
    assert sorted(vlsn for vlsn, _ in answers) == list(range(1, blocks * 10 + 200))
    assert all(error is (ended if vlsn > blocks * 10 else None) for vlsn, error in answers)
    assert index.waiting == 0


def test_threads_put_in_any_order_while_others_look_up_and_flush(tmp_path: Path) -> None:
    index = VlsnIndex(LmdbStores().open(str(tmp_path / PATH), map_bytes=1 << 16), threading.RLock(), max_mappings=8)
    total, done, wrong = 1_500, threading.Event(), list[object]()

    def putter(share: int) -> None:
        for number in range(share, total, 3):
            put(index, number)

    def reader() -> None:
        while not done.is_set():
            last = index.range.last
            for vlsn in map(Vlsn, (last, last // 2, last // 3)):
                before, after = index.at_or_before(vlsn), index.at_or_after(vlsn)
                for found in (before, after):
                    if found is not None and place(found[0] // 10) != found[1]:
                        wrong.append(found)
                if index.range.first <= vlsn and vlsn and (before is None or before[0] > vlsn or after is None):
                    wrong.append((vlsn, before, after))

    put(index, 0)
    flush(index, 1)
    putters = [threading.Thread(target=putter, args=(share,)) for share in range(3)]
    readers = [threading.Thread(target=reader) for _ in range(2)]
    for thread in (*putters, *readers):
        thread.start()
    checkpoint_id = 1
    while any(thread.is_alive() for thread in putters):
        checkpoint_id += 1
        flush(index, checkpoint_id)
    for thread in putters:
        thread.join()
    done.set()
    for thread in readers:
        thread.join()
    assert not wrong
    assert index.range.last == total * 10
    inspect.verify(index)
    index.close()


class Step:
    """A latch and a store in one. Before each step that a lookup takes, ``at`` of them later, something else
    happens."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self._lock = threading.RLock()
        self._left = 0
        self._then: Any = None

    def after(self, steps: int, then: Any) -> None:
        self._left, self._then = steps, then

    def take(self) -> None:
        then = self._then
        if then is not None:
            if not self._left:
                self._then = None
                then()
            self._left -= 1

    def __enter__(self) -> None:
        self.take()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._store, name)

        def stepped(*arguments: Any, **named: Any) -> Any:
            self.take()
            return call(*arguments, **named)

        return stepped


@pytest.mark.parametrize("steps", range(8))
@pytest.mark.parametrize("number", range(24))
def test_a_lookup_beside_a_flush_gives_what_it_gives_before_and_after(steps: int, number: int) -> None:
    """The flush comes at each step of it."""
    step = Step(FakeStores().open(PATH, map_bytes=1 << 20))
    index = VlsnIndex(step, step)
    put(index, *range(8))
    flush(index, 1)
    put(index, *range(8, 16))
    started = index.start_flush(2)
    put(index, *range(16, 24))

    def flushed() -> None:
        started.run()
        index.finish_flush(started)

    at = Vlsn(number * 10 + 5)
    for lookup in (index.at_or_before, index.at_or_after):
        before = lookup(at)
        step.after(steps, flushed)
        beside = lookup(at)
        step.after(0, None)
        assert beside == before, (lookup.__name__, at)
        if not index.levels.flushing:
            break


def test_a_reader_that_keeps_a_bucket_hears_of_blocks_that_were_moved(index: VlsnIndex) -> None:
    """A failed write took its page along: its blocks lie elsewhere now."""
    put(index, *range(6))
    flush(index, 1)
    scanner = ForwardScanner(index)
    assert scanner.at_or_before(Vlsn(35)) == (31, place(3))
    firsts, lasts, _ = columns(3, 4, 5)
    moved = [lsn(9, 4096 + number * 5_000) for number in range(3)]
    index.relocate(firsts, lasts, moved)
    assert scanner.at_or_before(Vlsn(35)) == (31, moved[0])
    assert scanner.at_or_before(Vlsn(25)) == (21, place(2))
