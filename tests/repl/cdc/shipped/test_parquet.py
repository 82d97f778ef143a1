"""Parquet files: each event once, whatever ends at whatever moment; when files are closed, and what is refused."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from repl.cdc import CdcContext, CdcUnavailable
from repl.cdc.shipped import parquet
from repl.cdc.shipped.parquet import ParquetFiles
from tests.repl.cdc.shipped.feeding import Fed, Feeder, log_of
from vlsn.errors import BadArgument, Damaged
from vlsn.format.block import Entry
from vlsn.ids import Term, Vlsn
from vlsnlog.testing.fakes.disk import FakeDisk, StopHere

D = "/srv/lake"


def rows_of(disk: FakeDisk) -> list[dict[str, Any]]:
    tables = [pq.read_table(pa.BufferReader(disk.content(path))) for path in disk.files(D) if path.endswith(".parquet")]
    return [row for table in tables for row in _plain(table)]


def _plain(table: Any) -> list[dict[str, Any]]:
    index = table.schema.get_field_index("time")
    rows: list[dict[str, Any]] = table.set_column(index, "time", table["time"].cast(pa.int64())).to_pylist()
    return rows


def wanted(events: list[Entry]) -> list[dict[str, Any]]:
    return [
        {"vlsn": e.vlsn, "term": e.term, "time": e.time, "txn": e.txn or None, "key": e.key, "value": e.value}
        for e in events
    ]


def options(**more: Any) -> Mapping[str, Any]:
    return {"directory": D, "file_rows": 13, **more}


@pytest.mark.parametrize("seed", range(3))
def test_each_event_is_once_in_the_files_at_any_stop_of_the_disk(seed: int) -> None:
    log = log_of(Random(seed), 60)
    whole = FakeDisk()
    Feeder(log, options(), Random(seed)).life(lambda: ParquetFiles(whole))
    calls = [call for call in whole.calls if call.changes]
    for stop in range(seed + 1, len(calls) + 1, 2):
        disk = FakeDisk(rng=Random(stop))
        feeder = Feeder(log, options(), Random(seed))
        disk.stop_at(calls[stop - 1].number, moment=("before", "during", "after")[stop % 3])
        with pytest.raises(StopHere):
            feeder.life(lambda: ParquetFiles(disk))  # noqa: B023
        disk.power_cut(Random(stop), tear=bool(stop % 2)) if stop % 5 else disk.process_kill()
        feeder.life(lambda: ParquetFiles(disk))  # noqa: B023
        assert rows_of(disk) == wanted(feeder.events), stop
        assert not [path for path in disk.files(D) if path.endswith(".part")]


@pytest.mark.parametrize("seed", range(6))
def test_each_event_is_once_in_the_files_over_many_crashes(seed: int) -> None:
    rng = Random(seed)
    log = log_of(rng, 200)
    disk = FakeDisk(rng=Random(seed))
    feeder = Feeder(log, options(group_bytes=65536), rng)
    done = False
    while not done:
        disk.stop_at(len(disk.calls) + rng.randrange(1, 250), moment=rng.choice(["before", "during", "after"]))
        try:
            feeder.life(lambda: ParquetFiles(disk))
            done = True
        except StopHere:
            disk.power_cut(Random(rng.random()), tear=rng.random() < 0.5) if rng.random() < 0.7 else disk.process_kill()
    assert feeder.lives > 2
    assert rows_of(disk) == wanted(feeder.events)


def test_a_file_is_closed_by_its_age_while_no_event_comes_and_the_node_is_told_at_the_next(tmp_path: Path) -> None:
    class Open(ParquetFiles):
        def stop(self) -> None: ...

    made = Open()
    log = log_of(Random(5), 30)
    feeder = Feeder(log, {"directory": str(tmp_path), "file_s": 1}, Random(5))
    feeder.life(lambda: made, 20)
    deadline = time.monotonic() + 30
    while not list(tmp_path.glob("orders-*.parquet")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert len(pq.read_table(next(tmp_path.glob("*.parquet")))) == len([e for e in feeder.events if e.vlsn <= 20])
    assert feeder.position == 1
    behind = next(e for e in feeder.events if e.vlsn > 20)
    told = made.on_events(Fed([behind], behind.vlsn, [behind.term]))
    assert 20 < told <= behind.vlsn, "the position is behind the file, and before the new event"
    ParquetFiles.stop(made)


@pytest.mark.parametrize("who", ["thread", "call"])
def test_a_file_of_which_a_part_was_not_written_is_never_closed(who: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "LOOK_S", 0.01)
    disk, now_s = FakeDisk(), [0.0]

    class Ends(ParquetFiles):
        def stop(self) -> None: ...

    made = Ends(disk, lambda: now_s[0])
    log = log_of(Random(6), 500, value_max=2000)
    feeder = Feeder(log, options(file_rows=10_000, file_s=60, group_bytes=65536), Random(6))
    feeder.life(lambda: made, 300)
    assert made._writer is not None and made._waiting, "a group is written, and another one waits"
    disk.capacity_bytes = sum(len(disk.content(path)) for path in disk.files(D))  # full for a while
    if who == "call":
        big = [Entry(Vlsn(301), Term(9), 1, 0, 0, None, bytes(70_000))]
        with pytest.raises(CdcUnavailable, match="No space left"):
            made.on_events(Fed(big, 301, [9]))
        disk.capacity_bytes = 1 << 30
    now_s[0] = 61.0
    deadline = time.monotonic() + 30
    while who == "thread" and made._overdue._fault is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    disk.capacity_bytes = 1 << 30
    time.sleep(0.1)
    with pytest.raises(CdcUnavailable, match="No space left"):
        ParquetFiles.stop(made)
    assert rows_of(disk) == []
    disk.process_kill()
    feeder.life(lambda: ParquetFiles(disk))
    assert rows_of(disk) == wanted(feeder.events), "what was not written is given again"


def test_row_groups_are_small_and_statistics_are_there() -> None:
    disk = FakeDisk()
    feeder = Feeder(log_of(Random(8), 900, value_max=2000), options(file_rows=10_000, group_bytes=65536), Random(8))
    feeder.life(lambda: ParquetFiles(disk))
    [path] = [path for path in disk.files(D) if path.endswith(".parquet")]
    found = pq.ParquetFile(pa.BufferReader(disk.content(path))).metadata
    assert found.num_row_groups > 2
    groups = [found.row_group(number).column(0).statistics for number in range(found.num_row_groups)]
    assert [group.min for group in groups] == sorted(group.min for group in groups)
    assert path.endswith(f"orders-{feeder.events[0].vlsn:020}-{feeder.events[-1].vlsn:020}.parquet")


def test_a_state_that_does_not_read_back_is_damage() -> None:
    disk = FakeDisk()
    feeder = Feeder(log_of(Random(9), 30), options(), Random(9))
    feeder.life(lambda: ParquetFiles(disk))
    disk.flip_bit(f"{D}/orders.state", 20)
    with pytest.raises(Damaged, match=r"orders\.state: its checksum is wrong"):
        feeder.life(lambda: ParquetFiles(disk))


def test_an_order_that_is_told_again_is_obeyed_once() -> None:
    disk = FakeDisk()
    feeder = Feeder(log_of(Random(10), 60), options(), Random(10))
    feeder.life(lambda: ParquetFiles(disk), 20)
    feeder.position, feeder.moved_us, feeder.stores = 31, 7, 0.0
    for upto in (40, 45, 60):
        feeder.life(lambda: ParquetFiles(disk), upto)
    assert rows_of(disk) == wanted([entry for entry in feeder.events if entry.vlsn <= 20 or entry.vlsn > 30])


def test_a_full_disk_is_waited_for() -> None:
    disk = FakeDisk(capacity_bytes=9000)
    feeder = Feeder(log_of(Random(4), 300), options(), Random(4))
    with pytest.raises(CdcUnavailable, match="No space left"):
        feeder.life(lambda: ParquetFiles(disk))
    disk.process_kill()
    disk.capacity_bytes = 1 << 30
    feeder.life(lambda: ParquetFiles(disk))
    assert rows_of(disk) == wanted(feeder.events)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "missing required field `directory`"),
        ({"directory": D, "file_rows": 0}, "file_rows: Expected `int` >= 1"),
        ({"directory": D, "compression": "rar"}, "compression: Invalid enum value 'rar'"),
        ({"directory": D, "file_bytes": "2GiB"}, "file_bytes: Expected `int` <="),
    ],
)
def test_options_that_are_wrong_are_refused(given: dict[str, Any], said: str) -> None:
    disk = FakeDisk()
    with pytest.raises(BadArgument) as refused:
        ParquetFiles(disk).start(CdcContext("orders", "n1", "g", 1, given))
    assert said in str(refused.value)
    assert not [call for call in disk.calls if call.changes]
