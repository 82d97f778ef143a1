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
from typing import ClassVar

from repl.bench.report import Outcome

READY_S = 120
VALUE_BYTES = 100
VALUE = bytes(97 + at % 26 for at in range(VALUE_BYTES))

BATCH = FILL_BATCH = 1000
AHEAD = 4
"""Batches whose acknowledgements may be under way while the next ones are taken, of each system alike."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One work of one round: entries acknowledged in a second, and how long one took."""

    per_s: float
    p50_ms: float | None = None
    p99_ms: float | None = None
    errors: int = 0


def figure_of(done: Outcome) -> Figure:
    return Figure(done.entries / done.seconds, done.percentile(50), done.percentile(99), done.errors)


@dataclass(frozen=True, slots=True)
class Work:
    """A named work.  ``client`` names its driver, and explains the acknowledgement if that differs."""

    key: str
    client: str
    run: Callable[[float], Awaitable[Figure]]
    """Takes seconds."""


class Peer:
    """Three nodes of another system, and the works that they can be asked to do."""

    name: ClassVar[str]
    needs: ClassVar[tuple[str, ...]] = ()
    """Its commands, which ``install`` brings."""
    install: ClassVar[str] = ""
    stops_by: ClassVar[signal.Signals] = signal.SIGTERM

    def __init__(self) -> None:
        self.port = 0
        self._running: list[subprocess.Popen[bytes]] = []

    def missing(self) -> str | None:
        """Names what has to be installed first, or None."""
        return self.install if any(shutil.which(command) is None for command in self.needs) else None

    async def start(self, directory: Path) -> list[Work]:
        """Brings three nodes up under ``directory`` and returns once they take writes."""
        raise NotImplementedError

    async def stop(self) -> None:
        for process in self._running:
            process.send_signal(self.stops_by)
        for process in self._running:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._running.clear()

    def _serve(self, command: Sequence[str], *, log: Path, user: str | None = None) -> None:
        """Starts a process that ends with this one, as ``user`` when this process is root. Output goes to ``log``."""
        with log.open("ab") as output:
            self._running.append(
                subprocess.Popen(
                    ["setpriv", "--pdeathsig", "KILL", *_as(user), *command],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    cwd=log.parent,
                )
            )

    async def _until(self, what: str, ready: Callable[[], Awaitable[bool]]) -> None:
        """Asks ``ready`` until it says yes.  Raises ``RuntimeError`` after ``READY_S``, or if a process died."""
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline:
            for process in self._running:
                if process.poll() is not None:
                    raise RuntimeError(f"{process.args!r} ended with {process.returncode}")
            try:
                if await ready():
                    return
            except (OSError, RuntimeError):
                pass
            await asyncio.sleep(0.1)
        raise RuntimeError(f"{what} was not ready in {READY_S} s")


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


def _as(user: str | None) -> list[str]:
    if user is None or os.geteuid() != 0:
        return []
    return ["--reuid", user, "--regid", user, "--init-groups"]


async def run(*command: str, user: str | None = None) -> str:
    """Runs the command and returns its output. Raises ``RuntimeError`` with it when the command fails."""
    switch = _as(user)
    words = [*(["setpriv", *switch] if switch else []), *command]
    process = await asyncio.create_subprocess_exec(
        *words, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, cwd="/"
    )
    output = (await process.communicate())[0].decode(errors="replace")
    if process.returncode != 0:
        raise RuntimeError(f"{command[0]} ended with {process.returncode}: {output.strip()[-600:]}")
    return output
