"""Fixtures of the command line's tests: no settings from outside, a node on fakes, and a small log."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.repl.cli.shell import Shell
from tests.repl.client.group import ServedNode
from tests.repl.web.one_node import OneNode
from vlsn import Log


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("VLSNLOG_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """VLSN 1 is a TERM entry; then five blocks of two entries, VLSN 2–3 to 10–11."""
    with Log.open(str(tmp_path / "log")) as log:
        for number in range(5):
            log.append([b"entry %d" % number, b"x" * 100])
    return tmp_path / "log"


@pytest.fixture
def served() -> Iterator[ServedNode]:
    with ServedNode() as one:
        yield one


@pytest.fixture
def node(served: ServedNode) -> OneNode:
    return served.node


@pytest.fixture
def shell(served: ServedNode, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> Shell:
    return Shell(capsysbinary, monkeypatch, served.url)
