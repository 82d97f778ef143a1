"""A context that knows one member of a real group reaches the group after that member is gone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.group import Group


def test_a_context_of_one_member_finds_the_others_after_it_is_gone(
    hurt: Group, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))

    def vlsnlog(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "repl.cli.start", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    added = vlsnlog("context", "add", "prod", "--url", hurt.urls["n1"])
    assert added.returncode == 0 and all(url in added.stdout for url in hurt.urls.values()), added
    hurt.kill("n1")
    appended = vlsnlog("append", "found by a context")
    assert appended.returncode == 0, appended
    assert "found by a context" in vlsnlog("read", "--from", appended.stdout.split()[0]).stdout
    shown = vlsnlog("status")
    assert shown.returncode == 1 and "UNREACHABLE" in shown.stdout, shown
    hurt.start("n1")
