"""Small cases, all: every order of blocks behind the first, every flush point with every cut, and after a reopen."""

from __future__ import annotations

from itertools import permutations, product

import pytest

from tests.vlsn.index import inspect
from tests.vlsn.index.builder import flush, open_index, put_block
from tests.vlsn.index.model import ModelIndex
from vlsn.ids import Lsn, Vlsn
from vlsn.index.index import VlsnIndex
from vlsnlog.testing.fakes.kv import FakeStores

SETTINGS = {"stride": 3, "mapping_bytes_min": 1, "max_distance": 100_000, "max_mappings": 3}
BLOCKS = [
    (1, 2, 1 << 32 | 4096),
    (3, 3, 1 << 32 | 4200),
    (4, 8, 1 << 32 | 4300),
    (9, 9, 1 << 32 | 200_000),  # past the largest distance
    (10, 12, 2 << 32 | 4096),  # the next segment
    (13, 13, 2 << 32 | 4200),
    (14, 17, 3 << 32 | 4096),
    (18, 18, 3 << 32 | 4200),
    (19, 24, 3 << 32 | 4300),
]
LAST = BLOCKS[-1][1]
Block = tuple[int, int, int]


def put(index: VlsnIndex, model: ModelIndex, block: Block) -> None:
    put_block(index, *block)
    model.put(*block)


def check(index: VlsnIndex, model: ModelIndex) -> None:
    inspect.verify(index)
    assert (index.range.first, index.range.last) == (model.first, model.last)
    assert dict(inspect.mappings(index)) == model.mapped()
    for vlsn in map(Vlsn, range(LAST + 2)):
        assert index.at_or_before(vlsn) == model.at_or_before(vlsn)
        assert index.at_or_after(vlsn) == model.at_or_after(vlsn)


def reopened(stores: FakeStores, model: ModelIndex) -> VlsnIndex:
    index = open_index(stores, **SETTINGS)
    index.load()
    model.crash()
    return index


@pytest.mark.parametrize("count", range(1, 8))
def test_every_order_behind_the_first_gives_the_range_and_the_mappings_of_the_rules(count: int) -> None:
    for number, order in enumerate((BLOCKS[0], *rest) for rest in permutations(BLOCKS[1:count])):
        index, model = open_index(FakeStores(), **SETTINGS), ModelIndex(**SETTINGS)
        for block in order:
            put(index, model, block)
        assert (index.range.first, index.range.last) == (1, BLOCKS[count - 1][1]), order
        assert dict(inspect.mappings(index)) == model.mapped(), order
        if number % 23 == 0:
            check(index, model)


@pytest.mark.parametrize("flushed", range(1, 6))
def test_every_order_of_puts_around_a_flush(flushed: int) -> None:
    for order in ((BLOCKS[0], *rest) for rest in permutations(BLOCKS[1:6])):
        stores = FakeStores()
        index, model = open_index(stores, **SETTINGS), ModelIndex(**SETTINGS)
        for block in order[:flushed]:
            put(index, model, block)
        flush(index, 1)
        model.start_flush()
        model.commit()
        for block in order[flushed:]:
            put(index, model, block)
        assert dict(inspect.mappings(index)) == model.mapped(), order
        index = reopened(stores, model)
        assert dict(inspect.mappings(index)) == model.mapped(), order


def filled(flushes: tuple[int, ...]) -> tuple[FakeStores, VlsnIndex, ModelIndex]:
    """Returns all blocks, in order; a flush behind each of those numbered."""
    stores = FakeStores()
    index, model = open_index(stores, **SETTINGS), ModelIndex(**SETTINGS)
    for number, block in enumerate(BLOCKS, 1):
        put(index, model, block)
        if number in flushes:
            flush(index, number)
            model.start_flush()
            model.commit()
    return stores, index, model


FLUSHES = [(), *((one,) for one in range(1, 10)), *((one, two) for one in range(1, 9) for two in range(one + 1, 10))]


@pytest.mark.parametrize("known", [True, False], ids=["capped", "closest mapping"])
def test_every_tail_cut_after_every_flush(known: bool) -> None:
    ends_only = {0, *(block[1] for block in BLOCKS)}
    for flushes, last in product(FLUSHES, range(LAST + 1)):
        if known and last not in ends_only:
            continue  # nothing caps a cut within a block
        stores, index, model = filled(flushes)
        first, _, at = next((block for block in BLOCKS if block[0] <= last <= block[1]), (0, 0, 0))
        ends = any(block[1] == last for block in BLOCKS)
        cap = (first, at) if known and ends else None
        index.truncate_tail(Vlsn(last), Lsn(at), block_first=Vlsn(cap[0] if cap else 0))
        model.truncate_tail(last, cap)
        check(index, model)
        for block in BLOCKS:  # the VLSNs are given again, elsewhere
            if ends and block[0] > last:
                put(index, model, (block[0], block[1], block[2] + (8 << 32)))
        check(index, model)
        check(reopened(stores, model), model)


def test_every_head_cut_after_every_flush() -> None:
    for flushes, (first, _, at), late in product(FLUSHES, BLOCKS, (False, True)):
        stores, index, model = filled(flushes)
        index.truncate_head(Vlsn(first), Lsn(at))
        model.truncate_head(first, at)
        if late:  # of what was trimmed
            put(index, model, BLOCKS[0])
        check(index, model)
        check(reopened(stores, model), model)


def test_a_head_that_falls_into_a_gap_is_mapped_itself() -> None:
    """Every block trimmed to, where all but the first and the last came late and so were not mapped."""
    for flushed, (first, _, at) in product((False, True), BLOCKS[1:]):
        stores = FakeStores()
        index, model = open_index(stores, **SETTINGS), ModelIndex(**SETTINGS)
        for block in (BLOCKS[0], BLOCKS[-1], *BLOCKS[1:-1]):
            put(index, model, block)
        if flushed:
            flush(index, 1)
            model.start_flush()
            model.commit()
        index.truncate_head(Vlsn(first), Lsn(at))
        model.truncate_head(first, at)
        assert index.exact(Vlsn(first)) == at
        check(index, model)
        check(reopened(stores, model), model)


@pytest.mark.parametrize("flushes", [(4,), (6,), (4, 7), (9,)])
def test_recovery_from_every_base_after_every_flush(flushes: tuple[int, ...]) -> None:
    """The log may have been rolled back to any block's end, and gone on from there elsewhere."""
    for kept, again in product(range(1, len(BLOCKS) + 1), range(4)):
        if kept < flushes[-1] - 3:
            continue
        stores, _, model = filled(flushes)
        index = reopened(stores, model)
        base = min(BLOCKS[kept - 1][1], model.last)
        log = [(first, last, at + (8 << 32)) for first, last, at in BLOCKS if first > base][:again]
        index.merge(Vlsn(base), *([block[column] for block in log] for column in range(3)))
        model.merge(base, log)
        check(index, model)
        check(reopened(stores, model), model)
