"""No file in a file's place: every command and the node say so at once, with its path, and end."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.calls import call
from tests.e2e.commands import VLSNLOG
from tests.e2e.group import Group
from vlsn import Log
from vlsn.limits import MIB
from vlsn.state.options import LogOptions

END_S = 60.0
"""Seconds on a busy machine; what hangs never ends."""


def a_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        here = os.open(path.parent, os.O_DIRECTORY)
        try:
            bound.bind(f"/proc/self/fd/{here}/{path.name}")
        finally:
            os.close(here)


KINDS: dict[str, Callable[[Path], None]] = {
    "a FIFO": os.mkfifo,
    "a directory": lambda path: path.mkdir(),
    "a socket": a_socket,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a symbolic link that leads nowhere": lambda path: path.symlink_to("nowhere"),
}
SEGMENT = "00000001.vlog"
FIFOS = ["00000001.vidx", "node.id", "LOCK", "state/data.mdb", "index/data.mdb"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a stopped log of two segments."""
    path = tmp_path_factory.mktemp("whole") / "log"
    with Log.open(path, LogOptions(segment_bytes=MIB)) as log:
        for _ in range(30):
            log.append(b"." * 50_000)
    assert (path / "00000001.vidx").exists() and (path / "00000002.vlog").exists()
    return path


def refused(*arguments: str | Path) -> str:
    """Returns the one line that the command says before it ends."""
    ended = subprocess.run([VLSNLOG, *map(str, arguments)], capture_output=True, timeout=END_S, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr.count(b"\n")) == (2, b"", 1), ended
    return ended.stderr.decode()


def replaced(whole: Path, tmp_path: Path, name: str, kind: str) -> Path:
    directory = tmp_path / "log"
    shutil.copytree(whole, directory)
    (directory / name).unlink(missing_ok=True)
    KINDS[kind](directory / name)
    return directory


@pytest.mark.parametrize(
    ("command", "name", "kind"),
    [
        *(("verify", SEGMENT, kind) for kind in KINDS),
        *(("verify", name, "a FIFO") for name in FIFOS),
        *(("dump", SEGMENT, kind) for kind in ("a FIFO", "a directory")),
        ("audit", SEGMENT, "a FIFO"),
    ],
)
def test_a_command_refuses_what_is_no_file(whole: Path, tmp_path: Path, command: str, name: str, kind: str) -> None:
    directory = replaced(whole, tmp_path, name, kind)
    said = refused(command, directory, *([whole] if command == "audit" else []))
    assert f"{directory / name} is {kind}" in said


OPENED = [*((SEGMENT, kind) for kind in KINDS), *((name, "a FIFO") for name in FIFOS[1:])]


@pytest.mark.parametrize(("name", "kind"), OPENED)
def test_an_embedded_log_refuses_to_open(whole: Path, tmp_path: Path, name: str, kind: str) -> None:
    directory = replaced(whole, tmp_path, name, kind)
    script = f"from vlsn import Log; from vlsn.state.options import LogOptions; Log.open({str(directory)!r})"
    python = Path(VLSNLOG).with_name("python")
    ended = subprocess.run([python, "-c", script], capture_output=True, timeout=END_S, check=False)
    assert f"NoRegularFile: {directory / name} is {kind}".encode() in ended.stderr, ended
    assert ended.returncode == 1


@pytest.mark.parametrize("name", [SEGMENT, "node.id", "LOCK", "state/data.mdb"])
def test_a_node_ends_and_says_so(hurt: Group, name: str) -> None:
    """Stopped, a FIFO put in the file's place, started; and as it was before it goes on as before."""
    hurt.append(b"before")
    hurt.settle()
    hurt.stop("n3")
    path = hurt.path("n3") / name
    aside = path.with_name(path.name + ".was")
    path.rename(aside)
    os.mkfifo(path)
    hurt.launch("n3")
    hurt.until(lambda: not hurt.running("n3"), "n3 has ended")
    assert f"{path} is a FIFO" in hurt.last_words()
    path.unlink()
    aside.rename(path)
    hurt.start("n3")
    hurt.settle()


def test_a_segment_that_is_replaced_under_a_running_node_is_damage_there(hurt: Group) -> None:
    """The scrub, at the latest, finds the damage; nothing waits, and the node stops in time."""
    (vlsn,) = hurt.append(b"here")
    hurt.settle()
    call("POST", f"{hurt.urls['n3']}/v1/admin/rotate").ok()
    hurt.settle()
    path = sorted(hurt.path("n3").glob("*.vlog"))[0]
    aside = path.with_name(path.name + ".was")
    path.rename(aside)
    os.mkfifo(path)
    answer = call("GET", f"{hurt.urls['n3']}/v1/entries?from=1&kinds=all")
    assert answer.status == 200 or "is a FIFO" in answer.json()["detail"]  # a reader that has it open reads on
    assert call("GET", f"{hurt.master}/v1/entries/{vlsn}").body == b"here"
    hurt.until(lambda: hurt.status("n3").get("damage", []) != [], "n3 says where it is damaged")
    hurt.stop("n3")
    path.unlink()
    aside.rename(path)
    hurt.start("n3")
    hurt.settle()
