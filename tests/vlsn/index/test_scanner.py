"""Scanners: as right as the index, and seldom asking it."""

from __future__ import annotations

import pytest

from tests.vlsn.index.builder import flush, open_index, place, put, put_block, span
from vlsn.ids import Vlsn, lsn
from vlsn.index.index import VlsnIndex
from vlsn.index.scanner import ForwardScanner
from vlsnlog.testing.fakes.kv import FakeStores

BLOCKS = 40


@pytest.fixture
def index() -> VlsnIndex:
    """Three buckets in the store, two in the tracker, a gap at 101–130."""
    index = open_index(FakeStores())
    put(index, *range(10), *range(13, 24))
    flush(index, 1)
    put(index, *range(24, BLOCKS))
    return index


def lookups(index: VlsnIndex) -> int:
    return index.stats.hits + index.stats.misses


def test_a_forward_scan_finds_what_the_index_does_and_asks_once_a_bucket(index: VlsnIndex) -> None:
    scanner = ForwardScanner(index)
    expected = [index.at_or_before(Vlsn(vlsn)) for vlsn in range(1, 401)]
    before = lookups(index)
    assert [scanner.at_or_before(Vlsn(vlsn)) for vlsn in range(1, 401)] == expected
    buckets = len(list(index.buckets()))
    assert lookups(index) - before <= buckets + 30  # in the gap no bucket can be kept


def test_scanners_answer_nothing_outside_the_range(index: VlsnIndex) -> None:
    for vlsn in map(Vlsn, (0, 401)):
        assert ForwardScanner(index).at_or_before(vlsn) is None


def test_a_scanner_follows_the_log_as_it_grows(index: VlsnIndex) -> None:
    scanner = ForwardScanner(index)
    for number in range(BLOCKS, BLOCKS + 20):
        first, last = span(number)
        assert scanner.at_or_before(first) is None
        put(index, number)
        assert scanner.at_or_before(last) == (first, place(number))


def test_a_scanner_forgets_a_bucket_that_a_rollback_cut(index: VlsnIndex) -> None:
    forward = ForwardScanner(index)
    assert forward.at_or_before(Vlsn(395)) == (391, place(39))
    index.truncate_tail(Vlsn(350), place(34), block_first=Vlsn(341))
    elsewhere = lsn(9, 4096)
    put_block(index, 351, 400, elsewhere)
    assert forward.at_or_before(Vlsn(395)) == (351, elsewhere)


def test_a_scanner_forgets_a_bucket_that_was_trimmed(index: VlsnIndex) -> None:
    forward = ForwardScanner(index)
    assert forward.at_or_before(Vlsn(5)) == (1, place(0))
    index.truncate_head(Vlsn(41), place(4))
    assert forward.at_or_before(Vlsn(5)) is None
    assert forward.at_or_before(Vlsn(45)) == (41, place(4))
