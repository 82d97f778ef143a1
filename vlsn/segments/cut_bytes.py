"""Files of bytes that an opening has cut off the log. ``00000003.cut-61440`` has the bytes of segment 3 from offset
61440 on.

The log never reads a file of cut bytes again, except that the terms in the file are read if the node file is lost. A
person may look at the file, and remove it after comparing the copies of the log. Zeros at the end of the bytes are not
kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing

from vlsn.format.segment import segment_name
from vlsn.limits import SEGMENT_BYTES_MAX
from vlsn.seams import Disk

_NAME = re.compile(r"([0-9]{8})\.cut-([0-9]{1,10})(?:\.[0-9]{1,6})?\Z")


def cut_name(number: int, offset: int) -> str:
    return f"{segment_name(number)[:-5]}.cut-{offset}"


def parse_cut_name(name: str) -> tuple[int, int] | None:
    """Returns the segment number and the offset in a name that ``cut_name`` has made, even if a number was appended to
    the name. Returns None for a name that ``cut_name`` cannot have made."""
    found = _NAME.match(name)
    return (int(found[1]), int(found[2])) if found is not None else None


def cut_bytes(disk: Disk, directory: str) -> Iterator[tuple[str, bytes]]:
    """Yields the name and the bytes of each file of cut bytes in ``directory``."""
    for name in disk.list(directory):
        if parse_cut_name(name) is not None:
            try:
                yield name, _read(disk, f"{directory}/{name}")
            except FileNotFoundError:
                continue  # the file was removed meanwhile


def keep_cut(disk: Disk, directory: str, number: int, offset: int, data: bytes) -> str | None:
    """Writes ``data`` to a file of its own, and returns the file's name. The file is durable on return, and never
    seen half written. Returns None if the file exists already, because an earlier opening of the log was interrupted
    later."""
    if is_kept(disk, directory, number, offset, data):
        return None
    path = free_name(disk, f"{directory}/{cut_name(number, offset)}")
    fresh = path + ".new"
    if disk.exists(fresh):
        disk.remove(fresh)
    with closing(disk.open(fresh, create=True)) as file:
        file.write(0, [data])
        file.sync()
    disk.rename(fresh, path)
    disk.sync_directory(directory)
    return path.rpartition("/")[2]


def is_kept(disk: Disk, directory: str, number: int, offset: int, data: bytes) -> bool:
    """Returns whether ``keep_cut`` has already kept exactly these bytes of segment ``number`` at ``offset``."""
    path = name = f"{directory}/{cut_name(number, offset)}"
    tried = 0
    while disk.exists(name):
        if _read(disk, name) == data:
            return True
        tried += 1
        name = f"{path}.{tried}"
    return False


def free_name(disk: Disk, path: str) -> str:
    """Returns ``path`` if it is free, or else ``path`` with the first free number appended."""
    if not disk.exists(path):
        return path
    number = 1
    while disk.exists(f"{path}.{number}"):
        number += 1
    return f"{path}.{number}"


def _read(disk: Disk, path: str) -> bytes:
    with closing(disk.open(path)) as file:
        return file.read(0, min(file.size(), SEGMENT_BYTES_MAX))
