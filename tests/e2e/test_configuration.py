"""A node with settings that cannot be: status 2, one line with the reason, nothing written."""

from __future__ import annotations

import hashlib
import re
import socket
import subprocess
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tests.e2e.calls import call
from tests.e2e.commands import TIMEOUT_S, VLSNLOG, Command, Ended, run_all
from tests.e2e.group import Group


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def toml(directory: Path, **changed: str) -> Path:
    """Returns the config file of a right node n1 of three in ``directory``, some of its lines replaced."""
    port = free_port()
    lines = {
        "name": 'name = "n1"',
        "group": 'group = "e2e"',
        "dir": 'dir = "."',
        "listen": f'listen = "127.0.0.1:{port}"',
        "more": "",
        "table": "[members]",
        "n1": f'n1 = "http://127.0.0.1:{port}"',
        "n2": 'n2 = "http://127.0.0.1:9"',
        "n3": 'n3 = "http://127.0.0.1:10"',
    }
    directory.mkdir(parents=True)
    path = directory / "node.toml"
    path.write_text("\n".join({**lines, **changed}.values()) + "\n")
    return path


BAD_FILES = {
    "itself missing among the members": ({"n1": ""}, "'n1' is not among them"),
    "no members": ({"n1": "", "n2": "", "n3": ""}, "members"),
    "a member twice": ({"n3": 'n2 = "http://127.0.0.1:11"'}, "twice"),
    "no directory": ({"dir": ""}, "dir"),
    "an unknown key": ({"more": "segment_byte = 1"}, "segment_bytes"),
    "an address beyond loopback": ({"listen": 'listen = "0.0.0.0:17999"'}, 'anonymous = "none"'),
    "no TOML": ({"more": "= ="}, "TOML"),
}
"""Some of each kind; all others are in ``tests/repl/test_config.py``."""


@pytest.mark.feature("configuration")
def test_a_config_that_cannot_be_is_refused_with_its_setting(tmp_path: Path) -> None:
    made = [toml(tmp_path / str(number), **changed) for number, (changed, _) in enumerate(BAD_FILES.values())]
    ended = run_all(*(("node", "--config", path) for path in made))
    for (what, (_, word)), path, result in zip(BAD_FILES.items(), made, ended, strict=True):
        line = result.refused()
        assert line.startswith("vlsnlog: "), what
        assert word in line, (what, line)
        assert list(path.parent.iterdir()) == [path], what


def test_flags_that_cannot_be_are_refused(tmp_path: Path) -> None:
    node = ("node", "--dir", tmp_path / "n", "--group", "g", "--listen", "127.0.0.1:9")
    one, other = "n1=http://127.0.0.1:9", "n2=http://127.0.0.1:10"
    missing, double, nameless, none, absent = run_all(
        (*node, "--name", "n3", "--member", one, "--member", other),
        (*node, "--name", "n1", "--member", one, "--member", one),
        (*node, "--member", one),
        (*node, "--name", "n1", "--member", "n1"),
        ("node", "--config", tmp_path / "absent.toml"),
    )
    assert "'n3' is not among them" in missing.refused()
    assert "n1 is given twice" in double.refused()
    assert "--name" in nameless.refused()
    assert "NAME=URL" in none.refused()
    assert "absent.toml" in absent.refused()
    assert not (tmp_path / "n").exists()


def said(ended: Ended) -> str:
    """Returns the last line of a node that had begun to log before it gave up."""
    assert ended.status == 2, ended
    return ended.err.splitlines()[-1]


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        path = toml(tmp_path / "n1", listen=f'listen = "127.0.0.1:{port}"', n1=f'n1 = "http://127.0.0.1:{port}"')
        with Command("node", "--config", path) as node:
            line = node.ended().refused()
    assert f"127.0.0.1:{port}" in line
    assert list(path.parent.iterdir()) == [path]


WITH_FILES = ("sh", "-c", 'ulimit -n "$0" && exec "$@"')
"""Runs a command that may have so many file descriptors."""


def test_a_node_with_too_few_file_descriptors_is_refused_with_what_it_needs(tmp_path: Path) -> None:
    path = toml(tmp_path / "n1")
    done = subprocess.run(
        [*WITH_FILES, "255", VLSNLOG, "node", "--config", str(path)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    for word in ("file descriptors", "255", "256", "ulimit -n"):
        assert word in done.stderr
    assert list(path.parent.iterdir()) == [path]


def test_a_node_with_few_file_descriptors_keeps_enough_of_them_for_its_log(tmp_path: Path) -> None:
    path = toml(tmp_path / "n1")
    [port] = re.findall(r'listen = "127.0.0.1:(\d+)"', path.read_text())
    command = [*WITH_FILES, "256", VLSNLOG, "node", "--config", str(path)]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with ExitStack() as silent:
        silent.callback(process.wait)
        silent.callback(process.kill)
        assert answers(f"http://127.0.0.1:{port}/healthz", process)
        for _ in range(400):
            silent.enter_context(socket.create_connection(("127.0.0.1", int(port))))
        assert answers(f"http://127.0.0.1:{port}/healthz", process)
        files = len(list(Path(f"/proc/{process.pid}/fd").iterdir()))
        assert files < 192


def answers(url: str, process: subprocess.Popen[bytes]) -> bool:
    """Says whether a node answers before its process ends."""
    until = time.monotonic() + TIMEOUT_S
    while process.poll() is None and time.monotonic() < until:
        with suppress(OSError):
            return call("GET", url).status == 200
        time.sleep(0.05)
    return False


def digests(directory: Path) -> dict[str, str]:
    """Digests a directory, without the files of a start (log and pid)."""
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name not in ("LOCK", "lock.mdb")
    }


def test_a_directory_in_use_or_of_another_group_or_node_is_refused(group: Group, tmp_path: Path) -> None:
    copies = [tmp_path / "copy-1", tmp_path / "copy-2"]  # one for each: the commands run at once
    for copy in copies:
        copy.mkdir()
        (copy / "node.id").write_bytes((group.path("n2") / "node.id").read_bytes())
    before = [digests(copy) for copy in copies]
    own = group.status("n2")["group"]
    paths = [
        toml(tmp_path / "in-use", name='name = "n2"', group=f'group = "{own}"', dir=f'dir = "{group.path("n2")}"'),
        toml(tmp_path / "group", name='name = "n2"', dir=f'dir = "{copies[0]}"'),
        toml(tmp_path / "node", name='name = "n3"', group=f'group = "{own}"', dir=f'dir = "{copies[1]}"'),
    ]
    with group.unharmed():
        in_use, of_group, of_node = run_all(*(("node", "--config", path) for path in paths))
    assert "another process has this directory open" in said(in_use)
    assert own in said(of_group)
    assert "e2e" in said(of_group)
    assert "n2" in said(of_node)
    assert [digests(copy) for copy in copies] == before
    assert int((group.path("n2") / "node.pid").read_text()) == group.pid("n2")
