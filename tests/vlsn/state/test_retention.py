"""The rules of retention: what is wanted gone, and what may go, against a plain reading."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlsn.errors import BadArgument, Trimmed
from vlsn.ids import Vlsn
from vlsn.state.holds import HOLDS_MAX, Hold, Holds, Owner
from vlsn.state.retention import SEGMENTS_AT_ONCE_MAX, Limit, Retention, Segment, plan, wanted

LOG = [Segment(number, 64, Vlsn(number * 10)) for number in range(1, 6)]
"""Segment N ends with VLSN 10 N; a sixth one follows."""
TOTAL = 6 * 64


def held(*vlsns: int) -> Holds:
    holds = Holds(clock=lambda: 0.0)
    for number, vlsn in enumerate(vlsns):
        holds.place(Owner.CONSUMER, f"c{number}", Vlsn(vlsn))
    return holds


def test_bytes_want_the_oldest_until_what_is_left_fits() -> None:
    for kept, gone in ((TOTAL, 0), (TOTAL - 1, 1), (5 * 64, 1), (4 * 64, 2), (1, 5)):
        found = wanted(LOG, Retention(kept), total_bytes=TOTAL, sealed_us=lambda _: 0, now_us=0)
        assert [segment.number for segment, _ in found] == list(range(1, gone + 1)), kept


def test_age_is_asked_of_as_few_as_possible_and_unknown_is_not_old() -> None:
    asked: list[int] = []

    def sealed(segment: Segment) -> int:
        asked.append(segment.number)
        return {1: 1_000_000, 2: 2_000_000, 3: 0}[segment.number]

    found = wanted(LOG, Retention(age_s=5.0), total_bytes=TOTAL, sealed_us=sealed, now_us=7_000_001)
    assert [(segment.number, reason) for segment, reason in found] == [(1, "age"), (2, "age")]
    assert asked == [1, 2, 3]


def test_a_pass_takes_a_bounded_number() -> None:
    many = [Segment(number, 1, Vlsn(number)) for number in range(1, 3 * SEGMENTS_AT_ONCE_MAX)]
    found = wanted(many, Retention(1), total_bytes=len(many) + 1, sealed_us=lambda _: 0, now_us=0)
    assert len(found) == SEGMENTS_AT_ONCE_MAX


@given(
    lasts=st.lists(st.integers(0, 100), min_size=1, max_size=8).map(sorted),
    limit=st.integers(0, 100),
    number=st.integers(0, 9),
    holds=st.lists(st.integers(1, 100), max_size=4),
)
def test_what_goes_is_the_longest_run_that_nobody_keeps(
    lasts: list[int], limit: int, number: int, holds: list[int]
) -> None:
    log = [(Segment(at, 64, Vlsn(last)), "bytes") for at, last in enumerate(lasts, 1)]
    chosen = plan(log, [Limit("end", Vlsn(limit)), Limit("next open", number=number)], held(*holds))
    lowest = min([limit, *holds])
    free = [segment.last < lowest and (not number or segment.number < number) for segment, _ in log]
    going = free.index(False) if False in free else len(free)
    assert [fate.number for fate in chosen.going] == list(range(1, going + 1))
    assert [fate.number for fate in chosen.blocked] == list(range(going + 1, len(log) + 1))
    if chosen.blocked:
        assert chosen.blocked[0].blocked_by
    assert not chosen.drops


@given(holds=st.lists(st.integers(1, 60), min_size=1, max_size=4), cap=st.integers(1, TOTAL))
def test_a_hold_is_dropped_only_over_the_cap_in_the_way_and_for_some_gain(holds: list[int], cap: int) -> None:
    log = [(segment, "bytes") for segment in LOG]
    owned = held(*holds)

    def behind(vlsn: Vlsn) -> int:
        return TOTAL - sum(segment.bytes for segment in LOG if segment.last < vlsn)

    limits = [Limit("end", Vlsn(45))]
    before = plan(log, limits, owned, bytes_from=behind)
    chosen = plan(log, limits, owned, hold_bytes_max=cap, bytes_from=behind)
    assert all(behind(hold.vlsn) > cap for hold in chosen.drops)
    assert len(chosen.going) >= len(before.going)
    if chosen.drops:
        assert len(chosen.going) > len(before.going)
    kept = [hold for hold in owned if hold not in chosen.drops]
    last = chosen.going[-1].last if chosen.going else 0
    assert all(hold.vlsn > last for hold in kept)
    assert all(hold.vlsn <= last for hold in chosen.drops)


def test_the_checkpoints_hold_is_never_dropped() -> None:
    holds = Holds(clock=lambda: 0.0)
    holds.place(Owner.CHECKPOINT, "recovery", Vlsn(1))
    chosen = plan([(LOG[0], "bytes")], [], holds, hold_bytes_max=1, bytes_from=lambda _: TOTAL)
    assert (chosen.going, chosen.drops) == ([], [])


def test_holds_move_forward_replace_each_other_and_tell_their_age() -> None:
    now = 100.0
    holds = Holds(clock=lambda: now)
    holds.floor = Vlsn(30)
    told: list[int] = []
    first = holds.place(Owner.FEEDER, "n2", Vlsn(0), on_dropped=told.append)
    assert first.vlsn == 31  # all there is
    now = 160.0
    assert first.age_s == 60.0
    first.advance(Vlsn(20))
    assert (first.vlsn, first.age_s) == (31, 60.0)
    first.advance(Vlsn(40))
    assert (first.vlsn, first.age_s) == (40, 0.0)
    second = holds.place(Owner.FEEDER, "n2", Vlsn(35))
    assert (first.live, second.live, len(holds)) == (False, True, 1)
    holds.release(first)
    assert second.live
    holds.drop(first, Vlsn(50))
    assert told == []
    with pytest.raises(Trimmed) as caught:
        holds.place(Owner.BACKUP, "b", Vlsn(30))
    assert caught.value.first == 31
    for name in ("", "x" * 65, "new\nline"):
        with pytest.raises(BadArgument, match="name of a hold"):
            holds.place(Owner.BACKUP, name, Vlsn(40))


def test_who_keeps_a_segment_in_two_ways_is_named_once() -> None:
    log = [(Segment(1, 64, Vlsn(9)), "bytes")]
    twice = [
        Limit("checkpoint recovery", Vlsn(5)),
        Limit("checkpoint recovery", number=1),
        Limit("synced end", Vlsn(9)),
    ]
    (fate,) = plan(log, twice, held()).blocked
    assert fate.blocked_by == ["checkpoint recovery", "synced end"]


def test_there_are_only_so_many_holds() -> None:
    holds = held(*[1] * HOLDS_MAX)
    with pytest.raises(BadArgument, match="release one first"):
        holds.place(Owner.BACKUP, "one more", Vlsn(1))
    placed: list[Hold] = list(holds)
    holds.release(placed[0])
    holds.place(Owner.BACKUP, "one more", Vlsn(1))
