"""The benchmark of CDC consumers on real clusters, a moment of each work."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import pytest

from tests.bench import cdc
from tests.bench.report import Aimed, json_of, lines, missed
from vlsn.errors import BadArgument

pytestmark = pytest.mark.real


async def _run(work: str, **changed: Any) -> Any:
    brief = {"seconds": 0.5, "rounds": 1, "entries": 3_000, "rate": 500, "node": "master", "kind": ["Exits"]}
    [(_, found)] = [each async for each in cdc.measured(Namespace(works=[work], **(brief | changed)))]
    return found


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cdc, "WRITERS", 4)


async def test_the_same_entries_are_read_by_both_sides_out_of_the_ring() -> None:
    found = await _run("buffer")
    assert found["changes_to_ARCHIVE"].reached, "it stays in BUFFER"
    assert found["consumer_entries_per_s"][0] > 0 and found["tail_entries_per_s"][0] > 0


async def test_each_entry_of_a_steady_load_is_timed() -> None:
    found = await _run("latency")
    assert found["entries"] == pytest.approx(250, rel=0.5)
    assert found["from_the_acknowledgement_ms"]["p50"] <= found["from_before_the_append_ms"]["p50"]


async def test_bad_consumers_are_measured_beside_writers() -> None:
    found = await _run("bad", rounds=2)
    assert min(found["starts_of_the_bad_ones"]) > 0
    assert len(found["appends_per_s_with"]) == 2


async def test_an_aim_that_is_missed_is_said() -> None:
    section = "ten", {"ratio": Aimed(3.5, "≤ 3"), "node": "master", "rates": [1000, 2]}
    assert missed(section) == ["ten: ratio 3.5, wanted ≤ 3"]
    assert json_of(section[1])["ratio"] == {"value": 3.5, "aim": "≤ 3", "reached": False}
    assert lines(section) == ["ten:", "ratio  3.5 (≤ 3, MISSED)", "node   master", "rates  1,000 2"]
    with pytest.raises(BadArgument):
        await _run("ten", rounds=0)
