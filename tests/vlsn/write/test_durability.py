"""Durability on return, the intervals behind it, and why a segment is left."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from tests.vlsn.logs import Machine, Opened, Waiting
from vlsn import Durability, Log, LogOptions
from vlsn.errors import BadArgument, QueueFull
from vlsn.limits import FLUSH_BYTES
from vlsn.write.write_cycle import SlowSyncs

OPTIONS = LogOptions(segment_bytes=4 << 20, checkpoint_bytes=1 << 30, flush_interval_s=0.5, sync_interval_s=2.0)


class Lazy(Waiting):
    __slots__ = ()

    def __init__(self, durability: Durability, *values: bytes) -> None:
        super().__init__(list(values))
        self.durability = durability


def append(opened: Opened, durability: Durability, *values: bytes) -> Lazy:
    pending = Lazy(durability, *values)
    opened.log.append(pending)
    return pending


def calls(opened: Opened, name: str) -> int:
    return sum(call.name == name and call.path.endswith(".vlog") for call in opened.machine.disk.calls)


def later(opened: Opened, seconds: float) -> None:
    clock = opened.log.seams.clock
    clock.advance(seconds)  # type: ignore[attr-defined]
    opened.log.tick()


def test_without_a_sync_it_is_written_at_once_and_synced_within_the_interval() -> None:
    machine = Machine()
    opened = Opened(machine, OPTIONS)
    synced = opened.log.view.range.last_sync
    before = calls(opened, "write"), calls(opened, "sync")
    pending = append(opened, Durability.WRITE_NO_SYNC, b"a")
    assert (calls(opened, "write"), calls(opened, "sync")) == (before[0] + 1, before[1])
    assert (opened.written_vlsn, pending.synced) == (pending.last, False)
    assert (opened.log.view.range.last, opened.log.view.range.last_sync) == (pending.last, synced)
    assert opened.entries() == {}  # what is not synced is not read
    later(opened, 1.0)
    assert calls(opened, "sync") == before[1]
    later(opened, 1.1)
    assert calls(opened, "sync") == before[1] + 1
    assert pending.synced
    assert opened.entries() == {pending.first: b"a"}


def test_without_a_write_its_vlsn_is_known_at_once_and_it_is_written_within_the_interval() -> None:
    machine = Machine()
    opened = Opened(machine, OPTIONS)
    first = append(opened, Durability.NO_SYNC, b"a", b"b")
    second = append(opened, Durability.NO_SYNC, b"c")
    assert (first.first, first.last, second.first, second.last) == (2, 3, 4, 4)
    assert (opened.log.queue.entries, opened.log.promised) == (3, 4)
    writes = calls(opened, "write")
    later(opened, 0.4)
    assert calls(opened, "write") == writes
    later(opened, 0.2)
    assert calls(opened, "write") == writes + 1
    assert opened.log.stats.blocks == 2  # TERM, and one block of both
    later(opened, 2.1)
    assert opened.entries() == {2: b"a", 3: b"b", 4: b"c"}


def test_much_that_waits_is_written_before_its_interval() -> None:
    opened = Opened(Machine(), OPTIONS)
    writes = calls(opened, "write")
    for _ in range(9):
        append(opened, Durability.NO_SYNC, bytes(FLUSH_BYTES // 8))
    assert calls(opened, "write") > writes


def test_a_stricter_append_takes_those_before_it_along() -> None:
    opened = Opened(Machine(), OPTIONS)
    lazy = append(opened, Durability.NO_SYNC, b"a")
    written = append(opened, Durability.WRITE_NO_SYNC, b"b")
    assert not lazy.synced
    strict = append(opened, Durability.SYNC, b"c")
    assert (lazy.synced, written.synced, strict.synced) == (True, True, True)
    assert opened.entries() == {2: b"a", 3: b"b", 4: b"c"}


def test_a_power_cut_takes_only_what_was_promised_less_than_the_medium() -> None:
    for seed in range(20):
        machine = Machine(seed)
        opened = Opened(machine, OPTIONS)
        strict = append(opened, Durability.SYNC, b"kept")
        lazy = append(opened, Durability.WRITE_NO_SYNC, b"perhaps")
        append(opened, Durability.NO_SYNC, b"not even written")
        machine.power_cut(tear=True)
        found = Opened(machine, OPTIONS).entries()
        assert found[strict.first] == b"kept"
        assert found in ({strict.first: b"kept"}, {strict.first: b"kept", lazy.first: b"perhaps"})


def test_a_kill_keeps_what_was_written() -> None:
    machine = Machine()
    opened = Opened(machine, OPTIONS)
    written = append(opened, Durability.WRITE_NO_SYNC, b"written")
    machine.kill()
    assert Opened(machine, OPTIONS).entries() == {written.first: b"written"}


def test_a_clean_stop_syncs_everything() -> None:
    machine = Machine()
    opened = Opened(machine, OPTIONS)
    append(opened, Durability.WRITE_NO_SYNC, b"a")
    append(opened, Durability.NO_SYNC, b"b")
    opened.close()
    assert opened.log.life.closed
    machine.power_cut()
    assert Opened(machine, OPTIONS).entries() == {2: b"a", 3: b"b"}


def test_a_replacement_takes_along_what_was_written_and_not_synced() -> None:
    machine = Machine()
    opened = Opened(machine, OPTIONS)
    held = {}
    for number in range(20):
        pending = append(opened, Durability.WRITE_NO_SYNC, f"{number}".encode().ljust(3000, b"."))
        held[pending.first] = pending.values[0]
    machine.disk.fail_at(lambda call: call.name == "sync" and call.path.endswith(".vlog"))
    strict = append(opened, Durability.SYNC, b"strict")
    assert strict.synced
    assert opened.log.stats.rolls["error"] == 1
    held[strict.first] = b"strict"
    assert opened.entries() == held
    machine.power_cut(tear=True)
    assert Opened(machine, OPTIONS).entries() == held


def test_the_end_of_a_quiet_log_is_stated_once_it_is_synced() -> None:
    opened = Opened(Machine(), replace(OPTIONS, idle_end_s=0.1))
    opened.append(b"synced")
    pending = append(opened, Durability.WRITE_NO_SYNC, b"written")
    for _ in range(5):
        later(opened, 0.2)
    end = opened.log.care.state.idle_end()
    assert end is None or end.vlsn <= opened.log.view.range.last_sync < pending.last
    for _ in range(10):
        later(opened, 0.2)
    end = opened.log.care.state.idle_end()
    assert end is not None
    assert end.vlsn == opened.log.view.range.last_sync == pending.last


def test_unsynced_bytes_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vlsn.write.write_cycle.UNSYNCED_BYTES_MAX", 64 << 10)
    opened = Opened(Machine(), OPTIONS)
    syncs = calls(opened, "sync")
    for _ in range(40):
        append(opened, Durability.WRITE_NO_SYNC, bytes(8 << 10))
    assert calls(opened, "sync") - syncs in (4, 5)


def test_a_roll_leaves_nothing_unsynced_behind() -> None:
    machine = Machine()
    opened = Opened(machine, OPTIONS)
    append(opened, Durability.WRITE_NO_SYNC, b"a")
    opened.log.cycle.rotate("request")
    append(opened, Durability.WRITE_NO_SYNC, b"b")
    machine.power_cut(tear=True)
    assert Opened(machine, OPTIONS).entries()[2] == b"a"


def test_a_segment_is_left_after_its_period_if_it_holds_anything() -> None:
    opened = Opened(Machine(), LogOptions(segment_bytes=64 << 10, roll_period_s=60.0))
    current = opened.log.placement.active_files()[0]
    later(opened, 61.0)
    assert opened.log.placement.active_files()[0] == current + 1
    assert opened.log.stats.rolls["period"] == 1
    later(opened, 61.0)
    assert opened.log.stats.rolls["period"] == 1  # empty: nothing to leave


def test_a_hundred_slow_syncs_within_a_minute_or_a_stalled_one_leave_the_segment() -> None:
    slow = SlowSyncs()
    assert not any(slow.should_roll(0.2, at * 0.5) for at in range(99))
    assert slow.should_roll(0.2, 50.0)
    assert not any(slow.should_roll(0.2, 100.0 + at) for at in range(500))  # one a second is no hundred a minute
    assert not any(slow.should_roll(0.05, 1000.0) for _ in range(500))
    assert slow.should_roll(10.0, 2000.0)
    assert slow.total == 99 + 1 + 500 + 1


def test_a_stalled_sync_rolls_the_log() -> None:
    machine = Machine()
    opened = Opened(machine, OPTIONS)
    current = opened.log.placement.active_files()[0]

    def stall(call: object) -> None:
        if getattr(call, "name", "") == "sync":
            opened.log.seams.clock.advance(11.0)  # type: ignore[attr-defined]

    machine.disk.hook = stall
    opened.append(b"slow")
    machine.disk.hook = None
    opened.append(b"next")
    assert opened.log.placement.active_files()[0] == current + 1
    assert opened.log.stats.rolls["slow_sync"] == 1
    assert opened.entries() == {2: b"slow", 3: b"next"}


def test_how_many_appends_shared_a_sync_is_counted() -> None:
    opened = Opened(Machine(), OPTIONS)
    for _ in range(5):
        append(opened, Durability.WRITE_NO_SYNC, b"x")
    append(opened, Durability.SYNC, b"y")
    shared = opened.log.stats.appends_per_sync
    assert (shared.count, shared.sum) == (1, 6)
    assert opened.log.stats.unacked == 0


def test_embedded_intervals_run_by_themselves(tmp_path: Path) -> None:
    options = LogOptions(segment_bytes=1 << 20, flush_interval_s=0.02, sync_interval_s=0.05)
    with Log.open(tmp_path / "log", options) as log:
        first, last = log.append([b"a", b"b"], durability=Durability.NO_SYNC)
        assert (first, last) == (2, 3)
        assert log.wait_for(last, 60.0)
        third, _ = log.append(b"c", durability=Durability.WRITE_NO_SYNC)
        assert log.sync(third) >= third
        assert [entry.value for entry in log.read()] == [b"a", b"b", b"c"]
        fourth, _ = log.append(b"d", durability=Durability.NO_SYNC)
        assert log.sync() == fourth
        with pytest.raises(BadArgument, match="not assigned yet"):
            log.sync(fourth + 1)


def test_embedded_appends_of_all_kinds_from_many_threads_stand_where_they_were_told(tmp_path: Path) -> None:
    told: dict[int, bytes] = {}
    with Log.open(tmp_path / "log", LogOptions(segment_bytes=1 << 20, flush_interval_s=0.01)) as log:

        def writer(name: int) -> None:
            for number in range(150):
                data = f"{name}/{number}".encode()
                first, _ = log.append(data, durability=Durability(number % 3))
                told[first] = data

        threads = [threading.Thread(target=writer, args=(name,)) for name in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        log.sync()
        assert {entry.vlsn: entry.value for entry in log.read()} == told
        assert len(told) == 900
    with Log.open(tmp_path / "log", LogOptions(segment_bytes=1 << 20)) as log:
        assert {entry.vlsn: entry.value for entry in log.read()} == told


def test_the_queue_sheds_before_it_refuses(tmp_path: Path) -> None:
    options = LogOptions(segment_bytes=1 << 20, queue_entries_max=10, flush_interval_s=60.0, sync_interval_s=60.0)
    with Log.open(tmp_path / "log", options) as log:
        for _ in range(9):
            log.append(b"x", durability=Durability.NO_SYNC)
        with pytest.raises(QueueFull):
            log.append(b"x", durability=Durability.NO_SYNC)
        with pytest.raises(QueueFull):
            log.append([b"x"] * 11)
        assert log.queue_length == 9
        log.sync()
        assert log.queue_length == 0
        log.append(b"x", durability=Durability.NO_SYNC)
