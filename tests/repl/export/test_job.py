"""An export of a stopped node's directory, in Spark tasks: its files, its continuations, and its refusals."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from repl.export.job import TaskFailed, run_export
from repl.export.manifest import BadTarget, Kind, Manifest, decode
from repl.export.request import Bound, Request
from repl.files.parquet import COLUMNS
from repl.spark.batch import VisibleReader
from repl.spark.options import Use, read_options
from repl.web import ndjson
from tests.repl.audit.logs import Copy, blocks, numbered
from vlsn.errors import BadArgument, Damaged, Lagging, Trimmed, VlsnLogError

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("spark")]

LOG = numbered(300, 3, 200)


def log(path: Path, story: list[bytes], *, group: str = "g") -> Path:
    """A stopped node's directory with this story, all of it durable."""
    copy = Copy(path, "n1", segment_bytes=32 << 10, group=group).add(*story)
    copy.checkpoint(copy.last).write()
    return path


def exported(source: Path, to: Path, **more: Any) -> list[Manifest]:
    """Runs an export, and returns the batches that it committed."""
    told: list[Manifest] = []
    request = Request(source=str(source), to=str(to), **{"format": "parquet", **more})
    run_export(request, on_batch=told.append)
    return told


def vlsns(to: Path) -> list[int]:
    """Returns the VLSNs that a reader finds who takes every file there is, by the files' own order of VLSNs."""
    files = sorted(to.rglob("*.parquet"), key=lambda path: path.name)
    return [vlsn for file in files for vlsn in pq.read_table(file, columns=["vlsn"]).column(0).to_pylist()]


def manifests(to: Path) -> list[Manifest]:
    return [decode(path.read_bytes(), path.name) for path in sorted((to / "_manifests").iterdir())]


def test_batches_hold_the_log_and_a_restart_goes_on(tmp_path: Path) -> None:
    source, to = log(tmp_path / "n1", LOG[:200]), tmp_path / "lake"
    told = exported(source, to, batch_entries=250)
    assert [(each.first, each.last) for each in told] == [(1, 252), (253, 504), (505, 600)]
    assert vlsns(to) == list(range(1, 601))
    before = sorted(path for path in to.rglob("*"))
    assert exported(source, to) == []  # and without another manifest
    assert sorted(path for path in to.rglob("*")) == before
    shutil.rmtree(source)
    log(source, LOG)
    (more,) = exported(source, to)
    assert (more.first, more.last, more.rows_total) == (601, 900, 900)
    assert vlsns(to) == list(range(1, 901))
    table = pq.read_table(to)
    assert table.column("value").to_pylist()[899] == (b"value 900" + b"." * 191)
    assert [each.kind for each in manifests(to)] == [Kind.CLAIM, *[Kind.BATCH] * 3, Kind.CLAIM, Kind.BATCH]


def test_lines_are_what_read_prints(tmp_path: Path) -> None:
    source = log(tmp_path / "n1", blocks(["a", "b"], [b"\xff", "d"], keys=[b"k", None, b"\0"]))
    exported(source, tmp_path / "lake", format="json")
    (file,) = (tmp_path / "lake").glob("*.jsonl")
    assert [(each.vlsn, each.value, each.key) for each in ndjson.decode_entries(file.read_bytes())] == [
        (1, b"a", None), (2, b"b", b"\0"), (3, b"\xff", b"k"), (4, b"d", None),
    ]  # fmt: skip


def test_bounds_and_a_key_prefix(tmp_path: Path) -> None:
    names = ["order-1", "bill-1", "order-2", None]
    keys = [None if name is None else name.encode() for name in names]
    source = log(tmp_path / "n1", blocks(*[[str(n)] for n in range(1, 41)], keys=keys))
    to = tmp_path / "lake"
    exported(source, to, begin=Bound("7", 7), upto=Bound("20", 20), key_prefix=b"order-")
    assert vlsns(to) == [vlsn for vlsn in range(7, 21) if vlsn % 2 == 0]
    assert manifests(to)[-1].last == 20
    exported(source, to, key_prefix=b"order-")
    assert vlsns(to) == [vlsn for vlsn in range(7, 41) if vlsn % 2 == 0]
    with pytest.raises(BadArgument, match="was begun with --key-prefix order-, not bill-"):
        exported(source, to, key_prefix=b"bill-")


def test_times_are_bounds(tmp_path: Path) -> None:
    source = log(tmp_path / "n1", numbered(50))
    at = 1_700_000_000_000_000
    exported(source, tmp_path / "lake", begin=Bound("t", time_us=at + 10), upto=Bound("t", time_us=at + 20))
    assert vlsns(tmp_path / "lake") == list(range(10, 21))


def test_trimmed_history_is_an_error_that_names_the_first(tmp_path: Path) -> None:
    source, to = log(tmp_path / "n1", LOG[:50]), tmp_path / "lake"
    exported(source, to)
    shutil.rmtree(source)
    log(source, LOG[100:200])
    with pytest.raises(Trimmed, match="begins at VLSN 301, and VLSN 151 is due") as raised:
        exported(source, to)
    assert raised.value.first == 301
    assert vlsns(to) == list(range(1, 151))
    (more,) = exported(source, to, skip_trimmed=True)
    assert more.gap is not None
    assert (more.gap.first, more.gap.last, more.first, more.last) == (151, 300, 301, 600)
    assert vlsns(to) == [*range(1, 151), *range(301, 601)]
    shutil.rmtree(source)
    log(source, LOG[100:250])
    exported(source, to)
    assert vlsns(to)[-1] == 750


def test_a_new_target_begins_where_the_log_does(tmp_path: Path) -> None:
    (told,) = exported(log(tmp_path / "n1", LOG[100:110]), tmp_path / "lake")
    assert (told.first, told.last, told.gap) == (301, 330, None)


def test_another_log_is_refused(tmp_path: Path) -> None:
    source, to = log(tmp_path / "n1", LOG[:50]), tmp_path / "lake"
    exported(source, to)
    other = [*LOG[:49], *numbered(20, 3, 7, first_vlsn=148, term=2)]
    for path, story, group, words in (
        ("other", LOG, "h", "holds group 'g', and .* is group 'h'"),
        ("cut", other, "g", "not the log that .* up to VLSN 150: it has another block there, of term 2 and not 1"),
        ("same-term", [*LOG[:49], *numbered(9, 3, 7, first_vlsn=148)], "g", "not the log that"),
        ("short", LOG[:40], "g", "holds VLSN up to 150, and .* is durable up to 120"),
    ):
        with pytest.raises(BadTarget, match=words):
            exported(log(tmp_path / path, story, group=group), to)
    assert vlsns(to) == list(range(1, 151))
    old = numbered(20, 3, first_vlsn=500, term=1)
    manifest = manifests(to)[-1]
    assert manifest.mark is not None
    assert manifest.mark.term == 1
    exported(log(tmp_path / "later", old), to, skip_trimmed=True)  # nothing there can tell it apart


def test_bad_requests_leave_nothing_behind(tmp_path: Path) -> None:
    source = log(tmp_path / "n1", LOG[:5])
    to = tmp_path / "lake"
    (tmp_path / "file").write_text("")
    good = Request(source=str(source), to=str(to), format="parquet")
    for bad, words in (
        (replace(good, format="csv"), "--format is 'csv'; it must be parquet or json"),
        (replace(good, partition_by="hour"), "must be date, or key-prefix:N"),
        (replace(good, batch_entries=0), "--batch-entries is 0; it must be 1 to"),
        (replace(good, file_bytes=5), "--file-size is 5 bytes"),
        (replace(good, continuous=True), "--continuous follows a group: name its URLs"),
        (replace(good, begin=Bound("9", 9), upto=Bound("3", 3)), "--to-vlsn 3 is before --from 9"),
        (replace(good, to=str(tmp_path / "file")), "file: is no directory"),
        (replace(good, to="nostore://a/b"), "Protocol not known: nostore"),
        (replace(good, to="memory://"), "names no bucket or folder"),
        (replace(good, to=str(source)), "no manifest of an export"),
        (replace(good, source=str(tmp_path / "none")), "is no directory; name a node's"),
        (replace(good, source=str(tmp_path)), "no segments"),
        (replace(good, source="nostore://x"), "nostore"),
    ):
        before = sorted(os.walk(tmp_path))
        with pytest.raises(VlsnLogError, match=words):
            run_export(bad)
        assert sorted(os.walk(tmp_path)) == before, bad


def test_damage_in_a_task_is_an_error_and_what_it_staged_goes(tmp_path: Path) -> None:
    source = tmp_path / "n1"
    copy = Copy(source, "n1", segment_bytes=32 << 10).add(*LOG)
    copy.checkpoint(copy.last).write()
    copy.flip(451, 90)
    with pytest.raises(Damaged, match="VLSN 451 cannot be read"):
        exported(source, tmp_path / "lake")
    assert vlsns(tmp_path / "lake") == []
    assert [path for path in (tmp_path / "lake").iterdir() if path.name.startswith("_") and path.suffix] == []
    exported(source, tmp_path / "lake", upto=Bound("450", 450))
    assert vlsns(tmp_path / "lake") == list(range(1, 451))


def test_an_empty_log_makes_no_target(tmp_path: Path) -> None:
    source = tmp_path / "n1"
    Copy(source, "n1").write()
    assert exported(source, tmp_path / "lake") == []
    assert not (tmp_path / "lake").exists()


def test_a_read_that_ends_before_the_batch_is_no_batch(tmp_path: Path) -> None:
    source = log(tmp_path / "n1", LOG)
    for first, last, refused in ((1, 900, False), (5, 900, False), (1, 901, True), (1000, 1001, True)):
        given = {"path": str(source), "from": str(first), "to": str(last)}
        reader = VisibleReader(read_options(given, Use.BATCH), COLUMNS)
        if refused:
            with pytest.raises(Lagging, match=f"VLSN {last} was asked for, and .*n1 reached VLSN 900"):
                reader.partitions()
        else:
            pieces = [partition.piece for partition in reader.partitions()]
            assert (pieces[0].first, pieces[-1].last) == (first, last)


def test_a_tasks_error_keeps_its_kind() -> None:
    assert type(TaskFailed("damaged", "x").error()) is Damaged
    assert TaskFailed("trimmed", "x", 9).error().first == 9  # type: ignore[attr-defined]
    assert type(TaskFailed("io", "x").error()) is BadArgument
