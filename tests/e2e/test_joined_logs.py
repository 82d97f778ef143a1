"""The example that joins the streams of two groups of real nodes, run as its reader runs it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from repl import connect_sync
from tests.e2e.group import Group

pytestmark = pytest.mark.real
ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "docs" / "examples" / "spark" / "join_logs.py"


def urls_of(group: Group) -> str:
    return ",".join(group.urls.values())


def test_two_logs_are_joined_as_streams(group: Group, hurt: Group, tmp_path: Path) -> None:
    def joined() -> list[tuple[str, str]]:
        program = [sys.executable, str(EXAMPLE), urls_of(group), urls_of(hurt), str(tmp_path)]
        subprocess.run(program, check=True)
        return sorted((row["ordered"], row["paid"]) for row in pq.read_table(tmp_path / "paid").to_pylist())

    with connect_sync(urls_of(group)) as orders, connect_sync(urls_of(hurt)) as payments:
        orders.append_many([b"item 1", b"item 2", b"item 3"], keys=[b"order-1", b"order-2", b"order-3"])
        payments.append_many([b"2 euros", b"9 euros"], keys=[b"payment-2", b"payment-9"])
        assert joined() == [("item 2", "2 euros")]
        payments.append(b"3 euros", key=b"payment-3")
        assert joined() == [("item 2", "2 euros"), ("item 3", "3 euros")]


def test_the_page_shows_the_join_as_it_is_run() -> None:
    page = (ROOT / "docs" / "export.md").read_text()
    assert EXAMPLE.read_text() in page
