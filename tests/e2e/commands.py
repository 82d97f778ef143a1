"""The command line as processes of their own: their output and exit status."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import IO

TIMEOUT_S = 120.0
VLSNLOG = str(Path(sys.executable).with_name("vlsnlog"))


@dataclass(frozen=True, slots=True)
class Ended:
    """A command that has ended."""

    status: int
    out: bytes
    err: str

    def refused(self) -> str:
        """Returns the one line that a command with status 2 says."""
        assert (self.status, self.out) == (2, b""), self
        assert self.err.count("\n") == 1, self
        return self.err


class Command:
    """``vlsnlog`` with some arguments, running."""

    def __init__(self, *arguments: str | Path, stdin: bytes | None = None, cwd: Path | None = None) -> None:
        self._stdin = stdin
        self.process = subprocess.Popen(
            [VLSNLOG, *map(str, arguments)],
            stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=cwd,
        )

    def __enter__(self) -> Command:
        return self

    def __exit__(self, *exception: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()

    @property
    def out(self) -> IO[bytes]:
        assert self.process.stdout is not None
        return self.process.stdout

    def ended(self) -> Ended:
        try:
            out, err = self.process.communicate(self._stdin, TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        return Ended(self.process.returncode, out, err.decode())


def run(*arguments: str | Path, stdin: bytes | None = None) -> Ended:
    return Command(*arguments, stdin=stdin).ended()


def run_all(*commands: tuple[str | Path, ...]) -> list[Ended]:
    """Several at once: most of what a command takes is its start."""
    return [command.ended() for command in [Command(*arguments) for arguments in commands]]
