"""The stream's reader over real nodes, called as Spark calls it: any limits and restarts give each entry once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes

from repl.spark import stream
from repl.spark.datasource import VlsnLogDataSource
from repl.spark.schemas import VISIBLE
from repl.spark.stream import LogStreamReader, close_clients
from tests.e2e.group import Group
from tests.repl.spark.groups import OFTEN, client, running, urls
from vlsn.errors import NotInLog, TooFarBehind, Trimmed

pytestmark = pytest.mark.real
LIMIT = ReadMaxBytes(1)
"""The default limit as Spark hands it back; the options say how much it is."""


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    with running(tmp_path_factory.mktemp("group"), segment_bytes=1 << 20) as made:
        with client(made) as log:
            for number in range(120):
                count = (1, 3, 40)[number % 3]
                log.append_many([b"%d/%d" % (number, row) * 50 for row in range(count)], keys=[b"k%d" % number] * count)
        yield made
    close_clients()


def reader(group: Group, **options: object) -> LogStreamReader:
    made = VlsnLogDataSource({"path": urls(group), **{name: str(value) for name, value in options.items()}})
    found = made.streamReader(VISIBLE)
    assert isinstance(found, LogStreamReader)
    return found


def rows_of(made: LogStreamReader, start: dict[str, int], end: dict[str, int]) -> list[dict[str, Any]]:
    parts = made.partitions(start, end)
    return [row for part in parts for batch in made.read(part) for row in batch.to_pylist()]


def founding(group: Group) -> str:
    return str(group.status("n1")["founding"])


def everything(group: Group) -> list[tuple[int, bytes]]:
    with client(group) as log:
        return [(entry.vlsn, entry.value) for entry in log.read(consistency="linearizable")]


@pytest.mark.parametrize("seed", range(4))
def test_batches_of_any_limit_follow_on_one_another_through_restarts(group: Group, seed: int) -> None:
    rng = Random(seed)
    found: list[tuple[int, bytes]] = []
    at = reader(group).initialOffset()
    assert at == {"vlsn": 1, "term": 0, "group": founding(group)}
    while True:
        limits = {
            "maxEntriesPerTrigger": rng.choice((1, 7, 500, 5000)) if at["vlsn"] > 30 else 5,
            "maxBytesPerTrigger": rng.choice(("64k", "300k", "4m")),
            "partitionBytes": rng.choice(("64k", "32m")),
        }
        made = reader(group, **limits)
        end = made.latestOffset(at, LIMIT)
        if end == at:
            break
        at = json.loads(json.dumps(at))  # by way of the checkpoint
        rows = rows_of(made, at, end)
        assert rows_of(reader(group), at, end) == rows, "a batch that is repeated is the same"
        assert end["vlsn"] - at["vlsn"] <= int(limits["maxEntriesPerTrigger"])
        found += [(row["vlsn"], row["value"]) for row in rows]
        at = end
    assert found == everything(group)


def test_the_whole_is_one_batch_where_spark_asks_for_all_that_is_there(group: Group) -> None:
    made = reader(group, maxEntriesPerTrigger=3)
    start = made.initialOffset()
    end = made.latestOffset(start, ReadAllAvailable())
    assert [(row["vlsn"], row["value"]) for row in rows_of(made, start, end)] == everything(group)
    assert isinstance(made.getDefaultReadLimit(), ReadMaxBytes)
    assert made.reportLatestOffset() == {"vlsn": end["vlsn"], "term": 0}


def test_a_query_that_ends_by_itself_reads_nothing_that_came_later(group: Group) -> None:
    made = reader(group)
    made.prepareForTriggerAvailableNow()
    at = made.initialOffset()
    group.append(b"later")
    while (end := made.latestOffset(at, LIMIT)) != at:
        at = end
    with client(group) as log:
        last = max(entry.vlsn for entry in log.read())
    assert at["vlsn"] <= last
    assert [row["value"] for row in rows_of(made, at, reader(group).latestOffset(at, LIMIT))] == [b"later"]


def test_it_reads_at_least_what_it_is_told_to_and_lags_no_more(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    with client(group) as log:
        for _ in range(5):
            vlsn = log.append(b"told")
            for options in ({"atLeast": vlsn}, {"lagMaxSeconds": 0}):
                made = reader(group, **options)
                made.prepareForTriggerAvailableNow()
                at = made.initialOffset()
                while (end := made.latestOffset(at, LIMIT)) != at:
                    at = end
                assert at["vlsn"] > vlsn
                assert reader(group, **{"from": "end", **options}).initialOffset()["vlsn"] > vlsn
                source = VlsnLogDataSource({"path": urls(group), "from": str(vlsn), **stated(options)})
                batch = source.reader(VISIBLE)
                rows = [row for part in batch.partitions() for table in batch.read(part) for row in table.to_pylist()]
                assert [row["vlsn"] for row in rows] == [vlsn]
    close_clients()
    monkeypatch.setattr(stream, "ASK_S", 4.0)
    with pytest.raises(TooFarBehind):
        reader(group, atLeast=vlsn + 1000).prepareForTriggerAvailableNow()
    close_clients()


def stated(options: dict[str, int]) -> dict[str, str]:
    return {name: str(value) for name, value in options.items()}


def test_it_begins_where_it_is_told_to(group: Group) -> None:
    whole = everything(group)
    middle = whole[len(whole) // 2][0]
    made = reader(group, **{"from": middle})
    end = made.latestOffset(made.initialOffset(), LIMIT)
    assert rows_of(made, made.initialOffset(), end)[0]["vlsn"] == middle
    at_end = reader(group, **{"from": "end"}).initialOffset()
    assert at_end["vlsn"] > whole[-1][0]
    assert at_end["term"] >= 1
    assert reader(group).latestOffset(at_end, LIMIT) == at_end
    assert reader(group, since="2020-01-01").initialOffset()["vlsn"] == 1
    prefixed = rows_of(reader(group, keyPrefix="k11"), {"vlsn": 1, "term": 0}, end)
    assert {bytes(row["key"]) for row in prefixed} == {b"k%d" % number for number in (11, *range(110, 120))}


def test_a_history_that_is_gone_is_refused_by_its_term(group: Group) -> None:
    made = reader(group)
    with pytest.raises(NotInLog):
        made.latestOffset({"vlsn": 10, "term": 99}, LIMIT)
    with pytest.raises(NotInLog):
        made.partitions({"vlsn": 10, "term": 99}, {"vlsn": 20, "term": 0})
    [part] = made.partitions({"vlsn": 10, "term": 1}, {"vlsn": 20, "term": 0})
    part.term = 99
    with pytest.raises(NotInLog):
        list(made.read(part))


def test_what_was_cleaned_away_is_an_error_with_the_first_there_is_or_is_counted(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with running(tmp_path / "nodes", segment_bytes=65_536, retention_bytes=131_072, **OFTEN) as group:
        with client(group) as log:
            for _ in range(60):
                log.append(b"x" * 20_000)
            group.until(lambda: log.first_vlsn() > 10, "the log was cleaned")
            first = log.first_vlsn()
        start = {"vlsn": 3, "term": 1}
        with pytest.raises(Trimmed, match=r"VLSN 3 was cleaned away .* begins at VLSN \d+: .*failOnTrim") as told:
            reader(group).latestOffset(start, LIMIT)
        assert told.value.first >= first
        made = reader(group, failOnTrim="false")
        end = made.latestOffset(start, LIMIT)
        assert end["skipped"] >= first - 3
        assert "VLSNs are left out" in capfd.readouterr().err
        rows = rows_of(made, start, end)
        assert rows[0]["vlsn"] >= 3 + end["skipped"]
        assert rows[-1]["vlsn"] == end["vlsn"] - 1
        later = made.latestOffset(end, LIMIT)
        assert later == end
        # A batch that Spark has fixed before the cleaning, repeated after it.
        again = rows_of(made, start, {"vlsn": end["vlsn"], "term": end["term"]})
        assert again == rows
        with pytest.raises(Trimmed):
            reader(group).partitions(start, end | {"skipped": 0})
    close_clients()
