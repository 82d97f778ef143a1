"""``vlsnlog read`` of a directory, and what it chooses by place, key and number; ``append`` takes what it prints."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from repl import connect_sync
from repl.cli.main import main
from tests.repl.cli.shell import Result, Shell
from tests.repl.client.group import ServedNode
from tests.repl.web.one_node import FIRST, OneNode
from vlsn import Log, LogOptions

KEYS: list[bytes | None] = [b"alice", b"\xff\x00key", None, b"alice", b"bob"]
VALUES = [b"plain", b"\x00\xfe\xff", b"", "späte Zeile\n".encode(), b"x" * 200_000]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """VLSN 1 is a TERM entry; five entries with keys, of which the last two are not durable."""
    path = tmp_path / "log"
    with Log.open(path, options=LogOptions(durable_when_synced=False)) as opened:
        _, last = opened.append(VALUES[:3], keys=KEYS[:3])
        opened.raise_durable(last)
        opened.append(VALUES[3:], keys=KEYS[3:])
    return path


def vlsns(result: Result) -> list[int]:
    assert result.status == 0, result
    return [json.loads(line)["vlsn"] for line in result.out.splitlines()]


def test_a_directory_gives_what_is_durable_there_and_says_what_it_leaves_out(shell: Shell, log: Path) -> None:
    said = "VLSN 5 to 6 may be on no other node and are left out; --undurable shows them\n"
    assert shell("read", str(log)) == Result(0, b"\n".join(VALUES[:3]) + b"\n", said)
    whole = shell("read", str(log), "--undurable")
    assert (whole.out, whole.err) == (b"\n".join(VALUES) + b"\n", "")
    rows = [json.loads(line) for line in shell("read", str(log), "--json", "--undurable").out.splitlines()]
    assert [row["vlsn"] for row in rows] == [2, 3, 4, 5, 6]
    assert (rows[1]["key_b64"], rows[1]["value_b64"]) == ("/wBrZXk=", "AP7/")
    assert vlsns(shell("read", str(log), "--json", "--all-kinds", "--to", "3")) == [1, 2, 3]
    assert not shell("read", str(log), "--from", "end").out


@pytest.mark.parametrize(
    "arguments", [("--url", "http://127.0.0.1:9"), ("--follow",), ("--consistency", "linearizable")]
)
def test_a_directory_is_read_as_it_is(shell: Shell, log: Path, arguments: tuple[str, ...]) -> None:
    result = shell("read", str(log), *arguments)
    assert (result.status, result.out, result.err.count("\n")) == (2, b"", 1)


def test_an_open_directory_and_one_without_a_log_are_refused(shell: Shell, log: Path, tmp_path: Path) -> None:
    with Log.open(log):
        result = shell("read", str(log))
        assert (result.status, "read it from its --url" in result.err) == (2, True)
    assert shell("read", str(tmp_path)).status == 2
    assert shell("read", "--undurable").status == 2


def test_damage_is_named_behind_what_comes_before_it(shell: Shell, log: Path) -> None:
    path = next(path for path in sorted(log.glob("*.vlog")) if VALUES[3] in path.read_bytes())
    data = bytearray(path.read_bytes())
    data[data.index(VALUES[3])] ^= 1
    path.write_bytes(data)
    result = shell("read", str(log), "--undurable")
    assert (result.status, result.out) == (1, b"\n".join(VALUES[:3]) + b"\n")
    assert "VLSN 5" in result.err


def choose(shell: Shell, *where: str) -> None:
    every = vlsns(shell("read", *where, "--json"))
    first = every[0]
    last = str(first + 4)
    assert every == list(range(first, first + 5))
    assert vlsns(shell("read", *where, "--json", "--limit", "2", "--to", last)) == [first, first + 1]
    assert vlsns(shell("read", *where, "--json", "--key", "alice", "--to", last)) == [first, first + 3]
    assert vlsns(shell("read", *where, "--json", "--key", "alice", "--limit", "1")) == [first]
    assert vlsns(shell("read", *where, "--json", "--key-prefix", "b", "--to", last)) == [first + 4]
    assert vlsns(shell("read", *where, "--json", "--from", "start", "--to", str(first + 1))) == [first, first + 1]
    assert shell("read", *where, "--from", "yesterday").status == 2
    assert shell("read", *where, "--to", "end").status == 2


def test_the_same_is_chosen_from_a_directory_and_from_a_group(shell: Shell, served: ServedNode, log: Path) -> None:
    choose(shell, str(log), "--undurable")
    with connect_sync(served.url) as client:
        client.append_many(VALUES, keys=KEYS)
    choose(shell)
    assert not shell("read", "--from", "end").out


def test_a_time_is_a_place_in_a_group(shell: Shell, served: ServedNode, node: OneNode) -> None:
    """Entries of one append are sealed at one time."""
    with connect_sync(served.url) as client:
        for number in range(4):
            client.append_many([b"%d-%d" % (number, at) for at in range(10)])
    times = {int(entry.vlsn): entry.time for entry in node.entries}
    assert len(set(times.values())) == 4

    def at(vlsn: int, later_us: int = 0) -> str:
        return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=times[vlsn] + later_us)).isoformat()

    second, third, fourth = FIRST + 10, FIRST + 20, FIRST + 30
    asked = shell("read", "--json", "--from", at(second), "--to", at(third))
    assert vlsns(asked) == list(range(second, fourth))
    assert vlsns(shell("read", "--json", "--from", at(third, 1))) == list(range(fourth, fourth + 10))
    assert vlsns(shell("read", "--json", "--to", at(FIRST))) == list(range(FIRST, second))
    assert not shell("read", "--from", at(fourth, 1)).out
    assert not shell("read", "--to", "1970-01-01").out


def test_a_transaction_is_named_where_it_is_asked_for(shell: Shell, tmp_path: Path) -> None:
    with Log.open(tmp_path / "txns") as opened, opened.transaction() as txn:
        txn.append([b"a", b"b"])
    place = str(tmp_path / "txns")
    for filtered in ([], ["--key", ""]):
        asked = shell("read", place, *filtered, "--json", "--txns").out.splitlines()
        assert [json.loads(line)["txn"] for line in asked] == [txn.first] * 2
    assert b"txn" not in shell("read", place, "--json").out


def test_append_takes_what_read_prints(shell: Shell, served: ServedNode, node: OneNode, log: Path) -> None:
    lines = shell("read", str(log), "--undurable", "--format", "json").out
    assert shell("append", "--format", "json", "-", stdin=lines) == Result(0, b"4 8\n", "")
    assert [(entry.key, entry.value) for entry in node.entries] == list(zip(KEYS, VALUES, strict=True))
    with_kinds = shell("read", str(log), "--all-kinds", "--json").out
    refused = shell("append", "--format", "json", "-", stdin=with_kinds)
    assert (refused.status, "line 1: a TERM entry is the log's own" in refused.err) == (2, True)
    path = log.parent / "lines"
    path.write_bytes(lines + b'{"value":"a","value":"b"}\n')
    refused = shell("append", "--format", "json", "--file", str(path), "--skip-lines", "3")
    assert (refused.status, node.values[5:]) == (2, VALUES[3:])
    assert "line 6: a member is given twice; 2 lines are acknowledged" in refused.err
    assert "go on with --skip-lines 5" in refused.err
    for wrong in (b"nonsense\n", b"[1]\n", b'{"vlsn":1}\n', b'{"value":"a","other":1}\n', b"\n"):
        assert shell("append", "--format", "json", "-", stdin=wrong).status == 2
    assert shell("append", "--format", "json", "x").status == 2
    assert shell("append", "--format", "json", "--key", "k", "-").status == 2
    assert main(["append", "--format", "json", "--file", str(log / "absent")]) == 2


def test_a_named_producer_goes_on_with_lines_of_json(shell: Shell, node: OneNode, log: Path) -> None:
    path = log.parent / "lines"
    path.write_bytes(shell("read", str(log), "--undurable", "--json").out)
    told = ("append", "--format", "json", "--file", str(path), "--producer", "recovery")
    assert shell(*told) == Result(0, b"4 8\n", "")
    again = shell(*told)
    assert (again.status, again.out) == (0, b"0 0\n")
    assert "5 lines are in the log already" in again.err
