"""A real directory on a disk that counts its calls and stops the process at one of them.

The code under test runs on the machine's own file system and on LMDB.  A *process* here is everything opened since the
last ``process_kill``, which closes all of it, as the kernel does.  A kill loses nothing that was written: the fake disk
simulates power cuts.

    disk = StoppingDisk(PosixDisk())
    stores = StoppingStores(LmdbStores(), disk)
    disk.stop_at(17)             call 17 raises ``StopHere`` before it has any effect, every later one too
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from vlsn.seams import Buffer, DirectoryLock, Disk, File, KeyValue, Stores
from vlsnlog.testing.fakes.disk import Call, Moment, StopHere


class StoppingDisk:
    """Counts calls as ``FakeDisk`` does; ``calls`` has them."""

    def __init__(self, disk: Disk) -> None:
        self.calls: list[Call] = []
        self.stopped = False
        self._disk = disk
        self._stops: list[tuple[Callable[[Call], bool], Moment]] = []
        self._fail: Callable[[Call], bool] | None = None
        self._open: list[Callable[[], None]] = []

    def stop_at(self, when: int | Callable[[Call], bool], *, moment: Moment = "before") -> None:
        """Stops as ``FakeDisk``: ``during`` leaves the first half of a write."""
        self._stops.append(((lambda call: call.number == when) if isinstance(when, int) else when, moment))

    def fail_at(self, when: Callable[[Call], bool]) -> None:
        """Makes the next such call raise EIO, without an effect."""
        self._fail = when

    def process_kill(self) -> None:
        opened, self._open = self._open, []
        for close in reversed(opened):
            close()
        self.stopped = False
        self._stops.clear()
        self._fail = None

    def opened(self, close: Callable[[], None]) -> None:
        """Notes an open object of the process, which a kill closes; a second close has no effect."""
        self._open.append(close)

    # The Disk seam.

    def open(self, path: str, *, write: bool = False, create: bool = False, private: bool = False) -> File:
        with self.step("create" if create else "open", path):
            file = self._disk.open(path, write=write, create=create, private=private)
            self.opened(file.close)
            return StoppingFile(self, path, file)

    def list(self, directory: str) -> list[str]:
        with self.step("list", directory):
            return self._disk.list(directory)

    def exists(self, path: str) -> bool:
        with self.step("exists", path):
            return self._disk.exists(path)

    def make_directory(self, path: str) -> None:
        with self.step("make_directory", path):
            self._disk.make_directory(path)

    def rename(self, old: str, new: str) -> None:
        with self.step("rename", old):
            self._disk.rename(old, new)

    def link(self, old: str, new: str) -> None:
        with self.step("link", new):
            self._disk.link(old, new)

    def remove(self, path: str) -> None:
        with self.step("remove", path):
            self._disk.remove(path)

    def sync_directory(self, directory: str) -> None:
        with self.step("sync_directory", directory):
            self._disk.sync_directory(directory)

    def free_bytes(self, directory: str) -> int:
        with self.step("free_bytes", directory):
            return self._disk.free_bytes(directory)

    def lock(self, path: str) -> DirectoryLock:
        with self.step("lock", path):
            lock = self._disk.lock(path)
            self.opened(lock.release)
            return lock

    def is_locked(self, path: str) -> bool:
        with self.step("is_locked", path):
            return self._disk.is_locked(path)

    @contextmanager
    def step(self, name: str, path: str, offset: int = 0, size: int = 0) -> Iterator[Moment | None]:
        """Makes one call.  Yields ``during`` if only half of it must happen."""
        if self.stopped:
            raise StopHere("this process ended at an earlier disk call")
        call = Call(len(self.calls) + 1, name, path, offset, size)
        self.calls.append(call)
        moment = next((moment for when, moment in self._stops if when(call)), None)
        if moment == "before":
            self._end(call)
        if self._fail is not None and self._fail(call):
            self._fail = None
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        yield moment
        if moment is not None:
            self._end(call)

    def _end(self, call: Call) -> None:
        self.stopped = True
        raise StopHere(f"disk call {call.number}: {call.name} {call.path}")


class StoppingFile:
    def __init__(self, disk: StoppingDisk, path: str, file: File) -> None:
        self._disk, self._path, self._file = disk, path, file

    def size(self) -> int:
        with self._disk.step("size", self._path):
            return self._file.size()

    def protection(self) -> tuple[int, int, int]:
        with self._disk.step("protection", self._path):
            return self._file.protection()

    def protect(self, mode: int, owner: int, group: int) -> None:
        with self._disk.step("protect", self._path):
            self._file.protect(mode, owner, group)

    def stamp(self) -> tuple[int, ...]:
        with self._disk.step("stamp", self._path):
            return self._file.stamp()

    def read(self, offset: int, size: int) -> bytes:
        with self._disk.step("read", self._path, offset, size):
            return self._file.read(offset, size)

    def read_into(self, offset: int, into: memoryview) -> int:
        with self._disk.step("read", self._path, offset, len(into)):
            return self._file.read_into(offset, into)

    def write(self, offset: int, buffers: Sequence[Buffer]) -> None:
        data = b"".join(buffers)
        with self._disk.step("write", self._path, offset, len(data)) as moment:
            self._file.write(offset, [data[: len(data) // 2] if moment == "during" else data])

    def sync(self) -> None:
        with self._disk.step("sync", self._path):
            self._file.sync()

    def allocated(self) -> int:
        with self._disk.step("allocated", self._path):
            return self._file.allocated()

    def punch(self, offset: int, size: int) -> None:
        with self._disk.step("punch", self._path):
            self._file.punch(offset, size)

    def allocate(self, size: int) -> None:
        with self._disk.step("allocate", self._path, 0, size):
            self._file.allocate(size)

    def drop_cache(self) -> None:
        with self._disk.step("drop_cache", self._path):
            self._file.drop_cache()

    def close(self) -> None:
        """Closes the file; does nothing for an ended process."""
        self._file.close()


class StoppingStores:
    """Stores whose commits are calls of the disk."""

    def __init__(self, stores: Stores, disk: StoppingDisk) -> None:
        self._stores, self._disk = stores, disk

    def open(self, path: str, *, map_bytes: int, read_only: bool = False) -> KeyValue:
        store = self._stores.open(path, map_bytes=map_bytes, read_only=read_only)
        self._disk.opened(store.close)
        return StoppingStore(store, self._disk, path)

    def open_copy(self, path: str, *, map_bytes: int) -> KeyValue:
        return self._stores.open_copy(path, map_bytes=map_bytes)

    def exists(self, path: str) -> bool:
        return self._stores.exists(path)

    def set_aside(self, path: str) -> str:
        with self._disk.step("set_aside", path):
            return self._stores.set_aside(path)


class StoppingStore:
    def __init__(self, store: KeyValue, disk: StoppingDisk, path: str) -> None:
        self._store, self._disk, self._path = store, disk, path

    def get(self, key: bytes) -> bytes | None:
        return self._store.get(key)

    def at_or_before(self, key: bytes) -> tuple[bytes, bytes] | None:
        return self._store.at_or_before(key)

    def at_or_after(self, key: bytes) -> tuple[bytes, bytes] | None:
        return self._store.at_or_after(key)

    def items(self, start: bytes, end: bytes) -> list[tuple[bytes, bytes]]:
        return self._store.items(start, end)

    def keys(self, start: bytes, end: bytes) -> list[bytes]:
        return self._store.keys(start, end)

    def write(
        self,
        puts: Iterable[tuple[bytes, bytes]] = (),
        deletes: Sequence[bytes] = (),
        delete_ranges: Sequence[tuple[bytes, bytes]] = (),
    ) -> None:
        with self._disk.step("commit", self._path):
            self._store.write(puts, deletes, delete_ranges)

    def close(self) -> None:
        self._store.close()
