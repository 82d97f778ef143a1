"""The real disk: each method makes one POSIX call, and makes no decisions.

The calls exist on Linux only: ``pwritev``, ``fdatasync``, ``fallocate``, open-file-description locks. Every failure,
except that of a close, is raised as the call's ``OSError``. Nothing is retried, logged or remembered here. Several
threads may read a file at once, but a thread that writes must be the only one to use the file.

The lock of a directory is an ``F_OFD_SETLK`` write lock on the whole lock file. In contrast to a ``flock`` lock, an
``F_OFD_SETLK`` lock can be *queried* (``F_OFD_GETLK``) without being acquired. So a query never disturbs a node that is
just starting.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from struct import Struct

from vlsn.errors import LogInUse
from vlsn.real.regular_files import open_regular
from vlsn.seams import Buffer

IOV_MAX = os.sysconf("SC_IOV_MAX")
READ_MAX = 0x7FFF_F000
"""The most bytes that Linux transfers in one call."""
STAT_BLOCK_BYTES = 512
KEEP_SIZE, PUNCH_HOLE = 1, 2
_fallocate = ctypes.CDLL(None, use_errno=True).fallocate
"""The C function is used because Python's own ``posix_fallocate`` has no mode argument."""
_fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
_FLOCK = Struct("@hhqqi4x")  # the C struct flock: type, whence, start, len, pid


class PosixFile:
    """One open file descriptor. Closing the descriptor twice does no harm, and using it after that raises ``EBADF``."""

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

    def allocated(self) -> int:
        return os.fstat(self._fd).st_blocks * STAT_BLOCK_BYTES

    def punch(self, offset: int, size: int) -> None:
        if _fallocate(self._fd, PUNCH_HOLE | KEEP_SIZE, offset, size):
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))

    def protection(self) -> tuple[int, int]:
        found = os.fstat(self._fd)
        return stat.S_IMODE(found.st_mode), found.st_uid

    def drop_cache(self) -> None:
        os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with suppress(OSError):  # an error here would be that of an unsynced write, on which nothing depends
                os.close(fd)

    def _write_in_pieces(self, offset: int, views: list[memoryview]) -> None:
        """Writes all ``views`` from the start, in as many calls as needed. The method is used if there are too many
        buffers for one call, or if the kernel has written only a part."""
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


class _Held:
    """A directory that is kept open, so that it may be renamed meanwhile. The directory is closed when its last user
    closes it."""

    def __init__(self, directory: str) -> None:
        self.fd = os.open(directory or "/", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._process = os.getpid()
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                raise LogInUse(
                    f"{directory} is locked: another process has it open, though its lock file is gone; stop it first"
                ) from None
            if error.errno not in _NO_FLOCK:
                raise

    def unlock(self) -> None:
        """Releases the lock. The lock belongs to the descriptor, not to the process, so a forked child does not release
        its parent's lock."""
        if os.getpid() == self._process:
            fcntl.flock(self.fd, fcntl.LOCK_UN)

    def __del__(self) -> None:
        with suppress(AttributeError, OSError):
            os.close(self.fd)


_NO_FLOCK = errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.EOPNOTSUPP
"""The errors of a file system (NFS) that cannot lock directories. On a file system that cannot lock directories, the
lock file is the only lock."""


class PosixLock:
    __slots__ = ("_directory", "_file", "_held", "_path")

    def __init__(self, held: dict[str, _Held], path: str, directory: _Held, file: PosixFile) -> None:
        self._held, self._path = held, path
        self._directory: _Held | None = directory
        self._file = file
        held[path] = directory

    def release(self) -> None:
        directory, self._directory = self._directory, None
        if directory is not None:
            del self._held[self._path]
            directory.unlock()
        self._file.close()


class PosixDisk:
    """The file systems of the machine. A directory that is locked through this object is kept open. Until the lock is
    released, names in the directory are looked up through its open descriptor, even if the directory or the process's
    working directory is moved."""

    def __init__(self) -> None:
        self._held: dict[str, _Held] = {}

    def open(self, path: str, *, write: bool = False, create: bool = False, private: bool = False) -> PosixFile:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL if create else os.O_RDWR if write else os.O_RDONLY
        held = self._of(path)
        return PosixFile(open_regular(path, flags, 0o600 if private else 0o644, dir_fd=_fd(held)))

    def list(self, directory: str) -> list[str]:
        held = self._held.get(directory)
        return sorted(os.listdir(held.fd if held is not None else directory))

    def exists(self, path: str) -> bool:
        if (held := self._of(path)) is None:
            return os.path.lexists(path)
        try:
            os.stat(_name(path), dir_fd=held.fd, follow_symlinks=False)
        except OSError:
            return False
        return True

    def make_directory(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)

    def rename(self, old: str, new: str) -> None:
        source, target = self._of(old), self._of(new)
        os.rename(
            old if source is None else _name(old),
            new if target is None else _name(new),
            src_dir_fd=_fd(source),
            dst_dir_fd=_fd(target),
        )

    def link(self, old: str, new: str) -> None:
        source, target = self._of(old), self._of(new)
        os.link(
            old if source is None else _name(old),
            new if target is None else _name(new),
            src_dir_fd=_fd(source),
            dst_dir_fd=_fd(target),
            follow_symlinks=False,
        )

    def remove(self, path: str) -> None:
        held = self._of(path)
        os.unlink(path if held is None else _name(path), dir_fd=_fd(held))

    def sync_directory(self, directory: str) -> None:
        if (held := self._held.get(directory)) is not None:
            os.fsync(held.fd)
            return
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def free_bytes(self, directory: str) -> int:
        held = self._held.get(directory)
        found = os.statvfs(held.fd if held is not None else directory)
        return found.f_bavail * found.f_frsize

    def lock(self, path: str) -> PosixLock:
        """Acquires two locks: one on the lock file, which older releases check, and one on the directory, since the
        lock file can be removed."""
        directory = os.path.dirname(path)
        try:
            fd = open_regular(path, os.O_RDWR)
        except FileNotFoundError:
            fd = open_regular(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)
        file = PosixFile(fd)
        try:
            fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
            held = _Held(directory)
        except OSError as error:
            file.close()
            if error.errno in (errno.EAGAIN, errno.EACCES):
                raise LogInUse(f"{path} is locked: another process has this directory open; stop it first") from None
            raise
        except LogInUse:
            file.close()
            raise
        return PosixLock(self._held, directory, held, file)

    def _of(self, path: str) -> _Held | None:
        """Returns the directory that contains ``path``, if this object keeps it open, else None."""
        return self._held.get(os.path.dirname(path)) if self._held else None

    def is_locked(self, path: str) -> bool:
        try:
            fd = open_regular(path, os.O_RDONLY)
        except FileNotFoundError:
            return _is_flocked(os.path.dirname(path))
        try:
            asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            held = int(_FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_OFD_GETLK, asked))[0]) != fcntl.F_UNLCK
        finally:
            os.close(fd)
        return held or _is_flocked(os.path.dirname(path))


def _fd(held: _Held | None) -> int | None:
    return held.fd if held is not None else None


def _name(path: str) -> str:
    return os.path.basename(path)


def _is_flocked(directory: str) -> bool:
    """Returns whether the kernel lists a lock on the directory. An attempt to acquire the lock might make a process
    fail that is just starting."""
    try:
        found = os.stat(directory or ".")
        with open("/proc/locks", encoding="ascii") as locks:
            listed = locks.read()
    except OSError:
        return False
    place = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    return any(" FLOCK " in line and place in line.split() for line in listed.splitlines())
