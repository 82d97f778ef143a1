"""The proof by system calls, short: real processes, traced."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from harness.syscalls import may_trace, trace_appends

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(not may_trace(), reason="strace is not installed, or may not trace here"),
]


def test_each_append_shows_its_own_sync_on_a_majority_before_its_answer(tmp_path: Path) -> None:
    said: list[str] = []
    shown = asyncio.run(trace_appends(tmp_path, appends=30, say=said.append))
    assert len(shown) == 30
    assert [each for each in shown if len(each.synced) < 2] == []


def test_under_load_every_acknowledged_append_shows_its_completed_sync_on_a_majority(tmp_path: Path) -> None:
    said: list[str] = []
    shown = asyncio.run(trace_appends(tmp_path, appends=160, writers=16, say=said.append))
    assert len(shown) == 160
    assert [each for each in shown if len(each.synced) < 2] == []
    syncs = int(said[-1].split(" syncs ")[0].split()[-1])
    assert syncs < 160, "no two appends shared a sync: this was no load"
