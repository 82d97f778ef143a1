"""``vlsnlog.testing``: real groups for the tests of programs, their faults, and the fixtures for pytest."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from vlsn.errors import BadArgument
from vlsnlog import OutcomeUnknown, VlsnLogError
from vlsnlog.testing import Group, NotInTime

pytestmark = pytest.mark.real
PROGRAM = """\
import os


def test_one(vlsnlog_node):
    with vlsnlog_node.connect_sync() as log:
        assert [entry.value for entry in log.read(from_vlsn=log.append(b"one"))] == [b"one"]


def test_three(vlsnlog_group):
    with vlsnlog_group.connect_sync(exactly_once=True) as log:
        log.append(b"before")
        vlsnlog_group.kill(vlsnlog_group.master())
        log.append(b"behind")
        assert [entry.value for entry in log.read(from_vlsn=1)] == [b"before", b"behind"]
    print("at", vlsnlog_group.directory)
"""


@pytest.mark.feature("groups for tests")
def test_a_group_survives_the_faults_that_a_test_orders() -> None:
    with Group(3) as group:
        directory = group.directory
        with group.connect_sync(exactly_once=True, timeout_s=30.0) as log:
            values = [b"first"]
            log.append(b"first")
            first = group.master()
            group.kill(first)
            values.append(b"after a kill")
            log.append(b"after a kill")
            group.start(first)
            second = group.master()
            group.pause(second)
            values.append(b"beside a pause")
            log.append(b"beside a pause")
            group.resume(second)
            group.stop(group.master())
            values.append(b"after a stop")
            log.append(b"after a stop")
            group.start()
            group.caught_up()
            assert [entry.value for entry in log.read(from_vlsn=1)] == values
        pids = [group._node(name).pid for name in group.names]
        assert "leads" in group.log(group.master())
    assert not directory.exists() and not any(os.path.exists(f"/proc/{pid}") for pid in pids)


def test_a_partition_keeps_the_minority_from_appending_and_heals() -> None:
    with Group(3) as group:
        lone = group.master()
        group.partition([lone])
        with group.connect_sync(exactly_once=True, timeout_s=30.0) as log:
            log.append(b"by the majority")
        assert group.master() != lone
        group.partition(["n1"], ["n2"], ["n3"])
        time.sleep(3.0)  # a master without a majority steps down within that
        with pytest.raises(NotInTime, match=r"no master takes appends within 2 s: n1: "):
            group.master(timeout_s=2.0)
        group.heal()
        with group.connect_sync(exactly_once=True, timeout_s=30.0) as log:
            log.append(b"healed")
        group.caught_up()


async def test_a_group_serves_a_coroutine_and_keeps_a_directory_that_was_given(tmp_path: Path) -> None:
    async with Group(1, directory=tmp_path / "kept", settings={"entry_bytes_max": 10}) as group:
        async with group.connect() as log:
            vlsn = await log.append(b"value")
            with pytest.raises(VlsnLogError):
                await log.append(b"x" * 11)
        group.kill()
        group.start()
        assert group.master() == "n1"
        async with group.connect() as log:
            assert [entry.value async for entry in log.read(from_vlsn=vlsn)] == [b"value"]
    assert (tmp_path / "kept" / "n1" / "node.log").exists()


def test_what_no_group_can_be_is_refused() -> None:
    for nodes in (0, 8):
        with pytest.raises(BadArgument, match="nodes"):
            Group(nodes)
    with pytest.raises(BadArgument, match="is not started"):
        Group(1).kill("n1")
    with pytest.raises(BadArgument, match="heartbeat_s"), Group(1, settings={"heartbeat_s": 9.0}):
        pass
    with Group(1) as group, pytest.raises(BadArgument, match="'n2' is none of n1"):
        group.kill("n2")


def test_nodes_that_do_not_start_in_time_are_named_and_gone() -> None:
    group = Group(3, start_s=0.01)
    with pytest.raises(NotInTime, match=r"within 0.01 s: n1: "):
        group.__enter__()
    assert not group._thread.is_alive() and group._opened is None
    assert issubclass(NotInTime, TimeoutError) and not issubclass(NotInTime, OutcomeUnknown)


def test_pytest_has_the_fixtures(tmp_path: Path) -> None:
    (tmp_path / "test_program.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "pytest", "-q", "-s", "test_program.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0 and "2 passed" in done.stdout, done
    (directory,) = [line.partition("at ")[2] for line in done.stdout.splitlines() if "at /" in line]
    assert not Path(directory).exists()
