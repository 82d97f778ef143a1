"""Tables as a terminal of some width shows them."""

from __future__ import annotations

import pytest

from repl.cli.report import age, print_table

COLUMNS = ("node", "last", "bytes", "url")
ROWS = (("n1", 1234, 5_000_000, "http://127.0.0.1:7701"), ("n2", None, None, "http://127.0.0.1:7702"))
WHOLE = """\
node  last    bytes  url
n1    1234  5000000  http://127.0.0.1:7701
n2       -        -  http://127.0.0.1:7702
"""
SPARED = """\
node  last  url
n1    1234  http://127.0.0.1:7701
n2       -  http://127.0.0.1:7702
"""


def told(capsys: pytest.CaptureFixture[str]) -> str:
    print_table("", COLUMNS, ROWS, spare=("bytes", "unknown"))
    return capsys.readouterr().out


def test_a_table_without_a_terminal_is_whole(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "10")
    assert told(capsys) == WHOLE


@pytest.mark.parametrize(("columns", "expected"), [(42, WHOLE), (41, SPARED), (10, SPARED)])
def test_a_narrow_terminal_is_spared_columns_and_no_cell_is_cut(
    columns: int, expected: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert told(capsys) == expected


def test_a_table_of_nothing_is_its_head(capsys: pytest.CaptureFixture[str]) -> None:
    print_table("title", COLUMNS, [])
    assert capsys.readouterr().out == "title\nnode  last  bytes  url\n"


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0.0, "0 s"), (59.4, "59 s"), (90.0, "1.5 min"), (9_000.0, "2.5 h"), (200_000.0, "2.3 d")]
)
def test_an_age_is_shown_by_its_largest_unit(seconds: float, shown: str) -> None:
    assert age(seconds) == shown
