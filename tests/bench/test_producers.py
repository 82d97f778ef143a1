"""The benchmark of producers: its figures are of what a node would do."""

from __future__ import annotations

import pytest

from repl.bench.producers import TURNS, run_producers
from vlsn.errors import BadArgument
from vlsn.limits import PRODUCERS_AT_LEVEL_1


def test_none_is_refused_where_more_are_live_than_level_1_knows() -> None:
    figures = run_producers(producers=PRODUCERS_AT_LEVEL_1 + 500)
    assert figures.refused == 0
    assert figures.submissions == TURNS * (PRODUCERS_AT_LEVEL_1 + 500)
    assert [each.changed for each in figures.checkpoints] == [100, 1_000, PRODUCERS_AT_LEVEL_1 + 500]
    assert figures.record_bytes > 24 * 8 * PRODUCERS_AT_LEVEL_1
    assert all(each.home_ms > 0 and each.keeper_ms > 0 for each in figures.checkpoints)


def test_more_than_a_group_can_set_are_refused() -> None:
    with pytest.raises(BadArgument):
        run_producers(producers=10**6)
