"""A person who pastes the blocks of a page, in order: commands into one shell, Python into one ``python -m asyncio``.

Each page has a network and processes of its own, so that ports are free and nothing outlives it. A block whose first
line names a file (``# node.toml``) is saved as that file.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Final, Self

import pytest

from tests.pasted import Block, commands, is_as_shown

PASTED_S: Final = 60.0
"""Seconds that a command, or a block of Python, may take until all that the page shows is there."""
_DONE: Final = "--pasted--"
_INSIDE: Final = "ip link set lo up && exec bash"
_OWN: Final = ("unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc")
_CONSOLE: Final = """
import ast, asyncio, contextlib, inspect, io, json, sys, traceback, types

async def main():
    names = {"__name__": "__main__", "__builtins__": __builtins__}
    while line := await asyncio.to_thread(sys.stdin.readline):
        name, text = json.loads(line)
        said, fault = io.StringIO(), ""
        with contextlib.redirect_stdout(said):
            try:
                flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
                code = compile(text, name, "exec", flags=flags, dont_inherit=True)
                value = types.FunctionType(code, names)()
                if inspect.iscoroutine(value):
                    async with asyncio.timeout(%d):
                        await value
            except BaseException:
                fault = traceback.format_exc()
        print(json.dumps([said.getvalue(), fault]), flush=True)

asyncio.run(main())
"""


class Person:
    """Has a shell in ``directory``; commands are looked up in ``programs`` first."""

    def __init__(self, directory: Path, programs: Path, environment: Mapping[str, str]) -> None:
        self._directory = directory
        kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
        self._environment = kept | {"PATH": f"{programs}:{os.environ['PATH']}", "HOME": str(directory)}
        self._environment |= environment
        self._errors = (directory / "stderr").open("w+b")
        self._shell = self._started([*_OWN, "sh", "-c", _INSIDE])
        self._python: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        if self.type("true", []) is None:
            pytest.skip(f"namespaces are refused: {self._said()}")
        self.type("set -m", [])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in (self._python, self._shell):
            if process is not None:
                process.kill()
                process.communicate()
        self._errors.close()

    def paste(self, block: Block) -> None:
        """Fails if an output is not as the page shows it, or Python raises."""
        for command in block.setup:
            self.type(command, ["…"])
        if block.file:
            path = self._directory / block.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text)
        elif block.language == "python":
            self._paste_python(block)
        elif block.language == "console":
            for command, shown in commands(block.text):
                output = self.type(command, shown)
                assert output is not None, f"{block}: the shell has ended: {self._said()}"
                assert not shown or is_as_shown(output, shown), (
                    f"{block}: $ {command}\n{output}\nis not\n{shown}\n{self._said()}"
                )
        elif block.language in ("sh", "bash"):
            self.type(block.text, [])

    def type(self, command: str, shown: list[str]) -> str | None:
        """Returns what has been printed once the command has ended and ``shown`` is there, or the time is over. None:
        the shell has ended."""
        stdin, stdout = self._shell.stdin, self._shell.stdout
        assert stdin is not None and stdout is not None
        try:
            stdin.write(f"{command}\necho {_DONE}\n".encode())
            stdin.flush()
        except BrokenPipeError:
            return None
        output, end = b"", time.monotonic() + PASTED_S
        while time.monotonic() < end:
            said = output.decode(errors="replace")
            plain = said.replace(f"{_DONE}\n", "", 1)
            if plain != said and (not shown or is_as_shown(plain, shown)):
                return plain
            if select.select([stdout], [], [], 0.2)[0]:
                if not (read := os.read(stdout.fileno(), 1 << 16)):
                    return None
                output += read
        return output.decode(errors="replace").replace(f"{_DONE}\n", "", 1)

    def _paste_python(self, block: Block) -> None:
        if self._python is None:
            inside = ["nsenter", "--net", "--target", str(self._shell.pid)]
            self._python = self._started([*inside, "python", "-c", _CONSOLE % PASTED_S])
        assert self._python.stdin is not None and self._python.stdout is not None
        self._python.stdin.write(json.dumps([str(block), block.text]).encode() + b"\n")
        self._python.stdin.flush()
        ready, _, _ = select.select([self._python.stdout], [], [], 2 * PASTED_S)
        assert ready, f"{block}: not within {2 * PASTED_S} s"
        line = self._python.stdout.readline()
        assert line, f"{block}: Python has ended: {self._said()}"
        output, fault = json.loads(line)
        print(f"{block}: {output}", file=sys.stderr)
        assert not fault, f"{block}: {fault}\n{output}"

    def _started(self, command: list[str]) -> subprocess.Popen[bytes]:
        errors: IO[bytes] = self._errors
        return subprocess.Popen(
            command,
            cwd=self._directory,
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
        )

    def _said(self) -> str:
        return (self._directory / "stderr").read_text(errors="replace")[-2000:]
