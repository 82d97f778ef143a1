"""A log that is cleaned while it is read: between survey and plan, plan and task, or within one of them."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from repl.spark import copies
from repl.spark.datasource import VlsnLogDataSource
from repl.spark.schemas import VISIBLE
from tests.repl.audit.logs import Copy, numbered
from tests.repl.audit.test_live import Handler, serving
from vlsn.errors import Trimmed, VlsnLogError
from vlsn.format.segment import segment_name

LAST = 1000
TOLD = re.compile(r"VLSN (\d+) was cleaned away; the log begins at VLSN (\d+), and so does this read")


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "PAUSE_S", 0.0)


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    return log(tmp_path / "n1")


def log(path: Path) -> Copy:
    made = Copy(path, "n1", segment_bytes=1 << 14).add(*numbered(200, 5, 60)).checkpoint(LAST).write()
    assert len(made.ends) > 4
    return made


def there(copy: Copy) -> list[int]:
    return [number for number in sorted(copy.ends) if (copy.path / segment_name(number)).exists()]


def clean(copy: Copy) -> int:
    """Takes the first two segments away; the first VLSN that is left."""
    for number in there(copy)[:2]:
        for suffix in (".vlog", ".vidx"):
            (copy.path / segment_name(number)).with_suffix(suffix).unlink(missing_ok=True)
    source = VlsnLogDataSource({"path": str(copy.path)}).reader(VISIBLE)
    return int(source.partitions()[0].piece.first)


class Cleaning(ThreadingHTTPServer):
    """A node that cleans its log as it gets request number ``due``, before it answers."""

    daemon_threads = True

    def __init__(self, copy: Copy, due: int) -> None:
        super().__init__(("127.0.0.1", 0), CleaningHandler)
        self.copy, self.due, self.asked, self.first = copy, due, 0, 1


class CleaningHandler(Handler):
    server: Cleaning  # type: ignore[assignment]

    def do_GET(self) -> None:  # noqa: N802
        self.server.asked += 1
        if self.server.asked == self.server.due:
            self.server.first = clean(self.server.copy)
        if self.path == "/v1/status":
            span = {"first": self.server.first, "last": LAST, "last_sync": LAST, "last_txn_end": 0}
            self.answer(200, {"group": "g", "node": "n1", "range": span, "dtvlsn": LAST})
        elif self.path == "/v1/segments":
            ends = self.server.copy.ends
            rows = [{"number": number, "end": ends[number]} for number in there(self.server.copy)]
            self.answer(200, {"segments": rows})
        elif (number := int(self.path.rpartition("/")[2])) in there(self.server.copy):
            self.piece(number)
        else:
            self.answer(410, {"type": "trimmed", "detail": "gone"})


def node(copy: Copy, due: int) -> AbstractContextManager[Cleaning]:
    return serving(Cleaning(copy, due))


def read(path: object, between: Callable[[], object] = lambda: None, **options: str) -> list[int]:
    """Plans, lets happen what happens then, and runs the tasks."""
    reader = VlsnLogDataSource({"path": str(path), **options}).reader(VISIBLE)
    parts = reader.partitions()
    between()
    return [vlsn for part in parts for batch in reader.read(part) for vlsn in batch.column("vlsn").to_pylist()]


def test_a_node_may_clean_at_any_moment_of_a_read(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Such a read gives all that is left, in order, and tells which VLSNs were planned and are gone."""
    whole, holes, due = list(range(1, LAST + 1)), 0, 0
    while True:
        due += 1
        made = log(tmp_path / f"{due}")
        with node(made, due) as server:
            found = read(f"http://127.0.0.1:{server.server_address[1]}", failOnTrim="false")
        told = [tuple(map(int, gone)) for gone in TOLD.findall(capfd.readouterr().err)]
        if server.asked < due:
            break
        if told:
            ((gone, first),) = told
            assert (first, found) == (server.first, [*whole[: gone - 1], *whole[first - 1 :]]), due
            holes += 1
        else:
            assert found in (whole, whole[server.first - 1 :]), due
        shutil.rmtree(made.path)
    assert due > 12, "requests of the survey, the plan and the task"
    assert holes > 1


@pytest.mark.parametrize("of_a_node", [False, True])
def test_what_is_cleaned_between_plan_and_task_is_an_error_or_told(
    copy: Copy, of_a_node: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    with node(copy, 0) as server:
        path: Any = f"http://127.0.0.1:{server.server_address[1]}" if of_a_node else copy.path

        def cleaned() -> None:
            server.first = clean(copy)

        with pytest.raises(
            Trimmed, match=r"VLSN 1 was cleaned away; the log begins at VLSN \d+: .* failOnTrim"
        ) as gone:
            read(path, cleaned)
        first = gone.value.first
        assert first == server.first > 100

        def cleaned_again() -> None:
            server.first = clean(copy)

        assert read(path, cleaned_again, failOnTrim="false") == list(range(server.first, LAST + 1))
        assert f"VLSN {first} was cleaned away; the log begins at VLSN {server.first}" in capfd.readouterr().err
        assert read(path, cleaned_again, failOnTrim="false", to=str(server.first + 5)) == []


def test_what_is_missing_and_was_not_cleaned_is_no_cleaning(copy: Copy) -> None:
    def lost() -> None:
        (copy.path / segment_name(sorted(copy.ends)[2])).unlink()

    with pytest.raises(VlsnLogError, match=r"No such file|cannot be read"):
        read(copy.path, lost, failOnTrim="false")
