"""Waiting readers measured on a real cluster: each has every entry, also where its node dies."""

from __future__ import annotations

import argparse
import asyncio

import pytest

from repl.bench.readers import measured

pytestmark = pytest.mark.real


async def test_readers_are_counted_and_miss_nothing_when_their_node_dies() -> None:
    asked = argparse.Namespace(readers=30, tails=15, node="all", rate=10.0, seconds=0.5, die=True, setting=[])
    found = await asyncio.wait_for(measured(asked), 120)
    assert found["seen"]["entries"] == found["seen"]["deliveries"] == 30 * 5
    assert found["died"]["entries"] == 30 * 5
    assert found["died"]["lost"] == 10
    for seen in (found["seen"], found["died"]):
        assert (seen["wrong"], seen["refused"], seen["behind"]) == (0, 0, 0)
    assert found["us_a_delivery"] is not None
