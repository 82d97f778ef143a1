"""Acknowledgements of a destination: the room for intervals, and VLSNs that are noted and not folded yet."""

from __future__ import annotations

import numpy as np
import pytest

from repl.destinations import acknowledged as module
from repl.destinations.acknowledged import Acknowledged
from repl.destinations.out_table import OutTable
from vlsn.errors import NotFound, QueueFull
from vlsn.format.vlsn_set import VlsnSet
from vlsn.ids import Vlsn
from vlsn.state.acks import Acked


class Made:
    def __init__(self, *done: tuple[int, int]) -> None:
        self.table: Acked | None = Acked(Vlsn(5), VlsnSet.covering(*zip(*done, strict=True)))
        self.out = OutTable()
        self.acks = Acknowledged("orders", lambda: self.table, self.out)

    def goes_out(self, *vlsns: int) -> None:
        column = np.array(vlsns, np.int64)
        self.out.add(column, column - 1, None, answer=1, owner=1)


def test_what_is_out_has_room_for_its_interval_and_what_the_table_would_not_take_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "ACK_INTERVALS_MAX", 4)
    made = Made((1, 10), (20, 20))
    made.goes_out(12, 30)
    assert made.acks.intervals_left == 0
    with pytest.raises(QueueFull, match="3 intervals of acknowledged VLSNs, 4 are kept"):
        made.acks.check(VlsnSet.of([40]))
    for fits in ([12], [12, 30], [11], range(11, 20)):
        made.acks.check(VlsnSet.of(fits))
    with pytest.raises(QueueFull, match="1 more intervals"):
        made.acks.check_retry(VlsnSet.of([5]))
    made.acks.check_retry(VlsnSet.of([20]))


def test_noted_ones_are_hidden_until_they_are_given_back_or_folded() -> None:
    made = Made((1, 10))
    made.acks.add(VlsnSet.of([12, 13]))
    assert made.acks.has(np.arange(10, 15)).tolist() == [True, False, True, True, False]
    assert (made.acks.floor, made.acks.last) == (10, 13)
    made.acks.give_back(VlsnSet.of([13]))
    made.table = Acked(Vlsn(5), VlsnSet.covering([1, 12], [10, 12]))
    made.acks.fold()
    assert made.acks.last == 12 and not made.acks.has(np.array([13])).any()
    made.table = None
    with pytest.raises(NotFound, match="destination orders is gone"):
        made.acks.table()


def test_skipped_ones_go_with_a_note_unless_they_need_room_that_acknowledgements_need(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "ACK_INTERVALS_MAX", 2)
    made = Made((1, 10), (20, 20))
    made.acks.skip(14, 15)
    made.acks.skip(15, 14)  # none
    assert not made.acks.take_skipped(), "the table is full, and this would be a third interval"
    made.acks.skip_before(np.array([14, 20]), np.array([10, 15]))
    assert list(made.acks.take_skipped().vlsns()) == [11, 12, 13, 14, 15, 16, 17, 18, 19]
    assert made.acks.has(np.arange(1, 21)).all() and not made.acks.take_skipped()
