"""A directory of files that a consumer makes, each published whole and once, whatever ends at whatever moment.

    NAME.FIRST.part      a file that is being made, from VLSN FIRST on
    NAME.FIRST.open      one that has events already, and takes more
    NAME.state           what was published last: the file, the part that it was, the position behind it
    NAME.lock            one process at a time

A file is published so; each step is durable before the next one:

1. The part and its name.
2. The state: a new file, renamed over the old one.  *Commit point*: the position is behind the file now.
3. The part is renamed to the file's name, in any folder below.

    cut before 2             the part is no file, and goes; its events are given again
    cut between 2 and 3      the state says which part is which file: the next start renames it
"""

from __future__ import annotations

import errno
import posixpath
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import msgspec

from repl.cdc.consumer import CdcContext, CdcUnavailable
from vlsn.errors import BadArgument, Damaged, LogInUse
from vlsn.format.checksum import crc
from vlsn.ids import NUMBER_MAX
from vlsn.limits import KIB
from vlsn.seams import DirectoryLock, Disk, File

STATE_BYTES_MAX: Final = 64 * KIB
PART: Final = "part"
OPEN: Final = "open"
FULL: Final = (errno.ENOSPC, errno.EDQUOT)


class Published(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The file that was published last and the part that it was, empty for none, and the position behind it;
    ``moved_us``: the last order of a person that was obeyed (``CdcContext.moved_us``)."""

    group: str
    consumer: str
    next: int
    term: int
    part: str
    file: str
    moved_us: int = 0


@contextmanager
def room(directory: str) -> Iterator[None]:
    """Turns a disk that is full, and a directory that another process has, into ``CdcUnavailable``."""
    try:
        yield
    except LogInUse as error:
        raise CdcUnavailable(f"{directory}: another process writes there: {error}") from None
    except OSError as error:
        if error.errno in FULL:
            raise CdcUnavailable(f"{directory}: {error}") from None
        raise


class Folder:
    """The files of one consumer in one directory.  ``open`` comes first; ``close`` lets go of the lock."""

    def __init__(self, disk: Disk, directory: str, *, group: str, consumer: str) -> None:
        self.published: Published | None = None
        self._disk = disk
        self._directory = directory
        self._group = group
        self._consumer = consumer
        self._lock: DirectoryLock | None = None

    def open(self) -> None:
        """Takes the directory, made where it is missing, and puts the file published last in its place. Raises
        ``LogInUse`` where another process has it, ``Damaged``, ``BadArgument`` for another group's."""
        self._make("")
        self._lock = self._disk.lock(self._path(f"{self._consumer}.lock"))
        self.published = state = self._read_state()
        if state is not None:
            if state.group != self._group:
                raise BadArgument(
                    f"options: directory: {self._directory} has files of group {state.group}, this is {self._group}"
                )
            if state.part and self.exists(state.part):
                self._put(state)
        for first in self.unfinished(PART):
            self.remove(self.name_of(first, PART))

    def close(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.release()

    def name_of(self, first: int, kind: str) -> str:
        """Returns the name of an unfinished file that begins at VLSN ``first``."""
        return f"{self._consumer}.{first:020}.{kind}"

    def unfinished(self, kind: str) -> list[int]:
        """Lists the VLSNs at which unfinished files begin."""
        wanted = re.compile(re.escape(self._consumer) + rf"\.(\d{{20}})\.{kind}\Z")
        return [int(found[1]) for name in self._disk.list(self._directory) if (found := wanted.match(name))]

    def exists(self, name: str) -> bool:
        return self._disk.exists(self._path(name))

    def file(self, name: str, *, create: bool = False) -> File:
        """Opens a file to write; its name is durable once a file is published, or by ``sync``."""
        return self._disk.open(self._path(name), write=True, create=create)

    def remove(self, name: str) -> None:
        """Removes a file if it is there."""
        if self.exists(name):
            self._disk.remove(self._path(name))

    def replace(self, name: str, by: str) -> None:
        """Renames ``name`` to ``by``, over what is there, durably."""
        self._disk.rename(self._path(name), self._path(by))
        self.sync()

    def sync(self) -> None:
        """Makes the names in the directory durable."""
        self._disk.sync_directory(self._directory)

    def publish(self, part: str, file: str, *, next_vlsn: int, term: int) -> None:
        """Publishes ``part``, which is synced, as ``file``; the position is ``next_vlsn`` from its commit point on.
        Raises ``BadArgument`` where that file is there."""
        if self.exists(file):
            raise BadArgument(f"{self._path(file)} is there already; put it away")
        self.sync()
        state = Published(self._group, self._consumer, next_vlsn, term, part, file, self._obeyed_us())
        self._store(state)
        self._put(state)

    def is_moved(self, context: CdcContext) -> bool:
        """Says whether a person has moved the consumer by an order that was not obeyed here yet."""
        return context.moved and (not context.moved_us or context.moved_us != self._obeyed_us())

    def move(self, context: CdcContext) -> None:
        """Sets the position that it was told, and obeys its order with that, durable on return; what was published
        stays."""
        order_us = context.moved_us if context.moved else self._obeyed_us()
        self._store(
            Published(self._group, self._consumer, context.next, context.position_term, "", "", moved_us=order_us)
        )

    def _obeyed_us(self) -> int:
        return self.published.moved_us if self.published is not None else 0

    def _store(self, state: Published) -> None:
        body = msgspec.json.encode(state)
        new = f"{self._consumer}.state.new"
        self.remove(new)
        written = self.file(new, create=True)
        try:
            written.write(0, [body, b"\n%08x\n" % crc(body)])
            written.sync()
        finally:
            written.close()
        self._disk.rename(self._path(new), self._path(f"{self._consumer}.state"))
        self.sync()
        self.published = state

    def _put(self, state: Published) -> None:
        """Gives the part its name as a file, durably."""
        folder = posixpath.dirname(state.file)
        if folder:
            self._make(folder)
        self._disk.rename(self._path(state.part), self._path(state.file))
        if folder:
            self._disk.sync_directory(self._path(folder))
        self.sync()

    def _read_state(self) -> Published | None:
        path = self._path(f"{self._consumer}.state")
        if not self._disk.exists(path):
            return None
        file = self._disk.open(path)
        try:
            data = file.read(0, STATE_BYTES_MAX)
        finally:
            file.close()
        body, _, rest = data.partition(b"\n")
        try:
            if rest != b"%08x\n" % crc(body):
                raise ValueError("its checksum is wrong")
            state = msgspec.json.decode(body, type=Published)
            if not 1 <= state.next <= NUMBER_MAX or not 0 <= state.term <= NUMBER_MAX:
                raise ValueError(f"no position: {state.next} behind term {state.term}")
            return state
        except (ValueError, msgspec.MsgspecError) as error:
            raise Damaged(f"{path}: {error}; it says which events the files here have") from None

    def _make(self, folder: str) -> None:
        """Makes a folder with its parents, their names durable."""
        missing: list[str] = []
        path = self._path(folder)
        while not self._disk.exists(path):
            missing.append(path)
            path = posixpath.dirname(path)
        if missing:
            self._disk.make_directory(missing[0])
            for each in missing:
                self._disk.sync_directory(posixpath.dirname(each))

    def _path(self, name: str) -> str:
        return posixpath.join(self._directory, name) if name else self._directory
