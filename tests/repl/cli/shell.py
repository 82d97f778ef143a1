"""Commands run in this process."""

from __future__ import annotations

import io
import sys
from dataclasses import dataclass

import pytest

from repl.cli.main import main

NOWHERE = "http://127.0.0.1:9"


@dataclass(frozen=True, slots=True)
class Result:
    status: int
    out: bytes
    err: str


class Shell:
    """Runs a command in this process, with the node's URL in the environment."""

    def __init__(self, capture: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch, url: str) -> None:
        self._capture = capture
        self._monkeypatch = monkeypatch
        monkeypatch.setenv("VLSNLOG_URL", url)

    def __call__(self, *arguments: str, stdin: bytes = b"") -> Result:
        self._monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        self._capture.readouterr()
        status = main(arguments)
        out, err = self._capture.readouterr()
        return Result(status, out, err.decode())
