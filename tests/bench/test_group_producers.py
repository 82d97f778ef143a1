"""The benchmark of a whole group's producers: a few of them, through an opening, a restore and changes of master."""

from __future__ import annotations

from argparse import Namespace

from repl.bench.group_producers import measured


async def test_none_is_refused_through_an_opening_and_a_restore() -> None:
    found = await measured(Namespace(producers=40, turns=2, period=0.2))
    assert found["refused"] == {}
    assert found["submissions"] == 4 * 40
    assert found["checkpoints"] > 0
    assert found["checkpoint_home_ms"]["longest"][-1] > 0
