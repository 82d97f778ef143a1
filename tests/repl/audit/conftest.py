"""Real nodes for the audit, which a test may kill, and the copies that a group has left, which no test changes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.group import Group
from tests.repl.audit.life import Left, left_by
from vlsn.limits import MIB


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    made = Group(tmp_path / "group", segment_bytes=MIB)
    try:
        made.start()
        yield made
    finally:
        made.end()


@pytest.fixture(scope="session")
def left(tmp_path_factory: pytest.TempPathFactory) -> Left:
    return left_by(tmp_path_factory.mktemp("left"))
