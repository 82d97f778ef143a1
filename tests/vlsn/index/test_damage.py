"""A store that rotted, or is older than the log thinks, is noticed and never believed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.vlsn.index import inspect
from tests.vlsn.index.builder import PATH, columns, flush, open_index, place, put, span
from vlsn.errors import Damaged
from vlsn.ids import Lsn, Vlsn
from vlsn.index.bucket import bucket_key
from vlsn.index.index import VlsnIndex
from vlsn.index.mend import find_wounds, heal
from vlsn.index.stored import RECORD_KEY
from vlsnlog.testing.fakes.kv import FakeStores

BLOCKS = 30


def flushed(stores: FakeStores) -> VlsnIndex:
    """Four buckets in the store: 1–80, 81–160, 161–240, 241–300."""
    index = open_index(stores)
    put(index, *range(BLOCKS))
    flush(index, 1)
    return index


def check_lookups(index: VlsnIndex) -> None:
    """Every VLSN has a mapping on either side, and each mapping is a true one."""
    for vlsn in map(Vlsn, range(1, BLOCKS * 10 + 1)):
        before, after = index.at_or_before(vlsn), index.at_or_after(vlsn)
        assert before is not None
        assert after is not None
        assert before[0] <= vlsn
        assert before[1] == place(before[0] // 10)
        assert after[0] >= vlsn or after[0] == max(at for at, _ in [before, after])
        assert after[1] == place(after[0] // 10)


def exact(index: VlsnIndex) -> list[int]:
    return [number for number in range(BLOCKS) if index.exact(span(number)[0]) == place(number)]


def log_from(start: Lsn, end: Lsn) -> tuple[list[int], list[int], list[int], list[int]]:
    """Returns what the segments hold from ``start`` to ``end`` (0: all of it)."""
    held = [number for number in range(BLOCKS) if start <= place(number) and (not end or place(number) < end)]
    return *columns(*held), held


@given(which=st.integers(0, 4), bit=st.integers(0, 2_000))
def test_any_flipped_bit_is_damage_at_the_load_or_a_gap_that_is_mended(which: int, bit: int) -> None:
    stores = FakeStores()
    flushed(stores)
    key = sorted(stores.contents[PATH].values)[which]
    stores.corrupt(PATH, key, bit=bit)
    index = open_index(stores)
    if which in (0, 3, 4):
        with pytest.raises(Damaged):
            index.load()
        return
    index.load()
    check_lookups(index)
    before = index.wounded
    assert exact(index) == [number for number in range(BLOCKS) if number // 8 != which]
    for wound in find_wounds(index):
        heal(index, wound, [log_from(wound.start, wound.end)])
    assert (before, index.wounded) == (True, False)
    assert exact(index) == list(range(BLOCKS))
    inspect.verify(index)
    again = open_index(stores)
    again.load()
    assert exact(again) == list(range(BLOCKS))


@given(rotten=st.sets(st.integers(0, 3), min_size=1), tracked=st.booleans())
def test_buckets_that_rot_while_the_index_is_open_are_gaps_until_they_are_mended(
    rotten: set[int], tracked: bool
) -> None:
    stores = FakeStores()
    index = flushed(stores)
    if tracked:
        put(index, BLOCKS)
    keys = sorted(stores.contents[PATH].values)
    for which in rotten:
        stores.corrupt(PATH, keys[which])
    check_lookups(index)
    assert exact(index) == [number for number in range(BLOCKS) if not number or number // 8 not in rotten]
    for wound in find_wounds(index):
        heal(index, wound, [log_from(wound.start, wound.end)])
    assert exact(index) == list(range(BLOCKS))
    inspect.verify(index)
    flush(index, 2)
    again = open_index(stores)
    assert again.load() == 2
    inspect.verify(again)


@pytest.mark.parametrize("matchpoint", [25, 11, 3])
def test_a_truncation_and_a_trim_do_not_need_the_bucket_that_rotted(matchpoint: int) -> None:
    stores = FakeStores()
    index = flushed(stores)
    keys = sorted(stores.contents[PATH].values)
    for which in (0, 1, 3):
        stores.corrupt(PATH, keys[which])
    index.truncate_tail(span(matchpoint)[1], place(matchpoint), block_first=span(matchpoint)[0])
    assert index.exact(span(matchpoint)[0]) == place(matchpoint)
    index.truncate_head(span(2)[0], place(2))
    assert index.exact(span(2)[0]) == place(2)
    found = index.at_or_before(span(matchpoint)[0])
    assert found == (span(matchpoint)[0], place(matchpoint))


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
        inspect.verify(again)


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
