"""A store that rotted, or is older than the log thinks, is noticed and never believed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.kv import FakeStores
from tests.vlsn.index.builder import PATH, flush, open_index, place, put, span
from vlsn.errors import Damaged
from vlsn.ids import Vlsn
from vlsn.index.bucket import bucket_key
from vlsn.index.index import VlsnIndex
from vlsn.index.stored import RECORD_KEY

BLOCKS = 30


def flushed(stores: FakeStores) -> VlsnIndex:
    """Four buckets in the store: 1–80, 81–160, 161–240, 241–300."""
    index = open_index(stores)
    put(index, *range(BLOCKS))
    flush(index, 1)
    return index


def read_all(index: VlsnIndex) -> None:
    """Every lookup is right or raises ``Damaged``."""
    for number in range(BLOCKS):
        first, last = span(number)
        assert index.at_or_before(last) == (first, place(number))
        assert index.at_or_after(first) == (first, place(number))


@given(which=st.integers(0, 4), bit=st.integers(0, 2_000))
def test_any_flipped_bit_is_damage_at_the_load_or_at_the_lookup(which: int, bit: int) -> None:
    stores = FakeStores()
    flushed(stores)
    key = sorted(stores.contents[PATH].values)[which]
    stores.corrupt(PATH, key, bit=bit)
    index = open_index(stores)
    with pytest.raises(Damaged):  # noqa: PT012 - which of the two it is depends on the key
        index.load()
        read_all(index)
    index.clear()
    assert index.load() is None
    put(index, *range(BLOCKS))
    flush(index, 2)
    read_all(index)


@pytest.mark.parametrize("which", [0, 3, 4], ids=["first bucket", "last bucket", "record"])
def test_an_end_or_the_record_that_is_gone_is_damage(which: int) -> None:
    stores = FakeStores()
    flushed(stores)
    stores.contents[PATH].delete(sorted(stores.contents[PATH].values)[which])
    with pytest.raises(Damaged):
        open_index(stores).load()


@pytest.mark.parametrize("which", [1, 2])
def test_a_bucket_that_is_gone_in_the_middle_is_a_gap_and_lookups_stay_true(which: int) -> None:
    stores = FakeStores()
    flushed(stores)
    stores.contents[PATH].delete(sorted(stores.contents[PATH].values)[which])
    index = open_index(stores)
    index.load()
    for vlsn in map(Vlsn, range(1, BLOCKS * 10 + 1)):
        before, after = index.at_or_before(vlsn), index.at_or_after(vlsn)
        assert before is not None
        assert after is not None
        assert before[0] <= vlsn
        assert before[1] == place(before[0] // 10)
        assert after[0] >= vlsn or after[0] == span(BLOCKS - 1)[0]
        assert after[1] == place(after[0] // 10)


def test_an_older_image_is_told_by_its_checkpoint_id() -> None:
    stores = FakeStores()
    index = flushed(stores)
    image = stores.snapshot(PATH)
    put(index, BLOCKS)
    flush(index, 2)
    index.close()
    stores.restore(PATH, image)
    assert open_index(stores).load() == 1


@pytest.mark.parametrize("stale", ["record", "last bucket"])
def test_one_older_value_among_newer_ones_is_damage(stale: str) -> None:
    stores = FakeStores()
    index = flushed(stores)
    image = stores.snapshot(PATH)
    index.truncate_tail(Vlsn(270), place(26), block_first=Vlsn(261))
    key = RECORD_KEY if stale == "record" else bucket_key(Vlsn(241))
    stores.contents[PATH].values[key] = image.values[key]
    with pytest.raises(Damaged, match="cover"):
        open_index(stores).load()


def test_an_older_bucket_that_reaches_into_the_next_is_found_by_verify() -> None:
    stores = FakeStores()
    index = flushed(stores)
    image = stores.snapshot(PATH)
    index.truncate_tail(Vlsn(200), place(19), block_first=Vlsn(191))
    put(index, 20, 21, 22, 23, 24)
    flush(index, 2)
    key = bucket_key(Vlsn(161))
    stores.contents[PATH].values[key] = image.values[key]
    again = open_index(stores)
    assert again.load() == 2
    with pytest.raises(Damaged, match="begins before"):
        again.verify()


def test_buckets_without_a_record_are_damage() -> None:
    stores = FakeStores()
    flushed(stores)
    stores.contents[PATH].delete(RECORD_KEY)
    with pytest.raises(Damaged, match="no record"):
        open_index(stores).load()


@pytest.mark.parametrize(
    "value",
    [b"", bytes(47), bytes(48), b"\x02" + bytes(47), b"\1\0\0\0\0\0\0\0" + bytes(8) + b"\5" + bytes(31)],
    ids=["empty", "short", "version 0", "version 2", "first without last"],
)
def test_what_is_no_record_is_damage(value: bytes) -> None:
    stores = FakeStores()
    index = open_index(stores)
    stores.contents[PATH].put(RECORD_KEY, value)
    with pytest.raises(Damaged):
        index.load()
