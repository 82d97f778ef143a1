"""The lag of a replica, and how long it lasts yet."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from repl.group.replica_lag import ReplicaLag


def test_nothing_missing_is_no_lag_and_nothing_to_expect() -> None:
    seen = ReplicaLag()
    for second in range(5):
        seen.note(second, 100 * second, 100 * second)
    assert seen.status(4.0, 400, 400) == {"lag_vlsns": 0, "lag_s": 0.0, "vlsns_per_s": 100.0, "expected_s": 0.0}


def test_the_time_left_is_what_is_missing_over_how_fast_it_shrinks() -> None:
    seen = ReplicaLag()
    for tenth in range(101):
        seen.note(tenth / 10, 40 * tenth, 10_000 + 10 * tenth)
    told = seen.status(10.0, 4_000, 11_000)
    assert told["lag_vlsns"] == 7_000
    assert told["vlsns_per_s"] == 400.0
    assert told["expected_s"] == round(7_000 / 300, 1)
    assert told["lag_s"] == 10.0


def test_one_that_falls_further_behind_has_no_time_left_to_tell() -> None:
    seen = ReplicaLag()
    for second in range(10):
        seen.note(second, 10 * second, 100 * second)
    told = seen.status(9.0, 90, 900)
    assert (told["lag_vlsns"], told["expected_s"]) == (810, None)


def test_a_busy_one_with_little_on_its_way_has_no_lag_to_speak_of() -> None:
    """Something is under way at every look, and all of a second before is there."""
    seen = ReplicaLag()
    for tenth in range(100):
        seen.note(tenth / 10, 1_000 * tenth, 1_000 * tenth + 50)
    told = seen.status(9.9, 99_000, 99_050)
    assert (told["lag_vlsns"], told["lag_s"]) == (50, 0.0)


def test_lag_in_seconds_grows_past_the_window_while_nothing_comes() -> None:
    seen = ReplicaLag()
    seen.note(0.0, 100, 100)
    for second in range(1, 60):
        seen.note(second, 100, 100 + second)
    assert seen.status(60.0, 100, 160)["lag_s"] == 59.0


@given(st.lists(st.tuples(st.floats(0, 3), st.integers(0, 50), st.integers(0, 50)), max_size=60))
def test_numbers_stay_in_their_ranges_whatever_comes(steps: list[tuple[float, int, int]]) -> None:
    seen, now, have, wanted = ReplicaLag(), 0.0, 0, 0
    for gap, more_have, more_wanted in steps:
        now += gap
        wanted += more_wanted
        have = min(wanted, have + more_have)
        seen.note(now, have, wanted)
        told = seen.status(now, have, wanted)
        assert told["lag_vlsns"] == wanted - have
        assert 0 <= (told["lag_s"] or 0) <= now + 0.001
        assert told["expected_s"] is None or told["expected_s"] >= 0
        assert (told["expected_s"] == 0.0) >= (have == wanted)
