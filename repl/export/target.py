"""Targets: where an export writes, as few operations as its protocol needs.

    name                     a path within the target, parts joined by "/"
    new_file, create, …      durable, or whole, when they return
    publish                  a staged file is seen under its final name, whole, from one moment on

A directory of this machine is written through the disk's seam (``LocalTarget``), an object store through fsspec
(``repl/export/objects.py``).
"""

from __future__ import annotations

import os
from typing import Final, Protocol

from repl.export.manifest import FOLDER, MANIFEST_BYTES_MAX, BadTarget, Fenced
from vlsn.errors import LogInUse
from vlsn.real.disk import PosixDisk
from vlsn.seams import Buffer, DirectoryLock, Disk, File

PART: Final = ".part"
"""The ending of what is not in place yet: no reader's pattern (*.parquet, *.jsonl, *.json) takes it."""
LOCK: Final = "_lock"
STAGED: Final = "_staged"
"""The folder of an object store in which staged files lie: a name there costs nothing to list."""


class Output(Protocol):
    """A new file that is written from its start."""

    def write(self, data: Buffer) -> None: ...

    def close(self) -> None:
        """Ends the file: durable, and whole, on return."""
        ...

    def abandon(self) -> None:
        """Ends it without a promise, and removes it as far as that is possible."""
        ...


class Target(Protocol):
    """One directory or prefix.  A value that travels to the tasks; whatever it opens, it opens there."""

    @property
    def text(self) -> str:
        """The target as the user gave it."""
        ...

    def lock(self) -> None:
        """Holds the target for this process, where the store can. Raises ``Fenced``."""
        ...

    def release(self) -> None: ...

    def entries(self) -> list[str]:
        """Lists the names right below the target; none where it is not there."""
        ...

    def manifests(self) -> list[str]:
        """Lists the names below ``_manifests``, every one that was created before the call."""
        ...

    def read(self, name: str) -> bytes:
        """Reads a whole manifest. Raises ``FileNotFoundError``."""
        ...

    def create(self, name: str, data: bytes) -> bool:
        """Creates ``name`` with all of ``data``, durable on return; False, and nothing changed, where it is there."""
        ...

    def staged_name(self, directory: str, exporter: str, unique: str) -> str:
        """Returns where a file that will lie in ``directory`` (empty: in the target itself) is written first."""
        ...

    def new_file(self, name: str) -> Output: ...

    def sync(self, names: list[str]) -> None:
        """Makes these names durable, as far as their files are."""
        ...

    def size(self, name: str) -> int | None:
        """Returns the bytes of a file; None where there is none."""
        ...

    def publish(self, staged: str, name: str) -> None:
        """Gives a staged file its name, in one step for readers; again is harmless once it is in place. Raises
        ``FileNotFoundError`` where neither is there."""
        ...

    def staged(self) -> list[str]:
        """Lists the staged files of all exporters."""
        ...

    def remove(self, name: str) -> None:
        """Removes a file, or nothing where there is none."""
        ...


class LocalTarget:
    """A directory.  A staged file lies beside its place, so that a rename within one directory puts it there: a power
    cut leaves one name or the other, never none, on any file system that keeps names."""

    def __init__(self, path: str, text: str = "", disk: Disk | None = None) -> None:
        self._path = path
        self._text = text or path
        self._disk: Disk = disk if disk is not None else PosixDisk()
        self._lock: DirectoryLock | None = None

    def __reduce__(self) -> tuple[type[LocalTarget], tuple[str, str]]:
        return LocalTarget, (self._path, self._text)

    @property
    def text(self) -> str:
        return self._text

    def lock(self) -> None:
        self._make_self()
        try:
            self._lock = self._disk.lock(f"{self._path}/{LOCK}")
        except LogInUse:
            raise Fenced(
                f"{self._text}: another export writes there now; stop it first, or choose another --to"
            ) from None

    def release(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.release()

    def entries(self) -> list[str]:
        return self._list("")

    def manifests(self) -> list[str]:
        return self._list(FOLDER)

    def read(self, name: str) -> bytes:
        file = self._disk.open(self._of(name))
        try:
            return file.read(0, min(file.size(), MANIFEST_BYTES_MAX))
        finally:
            file.close()

    def create(self, name: str, data: bytes) -> bool:
        self._make_parents(name)
        path = self._of(name)
        if self._disk.exists(path):
            return False
        temporary = path + PART
        self._remove(temporary)
        file = self._disk.open(temporary, create=True)
        try:
            file.write(0, [data])
            file.sync()
        finally:
            file.close()
        self._disk.rename(temporary, path)  # the commit point; alone, by the lock
        self.sync([name])
        return True

    def staged_name(self, directory: str, exporter: str, unique: str) -> str:
        return f"{directory}/_{unique}{PART}" if directory else f"_{unique}{PART}"

    def new_file(self, name: str) -> Output:
        self._make_parents(name)
        return _LocalOutput(self._disk, self._of(name))

    def sync(self, names: list[str]) -> None:
        directories = {directory for name in names for directory in _parents(name)}
        for directory in sorted(directories, key=len, reverse=True):
            self._disk.sync_directory(self._of(directory))

    def size(self, name: str) -> int | None:
        try:
            file = self._disk.open(self._of(name))
        except FileNotFoundError:
            return None
        try:
            return file.size()
        finally:
            file.close()

    def publish(self, staged: str, name: str) -> None:
        try:
            self._disk.rename(self._of(staged), self._of(name))
        except FileNotFoundError:
            if not self._disk.exists(self._of(name)):
                raise

    def staged(self) -> list[str]:
        found = []
        for entry in self._list(""):
            if entry.endswith(PART):
                found.append(entry)
            elif "=" in entry or entry == FOLDER:
                found += [f"{entry}/{name}" for name in self._list(entry) if name.endswith(PART)]
        return found

    def remove(self, name: str) -> None:
        self._remove(self._of(name))

    def _of(self, name: str) -> str:
        return f"{self._path}/{name}" if name else self._path

    def _list(self, name: str) -> list[str]:
        try:
            return self._disk.list(self._of(name))
        except FileNotFoundError:
            return []
        except NotADirectoryError:
            if name:
                return []  # a file whose name looks like a partition's
            raise BadTarget(f"{self._text}: is no directory") from None

    def _make_self(self) -> None:
        missing, path = [], self._path
        while not self._disk.exists(path) and os.path.dirname(path) != path:
            missing.append(path)
            path = os.path.dirname(path)
        if missing:
            self._disk.make_directory(self._path)
            for path in missing:
                self._disk.sync_directory(os.path.dirname(path))

    def _make_parents(self, name: str) -> None:
        parent = self._of(_parent(name))
        if not self._disk.exists(parent):
            self._disk.make_directory(parent)

    def _remove(self, path: str) -> None:
        try:
            self._disk.remove(path)
        except FileNotFoundError:
            pass


class _LocalOutput:
    def __init__(self, disk: Disk, path: str) -> None:
        self._disk, self._path, self._at = disk, path, 0
        self._file: File = disk.open(path, create=True)

    def write(self, data: Buffer) -> None:
        self._file.write(self._at, [data])
        self._at += len(data)

    def close(self) -> None:
        try:
            self._file.sync()
        finally:
            self._file.close()

    def abandon(self) -> None:
        self._file.close()
        try:
            self._disk.remove(self._path)
        except OSError:
            pass  # the next start removes it


def _parent(name: str) -> str:
    return name.rpartition("/")[0]


def _parents(name: str) -> list[str]:
    """Lists the directories above a name, up to the target itself."""
    found, parent = [], _parent(name)
    while parent:
        found.append(parent)
        parent = _parent(parent)
    return [*found, ""]
