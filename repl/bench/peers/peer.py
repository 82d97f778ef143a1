"""A peer's cluster: its processes, and the works that it can be asked to do."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

VALUE_BYTES = 100
VALUE = bytes(97 + at % 26 for at in range(VALUE_BYTES))


@dataclass(frozen=True, slots=True)
class Figure:
    """One work of one round: entries acknowledged in a second, and how long one took."""

    per_s: float
    p50_ms: float | None = None
    p99_ms: float | None = None
    errors: int = 0


@dataclass(frozen=True, slots=True)
class Work:
    """A named work.  ``client`` says what drove it, and what its acknowledgement means if that differs."""

    key: str
    client: str
    run: Callable[[float], Awaitable[Figure]]
    """Takes seconds."""


class Peer(Protocol):
    name: str

    def missing(self) -> str | None:
        """Names what has to be installed first, or None."""
        ...

    async def start(self, directory: Path) -> list[Work]:
        """Brings three nodes up under ``directory`` and returns once they take writes."""
        ...

    async def stop(self) -> None: ...


class Daemons:
    """Processes that end with this one."""

    def __init__(self) -> None:
        self._running: list[subprocess.Popen[bytes]] = []

    def start(self, command: Sequence[str], *, log: Path, user: str | None = None) -> None:
        """Starts a process, as ``user`` when this process is root. Output goes to ``log``."""
        wrapped = ["setpriv", "--pdeathsig", "KILL"]
        if user is not None and os.geteuid() == 0:
            wrapped += ["--reuid", user, "--regid", user, "--init-groups"]
        with log.open("ab") as output:
            self._running.append(
                subprocess.Popen(
                    [*wrapped, *command], stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=log.parent
                )
            )

    def stop(self, sign: signal.Signals = signal.SIGTERM) -> None:
        for process in self._running:
            process.send_signal(sign)
        for process in self._running:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._running.clear()

    def check(self) -> None:
        for process in self._running:
            if process.poll() is not None:
                raise RuntimeError(f"{process.args!r} ended with {process.returncode}")


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that nobody listens on at this moment, all different."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def lacking(*commands: str) -> list[str]:
    return [command for command in commands if shutil.which(command) is None]


async def run(*command: str, user: str | None = None, env: dict[str, str] | None = None) -> str:
    """Runs the command and returns its output. Raises ``RuntimeError`` with it when the command fails."""
    words = list(command)
    if user is not None and os.geteuid() == 0:
        words = ["setpriv", "--reuid", user, "--regid", user, "--init-groups", *words]
    process = await asyncio.create_subprocess_exec(
        *words,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        cwd="/",
        env={**os.environ, **(env or {})},
    )
    output = (await process.communicate())[0].decode(errors="replace")
    if process.returncode != 0:
        raise RuntimeError(f"{command[0]} ended with {process.returncode}: {output.strip()[-600:]}")
    return output


async def until(what: str, ready: Callable[[], Awaitable[bool]], *, seconds: float = 120, check: Daemons) -> None:
    """Asks ``ready`` until it says yes.  Raises ``RuntimeError`` after ``seconds``, or if a daemon died."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        check.check()
        try:
            if await ready():
                return
        except (OSError, RuntimeError):
            pass
        await asyncio.sleep(0.1)
    raise RuntimeError(f"{what} was not ready in {seconds} s")
