"""Transactions of ``vlsn.Log``, on the real disk."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path
from shutil import copytree, rmtree

import pytest

from vlsn import Log
from vlsn.errors import BadArgument, LogClosed, TooLarge, WrongVersion
from vlsn.format.segment import HEADER_PAGE, SegmentHeader
from vlsn.ids import Vlsn
from vlsn.levels import LEVEL_1
from vlsn.limits import ENTRY_BYTES_MAX, PRODUCERS_DEFAULT, TRANSACTION_BYTES_MAX
from vlsn.real.disk import PosixDisk
from vlsn.real.lmdb_store import LmdbStores
from vlsn.state.node_file import NodeFile
from vlsn.state.options import Durability, LogOptions
from vlsn.verify.verify import verify


def values(log: Log) -> list[bytes]:
    return [entry.value for entry in log.read()]


def test_a_transaction_is_logged_when_its_block_ends(tmp_path: Path) -> None:
    with Log.open(tmp_path / "log") as log:
        log.append(b"before")
        with log.transaction() as txn:
            txn.append(b"a", key=b"k").append([b"b", b"c"])
            assert values(log) == [b"before"]
        assert txn.last - txn.first == 3
        assert log.range.last_txn_end == txn.last
        entries = list(log.read(from_vlsn=txn.first, all_kinds=True))
        assert [(each.vlsn - txn.first, each.txn, each.key, each.value) for each in entries] == [
            (0, txn.first, b"k", b"a"),
            (1, txn.first, None, b"b"),
            (2, txn.first, None, b"c"),
            (3, txn.first, None, b""),
        ]
        assert values(log) == [b"before", b"a", b"b", b"c"]
    with Log.open(tmp_path / "log") as log:
        assert values(log) == [b"before", b"a", b"b", b"c"]
        assert log.range.last_txn_end == txn.last
    assert verify(PosixDisk(), LmdbStores(), str(tmp_path / "log")).ok


def test_nothing_is_logged_of_what_failed_or_was_aborted(tmp_path: Path) -> None:
    with Log.open(tmp_path / "log") as log:
        last = log.range.last
        with suppress(RuntimeError), log.transaction() as txn:
            txn.append(b"a")
            raise RuntimeError
        with log.transaction() as txn:
            txn.append(b"b")
            txn.abort()
        assert log.range.last == last
        with pytest.raises(BadArgument, match="aborted"):
            txn.append(b"c")
        with log.transaction() as txn:
            txn.append(b"d")
            assert txn.commit() == (txn.first, txn.last)
        with pytest.raises(BadArgument, match="committed"):
            txn.commit()
        assert values(log) == [b"d"]


def test_what_is_too_large_is_refused_and_the_rest_stays(tmp_path: Path) -> None:
    with Log.open(tmp_path / "log") as log:
        with log.transaction() as txn:
            for _ in range(TRANSACTION_BYTES_MAX // ENTRY_BYTES_MAX):
                txn.append(b"." * ENTRY_BYTES_MAX)
            with pytest.raises(TooLarge, match="transaction"):
                txn.append(b"." * ENTRY_BYTES_MAX)
            with pytest.raises(TypeError):
                txn.append("text")  # type: ignore[arg-type]
            txn.append(b"last")
        assert txn.last - txn.first == TRANSACTION_BYTES_MAX // ENTRY_BYTES_MAX + 1
        assert values(log)[-1] == b"last"
    with Log.open(tmp_path / "small", LogOptions(segment_bytes=1 << 20)) as log:
        txn = log.transaction()
        txn.append(b"." * ENTRY_BYTES_MAX)
        with pytest.raises(TooLarge, match="segment"):
            txn.commit()


def test_many_small_ones_and_their_durability(tmp_path: Path) -> None:
    with Log.open(tmp_path / "log") as log:
        for durability in Durability:
            for number in range(50):
                with log.transaction(durability=durability) as txn:
                    txn.append([b"%d" % number] * 3)
        log.sync()
        assert len(values(log)) == 3 * 50 * len(Durability)
        txn = log.transaction()
        txn.append(b"late")
    with pytest.raises(LogClosed):
        txn.commit()


def test_the_first_one_raises_the_level_that_older_binaries_refuse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log"
    with Log.open(path) as log:
        log.append(b"plain")
    with monkeypatch.context() as older:
        older.setattr("vlsn.levels.LEVELS", LEVEL_1)
        Log.open(path).close()
    with Log.open(path) as log:
        with log.transaction() as txn:
            txn.append(b"a")
        before = log.range.last
        with log.transaction() as txn:
            txn.append(b"b")
        assert txn.first == before + 1, "raised once"
    with monkeypatch.context() as older:
        older.setattr("vlsn.levels.LEVELS", LEVEL_1)
        with pytest.raises(WrongVersion, match="version 2"):
            Log.open(path)


def test_nothing_of_a_level_is_logged_before_the_node_file_promises_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped while the node file is written, the directory is as an older binary knows it."""
    path, stopped = tmp_path / "log", tmp_path / "stopped"
    write, looked = NodeFile._write, threading.Event()

    def held(node_file: NodeFile, index: int, slot: bytes) -> None:
        if not stopped.exists():
            looked.wait(5.0)  # set by the wait for the promise
            copytree(path, stopped)
        write(node_file, index, slot)

    with Log.open(path) as log:
        log.append(b"plain")
        check = log._calls.check

        def checked() -> None:
            looked.set()
            check()

        monkeypatch.setattr(log._calls, "check", checked)
        monkeypatch.setattr(NodeFile, "_write", held)
        with log.transaction() as txn:
            txn.append(b"a")
        assert values(log) == [b"plain", b"a"]
        monkeypatch.undo()
    monkeypatch.setattr("vlsn.levels.LEVELS", LEVEL_1)
    with Log.open(stopped) as log:
        assert values(log) == [b"plain"]


SMALL = LogOptions(segment_bytes=64 << 10, retention_bytes=64 << 10)


def header_levels(path: Path) -> list[int]:
    return [SegmentHeader.decode(each.read_bytes()[:HEADER_PAGE]).level for each in sorted(path.glob("*.vlog"))]


@pytest.mark.parametrize("by", ["headers", "transactions"])
def test_a_log_that_was_cleaned_past_its_level_has_it_still_without_state(by: str, tmp_path: Path) -> None:
    """Segments begun since say it, or transactions in one that was prepared before."""
    path = tmp_path / "log"
    with Log.open(path, SMALL) as log:
        log.append(b"." * 40_000)
        with log.transaction() as txn:
            txn.append(b"a")
        log.rotate()
        if by == "headers":
            log.append(b"." * 50_000)
            log.rotate()
            log.append(b"." * 50_000)
        else:
            with log.transaction() as txn:
                txn.append(b"." * 50_000)
        log.checkpoint()
        log.clean()
        before = log.range.first - 1
        assert log._log.view.history.levels[0][0] <= before, "cleaned away"
    assert header_levels(path)[0] == (2 if by == "headers" else 1)
    rmtree(path / "state")
    for _ in range(3):  # the second open reads the record that the first one has written
        with Log.open(path, SMALL) as log:
            assert log._log.view.history.levels == [(before, 2)]
            assert log._log.view.history.producers.limit == PRODUCERS_DEFAULT
            last = log.range.last
            with log.transaction() as txn:
                txn.append(b"b")
            assert txn.first == last + 1, "it is not raised again"


def test_a_level_that_is_in_the_log_yet_is_not_taken_for_an_earlier_one(tmp_path: Path) -> None:
    """Segments and transactions behind it prove nothing of the log before."""
    path = tmp_path / "log"
    with Log.open(path, SMALL) as log:
        for _ in range(4):
            log.append(b"." * 40_000)
        log.checkpoint()
        log.clean()
        assert log.range.first > 1
        with log.transaction() as txn:
            txn.append(b"a")
        raised = log._log.view.history.levels
        for _ in range(3):
            log.rotate()
            log.append(b"more")
    assert 2 in header_levels(path)
    rmtree(path / "state")
    with Log.open(path, SMALL) as log:
        assert log._log.view.history.levels == raised == [(txn.first - 1, 2)]
        assert log._log.view.history.level_at(Vlsn(txn.first - 2)) == 1
