"""The real disk: POSIX calls, one for one, without decisions.

Linux only: ``pwritev``, ``fdatasync``, ``fallocate``, open-file-description locks.  Every failure but a close's is the
``OSError`` of the call; nothing is retried, logged or remembered here.  A file is used by one thread at a
time, or by many that only read.

The lock is an ``F_OFD_SETLK`` write lock on the whole file, not ``flock``: its holder can be *asked for*
(``F_OFD_GETLK``), so that a look at a directory never gets in the way of a node that starts just then.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Sequence
from contextlib import suppress
from struct import Struct

from vlsn.errors import LogInUse
from vlsn.seams import Buffer

IOV_MAX = os.sysconf("SC_IOV_MAX")
READ_MAX = 0x7FFF_F000
"""Linux moves no more than this in one call."""
_FLOCK = Struct("@hhqqi4x")  # struct flock: type, whence, start, len, pid


class PosixFile:
    """One open descriptor; closed twice is closed once, used after that is ``EBADF``."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def read(self, offset: int, size: int) -> bytes:
        data = os.pread(self._fd, size, offset)
        if len(data) == size or not data:
            return data
        parts, got = [data], len(data)
        while got < size and (data := os.pread(self._fd, min(size - got, READ_MAX), offset + got)):
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def read_into(self, offset: int, into: memoryview) -> int:
        got = 0
        while got < len(into) and (more := os.preadv(self._fd, [into[got:]], offset + got)):
            got += more
        return got

    def write(self, offset: int, buffers: Sequence[Buffer]) -> None:
        if len(buffers) <= IOV_MAX:
            written = os.pwritev(self._fd, buffers, offset)
            if written == sum(map(len, buffers)):
                return
        self._write_in_pieces(offset, [memoryview(buffer).cast("B") for buffer in buffers if len(buffer)])

    def sync(self) -> None:
        os.fdatasync(self._fd)

    def allocate(self, size: int) -> None:
        if size:
            os.posix_fallocate(self._fd, 0, size)

    def drop_cache(self) -> None:
        os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with suppress(OSError):  # of a write that nobody has synced, and so nobody counts on
                os.close(fd)

    def _write_in_pieces(self, offset: int, views: list[memoryview]) -> None:
        """From the start, in as many calls as it takes: too many buffers, or the kernel stopped early."""
        at = 0
        while at < len(views):
            written = os.pwritev(self._fd, views[at : at + IOV_MAX], offset)
            if written == 0:
                raise OSError(errno.EIO, "pwritev wrote nothing")
            offset += written
            while written:
                if written < len(views[at]):
                    views[at] = views[at][written:]
                    break
                written -= len(views[at])
                at += 1


class PosixLock:
    __slots__ = ("_file",)

    def __init__(self, file: PosixFile) -> None:
        self._file = file

    def release(self) -> None:
        self._file.close()


class PosixDisk:
    """The machine's file systems."""

    def open(self, path: str, *, write: bool = False, create: bool = False) -> PosixFile:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL if create else os.O_RDWR if write else os.O_RDONLY
        return PosixFile(os.open(path, flags | os.O_CLOEXEC, 0o644))

    def list(self, directory: str) -> list[str]:
        return sorted(os.listdir(directory))

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def make_directory(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)

    def rename(self, old: str, new: str) -> None:
        os.rename(old, new)

    def remove(self, path: str) -> None:
        os.unlink(path)

    def sync_directory(self, directory: str) -> None:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def free_bytes(self, directory: str) -> int:
        found = os.statvfs(directory)
        return found.f_bavail * found.f_frsize

    def lock(self, path: str) -> PosixLock:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
        except OSError as error:
            os.close(fd)
            if error.errno in (errno.EAGAIN, errno.EACCES):
                raise LogInUse(f"{path} is locked: another process has this directory open; stop it first") from None
            raise
        return PosixLock(PosixFile(fd))

    def is_locked(self, path: str) -> bool:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            return int(_FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_OFD_GETLK, asked))[0]) != fcntl.F_UNLCK
        finally:
            os.close(fd)
