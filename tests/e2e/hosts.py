"""Hosts of their own on this machine: each has namespaces of network, mounts and processes, and a shell.

    n1 10.0.0.1 ─┬─ bridge ─┬─ n4 10.0.0.4          /var/lib/vlsnlog of each host is a directory of the test
    n2 10.0.0.2 ─┤          └─ ops 10.0.0.9
    n3 10.0.0.3 ─┘

A person's commands are typed into the shells.  Three programs that a machine in a test lacks are small scripts: ``scp``
copies to the other host's directory, ``systemctl`` runs the ``ExecStart`` line of the unit, ``sudo`` changes nothing.
The kernel ends a host's processes with its shell, so none outlives the test.
"""

from __future__ import annotations

import asyncio
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import pytest
from harness.group.namespaces import Namespaces, Refused

ROOT: Final = Path(__file__).parents[2]
HOME: Final = "/var/lib/vlsnlog"
OPERATOR: Final = "ops"
ADDRESSES: Final = {**{f"n{number}": f"10.0.0.{number}" for number in range(1, 5)}, OPERATOR: "10.0.0.9"}
TYPED_S: Final = 120.0
"""Seconds that a command may take."""
_DONE: Final = "--typed--"
_MOUNTS: Final = f"mount -t tmpfs none /var/lib && mkdir {HOME} && mount --bind $0 {HOME} && cd {HOME} && exec bash"
_SCRIPTS: Final = {
    "sudo": 'exec "$@"',
    "scp": """
for last; do :; done
to=${last#*@}
while [ $# -gt 1 ]; do cp "$1" "$HOSTS/${to%%:*}/${to#*:}" || exit 1; shift; done
""",
    "systemctl": """
case $1 in
stop|disable)
    pid=$(cat "$HOSTS/$HOST.pid") && kill -TERM "$pid" && rm "$HOSTS/$HOST.pid"
    while kill -0 "$pid" 2>/dev/null; do sleep 0.05; done;;
start|enable)
    setsid $(sed -n 's/^ExecStart=//p' "$HOSTS/vlsnlog.service") >>"$HOSTS/$HOST.log" 2>&1 </dev/null &
    echo $! >"$HOSTS/$HOST.pid";;
esac
""",
}


class Host:
    """A shell on one host, in its directory."""

    def __init__(self, name: str, launcher: tuple[str, ...], hosts: Path) -> None:
        self.name = name
        self.directory = hosts / ADDRESSES[name]
        self.directory.mkdir()
        self._log = hosts / f"{name}.log"
        path = f"{hosts / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        environment = {"HOST": name, "HOSTS": str(hosts), "PATH": path, "HOME": HOME, "PYTHONPATH": str(ROOT)}
        own = ("--mount", "--propagation", "private", "--pid", "--fork", "--kill-child")
        unshared = ("unshare", *own, "sh", "-ec", _MOUNTS, str(self.directory))
        self._shell = subprocess.Popen(
            [*launcher, *unshared],
            env=os.environ | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def type(self, command: str) -> tuple[int, str]:
        """Types a command. Returns its exit status, and its output with its errors."""
        assert self._shell.stdin is not None and self._shell.stdout is not None
        with suppress(BrokenPipeError):  # its last words say why
            self._shell.stdin.write(f"{{ {command}\n}} </dev/null\necho {_DONE}$?\n".encode())
            self._shell.stdin.flush()
        output, end = b"", time.monotonic() + TYPED_S
        while not output.endswith(b"\n") or _DONE.encode() not in output:
            ready, _, _ = select.select([self._shell.stdout], [], [], max(0.0, end - time.monotonic()))
            assert ready, f"{self.name}$ {command}: not within {TYPED_S} s: {output.decode()}"
            if not (read := os.read(self._shell.stdout.fileno(), 1 << 16)):
                return self._shell.wait(), output.decode()
            output += read
        said, _, status = output.decode().rpartition(_DONE)
        return int(status), said

    def lose(self) -> None:
        """Kills the node's process, and removes all of its directory."""
        killed = self.type('kill -KILL "$(cat "$HOSTS/$HOST.pid")"; rm "$HOSTS/$HOST.pid"')
        assert killed == (0, "")
        for path in sorted(self.directory.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()

    def logged(self) -> str:
        return self._log.read_text() if self._log.exists() else ""

    def end(self) -> None:
        """Kills the shell, and with it all processes of the host."""
        self._shell.kill()
        self._shell.communicate()


@contextmanager
def networks(names: list[str]) -> Iterator[Namespaces]:
    """Opens a network namespace for each name, and removes them at the end. Skips the test where that is refused."""
    with asyncio.Runner() as runner:
        try:
            made = runner.run(Namespaces.open(names))
        except Refused as refused:
            pytest.skip(str(refused))
        try:
            yield made
        finally:
            runner.run(made.close())


@contextmanager
def all_hosts(directory: Path, unit: str) -> Iterator[Mapping[str, Host]]:
    """Makes the hosts; ``unit`` is the text of the service on each. Skips the test where namespaces are refused."""
    (directory / "bin").mkdir(parents=True)
    (directory / "vlsnlog.service").write_text(unit)
    for name, script in _SCRIPTS.items():
        (directory / "bin" / name).write_text(f"#!/bin/sh\n{script}\n")
        (directory / "bin" / name).chmod(0o755)
    spaces = {name: "n9" if name == OPERATOR else name for name in ADDRESSES}
    made: dict[str, Host] = {}
    with networks(list(spaces.values())) as opened:
        try:
            for name, space in spaces.items():
                launcher = opened.launcher(space)
                inside = [*launcher, "ip", "address", "add", f"{ADDRESSES[name]}/24", "dev", "eth0"]
                subprocess.run(inside, check=True)
                made[name] = Host(name, launcher, directory)
                if (answer := made[name].type("true"))[0] != 0:
                    pytest.skip(f"a mount namespace is refused: {answer[1]}")
            yield made
        finally:
            for host in made.values():
                host.end()
