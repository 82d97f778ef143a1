"""Sets of VLSNs say what Python's sets say, and their packed form is small, and read with suspicion."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlsn.errors import BadBody
from vlsn.format.vlsn_set import VlsnSet

SMALL = st.sets(st.integers(1, 60))
WIDE = st.sets(st.integers(1, 1 << 61), max_size=30)


def of(vlsns: set[int]) -> VlsnSet:
    return VlsnSet.of(sorted(vlsns))


@given(SMALL, SMALL, st.integers(0, 61))
def test_it_says_what_a_set_says(one: set[int], other: set[int], last: int) -> None:
    mine, theirs = of(one), of(other)
    assert set(mine.vlsns().tolist()) == one and mine.count == len(one) and bool(mine) == bool(one)
    assert mine.union(theirs) == of(one | other)
    assert mine.minus(theirs) == of(one - other)
    assert mine.upto(last) == of({vlsn for vlsn in one if vlsn <= last})
    assert mine.has(range(62)).tolist() == [vlsn in one for vlsn in range(62)]
    assert mine.floor == next(vlsn for vlsn in range(62) if vlsn + 1 not in one)
    assert mine.intervals == sum(vlsn + 1 not in one for vlsn in one)


@given(SMALL, st.lists(st.tuples(st.integers(1, 60), st.integers(0, 9)), max_size=4))
def test_it_is_compared_with_spans(vlsns: set[int], drawn: list[tuple[int, int]]) -> None:
    mine, spans = of(vlsns), [(first, first + more) for first, more in drawn]
    for first, last in spans:
        inside = set(range(first, last + 1))
        assert mine.covers(first, last) == (inside <= vlsns)
        assert mine.count_in(first, last) == len(inside & vlsns)
        assert {each for low, high in mine.left([(first, last)]) for each in range(low, high + 1)} == inside - vlsns
    every = {each for first, last in spans for each in range(first, last + 1)}
    assert VlsnSet.of_spans(spans) == of(every) == VlsnSet.of_spans(of(every).spans())


@given(SMALL | WIDE)
def test_it_is_packed_and_back(vlsns: set[int]) -> None:
    assert VlsnSet.unpack(of(vlsns).pack()) == of(vlsns)


@given(st.binary(max_size=40))
def test_bytes_that_are_no_set_are_refused(packed: bytes) -> None:
    try:
        read = VlsnSet.unpack(packed)
    except BadBody:
        return
    assert (read.firsts >= 1).all() and (read.lasts >= read.firsts).all() and (read.firsts[1:] > read.lasts[:-1]).all()
    assert (read.lasts < 1 << 62).all()


@pytest.mark.parametrize(
    "packed", [b"\x80", b"\x01", b"\x02\x00", b"\x01\x01", b"\x02\x02\x00", b"\x01" + b"\xff" * 9 + b"\x02", b"\x00"]
)
def test_a_torn_set_is_refused(packed: bytes) -> None:
    with pytest.raises(BadBody):
        VlsnSet.unpack(packed)


def test_a_window_of_ten_thousand_at_random_packs_into_two_bytes_each() -> None:
    window = list(range(1_000_000, 1_010_000))
    Random(7).shuffle(window)
    for size in (100, 1_000, 4_096):
        notes = [of(set(window[at : at + size])).pack() for at in range(0, len(window), size)]
        assert sum(map(len, notes)) <= 2.1 * len(window)
