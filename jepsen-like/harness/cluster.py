"""A local cluster as real processes, started by ``vlsnlog cluster`` and killed by pid file.

A pid file may be stale, so a node is only ever signalled through a pidfd that was checked to be a node of
this directory.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

NODES = 3
START_S = 300.0


class ClusterFailed(Exception):
    """The cluster did not do what the fault test takes for granted: not a verdict on the log."""


def vlsnlog() -> list[str]:
    """Returns the command, of the environment that runs this."""
    return [str(Path(sys.executable).with_name("vlsnlog"))]


class Cluster:
    """Nodes n1 … nN under ``directory``.  Use as a context manager: what still runs is killed at the end."""

    def __init__(self, directory: Path, *, base_port: int, nodes: int = NODES) -> None:
        self.directory = directory
        self.names = [f"n{number}" for number in range(1, nodes + 1)]
        self.urls = [f"http://127.0.0.1:{base_port + at}" for at in range(nodes)]
        self._base_port = base_port
        self._command: subprocess.Popen[str] | None = None

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *exception: object) -> None:
        self.kill_all()

    def start(self) -> None:
        """Returns when a master takes appends on a majority."""
        with (self.directory / "cluster.log").open("ab") as errors:
            self._command = subprocess.Popen(
                [
                    *(*vlsnlog(), "cluster", "--nodes", str(len(self.names))),
                    *("--dir", str(self.directory), "--base-port", str(self._base_port)),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                bufsize=1,
            )
        output = self._command.stdout
        assert output is not None
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            if not select.select([output], [], [], deadline - time.monotonic())[0]:
                break
            line = output.readline()
            if not line:
                code = self._command.wait()
                raise ClusterFailed(f"`vlsnlog cluster` ended with {code}; see {self.directory}/cluster.log")
            if line.split()[:2] == ["ready", "cluster"]:
                return
        raise ClusterFailed(f"the cluster was not ready in {START_S:.0f} s; see {self.directory}/n*/node.log")

    def pid(self, name: str) -> int | None:
        """Returns the running node's process id, None when it is not running."""
        try:
            pid = int((self.directory / name / "node.pid").read_text())
            words = Path(f"/proc/{pid}/cmdline").read_bytes()
        except (OSError, ValueError):
            return None
        return pid if str(self.directory / name).encode() in words else None

    def kill_all(self) -> None:
        """Sends SIGKILL to every node in one go, then to their starter; returns when all are gone."""
        nodes = [os.pidfd_open(pid) for name in self.names if (pid := self.pid(name)) is not None]
        for node in nodes:
            _kill(node)
        if self._command is not None:
            self._command.kill()
            self._command.wait()
            if self._command.stdout is not None:
                self._command.stdout.close()
            self._command = None
        for node in nodes:
            if not select.select([node], [], [], 30)[0]:
                raise ClusterFailed("a killed node did not end")
            os.close(node)

    def stop(self) -> None:
        """Ends all nodes as Ctrl-C does, each with a clean close."""
        if self._command is None:
            return
        self._command.send_signal(signal.SIGINT)
        try:
            self._command.wait(30)
        except subprocess.TimeoutExpired:
            raise ClusterFailed("the cluster did not stop within 30 s of SIGINT") from None
        if self._command.stdout is not None:
            self._command.stdout.close()
        self._command = None

    def status(self, url: str) -> dict[str, Any]:
        """Asks for one node's status; empty while it does not answer."""
        try:
            with urllib.request.urlopen(f"{url}/v1/status", timeout=5) as answer:
                document: dict[str, Any] = json.load(answer)
                return document
        except (OSError, ValueError):
            return {}


def _kill(pidfd: int) -> None:
    try:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    except ProcessLookupError:
        pass
