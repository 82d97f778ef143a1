"""The command line on a real group: its appends, its output, and its exit status.

Commands run in this process (``shell``), against nodes in theirs. Pipes, signals, lines and limits have their tests in
``tests/repl/cli``.
"""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from repl.cli.main import main
from tests.e2e.commands import Command, Ended
from tests.e2e.group import NAMES, Group

pytestmark = pytest.mark.feature("commands")

Shell = Callable[..., Ended]


@pytest.fixture
def shell(group: Group, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> Shell:
    """Runs one command with the group's URLs in the environment."""
    monkeypatch.setenv("VLSNLOG_URL", ",".join(group.urls.values()))

    def run(*arguments: str | Path, stdin: bytes = b"") -> Ended:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capfdbinary.readouterr()
        status = main([str(argument) for argument in arguments])
        out, err = capfdbinary.readouterr()
        return Ended(status, out, err.decode())

    return run


def printed(ended: Ended) -> tuple[int, int]:
    """FIRST and LAST."""
    assert (ended.status, ended.err) == (0, ""), ended
    first, last = ended.out.split()
    assert ended.out == b"%s %s\n" % (first, last)
    return int(first), int(last)


def rows(ended: Ended) -> list[dict[str, Any]]:
    assert (ended.status, ended.err) == (0, ""), ended
    return [json.loads(line) for line in ended.out.splitlines()]


def test_append_of_a_value_with_and_without_a_key(group: Group, shell: Shell) -> None:
    last = group.settle()
    assert printed(shell("append", "héllo")) == (last + 1, last + 1)
    assert printed(shell("append", "--key", "k", "--acks", "all", "two\nlines")) == (last + 2, last + 2)
    assert printed(shell("append", "", "--acks", "none")) == (last + 3, last + 3)
    group.settle()
    assert [(row["value"], row.get("key")) for row in rows(shell("read", "--from", str(last + 1), "--json"))] == [
        ("héllo", None),
        ("two\nlines", "k"),
        ("", None),
    ]


def test_a_file_whose_append_was_killed_goes_on_under_its_producers_name(
    group: Group, shell: Shell, tmp_path: Path
) -> None:
    first = group.settle() + 1
    lines = [b"%06d " % number + b"." * 400 for number in range(12_000)]
    whole, pipe = tmp_path / "lines", tmp_path / "pipe"
    whole.write_bytes(b"\n".join(lines))
    os.mkfifo(pipe)
    urls = ",".join(group.urls.values())
    told = ("append", "--producer", "import 7", "--file")
    with Command(*told, pipe, "--url", urls) as command, open(pipe, "wb") as feed:
        feed.write(whole.read_bytes()[: 7 << 19])
        feed.flush()
        group.until(lambda: group.status(group.leader)["dtvlsn"] >= first + 5000, "two bodies are durable")
        command.process.kill()
        command.process.wait()
    done = shell(*told, whole)
    assert done.status == 0, done
    skipped = int(done.err.split()[0])
    assert 5000 <= skipped < len(lines)
    assert f"{skipped} lines are in the log already" in done.err
    last = group.settle()
    assert int(done.out.split()[1]) == last
    read = shell("read", "--from", str(first))
    assert read.out.splitlines() == lines
    # Once more, with nothing left to do; and with another file.
    again = shell(*told, whole, "--json")
    nothing = {"first": 0, "last": 0, "term": 0, "durable": True, "synced": 0, "acks": "majority"}
    nothing["durability"] = {"local": "sync", "replica": "sync"}
    assert (again.status, json.loads(again.out)) == (0, nothing)
    assert f"{len(lines)} lines are in the log already, the last one at VLSN {last}" in again.err
    for other in (("--key", "k"), ()):
        if not other:
            whole.write_bytes(b"\n".join([*lines[:-1], b"another"]))
        refused = shell(*told, whole, *other)
        assert (refused.status, refused.out) == (2, b"")
        assert "give another --producer" in refused.err
    assert group.settle() == last
    for wrong in (("-",), ("value",), ("--file", whole, "--skip-lines", "1")):
        assert shell("append", "--producer", "n", *wrong).status == 2


def test_status_is_0_when_all_is_well(group: Group, shell: Shell) -> None:
    group.settle()
    table = shell("status")
    assert table.status == 0
    *members, mastership = table.out.decode().splitlines()[2:]
    assert [line.split()[:2] for line in members] == [["n1", "MASTER"], ["n2", "REPLICA"], ["n3", "REPLICA"]]
    assert mastership.startswith("n1 leads term ")
    (document,) = rows(shell("status", "--json", "--url", group.urls["n3"]))
    assert (document["group"], document["master"]) == (group.status("n1")["group"], "n1")
    assert [node["node"] for node in document["nodes"]] == list(NAMES)
    assert {node["dtvlsn"] for node in document["nodes"]} == {document["nodes"][0]["range"]["last"]}


def test_dump_and_verify_of_a_running_node_end_at_its_synced_length(group: Group, shell: Shell) -> None:
    assert shell("checkpoint").status == 0
    group.append(b"x", b"y", b"z")
    last = group.settle()
    for name in ("n1", "n2"):
        directory = group.path(name)
        assert "--live" in shell("verify", directory).refused()

        def dumped(directory: Path = directory) -> list[dict[str, Any]]:
            return rows(shell("dump", directory, "--json"))

        # The stated length lags by the last group at most: each frame states the length synced before it.
        assert last - 3 <= dumped()[-1]["last"] <= last
        group.until(lambda dumped=dumped: dumped()[-1]["last"] == last, "a quiet second has stated the end")  # type: ignore[misc]
        frames = dumped()
        assert {frame["kind"] for frame in frames} == {"BLOCK"}
        assert not any(frame["damaged"] or frame["overmarked"] for frame in frames)
        assert frames[0]["first"] == 1
        assert all(one["last"] + 1 == next["first"] for one, next in pairwise(frames))
        (report,) = rows(shell("verify", directory, "--live", "--json"))
        assert (report["ok"], report["findings"], report["last"]) == (True, [], last)
        middle = rows(shell("dump", directory, "--json", "--from", "4", "--to", "5"))
        assert (middle[0]["first"] <= 4, middle[-1]["last"] >= 5) == (True, True)
        everything = rows(shell("dump", directory, "--json", "--all"))
        assert {"CHECKPOINT_START", "CHECKPOINT_END"} <= {frame["kind"] for frame in everything}
        lines = shell("dump", directory).out.decode().splitlines()
        assert len(lines) == len(frames)
        assert lines[0].startswith("00000001.vlog")
