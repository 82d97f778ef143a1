"""Certificates of a group for tests, made by ``vlsnlog certs``."""

from __future__ import annotations

from pathlib import Path

from repl.cli.main import main
from repl.net.tls import Own, TlsFiles, Trust

GROUP = "demo"
HOST = "127.0.0.1"


def made(*arguments: object) -> None:
    assert main(["certs", *map(str, arguments)]) == 0


def authority(directory: Path) -> Path:
    made("ca", directory)
    return directory


def files_of(
    name: str, directory: Path, ca: Path, *, group: str = GROUP, kind: str = "node", host: str = ""
) -> TlsFiles:
    made(kind, name, directory, "--ca", ca, "--group", group, *(("--host", host) if host else ()))
    return TlsFiles(str(ca / "ca.pem"), str(directory / f"{name}.pem"), str(directory / f"{name}.key"))


def trust_of(name: str, directory: Path, ca: Path) -> Trust:
    return Trust(files_of(name, directory, ca), own=Own(GROUP, name, HOST))
