"""Twelve kinds of damage: each is one finding with its file, first wrong VLSN, owner, and the command that mends it."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import pytest

from repl.audit.outputs import write_outputs
from repl.audit.since import read_since
from repl.cli.main import main
from tests.repl.audit.damages import DAMAGES, REPAIR, Copies, faults_of
from tests.repl.audit.jobs import audited
from tests.repl.audit.life import Left


@pytest.fixture
def copies(left: Left, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Copies:
    for node, path in left.paths.items():
        shutil.copytree(path, tmp_path / node)
    odd = next(name for name in reversed(left.paths) if name != left.deposed)
    monkeypatch.chdir(tmp_path)
    return Copies({node: Path(node) for node in left.paths}, left.deposed, odd, left.early[odd])


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_one_finding_and_what_it_says_mends_it(copies: Copies, name: str) -> None:
    paths = list(copies.paths.values())
    write_outputs(audited(*paths), ["before.json"])
    expected = DAMAGES[name](copies)
    since = read_since("before.json", deep=False) if name == "an_old_image" else None
    report = audited(*paths, since=since, report="report.json")
    assert faults_of(report, expected) == []
    assert report.exit_code == 1
    write_outputs(report, ["report.json"])
    command = report.findings[0].mend
    if command.startswith("rm"):
        shutil.rmtree(shlex.split(command)[-1])
    elif command.startswith(REPAIR):
        assert main(shlex.split(command)[1:]) == 0
    else:
        return  # a node is to be started: see ``damages``
    assert audited(*paths).findings == []
