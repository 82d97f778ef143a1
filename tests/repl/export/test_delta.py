"""An export to a Delta table: each entry once, whatever is started again, beside whoever else writes to the table."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

from repl.arrow.batches import SCHEMA
from repl.arrow.read import read_arrow
from repl.export import delta
from repl.export.delta import DeltaBatch, run_delta_export
from repl.export.manifest import BadTarget, Fenced
from repl.export.origin import origin_of
from repl.export.request import Bound, Request
from tests.repl.audit.logs import Copy, numbered
from vlsn.errors import BadArgument, Unreachable

LOG = numbered(60, 3, 200)
ROOT = Path(__file__).parents[3]


class Stopped(BaseException):
    """The process ends here."""


def log(path: Path, story: list[bytes], *, group: str = "g", name: str = "n1") -> Path:
    """Makes a stopped node's directory with this story, all of it durable."""
    copy = Copy(path / name, name, segment_bytes=32 << 10, group=group).add(*story)
    copy.checkpoint(copy.last).write()
    return path / name


def exported(source: Path, to: Path, **more: Any) -> list[DeltaBatch]:
    """Runs an export, and returns the batches that it committed."""
    told: list[DeltaBatch] = []
    run_delta_export(Request(source=str(source), to=str(to), format="delta", **more), on_batch=told.append)
    return told


def vlsns(to: Path) -> list[int]:
    return [int(each) for each in DeltaTable(to).to_pyarrow_table(columns=["vlsn"])["vlsn"].to_pylist()]


def test_a_table_has_each_entry_once_and_a_restart_continues(tmp_path: Path) -> None:
    source, to = log(tmp_path, LOG[:40]), tmp_path / "table"
    told = exported(source, to, batch_entries=50)
    assert [(each.version, each.first, each.last, each.rows) for each in told] == [
        (1, 1, 51, 51), (2, 52, 102, 51), (3, 103, 120, 18),
    ]  # fmt: skip
    assert exported(source, to) == [] and DeltaTable(to).version() == 3
    (more,) = exported(log(tmp_path / "later", LOG), to)
    assert (more.first, more.last, more.rows) == (121, 180, 60)
    assert sorted(vlsns(to)) == list(range(1, 181))
    table = DeltaTable(to).to_pyarrow_table().sort_by("vlsn")
    assert table.schema.names == ["vlsn", "term", "time", "key", "value"]
    assert table["value"].to_pylist()[0] == b"value 1" + b"." * 193
    assert DeltaTable(to).history(1)[0]["vlsnlog.last"] == "180"


def test_bounds_and_a_key_prefix_stay_those_of_the_table(tmp_path: Path) -> None:
    source, to = log(tmp_path, LOG), tmp_path / "table"
    exported(source, to, begin=Bound("7", 7), upto=Bound("20", 20))
    assert sorted(vlsns(to)) == list(range(7, 21))
    exported(source, to, begin=Bound("7", 7))
    assert sorted(vlsns(to)) == list(range(7, 181))
    for other in ({}, {"begin": Bound("7", 7), "key_prefix": b"k"}):
        with pytest.raises(BadArgument, match="was begun with another --from or --key-prefix"):
            exported(source, to, **other)
    nothing = tmp_path / "nothing"
    assert [each.rows for each in exported(source, nothing, key_prefix=b"no such key")] == [0]
    assert exported(source, nothing, key_prefix=b"no such key") == []


def _stopping(write: Callable[..., None], left: int, *, before: bool) -> Callable[..., None]:
    """Returns ``write`` for ``left`` commits; the next one ends the process ``before`` it, or after it."""
    calls = count()

    def stopping(*args: Any, **more: Any) -> None:
        last = next(calls) >= left
        if last and before:
            raise Stopped
        write(*args, **more)
        if last:
            raise Stopped

    return stopping


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_an_export_that_is_stopped_anywhere_leaves_no_gap_and_no_second_copy(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """It ends before the library commits, or after it has committed and before it says so."""
    place = tmp_path_factory.mktemp("stopped")
    source, to = log(place, LOG), place / "table"
    write = deltalake.write_deltalake
    for _ in range(data.draw(st.integers(0, 6), "stops")):
        left, before = data.draw(st.integers(0, 3), "commits before"), data.draw(st.booleans(), "before the commit")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(deltalake, "write_deltalake", _stopping(write, left, before=before))
            try:
                exported(source, to, batch_entries=data.draw(st.integers(1, 90), "batch"))
            except Stopped:
                pass
    exported(source, to)
    assert sorted(vlsns(to)) == list(range(1, 181))


def test_of_two_exports_one_commits_each_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, to = log(tmp_path, LOG), tmp_path / "table"
    exported(source, to, upto=Bound("60", 60))
    write = deltalake.write_deltalake

    def beside(*args: Any, **more: Any) -> None:
        monkeypatch.setattr(deltalake, "write_deltalake", write)
        exported(source, to)  # another export is sooner
        write(*args, **more)

    monkeypatch.setattr(deltalake, "write_deltalake", beside)
    with pytest.raises(Fenced, match="another export has continued it"):
        exported(source, to)
    assert sorted(vlsns(to)) == list(range(1, 181))


def test_a_batch_is_committed_anew_beside_a_table_that_others_keep_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, to = log(tmp_path, LOG), tmp_path / "table"
    exported(source, to, upto=Bound("60", 60), batch_entries=10)
    write = deltalake.write_deltalake

    def beside(*args: Any, **more: Any) -> None:
        monkeypatch.setattr(deltalake, "write_deltalake", write)
        DeltaTable(to).optimize.compact()
        write(*args, **more)

    monkeypatch.setattr(deltalake, "write_deltalake", beside)
    exported(source, to)
    assert sorted(vlsns(to)) == list(range(1, 181))
    DeltaTable(to).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    DeltaTable(to).create_checkpoint()
    assert exported(log(tmp_path / "again", LOG), to) == []
    assert sorted(vlsns(to)) == list(range(1, 181))


def test_another_table_and_another_log_are_refused_and_left_as_they_are(tmp_path: Path) -> None:
    source, foreign = log(tmp_path, LOG), tmp_path / "foreign"
    write_deltalake(foreign, pa.table({"vlsn": [1]}))
    with pytest.raises(BadTarget, match="no export has made"):
        exported(source, foreign)
    assert DeltaTable(foreign).version() == 0
    to = tmp_path / "table"
    exported(source, to, upto=Bound("60", 60))
    with pytest.raises(BadTarget, match=r"holds group 'g', and .* is group 'h'"):
        exported(log(tmp_path / "h", LOG, group="h"), to)
    with pytest.raises(BadTarget, match=r"is not the log that .* up to VLSN 60"):
        exported(log(tmp_path / "cut", numbered(60, 3, 100)), to)
    with pytest.raises(BadTarget, match="is durable up to 30"):
        exported(log(tmp_path / "short", LOG[:10]), to)
    DeltaTable(to).alter.add_columns([deltalake.Field("more", deltalake.schema.PrimitiveType("string"))])
    version = DeltaTable(to).version()
    with pytest.raises(BadTarget, match="has other columns now"):
        exported(source, to)
    assert DeltaTable(to).version() == version and sorted(vlsns(to)) == list(range(1, 61))


def test_what_a_table_cannot_have_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    source, to = log(tmp_path, LOG), tmp_path / "table"
    for wrong, says in (
        ({"partition_by": "date"}, "without partitions"),
        ({"continuous": True}, "name its URLs"),
        ({"batch_entries": 0}, "--batch-entries is 0"),
        ({"file_bytes": 1}, "--file-size is 1"),
        ({"begin": Bound("9", 9), "upto": Bound("3", 3)}, "is before --from 9"),
    ):
        with pytest.raises(BadArgument, match=says):
            exported(source, to, **wrong)
    assert not to.exists()


def test_without_the_library_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(delta, "find_spec", lambda name: None if name == "deltalake" else object())
    with pytest.raises(BadArgument, match=r"pip install 'vlsnlog\[delta\]'"):
        exported(tmp_path, tmp_path / "table")


def test_no_part_of_it_needs_spark() -> None:
    code = "import sys; sys.modules['pyspark'] = sys.modules['py4j'] = None; import repl.export.delta"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_a_table_keeps_its_beginning_although_it_has_no_batch_yet(tmp_path: Path) -> None:
    to, end = tmp_path / "table", Bound("end")
    ended = Request(source=str(log(tmp_path, LOG[:40])), to=str(to), format="delta", begin=end, continuous=False)
    export = delta._DeltaExport(ended, origin_of(ended.source), lambda batch: None, lambda text: None)
    export._create(export._range.begin())
    assert vlsns(to) == []
    exported(log(tmp_path / "later", LOG), to, begin=end)
    assert sorted(vlsns(to)) == list(range(121, 181))


@pytest.mark.parametrize(
    ("change", "operation"),
    [
        (lambda to: write_deltalake(to, DeltaTable(to).to_pyarrow_table().slice(0, 5), mode="append"), "WRITE"),
        (lambda to: DeltaTable(to).restore(1), "RESTORE"),
    ],
)
def test_a_table_whose_rows_somebody_else_has_changed_is_refused(
    change: Callable[[Path], object], operation: str, tmp_path: Path
) -> None:
    source, to = log(tmp_path, LOG), tmp_path / "table"
    exported(source, to, upto=Bound("100", 100), batch_entries=20)
    change(to)
    with pytest.raises(BadTarget, match=f"is a {operation} of somebody else"):
        exported(source, to)


@pytest.mark.parametrize("what", ["a file", "files", "damage"])
def test_a_place_that_is_no_table_is_refused(what: str, tmp_path: Path) -> None:
    source, to = log(tmp_path, LOG), tmp_path / "table"
    if what == "a file":
        to.write_text("x")
    elif what == "files":
        to.mkdir()
        (to / "another.parquet").write_bytes(b"x")
    else:
        exported(source, to, batch_entries=50)
        (to / "_delta_log" / f"{2:020}.json").write_text("garbage")
    with pytest.raises(BadTarget, match=str(to)):
        exported(source, to)


def test_an_error_of_the_source_keeps_its_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, to = log(tmp_path, LOG), tmp_path / "table"

    def failing(*args: Any, **more: Any) -> Any:
        def batches() -> Any:
            yield next(iter(read_arrow(*args, **more)))
            raise Unreachable("no node answers")

        return pa.RecordBatchReader.from_batches(SCHEMA, batches())

    monkeypatch.setattr("repl.arrow.read.read_arrow", failing)
    with pytest.raises(Unreachable, match="no node answers"):
        exported(source, to)
    assert vlsns(to) == []
    monkeypatch.undo()
    exported(source, to)
    assert sorted(vlsns(to)) == list(range(1, 181))


def test_the_log_is_compared_before_each_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The group behind an address may be another one after a while."""
    source, to = log(tmp_path, LOG), tmp_path / "table"
    origin, other = origin_of(str(source)), origin_of(str(log(tmp_path / "cut", numbered(60, 3, 100))))
    monkeypatch.setattr(delta, "origin_of", lambda text: origin)
    request = Request(source=str(source), to=str(to), format="delta", batch_entries=50)
    with pytest.raises(BadTarget, match="is not the log that"):
        run_delta_export(request, on_batch=lambda batch: origin.__dict__.update(other.__dict__))
    assert sorted(vlsns(to)) == list(range(1, 52))
