"""``Group(disk="memory")``: nodes that are threads keep the promises of processes through kills, cuts and failing
disks."""

from __future__ import annotations

import gc
import logging
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from repl.client.sync import SyncClient
from repl.cluster import NodeEnded
from tests.fakes.seeds import seeds
from vlsn.errors import BadArgument, NoSpace, OutcomeUnknown, Unreachable, VlsnLogError
from vlsnlog.testing import Group, NotInTime
from vlsnlog.testing.fakes.disk import Call
from vlsnlog.testing.in_memory import next_hosts

WAIT_S = 30.0


def test_a_group_survives_what_a_test_orders() -> None:
    with Group(3, disk="memory") as group, group.connect_sync(exactly_once=True, timeout_s=WAIT_S) as log:
        values = []
        for act in (group.kill, group.pause, group.stop, group.power_cut):
            master = group.master()
            act(master)
            values.append(act.__name__.encode())
            log.append(values[-1])
            assert group.master() != master
            group.resume()
            group.start()
            group.caught_up()
        assert [entry.value for entry in log.read(from_vlsn=1)] == values
        assert "leads" in group.log(group.master())


@pytest.mark.long
def test_a_partition_keeps_the_minority_from_appending_and_heals() -> None:
    with Group(3, disk="memory") as group:
        lone = group.master()
        group.partition([lone])
        with group.connect_sync(exactly_once=True, timeout_s=WAIT_S) as log:
            log.append(b"by the majority")
        assert group.master() != lone
        group.partition(["n1"], ["n2"], ["n3"])
        time.sleep(1.5)  # a master without a majority steps down within that
        with pytest.raises(NotInTime, match=r"no master takes appends within 1 s: n1: "):
            group.master(timeout_s=1.0)
        group.heal()
        group.master()
        group.caught_up()


def test_nothing_of_the_data_is_on_a_real_disk(tmp_path: Path) -> None:
    with Group(1, disk="memory", directory=tmp_path) as group, group.connect_sync() as log:
        log.append(b"value")
        assert any(path.endswith(".vlog") for path in group.disk("n1").files(str(tmp_path / "n1")))
    found = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert found == {"group.key", "n1/node.log", "n1/node.toml"}


@pytest.mark.parametrize("seed", seeds(10, 1))
def test_an_acknowledged_entry_survives_each_end_of_all_nodes(seed: int) -> None:
    rng = random.Random(seed)
    with Group(3, disk="memory") as group:
        acknowledged: list[int] = []
        over = threading.Event()

        def append() -> None:
            with group.connect_sync(timeout_s=WAIT_S, exactly_once=True) as log:
                while not over.is_set():
                    acknowledged.append(log.append(b"%d" % len(acknowledged)))

        writer = threading.Thread(target=append)
        writer.start()
        try:
            for end in rng.sample([group.kill, group.power_cut] * 2, 4):
                reached = len(acknowledged) + rng.randrange(1, 200)
                _until(partial(_has, acknowledged, reached))
                end()
                group.start()
        finally:
            over.set()
            writer.join()
        group.caught_up()
        with group.connect_sync() as log:
            kept: dict[int, Any] = {entry.vlsn: entry.value for entry in log.read(from_vlsn=1)}
        assert [kept[vlsn] for vlsn in acknowledged] == [b"%d" % number for number in range(len(acknowledged))]


def test_a_killed_node_answers_nobody_and_writes_nothing_more() -> None:
    """An append that was under way at the kill has no answer, neither success nor a refusal."""
    with Group(1, disk="memory") as group, group.connect_sync(timeout_s=2.0) as log:
        log.append(b"before")
        disk, held, go = group.disk("n1"), threading.Event(), threading.Event()
        segments: list[str] = []

        def hold(call: Call) -> None:
            if call.name == "sync" and call.path.endswith(".vlog"):
                segments.append(call.path)
                held.set()
                go.wait()

        disk.hook = hold
        errors: list[BaseException] = []

        def append() -> None:
            try:
                log.append(b"under way")
            except VlsnLogError as error:
                errors.append(error)

        writer, killer = threading.Thread(target=append), threading.Thread(target=group.kill)
        writer.start()
        held.wait()
        killer.start()
        try:
            _until(lambda: disk.stopped)
        finally:
            go.set()
            killer.join()
            writer.join()
        disk.hook = None
        assert [type(error) for error in errors] == [OutcomeUnknown]
        assert "code 1006" in str(errors[0])  # the connection broke, without a last message
        assert disk.unsynced_sectors(segments[0])  # the sync that was held was none
        with pytest.raises(Unreachable):
            log.append(b"after")
        group.power_cut()
        assert not disk.unsynced_sectors(segments[0])
        group.start()
        group.master()
        assert next(iter(log.read(from_vlsn=1))).value == b"before"


@pytest.mark.long
def test_a_failed_sync_ends_its_node_and_a_full_disk_refuses_appends() -> None:
    with Group(3, disk="memory") as group, group.connect_sync(exactly_once=True, timeout_s=WAIT_S) as log:
        log.append(b"first")
        master = group.master()
        group.disk(master).fail_at(lambda call: call.name == "sync" and call.path.endswith(".vlog"), times=100)
        log.append(b"second")
        next_master = group.master()
        assert next_master != master
        assert "ends:" in group.log(master) or "Input/output error" in group.log(master)
        group.disk(master).mend()
        group.start()
        group.caught_up()
        assert [entry.value for entry in log.read(from_vlsn=1)] == [b"first", b"second"]
    with Group(1, disk="memory") as group, group.connect_sync(timeout_s=2.0) as log:
        log.append(b"fits")
        group.disk("n1").capacity_bytes = 0
        with pytest.raises((NoSpace, OutcomeUnknown)):
            _fill(log)
        group.disk("n1").capacity_bytes = None
        group.start()
        assert next(iter(log.read(from_vlsn=1))).value == b"fits"


def test_two_groups_of_one_process_are_apart_and_leave_nothing_behind() -> None:
    gc.collect()
    threads, files = set(threading.enumerate()), len(os.listdir("/proc/self/fd"))
    logger = logging.getLogger("vlsnlog")
    handlers, level = logger.handlers[:], logger.level
    with Group(3, disk="memory") as one, Group(3, disk="memory") as other:
        assert not {*one.urls.values()} & {*other.urls.values()}
        one.kill()
        with other.connect_sync() as log:
            log.append(b"value")
        assert "value" not in one.log("n1")
    gc.collect()
    assert set(threading.enumerate()) == threads
    assert len(os.listdir("/proc/self/fd")) == files
    assert (logger.handlers, logger.level) == (handlers, level)


@pytest.mark.long
def test_orders_of_several_threads_at_once_leave_nothing_behind(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    faults: list[object] = []
    monkeypatch.setattr(threading, "excepthook", faults.append)
    threads = set(threading.enumerate())
    with Group(3, disk="memory") as group:
        for number in range(24):
            name = group.names[number % 3]
            orders = (group.kill, group.kill, group.stop, group.power_cut)
            giving = [threading.Thread(target=order, args=[name], daemon=True) for order in orders]
            for each in giving:
                each.start()
            for each in giving:
                each.join(WAIT_S)
            assert not any(each.is_alive() for each in giving)
            group.start()
        group.master()
        group.caught_up()
    assert faults == [] and set(threading.enumerate()) == threads
    assert "Exception in callback" not in capfd.readouterr().err


def test_addresses_are_of_one_group_alone() -> None:
    seen: set[str] = set()
    for _ in range(600):
        hosts = next_hosts(["n1", "n2", "n3"])
        assert all(host.startswith("127.") and host.count(".") == 3 for host in hosts.values())
        assert not seen & set(hosts.values()) and "127.0.0.1" not in hosts.values()
        seen |= set(hosts.values())


def test_what_a_group_in_memory_cannot_be_is_refused() -> None:
    with pytest.raises(BadArgument, match=r"disk: 'tape' is none of real, memory"):
        Group(1, disk="tape")  # type: ignore[arg-type]
    cdc = {"name": "c", "consumer": "json_lines"}
    with pytest.raises(BadArgument, match="cdc"), Group(1, disk="memory", settings={"cdc": [cdc]}):
        pass
    nowhere = {"group_key": "/nowhere/group.key"}
    with (
        pytest.raises(NodeEnded, match=r"n1 ended with status 2: .*nowhere"),
        Group(1, disk="memory", settings=nowhere),
    ):
        pass
    with Group(1, disk="memory") as group, pytest.raises(BadArgument, match="is none of"):
        group.power_cut("n2")


@pytest.mark.real
def test_real_disks_are_not_cut() -> None:
    with Group(1) as group:
        for act in (group.power_cut, lambda: group.disk("n1")):
            with pytest.raises(BadArgument, match="real disks"):
                act()
        group.master()


def test_pytest_s_setting_chooses_the_disk(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\nvlsnlog_disk = memory\nfilterwarnings =\n"
        "  error::ResourceWarning\n  error::pytest.PytestUnraisableExceptionWarning\n"
        "  error::pytest.PytestUnhandledThreadExceptionWarning\n"
    )
    (tmp_path / "test_program.py").write_text(
        "def test_three(vlsnlog_group):\n"
        "    with vlsnlog_group.connect_sync() as log:\n"
        "        vlsn = log.append(b'value')\n"
        "        vlsnlog_group.power_cut()\n"
        "        vlsnlog_group.start()\n"
        "        assert [entry.value for entry in log.read(from_vlsn=vlsn)] == [b'value']\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "test_program.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0 and "1 passed" in done.stdout, done


def _has(some: list[int], count: int) -> bool:
    return len(some) >= count


def _fill(log: SyncClient[Any]) -> None:
    for _ in range(100):
        log.append(b"x" * 1_000_000)


def _until(met: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not met():
        assert time.monotonic() < deadline
        time.sleep(0.005)
