"""The hostile scripts' verdict, and a slice of them against real nodes."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from harness.hostile import leaving
from harness.hostile.kind import Limits, Scene
from harness.hostile.kinds import KINDS
from harness.hostile.suite import Row, judge, run_kind
from harness.hostile.table import table
from harness.hostile.watch import PERIOD_S, Answers, Watched

from vlsn.limits import MIB

LIMITS = Limits(p99_s=0.2, longest_s=1.0, append_p99_s=1.0)


def _well() -> Watched:
    answers = Answers()
    for _ in range(1000):
        answers.add(0.002)
    return Watched({"n1": answers}, {2: b"a"}, [0.01], leads=[(1, "n1")])


def test_a_group_that_was_not_disturbed_holds() -> None:
    assert judge(_well(), LIMITS) == []


def test_a_silence_counts_for_every_probe_that_it_held_back() -> None:
    answers = Answers()
    for _ in range(100):
        answers.add(0.001)
    answers.add(1.0)
    assert len(answers.seconds) == 100 + round(1.0 / PERIOD_S)
    assert answers.p99_s == pytest.approx(1.0, abs=2 * PERIOD_S)
    assert answers.longest_s == 1.0


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda seen: seen.answers["n1"].add(3.0), "n1 was silent for 3.00 s"),
        (lambda seen: [seen.answers["n1"].add(0.9) for _ in range(9)], "n1: /healthz took"),
        (lambda seen: setattr(seen.answers["n1"], "failed", 1), "health checks were not answered"),
        (lambda seen: seen.leads.append((2, "n2")), "the lead was lost: n1 in term 1, n2 in term 2"),
        (lambda seen: seen.errors.update(["queue-full"]), "1 appends failed"),
        (lambda seen: seen.acknowledged.clear(), "no append was acknowledged"),
        (lambda seen: seen.append_seconds.append(2.0), "appends took 2.00 s"),
    ],
)
def test_what_an_attack_cost_too_much_is_said(change: object, says: str) -> None:
    seen = _well()
    assert callable(change)
    change(seen)
    assert any(says in each for each in judge(seen, LIMITS)), judge(seen, LIMITS)


def test_the_table_names_each_kind_what_it_sent_and_what_was_found() -> None:
    holds = Row("idle", "4,096 connections", {"n1": 3.0}, {"n1": 20.0}, [(1, "n1")], 100, 12.0)
    broken = Row(
        "pings", "many", {"n1": 300.0}, {"n1": 2000.0}, [(1, "n1"), (2, "n2")], 10, 500.0, ["the lead was lost"]
    )
    lines = "\n".join(table([holds, broken]))
    assert "n1 3 / 20" in lines and "n1@1 → n2@2" in lines
    assert lines.count("holds") == 1 and "DOES NOT HOLD" in lines
    assert "sent: 4,096 connections" in lines and "FOUND the lead was lost" in lines


def test_every_kind_is_known_by_its_name() -> None:
    assert all(name == kind.name and kind.says for name, kind in KINDS.items())


@pytest.mark.parametrize(
    ("looks", "before", "found"),
    [([57, 61, 62], 62, 0), ([57, 57], 57, 0), ([50, 52, 54, 56, 58, 60], 60, 1)],
)
def test_memory_is_first_measured_once_it_no_longer_grows(
    looks: list[int], before: int, found: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nobody(*_: object) -> None: ...

    left = iter(looks)
    monkeypatch.setattr(leaving, "_come_and_leave", nobody)
    monkeypatch.setattr(leaving, "_memory", lambda _: next(left) * MIB)
    monkeypatch.setattr(leaving, "REST_S", 0.0)
    scene = SimpleNamespace(master="n1", found=[])
    assert asyncio.run(leaving._settled(cast(Scene, scene))) == before * MIB
    assert len(scene.found) == found and not list(left)


BROKEN_FILES = ("truncated", "replaced", "swapped")
ANYTHING = Limits(p99_s=inf, longest_s=inf, append_p99_s=inf, same_lead=False, errors=1 << 62, nodes_up=False)
SLICE = ("pings", "tails", "idle", "leaving")
SLACK = 5.0


@pytest.mark.real
@pytest.mark.parametrize("name", SLICE)
def test_a_short_attack_silences_nobody_and_loses_nothing(name: str, tmp_path: Path) -> None:
    row = asyncio.run(run_kind(KINDS[name], tmp_path, seconds=4.0, slack=SLACK))
    assert row.holds, "\n".join(table([row]))
    assert row.acknowledged > 0


@pytest.mark.real
@pytest.mark.parametrize("name", BROKEN_FILES)
def test_a_replica_whose_files_were_tampered_with_says_so_or_heals_and_nothing_is_lost(
    name: str, tmp_path: Path
) -> None:
    row = asyncio.run(run_kind(replace(KINDS[name], limits=ANYTHING), tmp_path, seconds=0.0))
    assert row.holds, "\n".join(table([row]))
    assert row.acknowledged > 0
