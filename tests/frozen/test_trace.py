"""The trace counts the same each time, and only what an operation calls."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from click.testing import CliRunner

from tests.frozen.trace import OPERATIONS, ROOT, Row, calls_of, counted, main


def test_it_prints_each_operation_on_one_node_and_on_three() -> None:
    done = CliRunner().invoke(main, ["--json"])
    assert done.exit_code == 0, done.output
    rows = json.loads(done.output)
    assert [(row["operation"], row["nodes"]) for row in rows] == [
        (name, size) for name in OPERATIONS for size in (1, 3)
    ]
    for row in rows:
        assert row["files"] == len(row["entered"]) and all((ROOT / file).exists() for file in row["entered"])
        assert row["calls"] >= row["functions"] >= row["files"] >= row["rooms"] > 5
        assert row["calls"] > row["changes"] >= row["rooms"] - 1
    for one, three in zip(rows[::2], rows[1::2], strict=True):
        assert set(one["entered"]) - set(three["entered"]) <= {"repl/lead/alone.py"} and three["calls"] > one["calls"]


@pytest.mark.parametrize("operation", OPERATIONS)
def test_it_counts_the_same_each_time(operation: str) -> None:
    assert calls_of(operation, 1) == calls_of(operation, 1)


def test_what_goes_on_after_an_await_is_no_new_call() -> None:
    calls = Counter(calls_of("append", 3))
    handlers = {name: count for (file, name), count in calls.items() if file == "repl/lead/append_http.py"}
    assert handlers and set(handlers.values()) == {1}


def test_changes_of_room_are_counted_along_the_calls() -> None:
    calls = [("vlsn/a.py", "f"), ("vlsn/b.py", "g"), ("repl/http/c.py", "h"), ("vlsn/a.py", "f")]
    assert counted("one", 1, calls) == Row("one", 1, calls=4, functions=3, files=3, rooms=2, changes=2)
