"""The belief in age: by the clocks of later entries, and a share a run."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlsn.ids import Vlsn
from vlsn.state.aging import SAMPLES_MAX, SEEN_MAX, SHARE, Allowance, Seen, shown_old
from vlsn.state.retention import Segment

DAY_US = 86400 * 1_000_000
START_US = 1_700_000_000_000_000


def shown(days: list[float], age_days: float) -> int:
    """Counts the segments that go, whose last entries were sealed on those days by their masters' clocks."""
    segments = [Segment(number, 1, Vlsn(number)) for number in range(1, len(days) + 1)]
    clocks = {segment.number: START_US + round(day * DAY_US) for segment, day in zip(segments, days, strict=True)}
    return shown_old(segments, lambda segment: clocks[segment.number], age_days * 86400)


@pytest.mark.parametrize(
    ("days", "old"),
    [
        ([], 0),
        ([0], 0),
        ([0, 400], 0),
        (list(range(9)), 1),  # day 8 shows that day 0 is over eight days ago
        (list(range(20)), 12),
        ([0, 2, 4, 6, 8, 10, 375], 0),  # a leap: a day, as every two days are here
        ([*range(9), 375], 2),
        ([*range(9), 375, 376, 377], 4),  # and what comes after it counts
        ([*range(9), 375, 9, 375, 9, 375], 2),  # once, however often it leaps there and back
        ([*range(9), 3, 2, 1], 1),  # back is nothing
        ([0, *[9] * 100], 0),
    ],
)
def test_entries_show_the_age_of_those_before_them(days: list[float], old: int) -> None:
    assert shown(days, 8) == old


@given(
    gaps=st.lists(st.floats(0, 3), min_size=1, max_size=150),
    at=st.integers(0, 150),
    leap=st.floats(-1000, 1000),
)
def test_a_leap_makes_nothing_look_more_than_an_eighth_older(gaps: list[float], at: int, leap: float) -> None:
    true = [sum(gaps[: index + 1]) for index in range(len(gaps))]
    found = shown([day + (leap if index >= at else 0) for index, day in enumerate(true)], 8)
    assert all(true[-1] - day >= 7 - 1e-6 for day in true[:found])


@given(count=st.integers(1, 10 * SAMPLES_MAX))
def test_of_many_segments_few_clocks_are_read(count: int) -> None:
    segments = [Segment(number, 1, Vlsn(number)) for number in range(1, count + 1)]
    read: list[int] = []

    def sealed(segment: Segment) -> int:
        read.append(segment.number)
        return START_US + segment.number * DAY_US

    old = shown_old(segments, sealed, 86400.0 * count / 2)
    assert len(read) <= SAMPLES_MAX
    assert old <= count - count / 2
    if count >= 2 * SHARE:
        assert old >= count / 2 - 2 * -(-count // SAMPLES_MAX)


def test_the_allowance_is_an_eighth_at_once_and_again_with_every_sixteenth_of_the_age() -> None:
    allowance = Allowance()
    assert allowance.left(80, 1600.0, 5.0) == 10
    allowance.took(10)
    assert allowance.left(70, 1600.0, 5.0) == 0
    assert allowance.left(70, 1600.0, 55.0) == 4
    assert allowance.left(70, 1600.0, 105.0) == 8
    allowance.took(3)
    assert allowance.left(67, 1600.0, 10_000.0) == 8  # what is not used is not kept
    assert allowance.left(3, 1600.0, 10_000.0) == 1
    allowance.took(1)
    assert allowance.left(2, 1600.0, 10_399.0) == 0
    assert allowance.left(2, 1600.0, 10_400.0) == 1


def test_a_log_without_segments_to_go_has_an_allowance_of_one() -> None:
    assert Allowance().left(0, 1.0, 0.0) == 1


@given(every_s=st.floats(0.1, 200.0), age_s=st.floats(1.0, 1000.0))
def test_what_was_seen_so_long_ago_is_old_and_nothing_else(every_s: float, age_s: float) -> None:
    seen = Seen()
    for number in range(1, 300):
        now_s = 1000.0 + number * every_s
        seen.note(number, age_s, now_s)
        upto = seen.upto(age_s, now_s)
        assert not upto or 1000.0 + upto * every_s <= now_s - age_s + 1e-6
        surely = int((now_s - 1000.0 - age_s - age_s / SEEN_MAX) / every_s) - 1
        assert upto >= surely or surely < 1
    assert len(seen._seen) <= SEEN_MAX + 3
