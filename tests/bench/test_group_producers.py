"""The benchmark of a whole group's producers: a few of them, through an opening, a restore and changes of master."""

from __future__ import annotations

from argparse import Namespace

import pytest

from tests.bench.group_producers import measured

pytestmark = pytest.mark.real


async def test_none_is_refused_through_an_opening_and_a_restore() -> None:
    [(_, found)] = [each async for each in measured(Namespace(producers=40, turns=2, period=0.2))]
    assert isinstance(found, dict)
    assert found["refused_as"] == {}
    assert found["submissions"] == 4 * 40
    assert found["checkpoints"] > 0
    assert found["checkpoint_home_ms"]["longest"][-1] > 0
