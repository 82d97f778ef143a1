"""Disk faults: lost files, flipped bits, failing calls.

All of a run's disk faults hit one minority of the nodes, drawn from the seed: the disks of a majority stay whole.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import subprocess
from pathlib import Path
from random import Random

from repl.cluster import CONFIG_FILE, LOG_FILE

KEPT = (CONFIG_FILE, LOG_FILE, "faketime.rc")
HEADER_BYTES = 4096
WAIT_S = 10.0


def minority(names: list[str], chance: Random) -> list[str]:
    """Returns the nodes whose disks may be damaged."""
    return chance.sample(names, (len(names) - 1) // 2)


def wipe(directory: Path) -> bool:
    """Removes the files of a stopped node; returns whether it had anything of a log."""
    segments = list(directory.glob("*.vlog"))
    for each in directory.iterdir():
        if each.name in KEPT:
            continue
        if each.is_dir():
            shutil.rmtree(each)
        else:
            each.unlink()
    return bool(segments)


def first_segment(directory: Path) -> str:
    """Returns the name of the first segment, "" without one."""
    return min((path.name for path in directory.glob("*.vlog")), default="")


def flip_bit(directory: Path, chance: Random) -> str:
    """Flips one bit of the written bytes of one segment. Returns its position, or "" if nothing is written."""
    segments = sorted(directory.glob("*.vlog"))
    for path in chance.sample(segments, len(segments)):
        with path.open("r+b") as file:
            written = len(file.read().rstrip(b"\0"))
            if written <= HEADER_BYTES:
                continue
            at = chance.randrange(HEADER_BYTES, written)
            file.seek(at)
            byte = file.read(1)[0]
            file.seek(at)
            file.write(bytes([byte ^ 1 << chance.randrange(8)]))
            return f"{path.name} byte {at}"
    return ""


class FailingCalls:
    """Makes a running node's ``fdatasync`` fail with EIO, by strace.  Raises ``OSError`` if strace is missing."""

    def __init__(self, pid: int, trace: Path, when: str) -> None:
        self._pid = pid
        self._trace = trace
        self._when = when
        self._tracer: asyncio.subprocess.Process | None = None

    async def begin(self) -> None:
        inject = f"inject=fdatasync:error=EIO:when={self._when}"
        command = ["strace", "-f", "-o", str(self._trace), "-e", "trace=fdatasync", "-e", inject, "-p", str(self._pid)]
        self._tracer = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
        )

    async def end(self) -> int:
        """Ends the fault, and returns the number of failed calls."""
        tracer = self._tracer
        if tracer is not None and tracer.returncode is None:
            tracer.send_signal(signal.SIGINT)
            try:
                await asyncio.wait_for(tracer.wait(), WAIT_S)
            except TimeoutError:
                tracer.kill()
                await tracer.wait()
        try:
            return self._trace.read_text(errors="replace").count("(INJECTED)")
        except FileNotFoundError:
            return 0


def may_trace() -> bool:
    """Says whether strace is installed and allowed to trace."""
    if shutil.which("strace") is None:
        return False
    return subprocess.run(["strace", "-o", "/dev/null", "true"], capture_output=True, check=False).returncode == 0
