"""One whole group for every test that leaves it whole."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.group import UNTROUBLED_S, Group
from vlsn.limits import MIB

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.real)


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps the settings of the caller's environment from nodes and commands."""
    for name in [name for name in os.environ if name.startswith("VLSNLOG_")]:
        monkeypatch.delenv(name)


@pytest.fixture(scope="package")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    """Three nodes that nobody kills.  Whatever the tests sent, none of them logged a fault of its own."""
    made = Group(tmp_path_factory.mktemp("group"), election_timeout_s=UNTROUBLED_S)
    try:
        made.start()
        yield made
        assert made.faults() == []
    finally:
        made.end()


@pytest.fixture
def hurt(hurt_before: Group) -> Group:
    """Three nodes that are stopped and killed; each test leaves all of them running, and whole.  n1 leads."""
    hurt_before.lead("n1")
    return hurt_before


@pytest.fixture(scope="package")
def hurt_before(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    """Small segments and a small ring, so that a replica that was away is fed from many files."""
    made = Group(tmp_path_factory.mktemp("hurt"), segment_bytes=4 * MIB, ring_bytes_max=MIB, scrub_period_s=1.0)
    try:
        made.start()
        yield made
    finally:
        made.end()
