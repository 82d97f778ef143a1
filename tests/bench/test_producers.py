"""The benchmark of producers: its figures are of a node's own steps."""

from __future__ import annotations

from argparse import Namespace

import pytest

from tests.bench.producers import TURNS, measured
from tests.bench.report import missed
from vlsn.errors import BadArgument
from vlsn.limits import PRODUCERS_AT_LEVEL_1


def test_none_is_refused_where_more_are_live_than_level_1_knows() -> None:
    sections = list(measured(Namespace(producers=PRODUCERS_AT_LEVEL_1 + 500)))
    (_, turns), (_, checkpoints), (_, restored) = sections
    assert isinstance(turns, dict) and isinstance(checkpoints, list) and isinstance(restored, dict)
    assert not any(map(missed, sections))
    assert turns["submissions"] == TURNS * (PRODUCERS_AT_LEVEL_1 + 500)
    assert [each["changed"] for each in checkpoints] == [100, 1_000, PRODUCERS_AT_LEVEL_1 + 500]
    assert restored["record_bytes"] > 24 * 8 * PRODUCERS_AT_LEVEL_1
    assert all(each["at_home_ms"] > 0 and each["keeper_ms"] > 0 for each in checkpoints)


def test_more_than_a_group_can_set_are_refused() -> None:
    with pytest.raises(BadArgument):
        next(measured(Namespace(producers=10**6)))
