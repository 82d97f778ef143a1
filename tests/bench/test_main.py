"""``python -m tests.bench``: each work that it lists is there, and its sections are printed with their missed aims."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from importlib import import_module

import msgspec
import pytest

from tests.bench.__main__ import WORKS, _report
from tests.bench.report import Aimed, Section


@pytest.mark.parametrize("work", WORKS)
def test_each_work_has_options_and_figures(work: str) -> None:
    module = import_module(f"tests.bench.{WORKS[work][0]}")
    module.options(argparse.ArgumentParser())
    assert callable(module.measured)


@pytest.mark.parametrize("as_json", [True, False])
def test_a_missed_aim_is_named_and_is_the_exit_status(as_json: bool, capsys: pytest.CaptureFixture[str]) -> None:
    def sections(value: float) -> Iterator[Section]:
        yield "turns", [{"call": "GET /", "gap_ms": Aimed(value, "≤ 1000")}]

    assert _report(sections(1_000), as_json=as_json) == 0
    assert capsys.readouterr().err == ""
    assert _report(sections(1_001), as_json=as_json) == 1
    out, err = capsys.readouterr()
    assert err == "MISSED: turns: gap ms 1,001, wanted ≤ 1000\n"
    if as_json:
        assert msgspec.json.decode(out)["turns"][0]["gap_ms"] == {"value": 1001, "aim": "≤ 1000", "reached": False}
    else:
        assert out.splitlines()[::2] == ["turns:", "GET /  1,001 (≤ 1000, MISSED)"]
