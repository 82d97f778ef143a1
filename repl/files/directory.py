"""A directory of files. Wherever a process is stopped, a file with its final name is complete.

new file, written, synced ─► renamed to its final name ─► names synced up to the directory     one step for readers
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from vlsn.seams import Buffer, DirectoryLock, Disk, File


class Directory:
    """The files below ``path``. The parts of a file's name are joined by ``/``. ``close`` releases the directory's
    lock."""

    def __init__(self, disk: Disk, path: str) -> None:
        self.path = path
        self._disk = disk
        self._lock: DirectoryLock | None = None

    def make(self, folder: str = "") -> None:
        """Creates a folder and its parents; their names are durable on return. Does nothing if the folder exists."""
        missing, path = [], self.path_of(folder)
        while not self._disk.exists(path) and os.path.dirname(path) != path:
            missing.append(path)
            path = os.path.dirname(path)
        if missing:
            self._disk.make_directory(missing[0])
            for each in missing:
                self._disk.sync_directory(os.path.dirname(each))

    def hold(self, name: str) -> None:
        """Locks the directory for this process, by a lock on the file ``name``. Raises ``LogInUse``."""
        self._lock = self._disk.lock(self.path_of(name))

    def close(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.release()

    def names(self, folder: str = "") -> list[str]:
        """Lists the names in a folder; empty if the folder is missing."""
        try:
            return self._disk.list(self.path_of(folder))
        except FileNotFoundError:
            return []

    def exists(self, name: str) -> bool:
        return self._disk.exists(self.path_of(name))

    def file(self, name: str, *, create: bool = False) -> File:
        """Opens a file for writing. Raises ``FileNotFoundError``."""
        return self._disk.open(self.path_of(name), write=True, create=create)

    def read(self, name: str, bytes_max: int) -> bytes:
        """Reads a file, at most its first ``bytes_max`` bytes. Raises ``FileNotFoundError``."""
        file = self._disk.open(self.path_of(name))
        try:
            return file.read(0, min(file.size(), bytes_max))
        finally:
            file.close()

    def new_file(self, name: str) -> NewFile:
        """Creates a file, and its folder if that is missing. Raises ``FileExistsError``."""
        self.make(os.path.dirname(name))
        return NewFile(self, name)

    def write(self, name: str, pieces: Iterable[Buffer]) -> None:
        """Writes a file anew, and creates its folder if that is missing. On return the contents are synced, but not the
        name."""
        self.make(os.path.dirname(name))
        if self.exists(name):
            self.remove(name)
        file, at = self.file(name, create=True), 0
        try:
            for piece in pieces:
                file.write(at, [piece])
                at += len(piece)
            file.sync()
        finally:
            file.close()

    def replace(self, name: str, beside: str, pieces: Iterable[Buffer]) -> None:
        """Replaces or creates a file. The file is durable on return, and other processes never see it half written.
        Until it is complete, the file has the name ``beside``."""
        self.write(beside, pieces)
        self.rename(beside, name)
        self.sync(name)

    def rename(self, name: str, to: str) -> None:
        """Renames a file, and replaces any file with the new name. Raises ``FileNotFoundError``."""
        self._disk.rename(self.path_of(name), self.path_of(to))

    def remove(self, name: str) -> None:
        """Removes a file. Does nothing if it does not exist."""
        try:
            self._disk.remove(self.path_of(name))
        except FileNotFoundError:
            pass

    def sync(self, *names: str) -> None:
        """Makes the names of files, and of their folders, durable."""
        folders = {""}
        for name in names:
            while name := os.path.dirname(name):
                folders.add(name)
        for folder in sorted(folders, key=len, reverse=True):
            self._disk.sync_directory(self.path_of(folder))

    def path_of(self, name: str) -> str:
        return os.path.join(self.path, name) if name else self.path


class NewFile:
    """A new file that is written sequentially from its beginning."""

    def __init__(self, directory: Directory, name: str) -> None:
        self._directory, self._name, self._at = directory, name, 0
        self._file = directory.file(name, create=True)

    def write(self, data: Buffer) -> None:
        self._file.write(self._at, [data])
        self._at += len(data)

    def close(self) -> None:
        """Closes the file. On return the contents are complete and durable, but the file's name is not durable."""
        try:
            self._file.sync()
        finally:
            self._file.close()

    def abandon(self) -> None:
        """Closes the file and removes it, as far as possible."""
        self._file.close()
        try:
            self._directory.remove(self._name)
        except OSError:
            pass  # if the file remains, the next start removes it
