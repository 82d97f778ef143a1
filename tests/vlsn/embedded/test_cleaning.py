"""``vlsn.Log`` cleaned on the real disk, with real threads and LMDB."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from vlsn import Log
from vlsn.errors import Trimmed
from vlsn.ids import Vlsn
from vlsn.index.bucket import Bucket
from vlsn.real.disk import PosixDisk
from vlsn.real.lmdb_store import LmdbStores
from vlsn.state.holds import Owner
from vlsn.state.options import LogOptions
from vlsn.verify.dump import dump_rows
from vlsn.verify.verify import verify

SMALL = LogOptions(segment_bytes=64 << 10, retention_bytes=256 << 10)
VALUE = b"." * 8000


def fill(log: Log, entries: int = 80) -> None:
    for number in range(entries):
        log.append(b"%d" % number + VALUE)


def test_a_checkpoint_cleans_and_reads_below_the_first_vlsn_are_trimmed(tmp_path: Path) -> None:
    with Log.open(tmp_path, SMALL) as log:
        fill(log)
        log.checkpoint()
        report = log.clean()  # after the pass that the checkpoint began
        assert not report.segments
        first = log.range.first
        assert first > 40
        with pytest.raises(Trimmed) as caught:
            next(log.read(from_vlsn=first - 1))
        assert caught.value.first == first
        assert [entry.vlsn for entry in log.read()] == list(range(first, log.range.last + 1))
        assert sum(each.stat().st_size for each in tmp_path.glob("*.vlog")) <= 256 << 10
    found = verify(PosixDisk(), LmdbStores(), str(tmp_path))
    assert found.ok, found.findings
    assert found.first == first
    assert next(iter(dump_rows(PosixDisk(), LmdbStores(), str(tmp_path)))).first == first
    with Log.open(tmp_path, SMALL) as log:
        assert log.range.first == first
        assert log.append(b"more")[0] == log.range.last


def test_a_hold_keeps_what_a_reader_needs_until_it_lets_go(tmp_path: Path) -> None:
    with Log.open(tmp_path, SMALL) as log:
        fill(log)
        with log.hold("reader", 20) as hold:
            log.checkpoint()
            report = log.clean()
            assert report.blocked[0].blocked_by == ["consumer reader"]
            assert log.range.first <= 20
            assert next(log.read(from_vlsn=20)).vlsn == 20
            hold.advance(60)
            assert log.clean().segments
        assert not hold.live
        with pytest.raises(Trimmed):
            log.hold("reader", 20)


def test_a_reader_that_is_overtaken_is_told(tmp_path: Path) -> None:
    with Log.open(tmp_path, SMALL) as log:
        fill(log, 250)  # more than is read at once
        slow = log.read(from_vlsn=10)
        assert next(slow).vlsn == 10
        log.checkpoint()
        log.clean()
        with pytest.raises(Trimmed):
            for _ in slow:
                pass


@pytest.mark.parametrize("what", ["cleaned away", "rolled back"])
def test_a_reader_whose_place_goes_while_it_is_looked_up(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Log.open(tmp_path, replace(SMALL, durable_when_synced=what == "cleaned away")) as log:
        fill(log, 60)
        hold = log.hold("until then", 1)
        index = log._log.view.index
        found = index.bucket_at_or_before

        def found_too_late(vlsn: Vlsn) -> Bucket | None:
            monkeypatch.undo()
            if what == "cleaned away":
                hold.release()
                log.clean()
            else:
                log.rollback(5)
            return found(vlsn)

        log.checkpoint()
        monkeypatch.setattr(index, "bucket_at_or_before", found_too_late)
        if what == "cleaned away":
            with pytest.raises(Trimmed):
                list(log.read(from_vlsn=10))
        else:
            assert list(log.read(from_vlsn=10)) == []


def test_cleaning_while_many_threads_append_and_one_follows_with_a_hold(tmp_path: Path) -> None:
    with Log.open(tmp_path, replace(SMALL, checkpoint_bytes=128 << 10)) as log:
        faults: list[BaseException] = []
        seen: list[int] = []

        def write() -> None:
            try:
                fill(log, 100)
            except BaseException as error:
                faults.append(error)

        hold = log.hold("follower", 1, owner=Owner.BACKUP)
        writers = [threading.Thread(target=write) for _ in range(4)]
        for each in writers:
            each.start()
        at = 1
        while at < 402 and not faults:
            log.wait_for(at)
            for entry in log.read(from_vlsn=at, all_kinds=True):
                seen.append(entry.vlsn)
                at = entry.vlsn + 1
            hold.advance(at - 1)
        for each in writers:
            each.join()
        assert not faults
        assert seen == list(range(1, seen[-1] + 1))
        hold.release()
        log.checkpoint()
        log.clean()
        assert log.range.first > 1
