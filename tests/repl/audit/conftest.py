"""Real nodes for the audit; a test may kill them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.group import Group
from vlsn.limits import MIB


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    made = Group(tmp_path / "group", segment_bytes=MIB)
    try:
        made.start()
        yield made
    finally:
        made.end()
