"""A disk without room: appends are refused and say why, and go on by themselves with room."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.e2e.calls import call
from tests.e2e.group import NAMES, UNTROUBLED_S, Group
from vlsn.limits import MIB

DISK_BYTES = 96 * MIB
BLOCK_BYTES = 4096
VALUE = b"x" * 100_000


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Yields a file system of its own, in memory."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(place)], capture_output=True, text=True
    )
    if mounted.returncode != 0:
        pytest.skip(f"no file system may be mounted here: {mounted.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


@pytest.fixture
def cramped(small_disk: Path) -> Iterator[Group]:
    made = Group(small_disk / "group", segment_bytes=MIB, election_timeout_s=UNTROUBLED_S)
    try:
        made.start()
        yield made
    finally:
        made.end()


def fill(place: Path, left: int) -> Path:
    """Returns a file that leaves so many bytes free."""
    ballast = place / "ballast"
    size = 0
    with ballast.open("wb") as file, suppress(OSError):
        while os.statvfs(place).f_bavail * BLOCK_BYTES > left:
            os.posix_fallocate(file.fileno(), size, BLOCK_BYTES)
            size += BLOCK_BYTES
    return ballast


@pytest.mark.parametrize("left", [pytest.param(8 * MIB, id="little"), pytest.param(0, id="nothing")])
def test_a_full_disk_refuses_appends_and_nothing_else(small_disk: Path, cramped: Group, left: int) -> None:
    vlsns = cramped.append(*[b"%d" % number for number in range(10)])
    standing = {name: cramped.status(name)["process"] for name in NAMES}
    ballast = fill(small_disk, left)
    for _ in range(100):
        answer = cramped.post(VALUE)
        if answer.status != 200:
            break
        vlsns.append(answer.json()["first"])
    assert all(cramped.running(name) for name in NAMES)
    document = answer.refused(503, "no-space")
    assert "room" in document["detail"]
    last = cramped.settle()
    assert last == vlsns[-1]
    for name in NAMES:
        for vlsn in (vlsns[0], vlsns[-1]):
            assert call("GET", f"{cramped.urls[name]}/v1/entries/{vlsn}").status == 200
    ready = call("GET", f"{cramped.master}/readyz")
    assert ready.status == 503
    assert "room" in ready.json()["detail"]
    cramped.post(VALUE).refused(503, "no-space")
    assert call("GET", f"{cramped.master}/v1/entries?from={last + 1}").body == b""
    ballast.unlink()
    cramped.until(lambda: cramped.post(VALUE).status == 200, "appends go on")
    cramped.settle()
    assert {name: cramped.status(name)["process"] for name in NAMES} == standing
    appended = cramped.append(*[VALUE] * 30)
    cramped.settle()
    for name in NAMES:
        assert call("GET", f"{cramped.urls[name]}/v1/entries/{appended[-1]}").body == VALUE
    assert call("GET", f"{cramped.master}/readyz").status == 200
    events = call("GET", f"{cramped.master}/v1/events").json()["events"]
    told = [(event["event"], event["level"]) for event in events if event["event"] in ("no_space", "has_space")]
    assert told[:2] == [("no_space", "warning"), ("has_space", "info")]
