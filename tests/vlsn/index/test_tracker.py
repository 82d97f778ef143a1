"""The tracker: which mappings are kept."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlsn import limits
from vlsn.ids import Lsn, Vlsn, lsn
from vlsn.index.bucket import Bucket, Mapping
from vlsn.index.tracker import Tracker

Block = tuple[int, int, int]


def tracker(**changes: int) -> Tracker:
    settings = {
        "stride": limits.INDEX_STRIDE,
        "mapping_bytes_min": limits.INDEX_MAPPING_BYTES_MIN,
        "max_distance": limits.INDEX_MAX_DISTANCE_BYTES,
        "max_mappings": limits.INDEX_MAX_MAPPINGS,
    }
    return Tracker(**{**settings, **changes})


def kept(tracked: Tracker) -> list[list[int]]:
    """Returns first VLSNs of the mappings, a list for each bucket."""
    tracked.close_current()
    return [[vlsn for vlsn, _ in bucket.mappings()] for bucket in tracked.buckets]


def run(sizes: list[int], *, entries: int = 1, file: int = 1, first: int = 1, offset: int = 4096) -> list[Block]:
    blocks: list[Block] = []
    for size in sizes:
        blocks.append((first, first + entries - 1, lsn(file, offset)))
        first, offset = first + entries, offset + size
    return blocks


def track_all(tracked: Tracker, blocks: list[Block]) -> None:
    for first, last, at in blocks:
        tracked.track(Vlsn(first), Vlsn(last), Lsn(at))


@pytest.mark.parametrize(
    ("settings", "sizes", "entries", "mappings"),
    [
        ({}, [200] * 60, 1, [[1, 22, 43, 60]]),  # 21 × 200 bytes ≥ 4 096; the last block closes the bucket
        ({}, [5000] * 25, 1, [[1, 11, 21, 25]]),  # a stride apart
        ({}, [60_000] * 6, 1, [[1, 3, 5, 6]]),  # the distance overrules the stride
        ({}, [50_000, 50_000, 8, 8], 1, [[1, 4]]),  # exactly the greatest distance
        ({}, [50_000, 50_001, 8, 8], 1, [[1, 3, 4]]),
        ({"max_mappings": 4}, [5000] * 12, 10, [[1, 11, 21], [31, 41, 51], [61, 71, 81], [91, 101, 111]]),
        ({"max_mappings": 4}, [5000] * 7, 1, [[1, 7]]),  # nothing kept after 1: one mapping and the closing one
    ],
)
def test_which_mappings_are_kept(
    settings: dict[str, int], sizes: list[int], entries: int, mappings: list[list[int]]
) -> None:
    tracked = tracker(**settings)
    track_all(tracked, run(sizes, entries=entries))
    assert kept(tracked) == mappings


def test_a_closing_mapping_never_exceeds_the_maximum() -> None:
    for count in range(1, 40):
        tracked = tracker(max_mappings=3, stride=2, mapping_bytes_min=1)
        track_all(tracked, run([100] * count))
        assert all(len(bucket) <= 3 for bucket in kept(tracked))


def test_a_bucket_is_of_one_segment_and_ends_with_its_last_block() -> None:
    tracked = tracker()
    track_all(tracked, run([100] * 5) + run([100] * 3, file=2, first=6))
    assert kept(tracked) == [[1, 5], [6, 8]]
    assert [(bucket.file, bucket.first, bucket.last) for bucket in tracked.buckets] == [(1, 1, 5), (2, 6, 8)]


def test_the_next_segment_opens_a_bucket_however_near_its_offsets_are() -> None:
    tracked = tracker(max_distance=(1 << 31) - 1)
    tracked.track(Vlsn(1), Vlsn(1), lsn(1, (1 << 31) - 8))
    tracked.track(Vlsn(2), Vlsn(2), lsn(2, 4096))
    assert kept(tracked) == [[1], [2]]


def test_blocks_that_go_backwards_in_the_log_are_refused() -> None:
    tracked = tracker()
    tracked.track(Vlsn(1), Vlsn(1), lsn(1, 5000))
    with pytest.raises(AssertionError):
        tracked.track(Vlsn(2), Vlsn(2), lsn(1, 4096))


def blocks() -> st.SearchStrategy[list[Block]]:
    step = st.tuples(
        st.sampled_from([1, 2, 30]), st.sampled_from([96, 800, 4096, 70_000, 99_992, 120_000]), st.integers(0, 30)
    )

    def place(steps: list[tuple[int, int, int]]) -> list[Block]:
        placed: list[Block] = []
        vlsn, file, offset = 1, 1, 4096
        for count, size, roll in steps:
            if roll == 0:
                file, offset = file + 1, 4096
            placed.append((vlsn, vlsn + count - 1, lsn(file, offset)))
            vlsn, offset = vlsn + count, offset + size
        return placed

    return st.lists(step, min_size=1, max_size=400).map(place)


SETTINGS = st.fixed_dictionaries(
    {
        "stride": st.sampled_from([1, 10, 500]),
        "mapping_bytes_min": st.sampled_from([1, 4096]),
        "max_mappings": st.sampled_from([2, 3, 1000]),
    }
)


@given(placed=blocks(), settings=SETTINGS, cut=st.integers(0, 400))
def test_a_run_keeps_what_its_blocks_one_by_one_would(placed: list[Block], settings: dict[str, int], cut: int) -> None:
    one_by_one, in_runs = tracker(**settings), tracker(**settings)
    track_all(one_by_one, placed)
    for part in (placed[:cut], placed[cut:]):
        in_runs.track_run(*([block[column] for block in part] for column in range(3)))
    assert kept(in_runs) == kept(one_by_one)
    assert [bucket.encode() for bucket in in_runs.buckets] == [bucket.encode() for bucket in one_by_one.buckets]


@given(placed=blocks(), settings=SETTINGS)
def test_what_is_kept_is_sparse_and_near_enough(placed: list[Block], settings: dict[str, int]) -> None:
    tracked = tracker(**settings)
    track_all(tracked, placed)
    tracked.close_current()
    places = {first: at for first, _, at in placed}
    mappings: list[Mapping] = []
    for bucket in tracked.buckets:
        assert isinstance(bucket, Bucket)
        bucket.verify()
        inside = list(bucket.mappings())
        assert len(inside) <= settings["max_mappings"]
        for (low, low_at), (high, high_at) in pairwise(inside[:-1]):  # the closing one may be nearer
            sparse = high - low >= settings["stride"] and high_at - low_at >= settings["mapping_bytes_min"]
            assert sparse or high_at - low_at > limits.INDEX_MAX_DISTANCE_BYTES
        mappings += inside
    assert mappings[0][0] == placed[0][0]
    assert mappings[-1][0] == placed[-1][0]
    assert all(places[vlsn] == at for vlsn, at in mappings)
    for first, _, at in placed:  # a reader walks at most max_distance past the mapping, whatever lies between
        found = tracked.at_or_before(Vlsn(first))
        assert found is not None
        assert at - found[1] <= limits.INDEX_MAX_DISTANCE_BYTES
