"""Shipped consumers that write files, on real nodes: each event once over SIGKILLs of node and child."""

from __future__ import annotations

import gzip
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pyarrow.parquet as pq
import pytest

from repl.cdc.consumer import CdcContext
from repl.cdc.shipped.folder import Folder
from tests.e2e.calls import OCTETS, call
from tests.e2e.cdc_pages import example, toml
from tests.e2e.commands import run
from tests.e2e.test_cdc import One, eventually, node
from vlsn.real.disk import PosixDisk

pytestmark = pytest.mark.real
__all__ = ["node"]


def in_files(directory: Path) -> Iterator[bytes]:
    """Yields the values in closed files, then in the open one, as docs/cdc/json-lines.md says to read them."""
    opened = {}
    for path in directory.glob("*.open"):
        with suppress(FileNotFoundError):  # closed meanwhile
            opened[path] = path.read_bytes()
    last = 0
    for path in sorted(directory.glob("*.jsonl.gz")):
        yield from _values(gzip.decompress(path.read_bytes()))
        last = int(path.name.split(".")[0].split("-")[-1])
    for path, lines in opened.items():
        if int(path.name.split(".")[1]) > last:  # else it is closed by now: both lie there for a moment
            yield from _values(lines)


def _values(lines: bytes) -> Iterator[bytes]:
    for line in lines.splitlines(keepends=True):
        if line.endswith(b"\n"):
            yield msgspec.json.decode(line)["value"].encode()


def append_many(one: One, first: int, count: int) -> None:
    for start in range(first, first + count, 500):
        body = b"".join(b'{"value":"%d"}\n' % number for number in range(start, min(start + 500, first + count)))
        call("POST", f"{one.url}/v1/entries", body=body, headers={"Content-Type": "application/x-ndjson"}).ok()


def over_kills(one: One, name: str, given: Callable[[], list[bytes]]) -> None:
    """Appends 4,200 entries while child and node are killed in turns, and waits until all are given."""
    for turn in range(6):
        append_many(one, 700 * turn, 300)
        eventually(lambda turn=turn: len(given()) > 700 * turn, "some of this turn's are given", 180.0)  # type: ignore[misc]
        append_many(one, 700 * turn + 300, 400)
        if turn % 2:
            one.end(signal.SIGKILL)
            one.start()
        else:
            os.kill(one.pid(name), signal.SIGKILL)
    expected = [b"%d" % number for number in range(4_200)]
    eventually(lambda: len(given()) >= len(expected), "all are given", 180.0)
    assert given() == expected
    assert one.end(signal.SIGTERM) == 0
    assert given() == expected


def test_lines_of_json_are_there_once_over_kills(node: Callable[..., One], tmp_path: Path) -> None:
    directory = tmp_path / "orders"
    one = node(toml(example("json-lines.md", directory=str(directory), rotate_bytes=65536, rotate_s=2)))
    over_kills(one, "orders", lambda: list(in_files(directory)))
    assert len(list(directory.glob("*.jsonl.gz"))) >= 2


def test_parquet_rows_are_there_once_over_kills(node: Callable[..., One], tmp_path: Path) -> None:
    directory = tmp_path / "lake"
    one = node(toml(example("parquet.md", directory=str(directory), file_rows=100, file_s=1)))

    def rows() -> list[bytes]:
        tables = [pq.read_table(path) for path in sorted(directory.glob("*.parquet"))]
        return [value for table in tables for value in table["value"].to_pylist()]

    over_kills(one, "lake", rows)
    assert len(list(directory.glob("*.parquet"))) >= 2
    assert not list(directory.glob("*.part"))


def test_what_only_the_child_can_tell_parks_it_at_once(node: Callable[..., One], tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    folder = Folder(PosixDisk(), str(tmp_path / "c"), group="another", consumer="c")
    folder.open()
    folder.move(CdcContext("c", "n1", "another", 5))
    folder.close()
    one = node(
        toml({"name": "b", "consumer": "jsonlines"}),
        toml({"name": "c", "consumer": "jsonl", "options": {"directory": str(tmp_path / "c")}}),
    )
    call("POST", f"{one.url}/v1/entries", body=b"x", headers=OCTETS).ok()
    for name, said in {"b": "there are jsonl", "c": "has files of group another, this is g"}.items():
        eventually(lambda name=name: one.told(name)["state"] == "parked", f"{name} is parked")  # type: ignore[misc]
        assert said in str(one.told(name)["reason"])
        assert one.told(name)["starts"] == 1


def test_a_wrong_option_is_refused_before_the_node_starts(tmp_path: Path) -> None:
    """All the others are in ``tests/repl/cdc/shipped/test_options.py``."""
    shown = {**example("json-lines.md"), "options": {"directory": "here"}}
    one = One(tmp_path, toml(shown))
    for command in (["node"], ["config"]):
        refused = run(*command, "--config", str(one.directory / "node.toml")).refused()
        assert f"cdc {shown['name']}: " in refused and "options: directory: 'here' is no absolute path" in refused
    assert not (tmp_path / "data").exists(), "nothing was made"
