"""Real nodes that clean: each to another point, and the copies are still proven equal where they overlap."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from repl.cli.main import main
from tests.e2e.calls import call
from tests.e2e.group import NAMES, Group
from tests.repl.audit.jobs import audited
from vlsn.limits import MIB

pytestmark = pytest.mark.feature("cleaning")

KEPT = 4 * MIB
VALUE = b"." * 100_000


@pytest.fixture
def cleaning(tmp_path: Path) -> Iterator[Group]:
    """Starts a group that cleans only when it is asked to."""
    made = Group(tmp_path / "group", segment_bytes=MIB, retention_bytes=KEPT, cleaning_period_s=3600)
    try:
        made.start()
        yield made
    finally:
        made.end()


def test_nodes_cleaned_to_different_points_are_equal_where_they_overlap(
    cleaning: Group, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    group, urls = cleaning, cleaning.urls
    for name in ("VLSNLOG_URL", "VLSNLOG_CONFIG"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: str | Path, status: int = 0) -> str:
        capsys.readouterr()
        assert main([str(argument) for argument in arguments]) == status, capsys.readouterr()
        ended = capsys.readouterr()
        return ended.out if status == 0 else ended.err

    def clean(name: str, *flags: str) -> dict[str, Any]:
        answers: list[dict[str, Any]] = json.loads(run("clean", "--json", "--url", urls[name], *flags))["nodes"]
        return answers[0]

    every = ",".join(urls.values())
    vlsns = group.append(*[VALUE] * 80)
    group.settle()
    run("checkpoint", "--url", every)
    files = sorted(group.path("n1").glob("*.vlog"))
    dry = clean("n1", "--dry-run")
    assert sorted(group.path("n1").glob("*.vlog")) == files
    assert dry["dry_run"] and len(dry["segments"]) >= 4
    assert "would go" in run("clean", "--dry-run", "--url", urls["n1"])
    done = clean("n1")
    assert done["segments"] == dry["segments"]
    assert done["bytes"] == len(done["segments"]) * MIB
    assert sum(path.stat().st_size for path in group.path("n1").glob("*.vlog")) <= KEPT
    vlsns += group.append(*[VALUE] * 30)
    group.settle()
    run("checkpoint", "--url", every)
    clean("n2")
    firsts = {name: group.status(name)["range"]["first"] for name in NAMES}
    assert firsts["n3"] == 1 < firsts["n1"] < firsts["n2"]
    answer = call("GET", f"{urls['n1']}/v1/entries?from=2")
    assert answer.refused(410, "trimmed")["first"] == firsts["n1"]
    assert call("GET", f"{urls['n1']}/v1/segments/1").refused(410, "trimmed")["first"] == firsts["n1"]
    assert "cleaned away" in run("read", "--url", urls["n1"], "--from", "2", status=2)
    shown = run("read", "--url", urls["n1"], "--format", "json").splitlines()
    assert [json.loads(line)["vlsn"] for line in shown] == [vlsn for vlsn in vlsns if vlsn >= firsts["n1"]]
    live = audited(*urls.values())
    assert (live.equal, live.compared_from, live.findings) == (True, firsts["n2"], [])
    assert "running node" in run("clean", "--dry-run", group.path("n3"), status=2)
    assert not group.faults()
    group.stop(*NAMES)
    stopped = audited(*map(group.path, NAMES))
    assert (stopped.equal, stopped.compared_from, stopped.findings) == (True, firsts["n2"], [])
    for name in NAMES:
        assert json.loads(run("verify", "--json", group.path(name)))["first"] == firsts[name]
        assert json.loads(run("dump", "--json", group.path(name)).splitlines()[0])["first"] == firsts[name]
    report = json.loads(run("clean", "--dry-run", "--json", "--retention-bytes", "4MiB", group.path("n3")))
    assert [each["number"] for each in report["segments"]][:3] == [1, 2, 3]
    assert "--dry-run" in run("clean", group.path("n3"), status=2)
    group.start()
    assert {name: group.status(name)["range"]["first"] for name in NAMES} == firsts
    group.append(VALUE)
    group.settle()
