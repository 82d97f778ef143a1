"""Digests: equal for equal blocks in any cut and order, different for any other block."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from repl.audit.digest import RangeDigest, block_digests, differing, merged, range_digests

FIELDS = ("crc32c", "crc32", "term", "first", "count")
Row = tuple[int, int, int, int, int]
rows = st.lists(
    st.tuples(
        st.integers(0, 2**32 - 1),
        st.integers(0, 2**32 - 1),
        st.integers(1, 2**40),
        st.integers(1, 2**20),
        st.integers(1, 65_536),
    ),
    max_size=30,
)


def digests_of(blocks: list[Row]) -> list[RangeDigest]:
    columns = np.array(blocks, np.uint64).reshape(-1, 5).T
    return range_digests(columns[3], columns[4], block_digests(*columns))


@given(rows, st.randoms(use_true_random=False), st.integers(0, 30))
def test_range_digests_do_not_depend_on_order_or_partitions(blocks: list[Row], random, cut: int) -> None:  # type: ignore[no-untyped-def]
    shuffled = random.sample(blocks, len(blocks))
    assert merged(digests_of(blocks)) == merged(digests_of(shuffled[:cut]) + digests_of(shuffled[cut:]))


@pytest.mark.parametrize("field", range(5))
@pytest.mark.parametrize("bit", [0, 1, 7, 15])
def test_one_bit_of_any_field_changes_the_digest(field: int, bit: int) -> None:
    block = [0x1234_5678, 0x9ABC_DEF0, 3, 70_000, 5]
    other = [value ^ (1 << bit) if index == field else value for index, value in enumerate(block)]
    one, two = (block_digests(*(np.array([value], np.uint64) for value in row)) for row in (block, other))
    assert one[0] != two[0], FIELDS[field]


def test_two_blocks_with_their_checksums_exchanged_differ() -> None:
    apart = digests_of([(1, 2, 1, 10, 1), (3, 4, 1, 11, 1)])
    exchanged = digests_of([(3, 4, 1, 10, 1), (1, 2, 1, 11, 1)])
    assert apart != exchanged


def test_a_block_is_counted_in_the_range_of_its_first_vlsn() -> None:
    (low, high) = digests_of([(1, 2, 1, 65_535, 100), (3, 4, 1, 65_636, 2)])
    assert (low.range, low.entries, low.blocks) == (0, 100, 1)
    assert (high.range, high.entries, high.blocks) == (1, 2, 1)


def always(at: int) -> bool:
    return True


def test_differing_names_ranges_that_one_copy_lacks_or_has_otherwise() -> None:
    one = {0: RangeDigest(0, 5, 1, 7), 1: RangeDigest(1, 5, 1, 8), 2: RangeDigest(2, 1, 1, 9)}
    two = {0: RangeDigest(0, 5, 1, 7), 1: RangeDigest(1, 5, 1, 9)}
    assert differing([one, two], [always, always]) == [1, 2]
    assert differing([one, dict(one)], [always, always]) == []
    assert differing([one, {}], [always, lambda at: False]) == []
    assert differing([one, two, {}], [lambda at: at != 1, lambda at: at < 2, lambda at: False]) == []
