"""``read_arrow`` of a directory and of nodes, and what takes its batches: polars, DuckDB, pandas."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from repl import connect_sync, read_arrow
from tests.repl.audit.logs import CLOCK_US, Copy, blocks, numbered
from tests.repl.client.group import ServedNode
from tests.repl.web.one_node import cleaned
from vlsn import Log
from vlsn.errors import BadArgument, Damaged, LogInUse, Trimmed, Unreachable
from vlsn.limits import KEY_BYTES_MAX

NOBODY = "http://127.0.0.1:9"


@pytest.fixture
def served() -> Iterator[ServedNode]:
    with ServedNode() as one:
        yield one


@pytest.fixture
def directory(tmp_path: Path) -> str:
    """A stopped log of 300 entries in small segments, VLSNs 1 to 300; every third has a key."""
    story = blocks(*([f"value {at}-{n}" for n in range(10)] for at in range(30)), keys=[None, b"k", None])
    copy = Copy(tmp_path / "n1", "n1", segment_bytes=8 << 10).add(*story)
    copy.checkpoint(dtvlsn=300).write()
    return str(copy.path)


def rows(reader: Any) -> list[tuple[int, bytes | None, bytes]]:
    return [(row["vlsn"], row["key"], row["value"]) for batch in reader for row in batch.to_pylist()]


def test_a_directory_gives_what_reading_it_gives(directory: str) -> None:
    found = rows(read_arrow(directory))
    assert [vlsn for vlsn, _, _ in found] == list(range(1, 301))
    assert found[0] == (1, b"k", b"value 0-0")
    assert rows(read_arrow(Path(directory), 17, 256)) == found[16:256]
    assert rows(read_arrow(directory, from_vlsn=300)) == found[299:]
    assert rows(read_arrow(directory, from_vlsn=301)) == []
    assert rows(read_arrow(directory, 5, 4)) == []


def test_a_read_begins_where_it_is_told_to(directory: str, served: ServedNode) -> None:
    found = rows(read_arrow(directory))
    assert rows(read_arrow(directory, "start")) == found
    assert rows(read_arrow(directory, "end")) == []
    assert rows(read_arrow(directory, at=CLOCK_US + 101)) == found[100:]
    with connect_sync(served.url) as log:
        log.append_many([b"a", b"b"])
        log.append(b"c")
        assert rows(read_arrow(served.url, "end")) == []
    for source in (directory, served.url):
        with pytest.raises(BadArgument, match="only one"):
            read_arrow(source, 5, at=CLOCK_US)
        for place in ("begin", "5"):
            with pytest.raises(BadArgument, match="is no VLSN"):
                read_arrow(source, place)  # type: ignore[arg-type]


def test_keys_are_chosen_as_in_any_read(directory: str, served: ServedNode) -> None:
    found = rows(read_arrow(directory))
    assert rows(read_arrow(directory, key=b"k")) == [row for row in found if row[1] == b"k"]
    assert rows(read_arrow(directory, 17, 256, key=b"")) == [row for row in found[16:256] if row[1] is None]
    assert rows(read_arrow(directory, key_prefix=b"")) == found
    assert rows(read_arrow(directory, key=b"none")) == []
    with connect_sync(served.url) as log:
        log.append_many([b"v" * 1000] * 200, keys=[b"order-%d" % (n % 3) for n in range(200)])
        log.append(b"small", key=b"order-1")
        every: list[dict[str, Any]] = [{"key": b"order-1"}, {"key_prefix": b"order-"}, {"key_prefix": b"x"}]
        for asked in every:
            entries = [(each.vlsn, each.key, each.value) for each in log.read(**asked)]
            assert rows(read_arrow(served.url, **asked)) == entries
    for source in (directory, served.url):
        with pytest.raises(BadArgument, match="not for both"):
            read_arrow(source, key=b"a", key_prefix=b"b")
        with pytest.raises(BadArgument, match="is in no log"):
            read_arrow(source, key=b"a" * (KEY_BYTES_MAX + 1))


def test_a_directory_gives_what_is_durable(tmp_path: Path) -> None:
    copy = Copy(tmp_path, "n1").add(*numbered(10))
    copy.checkpoint(dtvlsn=7).write()
    assert [vlsn for vlsn, _, _ in rows(read_arrow(tmp_path))] == [1, 2, 3, 4, 5, 6, 7, 8]  # as block 10 says of 8


def test_batches_that_are_kept_stay_as_they_are(tmp_path: Path) -> None:
    """Each segment has bytes of its own: none is read over another's batches."""
    story = numbered(24, 100, 1000)
    Copy(tmp_path, "n1", segment_bytes=512 << 10).add(*story).checkpoint(dtvlsn=2400).write()
    kept = list(read_arrow(tmp_path))
    assert len(kept) == 24
    assert rows(kept) == [
        (vlsn, None, b"value %d" % vlsn + b"." * (993 - len(str(vlsn)) + 1)) for vlsn in range(1, 2401)
    ]


def test_small_blocks_of_a_directory_make_large_batches(tmp_path: Path) -> None:
    Copy(tmp_path, "n1", segment_bytes=1 << 20).add(*numbered(3000)).checkpoint(dtvlsn=3000).write()
    assert [batch.num_rows for batch in read_arrow(tmp_path)] == [3000]


def test_what_is_in_memory_does_not_grow_with_the_log(tmp_path: Path) -> None:
    segment = 1 << 20
    Copy(tmp_path, "n1", segment_bytes=segment).add(*numbered(160, 100, 1000)).checkpoint(dtvlsn=16_000).write()
    reader = read_arrow(tmp_path)
    tracemalloc.start()
    try:
        assert sum(batch.num_rows for batch in reader) == 16_000
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * segment  # of 16


def test_damage_is_told_behind_what_comes_before_it(tmp_path: Path) -> None:
    copy = Copy(tmp_path, "n1", segment_bytes=8 << 10).add(*numbered(300))
    copy.checkpoint(dtvlsn=300).write()
    copy.flip(200, at=90)
    seen: list[Any] = []
    with pytest.raises(Damaged) as told:
        seen.extend(read_arrow(tmp_path))
    assert [vlsn for vlsn, _, _ in rows(seen)] == list(range(1, 200))
    assert told.value.vlsn == 200


def test_a_directory_that_is_open_is_refused(tmp_path: Path) -> None:
    with Log.open(str(tmp_path / "local")) as log:
        log.append(b"a")
        with pytest.raises(LogInUse):
            read_arrow(tmp_path / "local")
    assert [value for _, _, value in rows(read_arrow(tmp_path / "local"))] == [b"a"]


def test_a_node_gives_what_reading_it_gives(served: ServedNode) -> None:
    with connect_sync(served.url) as log:
        for at in range(20):
            log.append_many([b"%d-%d" % (at, n) for n in range(50)], keys=[b"k" if n % 7 else None for n in range(50)])
        log.append_many([b"v" * 1000] * 500, keys=[b"large"] * 500)
        entries = [(entry.vlsn, entry.key, entry.value) for entry in log.read()]
        assert rows(read_arrow(served.url)) == entries
        assert rows(read_arrow(served.url, 7, 1111)) == [entry for entry in entries if 7 <= entry[0] <= 1111]
        assert rows(read_arrow(served.url, consistency="linearizable"))[-1] == entries[-1]
        first = next(iter(log.read()))
    (row, *_) = read_arrow(served.url).read_all().to_pylist()
    assert (row["term"], row["time"].timestamp() * 1e6) == (first.term, pytest.approx(first.time, abs=1))


def test_a_node_that_fails_is_left_for_the_next(served: ServedNode) -> None:
    with connect_sync(served.url) as log:
        log.append(b"a")
    assert [value for _, _, value in rows(read_arrow(f"{NOBODY},{served.url}"))] == [b"a"]


def test_it_ends_at_what_was_durable_when_it_began(served: ServedNode) -> None:
    with connect_sync(served.url) as log:
        log.append_many([b"before"] * 3)
        reader = read_arrow(served.url)
        log.append(b"after")
        assert [value for _, _, value in rows(reader)] == [b"before"] * 3


def test_what_cannot_be_read_is_said_at_once(directory: str, tmp_path: Path) -> None:
    with pytest.raises(Unreachable):
        read_arrow(NOBODY, timeout_s=0.2)
    with pytest.raises(BadArgument, match="from_vlsn is 0"):
        read_arrow(directory, 0)
    with pytest.raises(BadArgument, match="http:// URLs"):
        read_arrow("kafka://host")
    with pytest.raises(BadArgument, match="no directory"):
        read_arrow(tmp_path / "nothing")
    with pytest.raises(BadArgument, match="consistency"):
        read_arrow(directory, consistency="linearizable")
    with ServedNode(cleaned) as trimmed, pytest.raises(Trimmed):
        read_arrow(trimmed.url, 2)


def test_without_pyarrow_it_says_what_to_install() -> None:
    look = """import sys
sys.modules["pyarrow"] = None
sys.meta_path.insert(0, type("No", (), {"find_spec": staticmethod(lambda name, *_: None)})())
from repl import *
from repl import read_arrow
try:
    read_arrow("somewhere")
except ModuleNotFoundError as error:
    print(error)"""
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "read_arrow needs PyArrow; install it with: pip install 'vlsnlog[arrow]'", done.stderr


# What takes it.


def test_polars_takes_it(directory: str) -> None:
    polars = pytest.importorskip("polars")
    frame = polars.from_arrow(read_arrow(directory))
    assert frame.columns == ["vlsn", "term", "time", "key", "value"]
    assert frame.height == 300
    keyed = frame.filter(polars.col("key") == b"k").select(polars.col("value").cast(polars.String))
    assert keyed["value"].to_list()[:2] == ["value 0-0", "value 0-3"]


def test_duckdb_takes_it(directory: str) -> None:
    duckdb = pytest.importorskip("duckdb")
    log = read_arrow(directory)
    with duckdb.connect() as connection:
        connection.register("log", log)
        query = "select count(*), max(vlsn), count(key), min(time)::varchar from log where vlsn > 100"
        assert connection.execute(query).fetchone()[:3] == (200, 300, 66)


def test_pandas_takes_it(directory: str) -> None:
    pandas = pytest.importorskip("pandas")
    frame = read_arrow(directory).read_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert len(frame) == 300
    assert str(frame["time"].dtype).startswith("datetime64[") and str(frame["time"].dt.tz) == "UTC"
    assert frame.loc[frame["key"].notna(), "value"].iloc[0] == b"value 0-0"
