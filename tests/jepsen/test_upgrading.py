"""A rolling upgrade from the version that landed last, short, and the parts of the story that need no group."""

from __future__ import annotations

import asyncio
import subprocess
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from harness.orders import ROOT
from harness.report.progress import Progress
from harness.report.results import command, table
from harness.run import Options, check_options, run
from harness.upgrading import Code, contents, this_version, unpack, with_settings

from vlsn.errors import BadArgument
from vlsn.levels import LEVELS

PREVIOUS = (ROOT / ".ci/previous").read_text().strip()


def _is_here(revision: str) -> bool:
    asked = ["git", "cat-file", "-e", f"{revision}^{{commit}}"]
    return subprocess.run(asked, cwd=ROOT, capture_output=True, check=False).returncode == 0


OPTIONS = Options(
    workload="transaction",
    kinds=(),
    nodes=3,
    seconds=2.0,
    seed=5,
    rate=100.0,
    writers=6,
    between="proxies",
    audit=False,
)


@pytest.mark.real
@pytest.mark.skipif(not _is_here(PREVIOUS), reason=f"the history has no commit {PREVIOUS[:12]}: clone it whole")
@pytest.mark.parametrize("kinds", [(), ("kill",)], ids=["alone", "kill"])
def test_the_previous_version_is_upgraded_node_by_node_under_load(kinds: tuple[str, ...], tmp_path: Path) -> None:
    previous = unpack(PREVIOUS, tmp_path / "previous")
    options = replace(OPTIONS, upgrade_from=previous, kinds=kinds, seconds=20.0 if kinds else 2.0, interval_s=5.0)
    outcome = asyncio.run(run(options, tmp_path, progress=Progress(quiet=True)))
    lines = "\n".join(table(outcome))
    assert not outcome.found, lines
    assert [why for why in outcome.lacks if "acknowledged appends" not in why] == [], lines
    done = outcome.upgraded
    assert (done["mixes"], done["changes to C"], done["changes to P"], done["dry runs"]) == (5, 4, 1, 5), lines
    assert done["leads: C"] >= 4 and done["leads: P"] >= 4, lines
    raises = LEVELS.max - previous.facts().level
    assert (done.get("raises", 0), done.get("refusals", 0)) == (raises, min(raises, 1)), lines
    assert outcome.entries >= 3 * outcome.ops["ok"] > 60, lines


def test_the_command_of_an_upgrade_says_from_where() -> None:
    asked = replace(OPTIONS, upgrade_from=Code("P", Path("/old"), "/old/python"))
    assert "--upgrade-from /old --python /old/python" in command(asked)


@pytest.mark.parametrize("kind", ["disk", "members", "cleaning", "transfer"])
def test_faults_that_the_upgrade_has_itself_are_refused_beside_it(kind: str) -> None:
    asked = replace(OPTIONS, upgrade_from=this_version(), disk_ways=("wipe",))
    with pytest.raises(BadArgument, match=f"leave out {kind}"):
        check_options(replace(asked, kinds=(kind,)))
    check_options(replace(asked, kinds=("kill",)))


def test_a_version_says_its_highest_level_and_its_settings_and_no_other_directory_does(tmp_path: Path) -> None:
    facts = this_version().facts()
    assert facts.level == LEVELS.max and {"name", "retention_bytes", "cdc"} <= facts.settings
    with pytest.raises(BadArgument, match="is no vlsnlog"):
        Code("P", tmp_path, "/bin/false").facts()


def test_a_setting_that_a_version_does_not_know_waits_for_one_that_does() -> None:
    text = 'name = "n1"\n# words\nlater = 7\n\n[[cdc]]\nlater = 8\n\n[members]\nn1 = "http://h"\n'
    without = with_settings(text, {"name"})
    assert "later" not in tomllib.loads(without)
    assert tomllib.loads(without) == {each: value for each, value in tomllib.loads(text).items() if each != "later"}
    assert with_settings(without, {"name"}) == without and with_settings(without, {"name", "later"}) == text


def test_a_revision_that_there_is_not_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadArgument, match="git archive"):
        unpack("0" * 40, tmp_path / "previous")


def test_contents_are_compared_without_the_files_that_each_start_writes(tmp_path: Path) -> None:
    for name in ("LOCK", "node.log", "node.pid", "00000001.vlog", "state/lock.mdb", "state/data.mdb"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    assert contents(tmp_path) == {"00000001.vlog": b"00000001.vlog", "state/data.mdb": b"state/data.mdb"}
