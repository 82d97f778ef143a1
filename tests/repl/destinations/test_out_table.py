"""The table of messages that are out, held against a dict."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from repl.destinations import out_table
from repl.destinations.out_table import NOBODY, OutTable
from vlsn.format.vlsn_set import VlsnSet

VLSNS = st.sets(st.integers(1, 40), min_size=1, max_size=12).map(sorted)


@dataclass(frozen=True)
class Out:
    before: int
    answer: int
    owner: int
    key: int


class OutTableMachine(RuleBasedStateMachine):
    """Rows go early here, so that every way of growing and shrinking is met."""

    def __init__(self) -> None:
        super().__init__()
        self.table = OutTable()
        self.model: dict[int, Out] = {}
        self.answers = 0

    @rule(
        vlsns=VLSNS,
        owner=st.integers(1, 3) | st.just(NOBODY),
        keys=st.none() | st.lists(st.integers(0, 4), min_size=12, max_size=12),
    )
    def goes_out(self, vlsns: list[int], owner: int, keys: list[int] | None) -> None:
        new = [vlsn for vlsn in vlsns if vlsn not in self.model]
        if not new:
            return
        self.answers += 1
        hashes = None if keys is None else np.array(keys[: len(new)], np.uint64)
        column = np.array(new, np.int64)
        self.table.add(column, column - 1, hashes, answer=self.answers, owner=owner)
        for at, vlsn in enumerate(new):
            self.model[vlsn] = Out(vlsn - 1, self.answers, owner, 0 if keys is None else keys[at])

    @rule(vlsns=VLSNS)
    def comes_in(self, vlsns: list[int]) -> None:
        column = np.array(vlsns, np.int64)
        removed = self.table.remove_set(VlsnSet.of(column)) if len(vlsns) % 2 else self.table.remove(column)
        assert removed.vlsns.tolist() == [vlsn for vlsn in vlsns if vlsn in self.model]
        gone = [self.model.pop(vlsn) for vlsn in vlsns if vlsn in self.model]
        assert len(removed) == len(gone)
        columns = (removed.before.tolist(), removed.answers.tolist(), removed.keys.tolist())
        assert list(zip(*columns, strict=True)) == [(each.before, each.answer, each.key) for each in gone]

    @rule(vlsns=VLSNS)
    def is_asked_for(self, vlsns: list[int]) -> None:
        mask, answers = self.table.answers_of(np.array(vlsns, np.int64))
        assert mask.tolist() == [vlsn in self.model for vlsn in vlsns]
        assert answers.tolist() == [self.model[vlsn].answer for vlsn in vlsns if vlsn in self.model]

    @rule(vlsns=VLSNS)
    def is_asked_whether_somebody_has_it(self, vlsns: list[int]) -> None:
        had = [vlsn for vlsn in vlsns if vlsn in self.model and self.model[vlsn].owner != NOBODY]
        assert self.table.with_somebody(np.array(vlsns, np.int64)).tolist() == had

    @rule(vlsns=VLSNS, owner=st.integers(1, 3))
    def is_asked_whose(self, vlsns: list[int], owner: int) -> None:
        mine = [vlsn for vlsn in vlsns if vlsn in self.model and self.model[vlsn].owner == owner]
        assert self.table.owned(np.array(vlsns, np.int64), owner).tolist() == mine

    @rule(owner=st.integers(0, 3))
    def keys_of_others(self, owner: int) -> None:
        others: dict[int, int] = {}
        for vlsn, each in sorted(self.model.items()):
            if each.owner != owner and each.key:
                others[each.key] = min(others.get(each.key, vlsn), vlsn if each.owner == NOBODY else 0)
        keys, behind = self.table.keys_of_others(owner)
        assert list(zip(keys.tolist(), behind.tolist(), strict=True)) == sorted(others.items())
        mine = any(each.owner == owner and each.key for each in self.model.values())
        assert self.table.has_keys_of(owner) == mine

    @rule(vlsns=VLSNS)
    def later_ones_of_a_key(self, vlsns: list[int]) -> None:
        some = [vlsn for vlsn in vlsns if vlsn in self.model]
        keys = np.array([self.model[vlsn].key for vlsn in some], np.uint64)
        later = {
            vlsn
            for vlsn, each in self.model.items()
            if each.key and each.owner != NOBODY and any(each.key == self.model[one].key and vlsn > one for one in some)
        }
        assert set(self.table.later(keys, np.array(some, np.int64)).tolist()) == later

    @invariant()
    def says_what_the_dict_says(self) -> None:
        assert len(self.table) == len(self.model)
        assert self.table.has(np.arange(42)).tolist() == [vlsn in self.model for vlsn in range(42)]
        for answer in {each.answer for each in self.model.values()}:
            mine = sorted(vlsn for vlsn, each in self.model.items() if each.answer == answer)
            assert self.table.vlsns_of(answer).tolist() == mine
        answers = range(1, self.answers + 1, 2)
        some = sorted(vlsn for vlsn, each in self.model.items() if each.answer in answers)
        assert not answers or self.table.vlsns_of(*answers).tolist() == some
        out = {each.key for each in self.model.values() if each.key}
        assert self.table.out_keys(np.arange(1, 5, dtype=np.uint64)).tolist() == [key in out for key in range(1, 5)]


@pytest.fixture(autouse=True, scope="module")
def _rows_go_early() -> object:
    patch = pytest.MonkeyPatch()
    patch.setattr(out_table, "_ROWS_MIN", 4)
    yield
    patch.undo()


TestOutTable = OutTableMachine.TestCase
TestOutTable.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
