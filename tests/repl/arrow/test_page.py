"""The page on Arrow: its examples run, with the results that it states."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.repl.audit.logs import Copy, blocks

PAGE = Path(__file__).parents[3] / "docs" / "arrow.md"


def shown(title: str) -> str:
    section = PAGE.read_text().split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]
    (code,) = re.findall(r"^```python\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    return str(code)


@pytest.fixture
def names(tmp_path: Path) -> dict[str, Any]:
    from repl import read_arrow

    story = blocks(*([b'{"cents":%d}' % at] for at in range(1, 7)), keys=[b"order", b"refund", b"order"])
    Copy(tmp_path, "n1").add(*story).checkpoint(dtvlsn=6).write()
    return {"SOURCE": str(tmp_path), "read_arrow": read_arrow}


def test_polars_as_the_page_shows_it(names: dict[str, Any]) -> None:
    pytest.importorskip("polars")
    exec(shown("polars"), names)
    assert dict(zip(names["by_key"]["key"], names["by_key"]["cents"], strict=True)) == {"order": 16, "refund": 5}


def test_duckdb_as_the_page_shows_it(names: dict[str, Any]) -> None:
    pytest.importorskip("duckdb")
    exec(shown("DuckDB"), names)
    assert dict(names["cents"]) == {"order": 16, "refund": 5}
    names["connection"].close()


def test_pandas_as_the_page_shows_it(names: dict[str, Any]) -> None:
    pytest.importorskip("pandas")
    exec(shown("pandas"), names)
    assert names["orders"]["cents"].sum() == 16
