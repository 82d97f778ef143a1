"""Checks the versions of a directory's files before any of them is opened, set aside or written.

A version is compared only if the checksum over it is correct. If that checksum is wrong, the file is damaged, and the
code that reads the file reports the damage. This module checks the node file, the marker of a restore, and the first
bytes of each sidecar (file of offsets) and of each page file of a destination. Header pages are checked when segments
are listed (``directory.survey``), frames and blocks when they are read, and stores when they are opened.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

from vlsn.errors import BadBody, Damaged, WrongVersion
from vlsn.format import sidecar
from vlsn.format.sidecar import SIDECAR_BYTES_MAX, Sidecar
from vlsn.levels import LEVELS, Levels, named, unread
from vlsn.pages.opening import PAGE_FILE, UUID
from vlsn.pages.page import HEADER_BYTES, PageHeader
from vlsn.pages.store import DIRECTORY
from vlsn.recover.identity import NODE_FILE_NAME
from vlsn.seams import Disk
from vlsn.segments.bad_sectors import is_unread
from vlsn.segments.directory import SegmentInfo
from vlsn.segments.restore_marker import MARKER_NAME, read_marker
from vlsn.state import node_file

_START_BYTES = 12
_SIDECAR = sidecar.MAGIC + sidecar.VERSION.to_bytes(4, "little")


def check_versions(disk: Disk, directory: str, own: Levels = LEVELS) -> None:
    """Checks the files of ``directory``. Raises ``WrongVersion``, naming the file, and ``FileNotFoundError`` if the
    directory does not exist."""
    for name in disk.list(directory):
        path = f"{directory}/{name}"
        try:
            if name == NODE_FILE_NAME:
                level = node_file.read(disk, path).level
                if not own.read(level):
                    raise named(unread("a node file", level, own.max), path)
            elif name == MARKER_NAME:
                read_marker(disk, directory)
            elif name.endswith(".vidx"):
                _check_sidecar(disk, path)
            elif name == DIRECTORY:
                _check_pages(disk, path)
        except (Damaged, BadBody, FileNotFoundError):
            # damage is reported by the code that reads the file; a running node may have removed a missing file
            continue
        except OSError as error:
            if not is_unread(error):
                raise


def check_segments(segments: Sequence[SegmentInfo], own: Levels) -> None:
    """Raises ``WrongVersion`` unless ``own`` includes the levels of all ``segments``."""
    for segment in segments:
        if segment.header is not None and not own.read(segment.header.level):
            raise named(unread("a segment", segment.header.level, own.max), segment.path)


def _check_pages(disk: Disk, base: str) -> None:
    for uuid in filter(UUID.match, disk.list(base)):
        for name in filter(PAGE_FILE.match, disk.list(f"{base}/{uuid}")):
            path = f"{base}/{uuid}/{name}"
            with closing(disk.open(path)) as file:
                try:
                    PageHeader.decode(file.read(0, HEADER_BYTES))
                except WrongVersion as error:
                    raise named(error, path) from None
                except BadBody:
                    continue


def _check_sidecar(disk: Disk, path: str) -> None:
    """Checks the version of a sidecar. For a sidecar of the present version, only the first bytes of the file are
    read."""
    with closing(disk.open(path)) as file:
        try:
            if file.read(0, _START_BYTES) != _SIDECAR:
                Sidecar.decode(file.read(0, min(file.size(), SIDECAR_BYTES_MAX + 1)))
        except WrongVersion as error:
            raise named(error, path) from None
