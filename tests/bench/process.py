"""Processes of a benchmark: the kernel's counts of them, and children that answer a line with a line."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Self

import msgspec

ROOT: Final = Path(__file__).parents[2]
_TICKS: Final = os.sysconf("SC_CLK_TCK")


def environment() -> dict[str, str]:
    """Returns ours, with this repository among the places of modules."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path}


def command(module: str, *arguments: object) -> list[str]:
    """Returns the command that runs a module of this folder."""
    return [sys.executable, "-m", f"tests.bench.{module}", *map(str, arguments)]


def memory(pid: int | str, field: str) -> int:
    """Returns bytes by a name of ``/proc/PID/status`` (``VmHWM``, ``VmRSS``, ``RssAnon``); 0 of one that has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:")), 0)


def cpu_s(pids: Iterable[int | None]) -> float:
    """Returns the processor time of these processes together, without their children."""
    return sum(sum(_times(pid)[1:3]) for pid in pids if pid is not None) / _TICKS


def tree_cpu_s(pid: int) -> float:
    """Returns the processor time of a process and all below it, with those below that have ended."""
    return sum(sum(_times(each)[1:]) for each in [pid, *below(pid)]) / _TICKS


def below(pid: int) -> Iterator[int]:
    """Yields the processes that ``pid`` started, and those that they did."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*"):
        children.setdefault(_times(int(path.name))[0], []).append(int(path.name))
    left = [pid]
    while left:
        found = children.get(left.pop(), [])
        yield from found
        left += found


def _times(pid: int) -> tuple[int, int, int, int, int]:
    """Reads the parent, and ticks in user and in system mode: of the process, then of its children that ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return 0, 0, 0, 0, 0  # it has just ended; its parent counts it
    user, system, users, systems = map(int, fields[11:15])
    return int(fields[1]), user, system, users, systems


class Child:
    """A module of this folder as a process, on ``cores`` only, which answers each line of JSON with one.

    It ends with its standard input, as the block is left.
    """

    def __init__(self, module: str, *arguments: object, cores: Sequence[int]) -> None:
        self._command = ["taskset", "-c", ",".join(map(str, cores)), *command(module, *arguments)]

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment()
        )
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.communicate()

    def send(self, asked: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(asked) + b"\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        """Waits for the next answer. Raises ``RuntimeError`` where the process has ended."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._command} ended with {self._process.wait()}")
        return msgspec.json.decode(line)
