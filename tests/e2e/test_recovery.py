"""The way out that docs/membership.md shows when a majority is gone for ever, walked step by step."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from repl import connect_sync
from tests.e2e.commands import run
from tests.e2e.group import NAMES, Group

pytestmark = pytest.mark.feature("a lost group")

KEYS: list[bytes | None] = [b"alice", b"\xff\x00", None]
VALUES = [b"\x00binary\xff", "späte Zeile\n".encode(), b""]


def test_what_is_left_of_a_group_goes_into_another_one(group: Group, tmp_path: Path) -> None:
    old = Group(tmp_path / "old")
    try:
        old.start()
        with connect_sync(",".join(old.urls.values())) as log:
            log.append_many(VALUES, keys=KEYS)
        old.settle()
        assert "read it from its --url" in run("read", old.path("n1")).refused()
    finally:
        old.kill(*NAMES)
    for name in ("n2", "n3"):
        shutil.rmtree(old.path(name))

    left = old.path("n1")
    assert run("verify", left).status == 0
    rescued = tmp_path / "rescued.jsonl"
    read = run("read", left, "--undurable", "--format", "json")
    assert (read.status, read.err) == (0, "")
    rescued.write_bytes(read.out)

    urls = ",".join(group.urls.values())
    told = ("append", "--url", urls, "--format", "json", "--file", rescued, "--producer", "rescue n1")
    done = run(*told)
    assert (done.status, done.err) == (0, ""), done
    again = run(*told)
    assert (again.status, again.out) == (0, b"0 0\n")
    with connect_sync(urls) as log:
        entries = log.read(*map(int, done.out.split()))
        assert [(entry.key, entry.value) for entry in entries] == list(zip(KEYS, VALUES, strict=True))
