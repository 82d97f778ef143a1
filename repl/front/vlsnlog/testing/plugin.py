"""Fixtures for pytest, which finds this module by its entry point.

def test_orders(vlsnlog_group):
    with vlsnlog_group.connect_sync() as log:
        log.append(b"value")

``vlsnlog_disk`` in pytest's settings says where their nodes keep data: ``real`` (the default) or ``memory``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from vlsnlog.testing.group import Group


DISK = "vlsnlog_disk"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(
        DISK, "where the groups of vlsnlog_node and vlsnlog_group keep their data: real or memory", default="real"
    )


@pytest.fixture
def vlsnlog_node(pytestconfig: pytest.Config) -> Iterator[Group]:
    """A group of one node, for one test."""
    yield from _made(1, pytestconfig)


@pytest.fixture
def vlsnlog_group(pytestconfig: pytest.Config) -> Iterator[Group]:
    """A group of three nodes, for one test."""
    yield from _made(3, pytestconfig)


def _made(nodes: int, config: pytest.Config) -> Iterator[Group]:
    from vlsnlog.testing.group import Group  # imported on use, because every run of pytest loads this module

    with Group(nodes, disk=config.getini(DISK)) as group:
        yield group
