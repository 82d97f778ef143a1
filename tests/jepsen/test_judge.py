"""The nodes' directories held against what was acknowledged."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from harness.judge import audit, faults, write_acknowledged
from harness.ops import numbered
from harness.values import value_of

from repl.audit.digest import entry_digest
from tests.repl.audit.logs import Copy, blocks

HISTORY = numbered(
    [
        ("w1", "invoke", "append", {"numbers": [1, 2]}),
        ("w2", "invoke", "append", {"numbers": [3]}),
        ("w1", "ok", "append", {"numbers": [1, 2], "first": 5}),
        ("w2", "info", "append", {"numbers": [3]}),
        ("w1", "invoke", "append", {"numbers": [4]}),
        ("w1", "ok", "append", {"numbers": [4], "first": 8}),
        ("w1", "invoke", "append", {"numbers": [5]}),
        ("w1", "fail", "append", {"numbers": [5]}),
    ]
)


def test_what_was_acknowledged_is_told_to_the_audit_entry_by_entry(tmp_path: Path) -> None:
    assert write_acknowledged(HISTORY, tmp_path / "acknowledged") == 3
    lines = [json.loads(line) for line in (tmp_path / "acknowledged").read_text().splitlines()]
    assert lines == [
        *({"vlsn": vlsn, "digest": digest(number), "once": True} for vlsn, number in ((5, 1), (6, 2), (8, 4))),
        {"digest": digest(5), "once": True},
    ]


def test_a_traceback_in_a_nodes_log_is_an_anomaly(tmp_path: Path) -> None:
    said = (
        "INFO n1 opened\nERROR a call failed\nTraceback (most recent call last):\n  File\nKeyError: 7\nINFO n1 leads\n"
    )
    for name, text in (("n1", said), ("n2", "INFO n2 opened\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "node.log").write_text(text)
    (anomaly,) = faults({name: tmp_path / name for name in ("n1", "n2", "n3")})
    assert (anomaly.rule, anomaly.where) == ("node-fault", "n1")
    assert "1 tracebacks" in anomaly.detail and "KeyError: 7" in anomaly.detail


def digest(number: int) -> str:
    return entry_digest(value_of(number))


@pytest.mark.real
def test_what_equal_copies_lack_or_have_in_spite_of_a_refusal_is_an_anomaly(tmp_path: Path) -> None:
    numbers = [1, 2, 3, 9, 5, 10, 11]
    story = blocks(*([value_of(number)] for number in numbers), first_vlsn=5)
    directories = {name: tmp_path / name for name in ("n1", "n2")}
    for name, path in directories.items():
        Copy(path, name).add(*story).write()
    write_acknowledged(HISTORY, tmp_path / "acknowledged")
    (anomaly,), everywhere, why = asyncio.run(audit(directories, tmp_path / "acknowledged"))
    assert (anomaly.rule, everywhere, why) == ("not-equal", 2, "")
    assert str(anomaly).startswith("not-equal (audit): 2 history-differs, 1 history-refused; first [{")
