"""The range: its changes, and what it can never be."""

from __future__ import annotations

import pytest

from vlsn.errors import Damaged
from vlsn.ids import Vlsn
from vlsn.index.range import EMPTY, VlsnRange


def span(first: int, last: int, last_sync: int = 0, last_txn_end: int = 0) -> VlsnRange:
    return VlsnRange(Vlsn(first), Vlsn(last), Vlsn(last_sync), Vlsn(last_txn_end))


def test_an_empty_range_holds_nothing() -> None:
    assert EMPTY.empty
    assert span(0, 0) == EMPTY
    assert 0 not in EMPTY
    assert 1 not in EMPTY


def test_a_range_is_inclusive_and_cannot_be_changed() -> None:
    held = span(5, 9)
    assert [vlsn for vlsn in range(12) if vlsn in held] == [5, 6, 7, 8, 9]
    with pytest.raises(AttributeError):
        held.last = Vlsn(10)  # type: ignore[misc]


@pytest.mark.parametrize(
    ("last", "left"),
    [(15, span(1, 15, 15, 0)), (18, span(1, 18, 18, 17)), (19, span(1, 19, 18, 17)), (1, span(1, 1, 1, 0)), (0, EMPTY)],
)
def test_a_cut_tail_lowers_every_landmark(last: int, left: VlsnRange) -> None:
    assert span(1, 20, 18, 17).cut_tail(Vlsn(last)) == left


def test_a_trimmed_log_cut_before_its_first_is_empty() -> None:
    assert span(500, 600, 600).cut_tail(Vlsn(499)) == EMPTY


@pytest.mark.parametrize(("first", "left"), [(10, span(10, 20, 18, 17)), (18, span(18, 20, 18, 0))])
def test_a_cut_head_forgets_a_transaction_end_before_it(first: int, left: VlsnRange) -> None:
    assert span(1, 20, 18, 17).cut_head(Vlsn(first)) == left


@pytest.mark.parametrize("wrong", [span(2, 1), span(0, 5), span(1, 5, 6), span(1, 5, 0, 6), span(1, 0), span(0, 0, 1)])
def test_what_no_change_leads_to_is_damage(wrong: VlsnRange) -> None:
    with pytest.raises(Damaged):
        wrong.verify()
