"""The proof of acknowledgements, against a plain count."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feeder.majority import majority
from repl.lead.acks import durable_vlsn, synced_by_all, synced_count
from vlsn.ids import Incarnation, Vlsn

A, B, C, D, E = (Incarnation(number) for number in range(1, 6))


@pytest.mark.parametrize(("electable", "needed"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3), (7, 4)])
def test_a_majority_is_more_than_half(electable: int, needed: int) -> None:
    assert majority(electable) == needed


@pytest.mark.parametrize(
    ("synced", "term_start", "durable"),
    [
        ({A: 90, B: 80, C: 40}, 61, 80),
        ({A: 90, B: 55, C: 40}, 61, 0),  # before the term's first block is on a majority, nothing counts
        ({A: 90, B: 61}, 61, 61),
        ({A: 50, B: 90, C: 90}, 1, 90),  # any majority will do, with the master or without
        ({A: 90}, 1, 0),
        ({A: 90, B: 70, D: 90, E: 90}, 1, 70),  # who is not listed counts for nothing
        ({A: 90, B: 90, C: 90}, 0, 0),  # no term yet
    ],
)
def test_durable(synced: dict[Incarnation, Vlsn], term_start: int, durable: int) -> None:
    assert durable_vlsn(synced, [A, B, C], term_start=Vlsn(term_start)) == durable


vlsns = st.integers(0, 30).map(Vlsn)
everybody = st.lists(st.integers(1, 7).map(Incarnation), min_size=1, max_size=7, unique=True)


@given(st.dictionaries(st.integers(1, 9).map(Incarnation), vlsns), everybody, vlsns)
def test_what_is_durable_is_on_a_majority_and_nothing_higher_is(
    synced: dict[Incarnation, Vlsn], electable: list[Incarnation], term_start: Vlsn
) -> None:
    durable = durable_vlsn(synced, electable, term_start=term_start)

    def proven(vlsn: int) -> bool:
        holders = [member for member in electable if synced.get(member, 0) >= vlsn]
        return 2 * len(holders) > len(electable) and vlsn >= term_start > 0

    assert durable == max((vlsn for vlsn in range(1, 31) if proven(vlsn)), default=0)
    assert synced_by_all(synced, electable) == min(synced.get(member, 0) for member in electable)
    assert synced_count(synced, electable, 5) == sum(synced.get(member, 0) >= 5 for member in electable)
