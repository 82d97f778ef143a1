"""A client in JavaScript, written from ``docs/http.md`` alone, on three real nodes of which the master is killed."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.calls import call
from tests.e2e.group import NAMES, Group

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "client.mjs"
ENTRIES = 400
WAIT_S = 90
NODE = shutil.which("node")

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(NODE is None, reason="there is no node, the runtime of JavaScript, on this machine"),
]


@contextmanager
def client(urls: list[str], name: str) -> Iterator[subprocess.Popen[str]]:
    command = [str(NODE), str(EXAMPLE), ",".join(urls), name, str(ENTRIES)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _whole(group: Group, name: str, lines: list[str]) -> None:
    """Checks that each value is in the log once, in order, and that the position is behind the last one."""
    url = group.master
    rows = call("GET", f"{url}/v1/entries?key={name}&limit=10000&consistency=linearizable").lines()
    assert [row["value"] for row in rows] == [f"{name} {index}" for index in range(ENTRIES)]
    assert lines[:-1] == [f"appended {row['vlsn']}" for row in rows]
    next_vlsn = rows[-1]["vlsn"] + 1
    assert lines[-1] == f"committed {next_vlsn}"
    assert call("GET", f"{url}/v1/consumers/{name}?consistency=linearizable").ok()["next"] == next_vlsn


def test_a_client_in_javascript_appends_reads_and_commits_through_a_replica(hurt: Group) -> None:
    with client([hurt.urls["n3"], hurt.urls["n2"]], "billing") as process:
        text, _ = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0
    _whole(hurt, "billing", text.splitlines())


def test_a_client_in_javascript_goes_on_at_the_next_master(hurt: Group) -> None:
    with client([hurt.urls[name] for name in NAMES], "killed") as process:
        assert process.stdout is not None
        before = [process.stdout.readline().strip() for _ in range(20)]
        hurt.kill("n1")
        text, _ = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0
    _whole(hurt, "killed", [*before, *text.splitlines()])
    hurt.start("n1")
