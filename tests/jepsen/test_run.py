"""A short run of real nodes under faults: found whole, and described in its files."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest
from harness.checks import Anomaly
from harness.command import bytes_per_s
from harness.nemesis.plan import KINDS
from harness.nemesis.targets import apart
from harness.ops import Op, numbered, read_history
from harness.report.progress import Progress
from harness.report.results import command, document, new_directory, table, verdict, write_results
from harness.report.series import Fault, Stretch, series_of, without_majority
from harness.report.timeline import page, write_timeline
from harness.run import Options, Outcome, run

from vlsnlog.testing.partitions import Shape

OPTIONS = Options(
    workload="append",
    kinds=("kill", "pause", "partition"),
    nodes=3,
    seconds=7.0,
    seed=14,
    rate=600.0,
    writers=12,
    interval_s=6.0,
    audit=False,
)


ALL_KILLED = replace(OPTIONS, kinds=("kill",), kill_ways=("all",), interval_s=3.0)


@pytest.mark.real
def test_all_nodes_killed_at_once_lose_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    outcome = asyncio.run(run(ALL_KILLED, tmp_path, progress=Progress(quiet=True)))
    lines = "\n".join(table(outcome))
    assert not outcome.found, lines
    assert set(outcome.ways) == {"kill all"}, lines
    assert outcome.entries >= 3 * outcome.ops["ok"] > 60, lines


@pytest.mark.real
def test_a_short_run_under_kills_pauses_and_partitions_finds_nothing_wrong(tmp_path: Path) -> None:
    outcome = asyncio.run(run(OPTIONS, tmp_path, progress=Progress(quiet=True)))
    lines = "\n".join(table(outcome))
    assert not outcome.found, lines
    assert [why for why in outcome.lacks if "acknowledged appends" not in why] == [], lines
    assert min(outcome.faults.values()) > 0, lines
    assert outcome.ops["ok"] > 20, lines
    assert outcome.entries >= 3 * outcome.ops["ok"], lines
    write_results(outcome, tmp_path)
    history = read_history(tmp_path / "history.jsonl")
    write_timeline(outcome, history, tmp_path / "timeline.html")
    told = json.loads((tmp_path / "results.json").read_text())
    assert told["ops"] == {end: _ends(history, end) for end in ("ok", "fail", "info")}
    assert told["faults"] == outcome.faults
    assert told["master_changes"] == len(outcome.masters) - 1
    assert "{{" not in (tmp_path / "timeline.html").read_text().partition("<script>")[0]


def _ends(history: list[Op], end: str) -> int:
    return sum(op.f == "append" and op.type == end for op in history)


def _outcome() -> Outcome:
    return Outcome(OPTIONS, ops={"ok": 2000, "fail": 1, "info": 2}, faults={"kill": 1}, masters=[(1, "n1"), (2, "n3")])


def test_valid_needs_that_nothing_is_wrong_and_nothing_lacks() -> None:
    outcome = _outcome()
    assert (outcome.valid, outcome.exit_status, verdict(outcome)) == (True, 0, "valid")
    outcome.lacks.append("no pause struck")
    assert (outcome.valid, outcome.exit_status, document(outcome)["valid"]) == ("unknown", 2, "unknown")
    outcome.found.add(Anomaly("lost-write", "w1", "gone", 7, 3))
    assert (outcome.valid, outcome.exit_status, document(outcome)["valid"]) == (False, 1, False)
    assert "NOT VALID" in table(outcome)[-1]


def test_a_run_is_kept_under_its_name_and_as_the_latest(tmp_path: Path) -> None:
    first = new_directory(OPTIONS, tmp_path)
    second = new_directory(replace(OPTIONS, workload="tail"), tmp_path)
    assert first.is_dir() and second.is_dir()
    assert (tmp_path / "latest").resolve() == second


def test_the_command_of_a_run_has_all_that_it_was_asked() -> None:
    asked = replace(OPTIONS, kinds=("disk",), disk_ways=("flip",))
    words = command(asked).split()
    assert words[:3] == ["python", "jepsen-like", "run"]
    assert {"--seed", "14", "--disk", "flip", "--interval", "6", "--nodes", "3", "--workload", "append"} <= set(words)
    assert not {"--link-rate", "--kill"} & set(words)
    assert command(ALL_KILLED).endswith("--kill all")
    shaped = command(replace(OPTIONS, shape=Shape(bytes_per_s("1mbit"), 0.1)))
    assert shaped.endswith("--link-rate 1000000bit --link-delay 100ms")


def test_the_timeline_places_appends_states_and_faults_in_time() -> None:
    value = {"state": "MASTER", "node": "n1", "term": 3, "reason": ""}
    history = numbered(
        [
            ("watch", "info", "status", value),
            ("w1", "invoke", "append", {"numbers": [1]}),
            ("nemesis", "info", "pause", {"id": 1, "phase": "begin", "way": "one", "nodes": ["n2"]}),
            ("w1", "ok", "append", {"numbers": [1], "first": 3}),
            ("nemesis", "info", "pause", {"id": 1, "phase": "end", "struck": True}),
            ("watch", "info", "status", {**value, "state": "REPLICA", "term": 4}),
            ("w1", "invoke", "append", {"numbers": [2]}),
            ("w1", "info", "append", {"numbers": [2]}),
        ]
    )
    series = series_of(history)
    assert [bucket.counts for bucket in series.buckets] == [{"ok": 1, "fail": 0, "info": 1}]
    assert series.buckets[0].waits_s == pytest.approx([0.002])
    assert [(each.state, each.term) for each in series.stretches] == [("MASTER", 3), ("REPLICA", 4)]
    assert [(each.kind, each.struck) for each in series.faults] == [("pause", True)]
    assert series.faults[0].end_s - series.faults[0].start_s == pytest.approx(0.002)
    outcome = _outcome()
    outcome.found.add(Anomaly("lost-write", "w1", "<gone>", 7, 3, 0.003))
    text = page(outcome, history)
    assert "&lt;gone&gt;" in text and "<gone>" not in text
    assert text.count('class="mark pause"') == 1


@pytest.mark.parametrize("kind", KINDS)
def test_the_timeline_shows_every_kind_of_fault(kind: str) -> None:
    told = {"id": 1, "way": "one", "nodes": ["n1"], "pairs": [["n1", "n2"]]}
    told |= {"how": "drop", "step": "add", "offsets": {"n1": 1.0}, "where": "a page"}
    value = {"state": "MASTER", "node": "n1", "term": 3, "reason": ""}
    history = numbered(
        [
            ("watch", "info", "status", value),
            ("watch", "info", "status", {**value, "node": "n2", "state": "REPLICA"}),
            ("nemesis", "info", kind, {**told, "phase": "begin"}),
            ("nemesis", "info", kind, {**told, "phase": "end", "struck": True}),
        ]
    )
    assert f'class="mark {kind}"' in page(_outcome(), history)


def test_the_timeline_shows_when_no_majority_could_be_reached() -> None:
    names = ["n1", "n2", "n3", "n4", "n5"]
    stretches = [Stretch(name, 0.0, 10.0, "REPLICA") for name in names[:-1]]
    stretches += [Stretch("n5", 0.0, 7.0, "REPLICA"), Stretch("n5", 7.0, 10.0, "UNREACHABLE")]
    faults = [
        Fault(1, "kill", "minority", ["n1", "n2"], 1.0, 3.0),
        Fault(2, "pause", "one", ["n3"], 2.0, 4.0),
        Fault(3, "partition", "halves", ["n1", "n2"], 5.0, 8.0, pairs=apart(["n1", "n2"], names)),
        Fault(4, "partition", "one-way", ["n3", "n4"], 8.5, 9.0, pairs=[("n3", "n4")]),
        Fault(5, "disk", "flip", names, 9.0, 10.0),
    ]
    assert without_majority(stretches, faults, 10.0) == [(2.0, 3.0), (7.0, 8.0)]
    assert without_majority(stretches[:3], [Fault(6, "kill", "all", names[:3], 0.0, 5.0)], 10.0) == [(0.0, 5.0)]
    assert without_majority([], [], 0.0) == []
