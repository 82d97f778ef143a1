"""A log that nobody has open, read from its directory: what is durable, and nothing that is not there."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tests.repl.audit.logs import CLOCK_US, Copy, blocks, numbered
from tests.vlsn.logs import Machine, Opened
from vlsn import BadArgument, Damaged, Entry, Log, LogInUse, LogOptions, Trimmed
from vlsn.offline.stopped_log import StoppedLog
from vlsn.real.disk import PosixDisk
from vlsn.real.lmdb_store import LmdbStores


def opened(path: Path) -> StoppedLog:
    return StoppedLog(PosixDisk(), LmdbStores(), str(path))


def read(path: Path, first: int = 0, last: int = 0, *, undurable: bool = False) -> list[Entry]:
    return [entry for some in opened(path).entries(first, last, undurable=undurable) for entry in some]


def values(path: Path, first: int = 0, last: int = 0, *, undurable: bool = False) -> list[bytes]:
    return [entry.value for entry in read(path, first, last, undurable=undurable)]


def test_what_a_log_gave_while_it_was_open_its_directory_gives(tmp_path: Path) -> None:
    with Log.open(tmp_path, options=LogOptions(segment_bytes=1 << 20)) as log:
        for number in range(400):
            log.append([b"%d" % number * 1000, b"\xff\x00"], keys=[b"k%d" % number, None])
        assert log.active_logs[0] == 2  # and a standby, once it is made
        expected = list(log.read())
        with pytest.raises(LogInUse, match="its node runs"):
            opened(tmp_path)
    assert len(list(tmp_path.glob("*.vlog"))) >= 2
    assert read(tmp_path) == expected
    at = expected[500].vlsn
    assert read(tmp_path, at, at + 9) == expected[500:510]
    assert [entry.kind for some in opened(tmp_path).entries(1, 1, all_kinds=True) for entry in some] == [1]
    assert read(tmp_path, expected[-1].vlsn + 1) == []


def test_only_what_is_durable_is_given_unless_asked(tmp_path: Path) -> None:
    with Log.open(tmp_path, options=LogOptions(durable_when_synced=False)) as log:
        first, last = log.append([b"a", b"b"])
        log.raise_durable(last)
        log.append([b"c", b"d"])
    found = opened(tmp_path)
    assert (found.first, found.durable, found.last) == (1, last, last + 2)
    assert values(tmp_path) == [b"a", b"b"]
    assert values(tmp_path, first, last + 2) == [b"a", b"b"]
    assert values(tmp_path, undurable=True) == [b"a", b"b", b"c", b"d"]


def test_what_was_rolled_back_is_not_given_finished_or_not(tmp_path: Path) -> None:
    old, new = numbered(10), numbered(6, first_vlsn=6, term=2)
    Copy(tmp_path / "a", "n1").add(*old).rollback(5).add(*new).write()
    assert [(entry.vlsn, entry.term) for entry in read(tmp_path / "a", undurable=True)] == [
        *((vlsn, 1) for vlsn in range(1, 6)),
        *((vlsn, 2) for vlsn in range(6, 12)),
    ]
    Copy(tmp_path / "b", "n1").add(*old).rollback(5, flags=False, end=False).write()
    assert [entry.vlsn for entry in read(tmp_path / "b", undurable=True)] == [1, 2, 3, 4, 5]


def test_damage_ends_it_with_the_place_to_go_on_from(tmp_path: Path) -> None:
    copy = Copy(tmp_path / "n1", "n1").add(*numbered(600, 5, 60)).checkpoint(3000).write()
    copy.flip(501, 130)
    found: list[int] = []
    reading = opened(copy.path).entries()
    with pytest.raises(Damaged, match=r"VLSN 501 to 505 cannot be read; continue with --from 506") as caught:
        found.extend(entry.vlsn for some in reading for entry in some)
    assert (found, caught.value.vlsn) == (list(range(1, 501)), 501)
    assert [entry.vlsn for entry in read(copy.path, 506)] == list(range(506, 3001))
    assert read(copy.path, 1, 500)[-1].vlsn == 500
    with pytest.raises(Damaged, match="VLSN 503 to 505"):
        read(copy.path, 503)


def test_a_segment_that_is_gone_is_damage_and_no_gap(tmp_path: Path) -> None:
    copy = Copy(tmp_path / "n1", "n1").add(*numbered(2000, 1, 100)).checkpoint(2000).write()
    segments = sorted(copy.path.glob("*.vlog"))
    assert len(segments) > 3
    segments[1].unlink()
    with pytest.raises(Damaged, match="continue with --from"):
        read(copy.path)


def test_a_log_that_was_cleaned_begins_where_it_does(tmp_path: Path) -> None:
    options = LogOptions(segment_bytes=1 << 20, retention_bytes=3 << 20)
    with Log.open(tmp_path, options=options) as log:
        for number in range(4000):
            log.append([b"%06d" % number + bytes(2000)] * 2)
        log.checkpoint()
        log.clean()
        first, last = log.range.first, log.range.last
    assert first > 1
    with pytest.raises(Trimmed) as caught:
        read(tmp_path, 1)
    assert caught.value.first == first
    assert [entry.vlsn for entry in read(tmp_path)] == list(range(first, last + 1))


def test_a_time_is_the_first_block_sealed_then_or_later(tmp_path: Path) -> None:
    story = [block for number in range(50) for block in blocks(["x" * 3000] * 2, first_vlsn=1 + 2 * number)]
    copy = Copy(tmp_path / "n1", "n1").add(*story).checkpoint(100).write()
    assert len(copy.ends) > 2
    log = opened(copy.path)
    assert [log.at_time(CLOCK_US + at) for at in (0, 1, 2, 3, 50, 99)] == [1, 1, 3, 3, 51, 99]
    assert log.at_time(CLOCK_US + 100) == 101


def test_what_holds_no_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadArgument, match="holds no log"):
        opened(tmp_path)


def test_an_empty_log_gives_nothing(tmp_path: Path) -> None:
    assert read(Copy(tmp_path / "n1", "n1").write().path) == []


@pytest.mark.parametrize("index", ["as it was", "without times", "gone"])
@pytest.mark.parametrize("seed", range(6))
def test_a_time_is_found_though_clocks_go_to_and_fro(index: str, seed: int) -> None:
    machine, rng = Machine(seed), Random(seed)
    log = Opened(machine)
    times = {1: machine.clock.wall_us()}
    for _ in range(60):
        machine.clock.offset_us = rng.randrange(-5, 6) * 3_600_000_000
        appended = log.append(b"x" * rng.choice((10, 9_000)))
        times[appended.first] = machine.clock.wall_us()
        if rng.random() < 0.1:
            log.log.care.checkpointer.run()
    machine.kill()
    if index == "gone":
        del machine.stores.contents["/log/index"]
    elif index == "without times":
        held = machine.stores.contents["/log/index"]
        for key in [key for key in held.keys if key.startswith(b"t")]:
            held.delete(key)
    stopped = StoppedLog(machine.disk, machine.stores, "/log")
    assert stopped.last == max(times)
    for time_us in {*times.values(), max(times.values()) + 1}:
        wanted = next((vlsn for vlsn, time in times.items() if time >= time_us), stopped.last + 1)
        assert stopped.at_time(time_us) == wanted
