"""Fixtures for pytest, which finds this module by its entry point.

def test_orders(vlsnlog_group):
    with vlsnlog_group.connect_sync() as log:
        log.append(b"value")
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from vlsnlog.testing.group import Group


@pytest.fixture
def vlsnlog_node() -> Iterator[Group]:
    """A group of one node, for one test."""
    yield from _made(1)


@pytest.fixture
def vlsnlog_group() -> Iterator[Group]:
    """A group of three nodes, for one test."""
    yield from _made(3)


def _made(nodes: int) -> Iterator[Group]:
    from vlsnlog.testing.group import Group  # imported on use, because every run of pytest loads this module

    with Group(nodes) as group:
        yield group
