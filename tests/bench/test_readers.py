"""Waiting readers measured on a real cluster: each has every entry, also where its node dies."""

from __future__ import annotations

import argparse
import asyncio

import pytest

from tests.bench import readers
from tests.bench.report import Section, missed

pytestmark = pytest.mark.real


async def test_readers_are_counted_and_miss_nothing_when_their_node_dies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "SETTLE_S", 0.3)
    asked = argparse.Namespace(readers=30, tails=15, node="all", rate=10.0, seconds=0.5, die=True, setting=[])

    async def sections() -> list[Section]:
        return [section async for section in readers.measured(asked)]

    (_, seen), (_, died) = both = await asyncio.wait_for(sections(), 120)
    assert isinstance(seen, dict) and isinstance(died, dict)
    assert seen["entries"] == 30 * 5 >= seen["deliveries"] > 0, "on a busy machine two come as one"
    assert (died["entries"], died["lost"]) == (30 * 5, 10)
    assert (seen["behind"], died["behind"]) == (0, 0)
    assert not any(map(missed, both))
    assert seen["us_a_delivery"] is not None
