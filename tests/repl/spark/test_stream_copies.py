"""The stream's reader over directories, called as Spark calls it: each durable entry once, or a clear error."""

from __future__ import annotations

import json
import pickle
import re
import shutil
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes

from repl.spark import copies as copies_module
from repl.spark import stream_copies
from repl.spark.datasource import VlsnLogDataSource
from repl.spark.schemas import VISIBLE
from repl.spark.stream import PARTITIONS
from repl.spark.stream_copies import CopiesStreamReader
from tests.repl.audit.logs import STORY, Copy, blocks, numbered
from tests.repl.audit.test_live import DTVLSN, served
from tests.repl.spark.groups import OFTEN, client, running
from vlsn.errors import Damaged, Lagging, NotInLog, Trimmed
from vlsn.real.disk import PosixDisk

LIMIT = ReadMaxBytes(1)
"""The default limit as Spark hands it back; the options say how much it is."""
LAST = 1500
Offset = dict[str, int]


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies_module, "PAUSE_S", 0.01)
    monkeypatch.setattr(stream_copies, "SURVEY_S", 0.0)
    monkeypatch.setattr(stream_copies, "SURVEY_TIMES", 0)


def reader(*sources: Path | str, **options: object) -> CopiesStreamReader:
    given = {"path": ",".join(map(str, sources)), **{name: str(value) for name, value in options.items()}}
    found = VlsnLogDataSource(given).streamReader(VISIBLE)
    assert isinstance(found, CopiesStreamReader)
    return found


def rows_of(made: CopiesStreamReader, start: Offset, end: Offset) -> list[tuple[int, bytes]]:
    parts = pickle.loads(pickle.dumps(made.partitions(start, end)))
    task = pickle.loads(pickle.dumps(made))
    return [(row["vlsn"], row["value"]) for part in parts for batch in task.read(part) for row in batch.to_pylist()]


def streamed(made: CopiesStreamReader, at: Offset | None = None) -> tuple[list[tuple[int, bytes]], Offset]:
    """Streams until there is nothing new."""
    at = at or made.initialOffset()
    found: list[tuple[int, bytes]] = []
    while (end := made.latestOffset(at, LIMIT)) != at:
        found += rows_of(made, at, end)
        at = end
    return found, at


def vlsns(found: list[tuple[int, bytes]]) -> list[int]:
    return [vlsn for vlsn, _ in found]


def log(path: Path, node: str, upto: int = LAST, first_vlsn: int = 1, **settings: Any) -> Copy:
    """Five entries of 60 bytes a block, of term 1 up to VLSN 500, 2 up to 1000, then 3."""
    copy = Copy(path, node, segment_bytes=24 << 10, **settings)
    for begin, term in ((1, 1), (501, 2), (1001, 3)):
        end = min(begin + 499, upto)
        low = max(begin, first_vlsn)
        if low <= end:
            copy.add(*numbered((end - low + 1) // 5, 5, 60, first_vlsn=low, term=term))
    return copy


def value(vlsn: int) -> bytes:
    return (b"value %d" % vlsn).ljust(60, b".")


MODEL = [(vlsn, value(vlsn)) for vlsn in range(1, LAST + 1)]


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    return log(tmp_path / "n1", "n1").checkpoint(LAST).write().path


@pytest.mark.parametrize("seed", [0, *(pytest.param(each, marks=pytest.mark.long) for each in range(1, 6))])
def test_batches_of_any_limit_follow_on_one_another_through_restarts(tmp_path: Path, seed: int) -> None:
    """The copies go on from one trigger to the next, one of them is behind, and has given up what nobody read."""
    rng = Random(seed)
    one = log(tmp_path / "n1", "n1", 100).checkpoint(100)
    two = log(tmp_path / "n2", "n2", 60).add(*blocks(["other"] * 20, ["other"] * 20, first_vlsn=61))
    two.rollback(60).checkpoint(60)
    found: list[tuple[int, bytes]] = []
    at: Offset | None = None
    for upto in (100, 400, 405, 1000, LAST):
        for begin, term in ((101, 1), (501, 2), (1001, 3)):
            low, high = max(begin, one.last + 1), min(upto, begin - begin % 500 + 500)
            if low <= high:
                one.add(*numbered((high - low + 1) // 5, 5, 60, first_vlsn=low, term=term)).checkpoint(high)
        one.write()
        if rng.random() < 0.5:
            two.checkpoint(60)
        two.write()
        while True:
            limits = {
                "maxEntriesPerTrigger": rng.choice((1, 7, 200, 5000)) if (at or {"vlsn": 1})["vlsn"] > 30 else 5,
                "maxBytesPerTrigger": rng.choice(("64k", "300k", "4m")),
                "partitionBytes": rng.choice(("64k", "32m")),
            }
            made = reader(*rng.sample([one.path, two.path], 2), **limits)
            at = at or made.initialOffset()
            assert found or at == {"vlsn": 1, "term": 0}
            end = made.latestOffset(at, LIMIT)
            if end == at:
                break
            at = json.loads(json.dumps(at))  # by way of the checkpoint
            rows = rows_of(made, at, end)
            assert rows_of(reader(one.path), at, end) == rows, "a batch that is repeated is the same"
            assert end["vlsn"] - at["vlsn"] <= int(limits["maxEntriesPerTrigger"])
            found += rows
            at = end
        assert found == MODEL[:upto]
    assert at == {"vlsn": LAST + 1, "term": 3}


@pytest.mark.parametrize("limit", [64 << 10, 300 << 10, 1 << 20])
def test_a_micro_batch_is_of_about_the_bytes_asked_for(tmp_path: Path, limit: int) -> None:
    copy = Copy(tmp_path / "n1", "n1", segment_bytes=1 << 20).add(*numbered(4000, 3, 300)).checkpoint(12_000).write()
    made = reader(copy.path, maxBytesPerTrigger=limit)
    at = made.initialOffset()
    ends = [at := made.latestOffset(at, LIMIT) for _ in range(2)]
    sizes = [300 * (ends[0]["vlsn"] - 1), 300 * (ends[1]["vlsn"] - ends[0]["vlsn"])]
    assert all(0.75 * limit <= size <= 1.1 * limit for size in sizes), sizes
    assert len(made.partitions(ends[0], ends[1])) <= PARTITIONS


def test_a_block_larger_than_the_limit_is_a_batch_of_its_own(tmp_path: Path) -> None:
    story = blocks(["a"], ["b" * 200_000], ["c"], ["d" * 200_000], ["e"])
    copy = Copy(tmp_path / "n1", "n1", segment_bytes=1 << 20).add(*story).checkpoint(5).write()
    found, at = streamed(reader(copy.path, maxBytesPerTrigger="64k"))
    assert (vlsns(found), at["vlsn"]) == ([1, 2, 3, 4, 5], 6)


def test_the_whole_is_one_batch_where_spark_asks_for_all_that_is_there(whole: Path) -> None:
    made = reader(whole, maxEntriesPerTrigger=3)
    start = made.initialOffset()
    end = made.latestOffset(start, ReadAllAvailable())
    assert rows_of(made, start, end) == MODEL
    assert made.reportLatestOffset() == {"vlsn": LAST + 1, "term": 0}


def test_a_query_that_ends_by_itself_reads_nothing_that_came_later(tmp_path: Path) -> None:
    copy = log(tmp_path / "n1", "n1", 100).checkpoint(100).write()
    made = reader(copy.path)
    made.prepareForTriggerAvailableNow()
    copy.add(*numbered(2, 5, 60, first_vlsn=101)).checkpoint(110).write()
    found, at = streamed(made)
    assert (vlsns(found), at["vlsn"]) == (list(range(1, 101)), 101)
    later, _ = streamed(reader(copy.path), at)
    assert vlsns(later) == list(range(101, 111))


def test_it_begins_where_it_is_told_to(whole: Path) -> None:
    assert vlsns(streamed(reader(whole, **{"from": 700}))[0]) == list(range(700, LAST + 1))
    at_end = reader(whole, **{"from": "end"}).initialOffset()
    assert at_end == {"vlsn": LAST + 1, "term": 3}
    assert reader(whole).latestOffset(at_end, LIMIT) == at_end
    assert reader(whole, **{"from": 2000}).latestOffset({"vlsn": 2000, "term": 0}, LIMIT) == {"vlsn": 2000, "term": 0}
    assert reader(whole, since="2023-11-14T22:13:20.000101Z").initialOffset() == {"vlsn": 101, "term": 0}
    assert reader(whole, since="2030-01-01").initialOffset() == {"vlsn": LAST + 1, "term": 0}


def test_a_key_prefix_chooses(tmp_path: Path) -> None:
    story = blocks(*[["a", "b", "c"]] * 30, keys=[b"order-1", None, b"x", b"order-2"])
    copy = Copy(tmp_path / "n1", "n1").add(*story).checkpoint(90).write()
    found, at = streamed(reader(copy.path, keyPrefix="order-", maxEntriesPerTrigger=7))
    assert vlsns(found) == [vlsn for vlsn in range(1, 91) if vlsn % 4 in (0, 3)]
    assert at["vlsn"] == 91


def test_a_log_without_an_entry_is_waited_for(tmp_path: Path) -> None:
    copy = Copy(tmp_path / "n1", "n1").write()
    made = reader(copy.path)
    at = made.initialOffset()
    assert at == reader(copy.path, **{"from": "end"}).initialOffset() == {"vlsn": 1, "term": 0}
    assert streamed(made, at) == ([], at)
    assert made.partitions(at, at) == []
    assert list(made.read(None)) == []
    copy.add(*numbered(2, 5, 60)).checkpoint(10).write()
    assert vlsns(streamed(made, at)[0]) == list(range(1, 11))


def test_what_is_not_known_durable_is_waited_for(tmp_path: Path) -> None:
    copy = log(tmp_path / "n1", "n1", 100).write()
    found, at = streamed(reader(copy.path))
    assert vlsns(found) == list(range(1, 91))  # two blocks: the last one says so
    assert streamed(reader(copy.path), at) == ([], at)
    copy.checkpoint(100).write()
    assert vlsns(streamed(reader(copy.path), at)[0]) == list(range(91, 101))


# An offset that is not of this log.


def test_another_history_under_an_offset_is_refused_by_its_term(whole: Path) -> None:
    made = reader(whole)
    for call in (
        lambda: made.latestOffset({"vlsn": 10, "term": 9}, LIMIT),
        lambda: made.partitions({"vlsn": 10, "term": 9}, {"vlsn": 20, "term": 1}),
        lambda: made.partitions({"vlsn": 10, "term": 1}, {"vlsn": 20, "term": 9}),
    ):
        with pytest.raises(NotInLog, match=r"n1 has an entry of term 1 at VLSN \d+, and this stream .* term 9") as told:
            call()
        assert (told.value.term, told.value.found) == (9, 1)
    [(part, *_)] = [made.partitions({"vlsn": 10, "term": 1}, {"vlsn": 20, "term": 1})]
    assert (part.term, part.piece.first, part.piece.last) == (1, 10, 19)


def test_a_directory_put_back_from_an_older_copy_is_refused(tmp_path: Path) -> None:
    older = log(tmp_path / "older", "n1", 700).checkpoint(700).write()
    whole = log(tmp_path / "n1", "n1").checkpoint(LAST).write()
    made = reader(whole.path, maxEntriesPerTrigger=1000)
    _, at = streamed(made)
    shutil.rmtree(whole.path)
    shutil.copytree(older.path, whole.path)
    for one in (made, reader(whole.path)):
        with pytest.raises(NotInLog, match=r"has read up to VLSN 1500, of term 3, and its copies end with VLSN 700"):
            one.latestOffset(at, LIMIT)
    with pytest.raises(Lagging, match=r"goes up to VLSN 1500, and .*n1 by now only to VLSN 700"):
        made.partitions({"vlsn": 600, "term": 2}, at)
    lock = PosixDisk().lock(str(whole.path / "LOCK"))
    try:
        assert reader(whole.path).latestOffset(at, LIMIT) == at  # its node runs, and catches up
    finally:
        lock.release()


def test_a_rolled_back_directory_is_refused_and_one_that_lags_is_not(tmp_path: Path) -> None:
    gone = log(tmp_path / "n1", "n1", 700).rollback(600).add(*numbered(40, 5, 60, first_vlsn=601, term=4))
    gone.checkpoint(800).write()
    at = {"vlsn": 651, "term": 2}
    with pytest.raises(NotInLog, match=r"term 4 at VLSN 650, and this stream has read one of term 2 there"):
        reader(gone.path).latestOffset(at, LIMIT)
    # The same above the known durable end: this copy does not decide, while another one has the entry that was read.
    behind = (
        log(tmp_path / "n2", "n2", 600).add(*blocks(*[["x"] * 50] * 2, first_vlsn=601, term=4, durable=600)).write()
    )
    good = log(tmp_path / "n3", "n3").checkpoint(LAST).write()
    for sources in ((behind.path, good.path), (good.path, behind.path)):
        assert streamed(reader(*sources), at)[0] == MODEL[650:]
        with pytest.raises(NotInLog):
            reader(*sources, gone.path).latestOffset(at, LIMIT)
    with pytest.raises(NotInLog, match="n2 has an entry of term 4 at VLSN 650"):
        reader(behind.path).latestOffset(at, LIMIT)


# Cleaned entries.


def test_what_was_cleaned_away_is_an_error_with_the_first_there_is_or_is_counted(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    copy = log(tmp_path / "n1", "n1", first_vlsn=501).checkpoint(LAST).write()
    start = {"vlsn": 3, "term": 1}
    with pytest.raises(
        Trimmed, match=r"VLSN 3 was cleaned away .* begins at VLSN 501: .*'from', 501.*failOnTrim"
    ) as told:
        reader(copy.path).latestOffset(start, LIMIT)
    assert told.value.first == 501
    made = reader(copy.path, failOnTrim="false", maxEntriesPerTrigger=100)
    end = made.latestOffset(start, LIMIT)
    assert end == {"vlsn": 601, "term": 2, "skipped": 498}
    assert "498 VLSNs are left out" in capfd.readouterr().err
    rows = rows_of(made, start, end)
    assert rows == MODEL[500:600]
    later = made.latestOffset(end, LIMIT)
    assert later == {"vlsn": 701, "term": 2, "skipped": 498}
    assert rows_of(made, end, later) == MODEL[600:700]
    # A batch that Spark has fixed before the cleaning, repeated after it.
    fixed = {"vlsn": 601, "term": 2}
    assert rows_of(made, start, fixed) == rows
    with pytest.raises(Trimmed):
        reader(copy.path).partitions(start, fixed)


@pytest.mark.parametrize("fail", [True, False])
def test_a_segment_that_is_cleaned_away_between_plan_and_task(
    tmp_path: Path, fail: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    copy = log(tmp_path / "n1", "n1").checkpoint(LAST).write()
    made = reader(copy.path, failOnTrim="true" if fail else "false")
    start, end = {"vlsn": 1, "term": 0}, {"vlsn": LAST + 1, "term": 3}
    parts = made.partitions(start, end)
    for number in (1, 2):
        (copy.path / f"0000000{number}.vlog").unlink()
        (copy.path / f"0000000{number}.vidx").unlink()
    if fail:
        with pytest.raises(Trimmed, match=r"VLSN \d+ was cleaned away before this stream has read it"):
            [list(made.read(part)) for part in parts]
        return
    found = [vlsn for part in parts for batch in made.read(part) for vlsn in batch.column("vlsn").to_pylist()]
    assert 300 < found[0] < 1000
    assert found == list(range(found[0], LAST + 1))
    assert "VLSNs are left out" in capfd.readouterr().err


# Several copies.


def test_a_copy_that_breaks_is_left_for_another_at_the_vlsn_reached(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    one, two = (log(tmp_path / node, node).checkpoint(LAST).write(sidecars=False) for node in ("n1", "n2"))
    one.flip(251, 130)
    assert streamed(reader(one.path, two.path))[0] == MODEL
    assert "VLSN 251 is looked for in the other sources" in capfd.readouterr().err
    with pytest.raises(Damaged, match=r"VLSN 251 cannot be read; verify that copy"):
        streamed(reader(one.path))


def test_copies_and_nodes_are_one_log(tmp_path: Path) -> None:
    old = Copy(tmp_path / "old", "n1").add(*STORY[:80]).checkpoint(400).write()
    with served(Copy(tmp_path / "n2", "n2").add(*STORY).write()) as node:
        found, at = streamed(reader(old.path, node.url, maxEntriesPerTrigger=300))
        assert vlsns(found) == list(range(1, DTVLSN + 1))
        assert at["vlsn"] == DTVLSN + 1


def test_a_relative_path_is_found_from_any_directory(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made = reader("n1")
    start, end = {"vlsn": 1, "term": 0}, {"vlsn": LAST + 1, "term": 3}
    parts = made.partitions(start, end)
    monkeypatch.chdir("/")
    assert sum(batch.num_rows for part in parts for batch in made.read(part)) == LAST


def test_a_directory_behind_fsspec_is_streamed(whole: Path) -> None:
    assert streamed(reader(f"file://{whole}", maxEntriesPerTrigger=600))[0] == MODEL


# A running node's directory.


@pytest.mark.real
def test_the_directory_of_a_running_node_gives_each_entry_once_while_it_is_written_and_cleaned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The slow reader loses what was cleaned away, and is told each gap; between the gaps nothing is missing."""
    monkeypatch.setattr(copies_module, "PAUSE_S", 0.3)
    with running(tmp_path / "nodes", segment_bytes=65_536, retention_bytes=262_144, **OFTEN) as group:
        directory = group.path("n2")
        made = reader(directory, failOnTrim="false", maxEntriesPerTrigger=60, maxBytesPerTrigger="200k")
        at = made.initialOffset()
        found: list[int] = []
        written: list[int] = []
        with client(group) as node:
            for number in range(120):
                first, last = node.append_many([b"%d" % number * 3000] * 3)
                written += range(first, last + 1)
                if number % 4 == 3:
                    end = made.latestOffset(at, LIMIT)
                    found += vlsns(rows_of(made, at, end))
                    at = end
            more, at = streamed(made, at)
            found += vlsns(more)
            group.until(lambda: not _left_of(made, at, found, written), "all that is durable was seen")
        group.until(lambda: made._copies.first_vlsn() > written[0], "the log was cleaned")
        gaps = [(int(begin), int(end)) for begin, end in _GAP.findall(capfd.readouterr().err)]
        later = reader(directory, failOnTrim="false")
        end = later.latestOffset({"vlsn": 1, "term": 0}, LIMIT)
        assert end["skipped"] >= written[0]
        assert vlsns(rows_of(later, {"vlsn": 1, "term": 0}, end))[-1] == written[-1]
        assert found == sorted(set(found))
        missing = set(written) - set(found)
        assert [vlsn for vlsn in missing if not any(begin <= vlsn < end for begin, end in gaps)] == []
        assert at.get("skipped", 0) <= sum(end - begin for begin, end in set(gaps))


_GAP = re.compile(r"VLSN (\d+) was cleaned away before .*; the log begins at VLSN (\d+): \d+ VLSNs are left out")


def _left_of(made: CopiesStreamReader, at: Offset, found: list[int], written: list[int]) -> bool:
    more, end = streamed(made, at)
    found += vlsns(more)
    at.update(end)
    return found[-1] < written[-1]
