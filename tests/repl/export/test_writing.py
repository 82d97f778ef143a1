"""Files of an export against a plain model: every row once, in its partition, in order, and found by statistics."""

from __future__ import annotations

import io
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes

import crc32c
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from repl.export import writing
from repl.export.manifest import DataFile
from repl.export.partitioning import Partitioning, escaped, partitioning_of
from repl.export.target import LocalTarget
from repl.export.writing import Plan
from repl.files.parquet import SCHEMA
from repl.web import ndjson
from vlsn.errors import BadArgument
from vlsn.seams import Disk
from vlsnlog.testing.fakes.disk import FakeDisk

Row = tuple[int, int, int, int | None, bytes | None, bytes]
"""vlsn, term, time, txn, key, value."""
DAY_US = 86_400_000_000


@st.composite
def batches(draw: st.DrawFn) -> list[list[Row]]:
    keys = st.none() | st.binary(min_size=1, max_size=5) | st.sampled_from([b"order-1", b"order-2", b"\xff", b"%2F"])
    made: list[list[Row]] = []
    vlsn, time = draw(st.integers(1, 1 << 40)), draw(st.integers(0, 40_000 * DAY_US))
    for size in draw(st.lists(st.integers(1, 30), max_size=5)):
        rows: list[Row] = []
        for _ in range(size):
            vlsn += draw(st.integers(1, 3))
            time = max(time + draw(st.integers(-DAY_US, DAY_US)), 0)
            rows.append(
                (vlsn, 1 + vlsn // 50, time, draw(st.none() | st.just(vlsn)), draw(keys), draw(st.binary(max_size=40)))
            )
        made.append(rows)
    return made


def record_batch(rows: list[Row]) -> Any:
    columns = zip(*rows, strict=True)
    return pa.RecordBatch.from_arrays(
        [pa.array(list(column), field.type) for column, field in zip(columns, SCHEMA, strict=True)], names=SCHEMA.names
    )


def rows_of(data: bytes, format: str) -> list[Row]:
    if format == "json":
        return [(each.vlsn, each.term, each.time, None, each.key, each.value) for each in ndjson.decode_entries(data)]
    table = pq.read_table(io.BytesIO(data))
    assert table.schema.equals(SCHEMA)
    columns = [table.column(name).cast(pa.int64()) if name == "time" else table.column(name) for name in SCHEMA.names]
    return list(zip(*(column.to_pylist() for column in columns), strict=True))


def folder_of(row: Row, partition_by: str) -> str:
    if not partition_by:
        return ""
    if partition_by == "date":
        return datetime.fromtimestamp(row[2] // 1_000_000, UTC).strftime("date=%Y-%m-%d/")
    key, size = row[4], int(partition_by.partition(":")[2])
    return "key_prefix=__HIVE_DEFAULT_PARTITION__/" if key is None else f"key_prefix={escaped(key[:size])}/"


def written(
    directory: Path | str,
    made: list[list[Row]],
    format: str,
    partition_by: str,
    file_bytes: int,
    disk: Disk | None = None,
) -> list[DataFile]:
    plan = Plan(LocalTarget(str(directory), disk=disk), "e", format, partition_by, file_bytes)
    return plan.write(record_batch(rows) for rows in made)


@given(
    batches(),
    st.sampled_from(["parquet", "json"]),
    st.sampled_from(["", "date", "key-prefix:1", "key-prefix:7"]),
    st.sampled_from([1, 400, 1 << 30]),
)
def test_each_row_is_in_one_file_of_its_partition(
    made: list[list[Row]], format: str, partition_by: str, file_bytes: int
) -> None:
    disk = FakeDisk()
    files = written("/lake", made, format, partition_by, file_bytes, disk)
    found: dict[str, list[Row]] = defaultdict(list)
    for file in sorted(files, key=lambda file: file.first):
        data = disk.content(f"/lake/{file.staged}")
        rows = rows_of(data, format)
        assert (file.bytes, file.crc32c, file.rows) == (len(data), crc32c.crc32c(data), len(rows))
        assert (file.first, file.last) == (rows[0][0], rows[-1][0])
        folder, _, name = file.name.rpartition("/")
        assert name == f"{file.first:020}-{file.last:020}.{'parquet' if format == 'parquet' else 'jsonl'}"
        found[f"{folder}/" if folder else ""] += rows
    wanted: dict[str, list[Row]] = defaultdict(list)
    for row in (row for rows in made for row in rows):
        wanted[folder_of(row, partition_by)].append(row if format == "parquet" else (*row[:3], None, *row[4:]))
    assert found == wanted
    assert len({file.name for file in files}) == len(files)
    assert sorted(LocalTarget("/lake", disk=disk).staged()) == sorted(file.staged for file in files)


def numbered(count: int, *, size: int = 10) -> list[list[Row]]:
    return [[(vlsn, 1, vlsn, None, b"k", b"v" * size)] for vlsn in range(1, count + 1)]


def test_statistics_tell_row_groups_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "ROW_GROUP_ROWS", 100)
    (file,) = written(tmp_path, numbered(1000), "parquet", "", 1 << 30)
    held = pq.ParquetFile(tmp_path / file.staged).metadata
    assert held.num_row_groups == 10
    for name in ("vlsn", "time"):
        at = SCHEMA.get_field_index(name)
        told = [held.row_group(group).column(at).statistics for group in range(10)]
        lows = [each.min if name == "vlsn" else each.min.microsecond for each in told]
        assert lows == list(range(1, 1000, 100))
    assert held.row_group(0).sorting_columns[0].column_index == 0


def test_files_end_at_their_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "ROW_GROUP_ROWS", 10)
    files = written(tmp_path, numbered(200), "json", "", 1000)
    assert len(files) > 5
    assert all(1000 <= file.bytes < 2000 for file in files[:-1])


def test_little_is_held_however_many_partitions_fill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "PENDING_BYTES_MAX", 20_000)
    rows: list[list[Row]] = [[(vlsn, 1, 0, None, b"%d" % (vlsn % 9), b"v" * 500)] for vlsn in range(1, 1000)]
    held: list[int] = []
    plan = Plan(LocalTarget(str(tmp_path)), "e", "parquet", "key-prefix:1", 1 << 30)
    writer = writing._Writer(plan)
    for each in rows:
        writer.add(record_batch(each))
        held.append(sum(writer.pending_bytes for writer in writer._open.values()))
    assert max(held) <= 20_000 < sum(len(each[0][5]) for each in rows)
    assert sum(file.rows for file in writer.end()) == 999


def test_too_many_partitions_are_refused_and_leave_nothing(tmp_path: Path) -> None:
    rows: list[Row] = [(vlsn, 1, 0, None, b"%04d" % vlsn, b"v") for vlsn in range(1, 400)]
    with pytest.raises(BadArgument, match="more than 256 partitions in one task: partition by fewer bytes"):
        written(tmp_path, [rows], "parquet", "key-prefix:4", 1 << 30)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_clock_that_leapt_to_the_end_of_time_has_a_last_day() -> None:
    rows: list[Row] = [(1, 1, DAY_US - 1, None, None, b""), (2, 1, (1 << 63) - 1, None, None, b"")]
    assert [name for name, _ in Partitioning().split(record_batch(rows))] == ["date=1970-01-01", "date=9999-12-31"]


def test_what_a_partition_is_called() -> None:
    assert escaped(b"a/b=%\xff\0") == "a%2Fb%3D%25%FF%00"
    assert partitioning_of("") is None
    assert (partitioning_of("date"), partitioning_of("key-prefix:32")) == (Partitioning(), Partitioning(32))
    for wrong in ("month", "key-prefix", "key-prefix:0", "key-prefix:33", "key-prefix:-1", "date "):
        with pytest.raises(BadArgument, match="must be date, or key-prefix:N with N from 1 to 32"):
            partitioning_of(wrong)


@given(st.binary())
def test_a_partitions_name_gives_its_bytes_back(prefix: bytes) -> None:
    assert unquote_to_bytes(escaped(prefix)) == prefix
