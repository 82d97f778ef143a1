"""The files that an audit's report is written to: ``--out FILE.json|.html|.parquet``, which may be repeated.

    1  before anything runs: check the ending, that the folder exists, and that the file is not inside of a source
    2  write FILE.new-PID beside FILE, and sync it
    3  rename it over FILE, and sync the directory                                                 ◄ commit point

If the audit is stopped before step 3, the report file stays as it was.
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
    from repl.audit.tables import parquet_of  # Arrow is imported late, because only a Parquet file needs it

    return parquet_of(report)


FORMATS: Final[Mapping[str, Callable[[AuditReport], bytes]]] = {
    ".json": _json,
    ".html": page_of,
    ".parquet": _parquet,
}
"""The functions that make the bytes of a report file, by the file's ending."""


def check_outputs(paths: Sequence[str], sources: Sequence[str]) -> None:
    """Checks that a report can and may be written to these files; called before any copy is read. Raises
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
    """Writes the report to each of ``paths``. Each file is written completely or not at all, and is durable on return.
    Raises ``OSError``."""
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
