"""Packing and bounds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repl.audit.plan import WAVES, Bounds, Part, Survey, common_bounds, packed


def part(source: int, number: int, size: int) -> Part:
    return Part(
        source=source,
        number=number,
        file=f"{number:08}.vlog",
        salt=1,
        end=size,
        stated=size,
        prev_number=number - 1,
        prev_last_vlsn=0,
    )


def survey(first: int, last: int, dtvlsn: int, sizes: tuple[int, ...] = (), source: int = 0) -> Survey:
    parts = tuple(part(source, number, size) for number, size in enumerate(sizes, 1))
    return Survey(group="g", node="n", live=False, parts=parts, first=first, last=last, dtvlsn=dtvlsn)


@given(st.lists(st.lists(st.integers(4096, 1 << 26), max_size=20), min_size=1, max_size=4), st.integers(1, 8))
def test_packed_holds_every_segment_once_in_order_and_no_small_task(sizes: list[list[int]], cores: int) -> None:
    surveys = [survey(1, 1, 1, tuple(each), source) for source, each in enumerate(sizes)]
    runs = packed(surveys, cores=cores, partition_bytes=1 << 27)
    assert [each for run in runs for each in run] == [each for one in surveys for each in one.parts]
    target = min(1 << 27, sum(map(sum, sizes)) // (WAVES * cores))
    biggest = max((each.end for one in surveys for each in one.parts), default=0)
    for run in runs:
        size = sum(each.end for each in run)
        assert len({each.source for each in run}) == 1
        assert size < 2 * target + biggest
        alone = sum(1 for other in runs if other[0].source == run[0].source) == 1
        assert alone or size > target - biggest


def test_packed_uses_every_core_when_there_is_little() -> None:
    runs = packed([survey(1, 9, 9, (16384,) * 4)], cores=2)
    assert [len(run) for run in runs] == [1, 1, 1, 1]


def test_three_copies_of_five_segments_are_six_tasks() -> None:
    surveys = [survey(1, 9, 9, (67_000_000,) * 4 + (30_000_000,), source) for source in range(3)]
    assert [len(run) for run in packed(surveys, cores=2)] == [3, 2] * 3


@pytest.mark.parametrize(
    ("copies", "expected"),
    [
        ([(1, 100, 90), (1, 80, 79), (1, 120, 110)], (1, 79)),
        ([(1, 100, 90), (50, 100, 95)], (50, 90)),
        ([(1, 100, 100), (1, 40, 60)], (1, 40)),  # a DTVLSN heard of, and not all of it here
        ([(1, 40, 40), (60, 100, 99)], (0, 0)),
        ([(1, 40, 40), (0, 0, 0)], (0, 0)),
        ([(1, 40, 0), (1, 40, 0)], (0, 0)),
        ([(1, 40, 40)], (0, 0)),
    ],
)
def test_common_bounds(copies: list[tuple[int, int, int]], expected: tuple[int, int]) -> None:
    bounds = common_bounds([survey(*copy) for copy in copies])
    assert bounds == Bounds(*expected)
    assert bool(bounds) == (expected != (0, 0))
