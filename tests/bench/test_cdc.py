"""The benchmark of CDC consumers on real clusters, a moment of each work."""

from __future__ import annotations

import pytest

from repl.bench.cdc.works import BAD, CdcOptions, CdcOutcome, Figure, run_work
from vlsn.errors import BadArgument

pytestmark = pytest.mark.real

BRIEF = CdcOptions(seconds=0.5, rounds=1, entries=3_000, rate=500, writers=4)


def test_the_same_entries_are_read_by_both_sides_out_of_the_ring() -> None:
    found = run_work("buffer", BRIEF)
    assert found.figures[1].found == 0, "it stays in BUFFER"
    assert found.more["consumer_entries_per_s"][0] > 0 and found.more["tail_entries_per_s"][0] > 0


def test_each_entry_of_a_steady_load_is_timed() -> None:
    found = run_work("latency", BRIEF)
    assert found.more["entries"] == pytest.approx(250, rel=0.5)
    assert found.more["from_the_acknowledgement_ms"]["p50"] <= found.more["from_before_the_append_ms"]["p50"]


def test_bad_consumers_are_measured_beside_writers() -> None:
    found = run_work("bad", CdcOptions(seconds=0.5, rounds=2, writers=4, kinds=("Exits",)))
    assert [each.name.partition(":")[0] for each in found.figures] == ["Exits"] * 3
    assert min(found.more["Exits"]["starts_of_the_bad_ones"]) > 0
    assert len(found.more["Exits"]["appends_per_s_with"]) == 2


def test_an_aim_that_is_missed_is_said() -> None:
    missed = CdcOutcome("ten", [Figure("ratio", 3.5, "≤ 3", False)], {"node": "master", "rates": [1000, 2]})
    assert not missed.met and missed.json()["met"] is False
    assert missed.lines() == ["ten:", "  ratio: 3.5 (≤ 3)  MISSED", "    node: master", "    rates: 1,000 2"]
    assert len(BAD) == 5
    with pytest.raises(BadArgument):
        run_work("ten", CdcOptions(rounds=0))
