"""Refusals of a run before it writes anything."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from repl.bench.run import BenchOptions, run_bench
from repl.bench.target import check_space
from repl.bench.works import Load
from repl.cli.bench import bench
from vlsn.errors import BadArgument, NoSpace

GIVEN = BenchOptions(work="append", url="http://127.0.0.1:1", seconds=1)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"work": "appendix"}, "appendix"),
        ({"seconds": 0}, "seconds"),
        ({"writers": 0}, "writers"),
        ({"size": 0}, "size"),
        ({"size": 2 << 20}, "size"),
        ({"batch": 70_000}, "batch"),
        ({"batch": 60_000, "size": 1_000}, "batch"),
        ({"acks": "most"}, "acks"),
        ({"url": "ftp://x"}, "url"),
        ({"work": "catchup"}, "--url"),
        ({"work": "recover"}, "--url"),
        ({"tls": True}, "--url"),
    ],
)
def test_run_refuses_what_it_cannot_do_and_names_it(changed: dict[str, object], named: str) -> None:
    with pytest.raises(BadArgument, match=named):
        run_bench(replace(GIVEN, **changed))  # type: ignore[arg-type]


@pytest.mark.parametrize(("flag", "wanted"), [("--no-touch-memory", False), ("--touch-memory", True), (None, True)])
def test_the_command_says_whether_memory_is_touched(
    flag: str | None, wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[BenchOptions] = []

    def refuse(options: BenchOptions) -> None:
        asked.append(options)
        raise BadArgument("seen")

    monkeypatch.setattr("repl.bench.run.run_bench", refuse)
    CliRunner().invoke(bench, ["bulk", *([flag] if flag else [])])
    assert [options.touch_memory for options in asked] == [wanted]


def test_space_is_looked_at_before_anything_is_written(tmp_path: Path) -> None:
    check_space(tmp_path, 0)
    with pytest.raises(NoSpace, match="bytes-max"):
        check_space(tmp_path, 1 << 60)


def test_load_counts_three_copies_and_their_framing_against_its_cap() -> None:
    load = Load(seconds=1, writers=16, size=84, batch=1000, acks="majority", bytes_max=300_000)
    assert load.entries_max == 1000
    assert all(len(value) == 84 for value in load.values())
