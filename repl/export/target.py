"""Targets: the place that an export writes to, with the few operations that its protocol needs.

    name                     a path within the target, parts joined by "/"
    new_file, create, …      durable, or whole, when they return
    publish                  makes a staged file visible under its final name in one step

A directory of this machine is written through the disk interface (``LocalTarget``), an object store through fsspec
(``repl/export/objects.py``). A target is sent to the tasks, and each task opens its own files and connections.
"""

from __future__ import annotations

from typing import Final

from repl.export.manifest import FOLDER, MANIFEST_BYTES_MAX, BadTarget, Fenced
from repl.files.directory import Directory
from vlsn.errors import LogInUse
from vlsn.real.disk import PosixDisk
from vlsn.seams import Disk

PART: Final = ".part"
"""The ending of files before they have their final name. Readers' patterns (*.parquet, *.jsonl, *.json) do not match
it."""
LOCK: Final = "_lock"
STAGED: Final = "_staged"
"""The folder in an object store for all staged files. One folder makes listing them cheap."""


class LocalTarget(Directory):
    """A directory as a target. A staged file is in the folder of its final name, so one rename publishes it. After a
    power cut the file has one of the two names, on any file system that keeps names."""

    def __init__(self, path: str, text: str = "", disk: Disk | None = None) -> None:
        super().__init__(disk if disk is not None else PosixDisk(), path)
        self.text = text or path

    def __reduce__(self) -> tuple[type[LocalTarget], tuple[str, str]]:
        return LocalTarget, (self.path, self.text)

    def lock(self) -> None:
        """Locks the target for this process, if the kind of target has locks. Raises ``Fenced``."""
        self.make()
        try:
            self.hold(LOCK)
        except LogInUse:
            raise Fenced(
                f"{self.text}: another export writes there now; stop it first, or choose another --to"
            ) from None

    def names(self, folder: str = "") -> list[str]:
        try:
            return super().names(folder)
        except NotADirectoryError:
            if folder:
                return []  # a file, whose name looks like a partition's folder
            raise BadTarget(f"{self.text}: is no directory") from None

    def read(self, name: str, bytes_max: int = MANIFEST_BYTES_MAX) -> bytes:
        """Reads a manifest completely. Raises ``FileNotFoundError``."""
        return super().read(name, bytes_max)

    def create(self, name: str, data: bytes) -> bool:
        """Creates ``name`` with the content ``data``, durable on return. If the name exists, changes nothing and
        returns False."""
        if self.exists(name):
            return False
        # the rename in ``replace`` is the commit point; the lock excludes other processes
        self.replace(name, name + PART, [data])
        return True

    def staged_name(self, directory: str, exporter: str, unique: str) -> str:
        """Returns the path at which a file for the folder ``directory`` (empty: the target itself) is staged."""
        return f"{directory}/_{unique}{PART}" if directory else f"_{unique}{PART}"

    def size(self, name: str) -> int | None:
        """Returns the bytes of a file, or None if it is missing."""
        try:
            file = self.file(name)
        except FileNotFoundError:
            return None
        try:
            return file.size()
        finally:
            file.close()

    def publish(self, staged: str, name: str) -> None:
        """Gives a staged file its final name, in one step for readers. A repeated call has no effect. Raises
        ``FileNotFoundError`` if the file has neither name."""
        try:
            self.rename(staged, name)
        except FileNotFoundError:
            if not self.exists(name):
                raise

    def staged(self) -> list[str]:
        """Lists the staged files of all exporters."""
        found = []
        for entry in self.names():
            if entry.endswith(PART):
                found.append(entry)
            elif "=" in entry or entry == FOLDER:
                found += [f"{entry}/{name}" for name in self.names(entry) if name.endswith(PART)]
        return found
