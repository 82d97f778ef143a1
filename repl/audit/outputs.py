"""The files that an audit's report is written to: ``--out FILE.json|.html|.parquet``, several times.

    1  before anything runs: the ending, that the folder is there, that no source lies around the file
    2  FILE.new-PID beside it, synced
    3  renamed over FILE, the directory synced                                                     ◄ commit point

Stopped before 3 there is the file that was there before, or none.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from repl.audit.page import page_of
from repl.audit.report import AuditReport
from repl.files.directory import Directory
from vlsn.errors import BadArgument
from vlsn.real.disk import PosixDisk


def _json(report: AuditReport) -> bytes:
    return report.to_json().encode() + b"\n"


def _parquet(report: AuditReport) -> bytes:
    from repl.audit.tables import parquet_of  # Arrow is loaded where it is asked for

    return parquet_of(report)


FORMATS: Final[Mapping[str, Callable[[AuditReport], bytes]]] = {
    ".json": _json,
    ".html": page_of,
    ".parquet": _parquet,
}
"""Makers of a file's bytes, by its ending."""


def check_outputs(paths: Sequence[str], sources: Sequence[str]) -> None:
    """Refuses files that a report cannot, or must not, be written to: before anything is read. Raises
    ``BadArgument``."""
    directories = [os.path.realpath(source) for source in sources if "://" not in source]
    seen: set[str] = set()
    for path in paths:
        if _ending(path) not in FORMATS:
            raise BadArgument(f"{path}: a report is written as one of {' '.join(FORMATS)}")
        real = os.path.realpath(path)
        folder = os.path.dirname(real)
        around = next((each for each in directories if os.path.commonpath([each, real]) == each), None)
        if around is not None:
            raise BadArgument(f"{path}: lies in {around}, which is audited; an audit writes nothing there")
        if real in seen:
            raise BadArgument(f"{path}: is named twice as an output")
        if os.path.isdir(real):
            raise BadArgument(f"{path}: is a directory")
        if not os.path.isdir(folder):
            raise BadArgument(f"{path}: there is no directory {folder}")
        if not os.access(folder, os.W_OK):
            raise BadArgument(f"{path}: nothing can be written to {folder}")
        seen.add(real)


def write_outputs(report: AuditReport, paths: Sequence[str]) -> None:
    """Writes the report to each of ``paths``, each whole or not at all; durable on return. Raises ``OSError``."""
    for path in paths:
        _write(os.path.realpath(path), FORMATS[_ending(path)](report))


def _ending(path: str) -> str:
    return os.path.splitext(path)[1].lower()


def _write(path: str, data: bytes) -> None:
    folder, name = os.path.split(path)
    directory, temporary = Directory(PosixDisk(), folder), f"{name}.new-{os.getpid()}"
    try:
        directory.replace(name, temporary, [data])
    except BaseException:
        directory.remove(temporary)
        raise
