"""The measurement of a start: the node that it starts takes the append, and ends with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.start import started
from tests.e2e.commands import run


@pytest.mark.real
def test_the_time_of_a_start_is_that_of_a_node_that_took_the_append(tmp_path: Path) -> None:
    seconds, cpu_s = started(tmp_path / "data", 0)
    assert 0.0 < cpu_s < seconds * 8
    assert run("read", tmp_path / "data").out == b"first\n"
