"""Opens regular files only. Anything else in the place of a file is refused at once, with an error that has its path.

Opening a FIFO could wait for ever, a device could be mistaken for a disk, and a directory would fail later and without
a name. A dangling symbolic link would look like a lost file. A link to a regular file is accepted.
"""

from __future__ import annotations

import errno
import os
import stat

from vlsn.errors import NoRegularFile

_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFDIR: "a directory",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFLNK: "a symbolic link that leads nowhere",
}


def open_regular(path: str, flags: int, mode: int = 0o644, *, dir_fd: int | None = None) -> int:
    """Opens a descriptor like ``os.open`` (it can also be the ``opener`` of ``open``), but never waits. Raises
    ``NoRegularFile``, or ``OSError`` like ``os.open``. With ``dir_fd``, the last part of ``path`` is looked up in the
    directory of that descriptor."""
    where = path if dir_fd is None else os.path.basename(path)
    try:
        descriptor = os.open(where, flags | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY, mode, dir_fd=dir_fd)
    except OSError as error:
        error.filename = path
        if error.errno != errno.EEXIST:
            check_regular(path, dir_fd=dir_fd)
        raise
    kind = stat.S_IFMT(os.fstat(descriptor).st_mode)
    if kind != stat.S_IFREG:
        os.close(descriptor)
        raise _refused(path, kind)
    return descriptor


def check_regular(path: str, *, dir_fd: int | None = None) -> bool:
    """Returns whether the file exists. Raises ``NoRegularFile`` if ``path`` is not a regular file, or if its directory
    is a dangling link."""
    try:
        kind = stat.S_IFMT(os.stat(path if dir_fd is None else os.path.basename(path), dir_fd=dir_fd).st_mode)
    except FileNotFoundError:
        for link in (path, os.path.dirname(path)):
            if os.path.islink(link) and not os.path.exists(link):
                raise _refused(link, stat.S_IFLNK) from None
        return False
    if kind != stat.S_IFREG:
        raise _refused(path, kind)
    return True


def _refused(path: str, kind: int) -> NoRegularFile:
    return NoRegularFile(f"{path} is {_KINDS.get(kind, 'something else')} where a regular file belongs: put it away")
